//! Windows: memory that objects of the heap leave, so that whole chunks become free.
#![allow(unsafe_code, reason = "the caller of a free owns the memory, which no type can check")]

mod common;

use common::{Arena, Random, ThreadCores};
use isola_memory::Heap;
use isola_memory::pages::{CompactionWindow, PAGE_SIZE};
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout};

const CHUNK: usize = 2 << 20;

/// An allocated object with its number at its start.
struct Object {
    start: *mut u8,
    layout: Layout,
    number: u64,
}

impl Object {
    fn new(heap: &Heap<ThreadCores>, len: usize, number: u64) -> Option<Self> {
        let layout = Layout::from_size_align(len, 16).unwrap();
        // SAFETY: the size is not 0.
        let start = unsafe { heap.alloc(layout) };
        if start.is_null() {
            return None;
        }
        // SAFETY: just allocated, with at least 16 bytes.
        unsafe { start.cast::<u64>().write(number) };
        Some(Self { start, layout, number })
    }

    fn is_in(&self, window: CompactionWindow) -> bool {
        (window.start..window.start + window.len_bytes).contains(&self.start.addr())
    }

    fn check(&self) {
        // SAFETY: the test owns the object.
        assert_eq!(unsafe { self.start.cast::<u64>().read() }, self.number, "memory was allocated twice");
    }

    fn free(self, heap: &Heap<ThreadCores>) {
        self.check();
        // SAFETY: the test owns the object, and drops it with `self`.
        unsafe { heap.dealloc(self.start, self.layout) };
    }
}

/// Returns a heap over that many chunks, from the second page of the first chunk on, as a cell's pool begins.
fn heap(chunks: usize) -> (Arena, Heap<ThreadCores>) {
    let arena = Arena::new(chunks * CHUNK, CHUNK);
    let heap = Heap::new(ThreadCores);
    // SAFETY: only this heap uses the arena, which outlives it.
    unsafe { heap.pages().add_range(arena.start.add(PAGE_SIZE), arena.len_bytes() - PAGE_SIZE) }.unwrap();
    (arena, heap)
}

/// Fills two thirds of the heap with objects of many lengths, and frees a random half of them.
fn half_freed(heap: &Heap<ThreadCores>, random: &mut Random, longest: usize) -> Vec<Object> {
    let (mut objects, mut bytes) = (Vec::new(), 0);
    let most = heap.pages().statistics().total_bytes / 3 * 2;
    while bytes < most {
        let len = 16 + random.below(longest);
        bytes += len;
        let Some(object) = Object::new(heap, len, objects.len() as u64) else { break };
        objects.push(object);
    }
    let mut kept = Vec::new();
    for object in objects {
        if random.below(2) == 0 { object.free(heap) } else { kept.push(object) }
    }
    heap.empty_cache();
    heap.trim();
    kept
}

/// Moves the objects out of the window, as a holder does: all copies first, then the originals.
fn vacate(heap: &Heap<ThreadCores>, objects: &mut [Object], window: CompactionWindow) {
    for slice in objects.chunks_mut(64) {
        heap.empty_cache();
        let mut originals = Vec::new();
        for object in slice.iter_mut().filter(|object| object.is_in(window)) {
            let copy =
                Object::new(heap, object.layout.size(), object.number).expect("half of the heap is free");
            assert!(!copy.is_in(window), "memory of the window was allocated");
            originals.push(std::mem::replace(object, copy));
        }
        originals.into_iter().for_each(|original| original.free(heap));
    }
    heap.empty_cache();
    heap.trim();
}

#[test]
fn half_of_a_heap_of_scattered_objects_can_be_withdrawn() {
    let (_arena, heap) = heap(32);
    let mut objects = half_freed(&heap, &mut Random(7), 4_000);
    let withdrawn = |heap: &Heap<ThreadCores>| 32 * CHUNK - heap.statistics().pages.total_bytes;
    assert!(heap.pages().withdraw(usize::MAX).len_bytes() < 12 * CHUNK, "the objects are scattered");
    let mut windows = 0;
    while withdrawn(&heap) < 16 * CHUNK {
        windows += 1;
        assert!(windows < 16, "{} chunks were withdrawn", withdrawn(&heap) / CHUNK);
        let window = heap.open_window(0, |_| false).expect("most chunks are in use");
        assert!(window.start.is_multiple_of(window.len_bytes) && window.len_bytes == CHUNK);
        assert_eq!(heap.open_window(0, |_| false), None, "one window at a time");
        vacate(&heap, &mut objects, window);
        assert_eq!(heap.pages().window_use().used_bytes, 0);
        heap.close_window();
        // A sixteenth of the rest stays free, so that it may take two windows for a chunk.
        heap.pages().withdraw(CHUNK);
    }
    objects.into_iter().for_each(|object| object.free(&heap));
}

#[test]
fn memory_that_stays_in_a_window_keeps_its_chunk_only() {
    let (_arena, heap) = heap(16);
    let mut objects = half_freed(&heap, &mut Random(3), 4_000);
    let window = heap.open_window(2, |_| false).unwrap();
    let pinned = objects.iter().position(|object| object.is_in(window)).unwrap();
    let pinned = objects.swap_remove(pinned);
    vacate(&heap, &mut objects, window);
    let state = heap.pages().window_use();
    assert_eq!(state.free_chunk_bytes, window.len_bytes - CHUNK);
    assert!((1..=4 * PAGE_SIZE * 4).contains(&state.used_bytes), "{state:?}");
    heap.close_window();
    // The window is not opened again if the caller leaves it out.
    let other = heap.open_window(2, |start| start == window.start);
    assert!(other.is_none_or(|other| other.start != window.start));
    heap.close_window();
    pinned.check();
    objects.into_iter().chain([pinned]).for_each(|object| object.free(&heap));
}

#[test]
fn a_heap_without_memory_in_use_has_no_window() {
    let (_arena, heap) = heap(4);
    assert_eq!(heap.open_window(0, |_| false), None);
    heap.close_window();
    assert_eq!(heap.pages().window_use().used_bytes, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 24 }))]

    /// While a window is open, objects are allocated, resized and freed at random; after it, all memory can be used.
    #[test]
    fn no_memory_of_a_window_is_allocated_or_lost(seed in 1..u64::MAX, order in 0..3_u32, steps in 1..3_000_usize) {
        let mut random = Random(seed);
        let (_arena, heap) = heap(8);
        let mut objects = half_freed(&heap, &mut random, 40_000);
        if let Some(window) = heap.open_window(order, |_| false) {
            for step in 0..steps {
                heap.empty_cache();
                if random.below(2) == 0 {
                    if let Some(object) = Object::new(&heap, 16 + random.below(100_000), step as u64) {
                        prop_assert!(!object.is_in(window));
                        objects.push(object);
                    }
                } else if !objects.is_empty() {
                    objects.swap_remove(random.below(objects.len())).free(&heap);
                }
            }
            let inside = objects.iter().any(|object| object.is_in(window));
            heap.empty_cache();
            heap.trim();
            prop_assert!(inside || heap.pages().window_use().used_bytes == 0);
            heap.close_window();
        }
        objects.into_iter().for_each(|object| object.free(&heap));
        heap.empty_cache();
        heap.trim();
        let pages = heap.pages().statistics();
        let withdrawn = heap.pages().withdraw(usize::MAX);
        // All but the first chunk, which has the records and the caches, and the sixteenth that stays free.
        prop_assert!(withdrawn.len_bytes() >= 6 * CHUNK, "{pages:?}");
    }
}
