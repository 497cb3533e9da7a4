//! The heap compared with a simple model, with threads that act as cores, and with exhausted memory.
#![allow(unsafe_code, reason = "the caller of a free owns the memory, which no type can check")]

mod common;

use common::{Arena, Random, ThreadCores, heap_of};
use isola_abi::report::MemoryPressure;
use isola_memory::Heap;
use isola_memory::heap::LARGEST;
use isola_memory::pages::PAGE_SIZE;
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout};
use std::collections::BTreeMap;
use std::sync::mpsc;

/// An allocated object, filled with its mark.
struct Object {
    start: *mut u8,
    layout: Layout,
    mark: u8,
}

// SAFETY: the owner of this value owns the object.
unsafe impl Send for Object {}

impl Object {
    /// Allocates, checks and fills an object; `None` if memory has run out.
    fn new(heap: &Heap<ThreadCores>, layout: Layout, mark: u8) -> Option<Self> {
        // SAFETY: the size is not 0.
        let start = unsafe { heap.alloc(layout) };
        if start.is_null() {
            return None;
        }
        assert_eq!(start.addr() % layout.align(), 0);
        let object = Self { start, layout, mark };
        object.fill();
        Some(object)
    }

    fn fill(&self) {
        // SAFETY: the test owns the object.
        unsafe { self.start.write_bytes(self.mark, self.layout.size()) };
    }

    fn check(&self, len_bytes: usize) {
        // SAFETY: the test owns the object, which is filled.
        let bytes = unsafe { std::slice::from_raw_parts(self.start, len_bytes) };
        // Miri is slow.
        let bytes = &bytes[..if cfg!(miri) { len_bytes.min(32) } else { len_bytes }];
        assert!(bytes.iter().all(|&byte| byte == self.mark), "memory was allocated twice");
    }

    /// Resizes the object; false if memory has run out.
    fn resize(&mut self, heap: &Heap<ThreadCores>, size: usize, mark: u8) -> bool {
        // SAFETY: the test owns the object, and the size is not 0.
        let start = unsafe { heap.realloc(self.start, self.layout, size) };
        if start.is_null() {
            self.check(self.layout.size());
            return false;
        }
        self.start = start;
        assert_eq!(start.addr() % self.layout.align(), 0);
        self.check(self.layout.size().min(size));
        self.layout = Layout::from_size_align(size, self.layout.align()).unwrap();
        self.mark = mark;
        self.fill();
        true
    }

    fn free(self, heap: &Heap<ThreadCores>) {
        self.check(self.layout.size());
        // SAFETY: the test owns the object, and drops it with `self`.
        unsafe { heap.dealloc(self.start, self.layout) };
    }
}

/// Makes the heap free all unused memory, by an allocation that must fail.
fn squeeze(heap: &Heap<ThreadCores>) {
    // SAFETY: the size is not 0.
    assert!(unsafe { heap.alloc(Layout::from_size_align(1 << 40, 16).unwrap()) }.is_null());
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { size: usize, align: usize },
    Free { which: usize },
    Resize { which: usize, size: usize },
    EmptyCache,
    BecomeCore { index: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = || prop_oneof![6 => 1..200usize, 3 => 1..5000usize, 2 => 1..LARGEST + 1, 1 => 1..200_000usize];
    let align = prop_oneof![6 => 0..5u32, 1 => 0..15u32].prop_map(|order| 1usize << order);
    let step = prop_oneof![
        12 => (size(), align).prop_map(|(size, align)| Step::Allocate { size, align }),
        9 => any::<usize>().prop_map(|which| Step::Free { which }),
        6 => (any::<usize>(), size()).prop_map(|(which, size)| Step::Resize { which, size }),
        1 => Just(Step::EmptyCache),
        1 => (0..3usize).prop_map(|index| Step::BecomeCore { index }),
    ];
    prop::collection::vec(step, 1..if cfg!(miri) { 60 } else { 400 })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 64 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn objects_are_aligned_disjoint_intact_and_entirely_freed(steps in steps()) {
        // Small enough that memory runs out at times.
        let arena = Arena::new(2 << 20, PAGE_SIZE);
        let heap = heap_of(&arena);
        let at_first = heap.statistics();
        let mut objects: Vec<Object> = Vec::new();
        for (step_index, step) in steps.into_iter().enumerate() {
            let mark = step_index as u8;
            match step {
                Step::Allocate { size, align } => {
                    let layout = Layout::from_size_align(size, align).unwrap();
                    objects.extend(Object::new(&heap, layout, mark));
                }
                Step::EmptyCache => heap.empty_cache(),
                Step::BecomeCore { index } => ThreadCores::become_core(index),
                Step::Free { .. } | Step::Resize { .. } if objects.is_empty() => {}
                Step::Free { which } => {
                    objects.swap_remove(which % objects.len()).free(&heap);
                }
                Step::Resize { which, size } => {
                    let which = which % objects.len();
                    objects[which].resize(&heap, size, mark);
                }
            }
            let places: BTreeMap<usize, usize> =
                objects.iter().map(|object| (object.start.addr(), object.layout.size())).collect();
            prop_assert_eq!(places.len(), objects.len());
            let mut end = arena.start.addr().get();
            for (start, size) in places {
                prop_assert!(start >= end);
                end = start + size;
            }
            prop_assert!(end <= arena.start.addr().get() + arena.len_bytes());
        }
        for object in objects {
            object.free(&heap);
        }
        for index in 0..3 {
            ThreadCores::become_core(index);
            squeeze(&heap);
        }
        let at_last = heap.statistics();
        prop_assert_eq!(at_last.large_bytes, 0);
        prop_assert_eq!(at_last.cached_bytes, 0);
        // Only the caches remain, all in one span.
        prop_assert!(at_last.object_bytes <= 3 * 1024);
        let remaining = at_last.pages.used_bytes - at_first.pages.used_bytes;
        prop_assert_eq!(remaining, at_last.span_bytes);
        prop_assert!(remaining <= 8192, "{} bytes were not freed", remaining);
    }
}

#[test]
fn statistics_match_the_allocations() {
    let arena = Arena::new(4 << 20, PAGE_SIZE);
    let heap = heap_of(&arena);
    let count = |size: usize| {
        heap.note();
        let class = heap.class_statistics().find(|class| class.size_bytes >= size).unwrap();
        (class.used, class.cached, class.spans)
    };
    let layout = Layout::from_size_align(100, 8).unwrap();
    let objects: Vec<_> = (0..40).map(|_| Object::new(&heap, layout, 1).unwrap()).collect();
    let (used, cached, spans) = count(100);
    assert_eq!((used, spans), (40, 2));
    assert!(cached < 64);
    let large = Object::new(&heap, Layout::from_size_align(100_000, 8).unwrap(), 2).unwrap();
    heap.note();
    let figures = heap.statistics();
    assert_eq!(figures.large_bytes, 25 * PAGE_SIZE);
    assert_eq!(figures.object_bytes, 40 * 112 + 1024);
    assert!(figures.refills > 0 && figures.spills == 0 && figures.shortages == 0);
    large.free(&heap);
    objects.into_iter().for_each(|object| object.free(&heap));
    heap.empty_cache();
    assert_eq!(count(100), (0, 0, 1), "one empty span is retained");
    assert_eq!(heap.statistics().object_bytes, 1024);
}

#[test]
fn an_object_is_resized_in_place_if_its_class_or_free_pages_allow() {
    let arena = Arena::new(4 << 20, PAGE_SIZE);
    let heap = heap_of(&arena);
    let stays = |from: usize, to: usize| {
        let mut object = Object::new(&heap, Layout::from_size_align(from, 8).unwrap(), 1).unwrap();
        let before = object.start;
        assert!(object.resize(&heap, to, 2));
        let stays = object.start == before;
        object.free(&heap);
        stays
    };
    assert!(stays(65, 80) && stays(80, 65));
    assert!(!stays(65, 81) && !stays(65, 64));
    assert!(!stays(LARGEST, LARGEST + 1) && !stays(LARGEST + 1, LARGEST));
    assert!(stays(LARGEST + 1, 60_000) && stays(60_000, LARGEST + 1));
    assert_eq!(heap.statistics().large_bytes, 0);
}

#[test]
fn allocations_fail_after_memory_runs_out_until_a_free() {
    let arena = Arena::new(1 << 20, 1 << 20);
    let heap = heap_of(&arena);
    let sizes = [2048, 30_000, 100_000, 16, 100];
    for size in sizes.into_iter().take(if cfg!(miri) { 3 } else { 5 }) {
        let layout = Layout::from_size_align(size, 8).unwrap();
        let mut objects: Vec<_> = std::iter::from_fn(|| Object::new(&heap, layout, size as u8)).collect();
        let held = objects.len() * size;
        assert!(held > (1 << 20) / 10 * 6, "{held} bytes of 1 MiB were usable as objects of {size} bytes");
        assert!(Object::new(&heap, layout, 0).is_none());
        objects.pop().unwrap().free(&heap);
        objects.push(Object::new(&heap, layout, size as u8).expect("one object was just freed"));
        objects.into_iter().for_each(|object| object.free(&heap));
    }
    let nearly_all = Layout::from_size_align(500_000, 8).unwrap();
    Object::new(&heap, nearly_all, 1).expect("freed memory is usable at any size").free(&heap);
}

#[test]
fn a_heap_without_memory_fails_all_allocations() {
    let heap = Heap::new(ThreadCores);
    for size in [1, 5000, 50_000] {
        assert!(Object::new(&heap, Layout::from_size_align(size, 8).unwrap(), 0).is_none());
    }
    heap.relieve();
    heap.empty_cache();
    assert_eq!(heap.statistics().pages.total_bytes, 0);
}

#[test]
fn a_core_empties_its_cache_after_another_ran_out_of_memory() {
    let arena = Arena::new(1 << 20, PAGE_SIZE);
    let heap = heap_of(&arena);
    let layout = Layout::from_size_align(2048, 8).unwrap();
    ThreadCores::become_core(0);
    let objects: Vec<_> = (0..100).map(|_| Object::new(&heap, layout, 1).unwrap()).collect();
    objects.into_iter().for_each(|object| object.free(&heap));
    heap.note();
    let kept = heap.statistics().cached_bytes;
    assert!(kept >= 16 * 1024);
    heap.relieve();
    assert_eq!(heap.statistics().cached_bytes, kept, "no core has run out of memory");
    ThreadCores::become_core(1);
    squeeze(&heap);
    ThreadCores::become_core(0);
    heap.relieve();
    assert_eq!(heap.statistics().cached_bytes, 0);
}

/// Each core allocates objects, checks and frees some of its own, sends the others to the next core, and frees those
/// that it receives from the previous one.
#[test]
fn cores_free_the_objects_of_other_cores() {
    const CORES: usize = 4;
    let rounds = if cfg!(miri) { 40 } else { 10_000 };
    let arena = Arena::new(64 << 20, PAGE_SIZE);
    let heap = heap_of(&arena);
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..CORES).map(|_| mpsc::sync_channel::<Object>(64)).unzip();
    std::thread::scope(|scope| {
        for (core, inbox) in receivers.into_iter().enumerate() {
            let outbox = senders[(core + 1) % CORES].clone();
            let heap = &heap;
            scope.spawn(move || {
                ThreadCores::become_core(core);
                let mut random = Random(core as u64 + 1);
                let mut own: Vec<Object> = Vec::new();
                for round in 0..rounds {
                    let bound = [64, 300, 3000, 40_000][random.below(4)];
                    let layout = Layout::from_size_align(1 + random.below(bound), 8).unwrap();
                    let object = Object::new(heap, layout, round as u8).expect("memory suffices");
                    match random.below(3) {
                        0 => own.push(object),
                        1 => object.free(heap),
                        _ => {
                            if let Err(mpsc::TrySendError::Full(object)) = outbox.try_send(object) {
                                object.free(heap);
                            }
                        }
                    }
                    while own.len() > 50 {
                        let which = random.below(own.len());
                        own.swap_remove(which).free(heap);
                    }
                    inbox.try_iter().for_each(|object| object.free(heap));
                }
                drop(outbox);
                own.into_iter().for_each(|object| object.free(heap));
                // Ends when the last sender is dropped.
                inbox.iter().for_each(|object| object.free(heap));
                heap.empty_cache();
            });
        }
        drop(senders);
    });
    squeeze(&heap);
    let figures = heap.statistics();
    assert_eq!((figures.large_bytes, figures.cached_bytes, figures.object_bytes), (0, 0, CORES * 1024));
    assert!(figures.spills > 0);
}

/// One core allocates, the other frees: the memory must return to the first.
#[test]
fn a_producer_and_a_consumer_use_bounded_memory() {
    let rounds = if cfg!(miri) { 60 } else { 50_000 };
    let arena = Arena::new(1 << 20, PAGE_SIZE);
    let heap = heap_of(&arena);
    let (sender, receiver) = mpsc::sync_channel::<Object>(32);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            ThreadCores::become_core(1);
            receiver.into_iter().for_each(|object| object.free(&heap));
        });
        let layout = Layout::from_size_align(1500, 8).unwrap();
        for round in 0..rounds {
            sender.send(Object::new(&heap, layout, round as u8).expect("memory returns")).unwrap();
        }
        drop(sender);
    });
    assert!(heap.statistics().pages.peak_bytes < 512 * 1024);
}

#[test]
fn an_idle_core_empties_its_cache_while_memory_is_low() {
    let arena = Arena::new(4 << 20, PAGE_SIZE);
    let heap = heap_of(&arena);
    let free = |object: Object| object.free(&heap);
    let layout = Layout::from_size_align(1024, 8).unwrap();
    (0..40).map(|_| Object::new(&heap, layout, 1).unwrap()).collect::<Vec<_>>().into_iter().for_each(free);
    heap.note();
    let kept = heap.statistics().cached_bytes;
    assert!(kept > 10 << 10);
    let most = Layout::from_size_align(64 << 10, 8).unwrap();
    let large: Vec<_> = std::iter::from_fn(|| {
        (heap.pages().pressure() == MemoryPressure::None).then(|| Object::new(&heap, most, 2).unwrap())
    })
    .collect();
    heap.relieve();
    assert_eq!(heap.statistics().cached_bytes, 0);
    large.into_iter().for_each(free);
}
