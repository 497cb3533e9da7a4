//! The page allocator compared with a simple model.
#![allow(unsafe_code, reason = "the caller of a free owns the memory, which no type can check")]

mod common;

use common::Arena;
use isola_abi::id::NodeId;
use isola_memory::Pages;
use isola_memory::pages::{AddRangeError, KnownContents, MAX_RANGES, PAGE_SIZE};
use proptest::prelude::*;
use std::ptr::NonNull;

const PAGES: usize = 700;

fn pages_of(arenas: &[Arena]) -> Pages {
    let pages = Pages::new();
    for arena in arenas {
        // SAFETY: tests keep the arenas longer than the allocator.
        unsafe { pages.add_range(arena.start, arena.len_bytes()) }.unwrap();
    }
    pages
}

/// Returns, for each power of two from the largest down, how many runs of that length can be allocated after those
/// before.
fn profile(pages: &Pages) -> Vec<usize> {
    let mut runs = Vec::new();
    let mut profile = Vec::new();
    for order in (0..12).rev() {
        let len = 1 << order;
        let before = runs.len();
        runs.extend(std::iter::from_fn(|| pages.allocate(len, len)).map(|start| (start, len)));
        profile.push(runs.len() - before);
    }
    for (start, len) in runs {
        // SAFETY: it came from this allocator.
        unsafe { pages.free(start, len) };
    }
    profile
}

fn clear_some(pages: &Pages) -> bool {
    // SAFETY: the memory is free, and passed to be cleared.
    pages.clear_some(NodeId(0), |memory, len| unsafe { memory.write_bytes(0, len) })
}

/// An allocated run; each page has the run's mark at both ends.
struct Run {
    start: NonNull<u8>,
    pages: usize,
    mark: u64,
}

impl Run {
    fn words(&self, pages: usize) -> impl Iterator<Item = *mut u64> {
        let start = self.start.cast::<u64>().as_ptr();
        let words = PAGE_SIZE / 8;
        (0..pages)
            .flat_map(move |page| [page * words, page * words + words - 1])
            // SAFETY: within the run.
            .map(move |word| unsafe { start.add(word) })
    }

    fn fill(&self) {
        for word in self.words(self.pages) {
            // SAFETY: within the run, which the test owns.
            unsafe { word.write(self.mark) }
        }
    }

    fn check(&self, pages: usize) {
        for word in self.words(pages) {
            // SAFETY: within the run, which the test owns and has filled.
            assert_eq!(unsafe { word.read() }, self.mark, "a page was allocated twice");
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { pages: usize, align_order: u32 },
    Color { color: u32, colors_order: u32 },
    Apart { pages: usize },
    Free { which: usize },
    Resize { which: usize, pages: usize },
    Clear { times: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![4 => 1..9usize, 2 => 1..70usize, 1 => 1..PAGES];
    let step = prop_oneof![
        3 => (size.clone(), 0..7u32).prop_map(|(pages, align_order)| Step::Allocate { pages, align_order }),
        2 => (0..70u32, 0..8u32).prop_map(|(color, colors_order)| Step::Color { color, colors_order }),
        1 => (1..20usize).prop_map(|pages| Step::Apart { pages }),
        2 => any::<usize>().prop_map(|which| Step::Free { which }),
        2 => (any::<usize>(), size).prop_map(|(which, pages)| Step::Resize { which, pages }),
        1 => (1..60usize).prop_map(|times| Step::Clear { times }),
    ];
    prop::collection::vec(step, 1..if cfg!(miri) { 40 } else { 200 })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 3 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn runs_are_aligned_disjoint_intact_and_entirely_freed(steps in steps(), offset_pages in 0..16usize) {
        // The second range begins at an address with the least alignment, and ends within a page.
        let arenas = [Arena::new(PAGES * PAGE_SIZE, 64 * PAGE_SIZE), Arena::new(100 * PAGE_SIZE, 4096)];
        let pages = Pages::new();
        // SAFETY: the arenas outlive the allocator, and the offset is within the first.
        let start = unsafe { arenas[0].start.add(offset_pages * PAGE_SIZE + 8) };
        // SAFETY: as above.
        unsafe { pages.add_range(start, arenas[0].len_bytes() - offset_pages * PAGE_SIZE - 8) }.unwrap();
        // SAFETY: as above.
        unsafe { pages.add_range(arenas[1].start, arenas[1].len_bytes() - 1) }.unwrap();
        let (before, profile_before) = (pages.statistics(), profile(&pages));
        let mut runs: Vec<Run> = Vec::new();
        let mut in_use = before.used_bytes;
        for (mark, step) in steps.into_iter().enumerate() {
            let mark = mark as u64;
            match step {
                Step::Allocate { pages: len, align_order } => {
                    // Pages that are known to be zero must be zero.
                    let Some(frame) = pages.frame_near(NodeId(0), len, 1 << align_order) else { continue };
                    let start = frame.memory;
                    // SAFETY: just allocated.
                    let bytes = unsafe { NonNull::slice_from_raw_parts(start, len * PAGE_SIZE).as_ref() };
                    prop_assert!(frame.contents == KnownContents::Unknown || bytes.iter().all(|byte| *byte == 0));
                    prop_assert_eq!(start.addr().get() % (PAGE_SIZE << align_order), 0);
                    prop_assert!(arenas.iter().any(|arena| arena.contains(start, len * PAGE_SIZE)));
                    in_use += len * PAGE_SIZE;
                    runs.push(Run { start, pages: len, mark });
                    runs.last().unwrap().fill();
                }
                Step::Color { color, colors_order } => {
                    let (color, colors) = (color % (1 << colors_order), 1 << colors_order);
                    let Some(start) = pages.frame_of_color(color, colors).map(|frame| frame.memory) else { continue };
                    prop_assert_eq!((start.addr().get() / PAGE_SIZE) as u32 % colors, color);
                    prop_assert!(arenas.iter().any(|arena| arena.contains(start, PAGE_SIZE)));
                    in_use += PAGE_SIZE;
                    runs.push(Run { start, pages: 1, mark });
                    runs.last().unwrap().fill();
                }
                Step::Apart { pages: count } => {
                    let Some(first) = pages.frames_near(NodeId(0), count).map(|frame| frame.memory) else { continue };
                    prop_assert!(arenas.iter().any(|arena| arena.contains(first, count * PAGE_SIZE)));
                    in_use += count * PAGE_SIZE;
                    for page in 0..count {
                        // SAFETY: within the allocated pages.
                        runs.push(Run { start: unsafe { first.add(page * PAGE_SIZE) }, pages: 1, mark });
                        runs.last().unwrap().fill();
                    }
                }
                Step::Clear { times } => {
                    let mut cleared = 0;
                    while cleared < times && clear_some(&pages) {
                        cleared += 1;
                    }
                }
                Step::Free { .. } | Step::Resize { .. } if runs.is_empty() => {}
                Step::Free { which } => {
                    let run = runs.swap_remove(which % runs.len());
                    run.check(run.pages);
                    in_use -= run.pages * PAGE_SIZE;
                    // SAFETY: the run came from this allocator, and the test owns it.
                    unsafe { pages.free(run.start, run.pages) };
                }
                Step::Resize { which, pages: wanted } => {
                    let which = which % runs.len();
                    let run = &mut runs[which];
                    // SAFETY: as above.
                    if unsafe { pages.resize(run.start, run.pages, wanted) } {
                        run.check(run.pages.min(wanted));
                        in_use = in_use + wanted * PAGE_SIZE - run.pages * PAGE_SIZE;
                        *run = Run { start: run.start, pages: wanted, mark };
                        run.fill();
                    } else {
                        prop_assert!(wanted > run.pages);
                    }
                }
            }
            prop_assert_eq!(pages.statistics().used_bytes, in_use);
        }
        for run in runs {
            run.check(run.pages);
            // SAFETY: as above.
            unsafe { pages.free(run.start, run.pages) };
        }
        prop_assert_eq!(pages.statistics().used_bytes, before.used_bytes);
        prop_assert_eq!(profile(&pages), profile_before);
    }
}

#[test]
fn pages_added_as_zero_are_known_to_be_zero_until_allocated() {
    let arenas = [Arena::new(600 * PAGE_SIZE, 512 * PAGE_SIZE)];
    // SAFETY: the arena has that length, and the test owns it.
    unsafe { arenas[0].start.write_bytes(0, arenas[0].len_bytes()) };
    let pages = Pages::new();
    // SAFETY: the arena outlives the allocator, and is zero.
    unsafe { pages.add_zero_range_of(NodeId(0), arenas[0].start, arenas[0].len_bytes()) }.unwrap();
    let frame = |pages: &Pages| pages.frame_near(NodeId(0), 1, 1).unwrap();
    let first = frame(&pages);
    assert_eq!(first.contents, KnownContents::Zero);
    let more = pages.frames_near(NodeId(0), 40).unwrap();
    assert_eq!(more.contents, KnownContents::Zero);
    assert_eq!(pages.frame_of_color(3, 8).unwrap().contents, KnownContents::Zero);
    // The allocated pages may have been written to; their neighbours were not.
    // SAFETY: it came from this allocator.
    unsafe { pages.free(first.memory, 1) };
    // SAFETY: as above.
    unsafe { pages.free(more.memory, 1) };
    let all: Vec<_> = std::iter::from_fn(|| pages.frame_near(NodeId(0), 1, 1)).collect();
    for frame in &all {
        // SAFETY: the test owns the page.
        unsafe { frame.memory.write_bytes(0x5a, PAGE_SIZE) };
    }
    let unknown = all.iter().filter(|frame| frame.contents == KnownContents::Unknown).count();
    assert!((2..12).contains(&unknown), "{unknown} of {} pages are not known to be zero", all.len());
    for frame in all {
        // SAFETY: it came from this allocator.
        unsafe { pages.free(frame.memory, 1) };
    }
    let run = pages.frame_near(NodeId(0), 64, 1).unwrap();
    assert_eq!(run.contents, KnownContents::Unknown);
}

#[test]
fn used_pages_are_known_to_be_zero_after_clearing() {
    let arenas = [Arena::new(600 * PAGE_SIZE, 512 * PAGE_SIZE)];
    let pages = pages_of(&arenas);
    // SAFETY: the test owns the runs.
    let free = |runs: Vec<NonNull<u8>>| runs.into_iter().for_each(|run| unsafe { pages.free(run, 1) });
    let used = pages.statistics().used_bytes;
    let mut times = 0;
    while clear_some(&pages) {
        times += 1;
        assert_eq!(pages.statistics().used_bytes, used, "cleared pages are free");
    }
    assert!((600 / 4..600 / 4 + 10).contains(&times), "{times} times");
    let run = pages.frame_near(NodeId(0), 256, 1).unwrap();
    assert_eq!(run.contents, KnownContents::Zero);
    // SAFETY: the test owns the run.
    unsafe { pages.free(run.memory, 256) };
    let all: Vec<_> = std::iter::from_fn(|| pages.allocate(1, 1)).collect();
    free(all);
    // Clear a part of the longest run, then allocate all of it with any contents.
    for _ in 0..110 {
        assert!(clear_some(&pages));
    }
    let run = pages.allocate(256, 256).expect("free blocks are merged despite different contents");
    // SAFETY: the test owns the run.
    unsafe { pages.free(run, 256) };
    assert!(clear_some(&pages));
    // An allocation of zero pages gets some, and an allocation with any contents leaves them.
    let (zero, any) = (pages.frame_near(NodeId(0), 1, 1).unwrap(), pages.allocate(1, 1).unwrap());
    assert_eq!(zero.contents, KnownContents::Zero);
    let next = pages.frame_near(NodeId(0), 1, 1).unwrap();
    assert_eq!(next.contents, KnownContents::Zero);
    free(vec![zero.memory, any, next.memory]);
}

#[test]
fn statistics_match_the_allocations() {
    let arenas = [Arena::new(600 * PAGE_SIZE, PAGE_SIZE)];
    let pages = pages_of(&arenas);
    let at_first = pages.statistics();
    assert_eq!((at_first.total_bytes, at_first.used_bytes), (600 * PAGE_SIZE, 3 * PAGE_SIZE));
    let run = pages.allocate(5, 1).unwrap();
    assert_eq!(pages.statistics().used_bytes, 8 * PAGE_SIZE);
    // SAFETY: it came from this allocator.
    unsafe { pages.free(run, 5) };
    let at_last = pages.statistics();
    assert_eq!((at_last.used_bytes, at_last.peak_bytes), (3 * PAGE_SIZE, 8 * PAGE_SIZE));

    let report = isola_abi_report();
    at_last.publish(&report);
    assert_eq!(report.total_bytes.into_inner(), 600 * 4096);
    assert_eq!(report.used_bytes.into_inner(), 3 * 4096);
    assert_eq!(report.peak_bytes.into_inner(), 8 * 4096);
}

fn isola_abi_report() -> isola_abi::report::MemoryReport {
    isola_abi::report::MemoryReport {
        total_bytes: 0.into(),
        used_bytes: 0.into(),
        peak_bytes: 0.into(),
        room_bytes: 0.into(),
        pressure: 0.into(),
        holders: 0.into(),
    }
}

#[test]
fn a_run_grows_into_free_pages_behind_it_and_no_further() {
    let arenas = [Arena::new(65 * PAGE_SIZE, 64 * PAGE_SIZE)];
    let pages = pages_of(&arenas);
    let first = pages.allocate(3, 1).unwrap();
    // SAFETY: the test owns the runs.
    unsafe {
        assert!(pages.resize(first, 3, 20));
        let wall = first.add(20 * PAGE_SIZE);
        let others: Vec<_> = std::iter::from_fn(|| pages.allocate(1, 1)).collect();
        assert!(others.contains(&wall) && others.len() == 64 - 20);
        assert!(!pages.resize(first, 20, 21));
        pages.free(wall, 1);
        assert!(pages.resize(first, 20, 21));
        assert!(!pages.resize(first, 21, 65), "not beyond the range");
    }
}

#[test]
fn impossible_allocations_return_none() {
    let arenas = [Arena::new(65 * PAGE_SIZE, 64 * PAGE_SIZE)];
    let pages = pages_of(&arenas);
    for (len, align) in
        [(0, 1), (65, 1), (usize::MAX, 1), (1 << 32, 1), (1, 1 << 40), (1, usize::MAX / 2 + 1)]
    {
        assert_eq!(pages.allocate(len, align), None);
    }
    assert!(pages.allocate(32, 32).is_some());
}

#[test]
fn invalid_ranges_are_rejected() {
    let arena = Arena::new(8 * PAGE_SIZE, PAGE_SIZE);
    let pages = Pages::new();
    // SAFETY: the arena outlives the allocator.
    let add = |start: usize, len| unsafe { pages.add_range(arena.start.add(start), len) };
    assert_eq!(add(0, 0), Err(AddRangeError::TooSmall));
    assert_eq!(add(0, 2 * PAGE_SIZE - 1), Err(AddRangeError::TooSmall));
    assert_eq!(add(1, 2 * PAGE_SIZE), Err(AddRangeError::TooSmall));
    assert_eq!(add(2 * PAGE_SIZE, 4 * PAGE_SIZE), Ok(()));
    for first in 0..6 {
        let expected = if first == 0 { Ok(()) } else { Err(AddRangeError::Collides) };
        assert_eq!(add(first * PAGE_SIZE, 2 * PAGE_SIZE), expected);
    }
    assert_eq!(add(0, 8 * PAGE_SIZE), Err(AddRangeError::Collides));
    assert_eq!(pages.statistics().total_bytes, 6 * PAGE_SIZE);
}

#[test]
fn ranges_beyond_the_limit_are_rejected() {
    let arena = Arena::new((MAX_RANGES + 1) * 2 * PAGE_SIZE, PAGE_SIZE);
    let pages = Pages::new();
    for index in 0..=MAX_RANGES {
        // SAFETY: the arena outlives the allocator.
        let added = unsafe { pages.add_range(arena.start.add(index * 2 * PAGE_SIZE), 2 * PAGE_SIZE) };
        assert_eq!(added, if index < MAX_RANGES { Ok(()) } else { Err(AddRangeError::TooManyRanges) });
    }
    assert_eq!(std::iter::from_fn(|| pages.allocate(1, 1)).count(), MAX_RANGES);
}

#[test]
#[should_panic(expected = "free already")]
fn a_double_free_of_a_run_panics() {
    let arenas = [Arena::new(65 * PAGE_SIZE, 64 * PAGE_SIZE)];
    let pages = pages_of(&arenas);
    let run = pages.allocate(2, 1).unwrap();
    // SAFETY: broken on purpose; the memory is never used.
    unsafe {
        pages.free(run, 2);
        pages.free(run, 2);
    }
}

#[test]
#[should_panic(expected = "does not have")]
fn a_free_of_a_run_with_a_wrong_size_panics() {
    let arenas = [Arena::new(65 * PAGE_SIZE, 64 * PAGE_SIZE)];
    let pages = pages_of(&arenas);
    let run = pages.allocate(4, 1).unwrap();
    // SAFETY: broken on purpose; the memory is never used.
    unsafe { pages.free(run, 3) };
}
