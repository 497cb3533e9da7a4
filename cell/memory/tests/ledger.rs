//! The heap's entries in the cell's report and ledger: memory pressure, and memory by activity.
#![allow(unsafe_code, reason = "the caller of a free owns the memory, which no type can check")]

mod common;

use common::{Arena, ThreadCores, heap_of};
use isola_abi::id::MAX_CORES;
use isola_abi::ledger::{ActivityRecord, ActivityReport, LEAST_SLOTS, Ledger};
use isola_abi::report::{CoreReport, MemoryPressure, Report};
use isola_memory::Heap;
use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::Ordering;

fn report() -> &'static Report {
    // SAFETY: a report consists of atomic integers and arrays of them, for which zero is a valid value.
    Box::leak(unsafe { Box::<Report<[CoreReport; MAX_CORES]>>::new_zeroed().assume_init() })
}

fn ledger() -> Ledger<'static> {
    let records = (0..LEAST_SLOTS).map(|_| ActivityRecord::default()).collect::<Vec<_>>();
    let counters = (0..2 * LEAST_SLOTS).map(|_| ActivityReport::default()).collect::<Vec<_>>();
    Ledger::new(records.leak(), counters.leak())
}

/// Returns the bytes of an activity on a core.
fn bytes(ledger: Ledger<'_>, core: usize, activity: usize) -> i64 {
    ledger.core(core)[activity].memory_bytes.load(Ordering::Relaxed).cast_signed()
}

/// Makes the thread a core that runs an activity.
fn run(report: &Report, core: usize, activity: u32) {
    ThreadCores::become_core(core);
    report.cores[core].activity.store(activity, Ordering::Relaxed);
}

fn all(ledger: Ledger<'_>) -> i64 {
    let counters = ledger.counters().iter();
    counters.map(|activity| activity.memory_bytes.load(Ordering::Relaxed).cast_signed()).sum()
}

/// Returns the bytes in objects and in cores' caches.
fn in_use(heap: &Heap<ThreadCores>) -> i64 {
    let figures = heap.statistics();
    (figures.object_bytes + figures.cached_bytes + figures.large_bytes) as i64
}

#[test]
fn memory_is_charged_to_the_activity_that_runs_when_a_batch_moves() {
    let (arena, report, ledger) = (Arena::new(8 << 20, 4096), report(), ledger());
    let heap = heap_of(&arena);
    ThreadCores::become_core(0);
    let layout = Layout::from_size_align(1024, 8).unwrap();
    // SAFETY: the sizes are not 0; objects are freed once.
    unsafe {
        let early = heap.alloc(layout);
        heap.report_to(report, ledger);
        assert_eq!(all(ledger), in_use(&heap), "memory in use before counts as well");
        let before = bytes(ledger, 0, 0);
        run(report, 0, 3);
        let objects: Vec<_> = (0..1000).map(|_| heap.alloc(layout)).collect();
        assert!((1_000 << 10..1_100 << 10).contains(&bytes(ledger, 0, 3)), "exact but for the core's cache");
        assert_eq!(bytes(ledger, 0, 0), before);
        run(report, 1, 4);
        objects.into_iter().for_each(|object| heap.dealloc(object, layout));
        heap.empty_cache();
        assert!(bytes(ledger, 1, 4) < -(1_000 << 10) + (100 << 10), "the freeing activity is credited");
        run(report, 0, 5);
        let large = Layout::from_size_align(100_000, 8).unwrap();
        let object = heap.alloc(large);
        assert_eq!(bytes(ledger, 0, 5), 25 * 4096, "large objects are charged at once");
        let object = heap.realloc(object, large, 200_000);
        assert_eq!(bytes(ledger, 0, 5), 49 * 4096);
        assert_eq!(all(ledger), in_use(&heap));
        heap.dealloc(object, Layout::from_size_align(200_000, 8).unwrap());
        assert_eq!(bytes(ledger, 0, 5), 0);
        heap.dealloc(early, layout);
    }
    assert_eq!(all(ledger), in_use(&heap));
}

/// Activities come and go on two cores, and free objects of each other, at random: the sum over all of them is the
/// memory that the heap has given out, at all times.
#[test]
fn the_memory_of_all_activities_is_all_memory_in_use() {
    let (arena, report, ledger) = (Arena::new(32 << 20, 4096), report(), ledger());
    let heap = heap_of(&arena);
    ThreadCores::become_core(0);
    heap.report_to(report, ledger);
    let mut random = fastrand::Rng::with_seed(3);
    let (mut objects, mut core) = (Vec::new(), 0);
    for step in 0..40_000 {
        if random.u32(..8) == 0 {
            core = random.usize(..2);
            run(report, core, random.u32(..LEAST_SLOTS as u32));
        }
        // The number of objects goes up and down.
        if random.u32(..100) < 45 + 10 * u32::from(step / 4_000 % 2 == 0) {
            let most = 1 << random.u32(4..18);
            let layout = Layout::from_size_align(random.usize(1..=most), 8).unwrap();
            // SAFETY: the size is not 0.
            let object = unsafe { heap.alloc(layout) };
            if !object.is_null() {
                objects.push((object, layout));
            }
        } else if !objects.is_empty() {
            let (object, layout) = objects.swap_remove(random.usize(..objects.len()));
            // SAFETY: each object is freed once.
            unsafe { heap.dealloc(object, layout) };
        }
        if step % 64 == 0 {
            note(&heap, [1 - core, core]);
            assert_eq!(all(ledger), in_use(&heap), "step {step}");
        }
    }
    // SAFETY: as above.
    objects.into_iter().for_each(|(object, layout)| unsafe { heap.dealloc(object, layout) });
    note(&heap, [1 - core, core]);
    assert_eq!(all(ledger), in_use(&heap));
}

/// Makes each of the cores note the fill of its cache, for the statistics. The last one runs on.
fn note(heap: &Heap<ThreadCores>, cores: [usize; 2]) {
    for core in cores {
        ThreadCores::become_core(core);
        heap.note();
    }
}

#[test]
fn an_invalid_activity_is_charged_nothing() {
    let (arena, report, ledger) = (Arena::new(1 << 20, 4096), report(), ledger());
    let heap = heap_of(&arena);
    heap.report_to(report, ledger);
    run(report, 0, u32::MAX);
    // SAFETY: the size is not 0.
    assert!(!unsafe { heap.alloc(Layout::new::<u64>()) }.is_null());
    let before = all(ledger);
    // The first number without a slot: the counters of the next core begin there.
    run(report, 0, LEAST_SLOTS as u32);
    // SAFETY: as above.
    assert!(!unsafe { heap.alloc(Layout::from_size_align(100_000, 8).unwrap()) }.is_null());
    // The report has records of cores for which the ledger has no counters.
    run(report, 2, 0);
    // SAFETY: as above.
    assert!(!unsafe { heap.alloc(Layout::from_size_align(100_000, 8).unwrap()) }.is_null());
    assert_eq!(all(ledger), before);
}

#[test]
fn the_report_shows_the_memory_pressure() {
    let (arena, report, ledger) = (Arena::new(32 << 20, 1 << 20), report(), ledger());
    let heap = heap_of(&arena);
    heap.report_to(report, ledger);
    let pressure = || MemoryPressure::from_u32(report.memory.pressure.load(Ordering::Relaxed)).unwrap();
    let chunk = Layout::from_size_align(1 << 18, 8).unwrap();
    let mut objects = Vec::new();
    let mut seen = Vec::new();
    loop {
        // SAFETY: the size is not 0.
        let object = unsafe { heap.alloc(chunk) };
        if object.is_null() {
            break;
        }
        objects.push(object);
        seen.push(pressure());
        assert_eq!(pressure(), heap.pages().pressure());
    }
    assert!(
        seen.is_sorted()
            && seen.ends_with(&[MemoryPressure::Critical])
            && seen.contains(&MemoryPressure::Low)
    );
    assert_eq!(seen.iter().filter(|level| **level > MemoryPressure::None).count(), 8, "less than 2 MiB free");
    // SAFETY: each object is freed once.
    objects.drain(..20).for_each(|object| unsafe { heap.dealloc(object, chunk) });
    assert_eq!(pressure(), MemoryPressure::None);
}
