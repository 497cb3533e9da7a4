//! Memory of several NUMA nodes: a core prefers its own node, and freed memory returns to its node.
#![allow(unsafe_code, reason = "the caller of a free owns the memory, which no type can check")]

mod common;

use common::{Arena, Random, ThreadCores};
use isola_abi::id::NodeId;
use isola_memory::pages::PAGE_SIZE;
use isola_memory::{Heap, Pages};
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::NonNull;

const NODES: usize = 3;

/// Returns a heap with the memory of each node, and core `n` on node `n`.
fn heap_of(arenas: &[Arena; NODES]) -> Heap<ThreadCores> {
    let heap = Heap::new(ThreadCores);
    for (node, arena) in arenas.iter().enumerate() {
        // SAFETY: only this heap uses the arenas, which outlive it.
        unsafe { heap.pages().add_range_of(NodeId(node as u32), arena.start, arena.len_bytes()) }.unwrap();
        heap.set_node(node, NodeId(node as u32));
    }
    heap
}

fn arenas(len_bytes: usize) -> [Arena; NODES] {
    std::array::from_fn(|_| Arena::new(len_bytes, PAGE_SIZE))
}

fn node_of(arenas: &[Arena; NODES], object: *mut u8) -> usize {
    let object = NonNull::new(object).expect("memory suffices");
    arenas.iter().position(|arena| arena.contains(object, 1)).expect("the object is in an arena")
}

fn free_bytes(pages: &Pages) -> [usize; NODES] {
    std::array::from_fn(|node| pages.free_bytes_of(NodeId(node as u32)))
}

#[test]
fn a_core_gets_memory_of_its_node_while_that_has_any() {
    for size in [64, 3000, 100_000] {
        let arenas = arenas(2 << 20);
        let heap = heap_of(&arenas);
        let layout = Layout::from_size_align(size, 8).unwrap();
        for core in 0..NODES {
            ThreadCores::become_core(core);
            let objects = (0..(1 << 20) / size).map(|_| {
                // SAFETY: the size is not 0; objects are not freed.
                unsafe { heap.alloc(layout) }
            });
            assert!({ objects }.all(|object| node_of(&arenas, object) == core), "{size} bytes, core {core}");
        }
        // SAFETY: as above.
        let mut others = (0..(1 << 20) / size).map(|_| unsafe { heap.alloc(layout) });
        assert!(others.any(|object| node_of(&arenas, object) != NODES - 1), "its own node is full");
    }
}

#[test]
fn memory_freed_by_cores_of_other_nodes_returns_to_its_node() {
    let arenas = arenas(4 << 20);
    let heap = heap_of(&arenas);
    let layout = Layout::from_size_align(200, 8).unwrap();
    let make = |core, count| -> Vec<*mut u8> {
        ThreadCores::become_core(core);
        // SAFETY: the size is not 0.
        (0..count).map(|_| unsafe { heap.alloc(layout) }).collect()
    };
    // Create each core's cache, which stays.
    for core in 0..NODES {
        let object = make(core, 1);
        // SAFETY: freed once.
        unsafe { heap.dealloc(object[0], layout) };
        heap.empty_cache();
    }
    let before = free_bytes(heap.pages());
    let objects = [make(0, 5000), make(1, 5000)];
    ThreadCores::become_core(2);
    for pair in objects[0].iter().zip(&objects[1]) {
        // SAFETY: freed once.
        unsafe {
            heap.dealloc(*pair.0, layout);
            heap.dealloc(*pair.1, layout);
        }
    }
    for core in 0..NODES {
        ThreadCores::become_core(core);
        heap.empty_cache();
    }
    assert_eq!(free_bytes(heap.pages()), before);
    assert!(make(0, 5000).into_iter().all(|object| node_of(&arenas, object) == 0));
}

#[test]
fn a_large_node_number_is_taken_modulo_the_maximum() {
    let arena = Arena::new(1 << 20, PAGE_SIZE);
    let heap = Heap::new(ThreadCores);
    // SAFETY: only this heap uses the arena, which outlives it.
    unsafe { heap.pages().add_range_of(NodeId(u32::MAX), arena.start, arena.len_bytes()) }.unwrap();
    heap.set_node(0, NodeId(u32::MAX));
    ThreadCores::become_core(0);
    // SAFETY: the size is not 0.
    assert!(!unsafe { heap.alloc(Layout::new::<u64>()) }.is_null());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The model: the allocated pages of each node. A node that has a sufficiently large aligned free block provides
    /// the memory itself.
    #[test]
    fn runs_come_from_the_requested_node_while_it_has_memory(seed in 1_u64.., steps in 0..300_usize) {
        let arenas = arenas(200 * PAGE_SIZE);
        let pages = Pages::new();
        for (node, arena) in arenas.iter().enumerate() {
            // SAFETY: the arenas outlive the allocator.
            unsafe { pages.add_range_of(NodeId(node as u32), arena.start, arena.len_bytes()) }.unwrap();
        }
        let at_first = free_bytes(&pages);
        // The first page of each arena holds its records.
        let mut out = [const { [false; 200] }; NODES];
        out.iter_mut().for_each(|out| out[0] = true);
        let first = |node: usize| arenas[node].start.addr().get() / PAGE_SIZE;
        let has_block = |out: &[[bool; 200]; NODES], node: usize, len: usize| {
            (0..200 - len + 1).any(|page| {
                (first(node) + page).is_multiple_of(len) && out[node][page..page + len].iter().all(|out| !out)
            })
        };
        let mut runs: Vec<(NonNull<u8>, usize)> = Vec::new();
        let mut random = Random(seed);
        for _ in 0..steps {
            if runs.is_empty() || random.below(5) > 1 {
                let (node, len) = (random.below(NODES), 1 + random.below(60));
                let has = std::array::from_fn::<_, NODES, _>(|node| has_block(&out, node, len.next_power_of_two()));
                let Some(start) = pages.allocate_near(NodeId(node as u32), len, 1) else {
                    prop_assert_eq!(has, [false; NODES]);
                    continue;
                };
                let from = node_of(&arenas, start.as_ptr());
                prop_assert!(has[from] && (from == node || !has[node]));
                let page = start.addr().get() / PAGE_SIZE - first(from);
                prop_assert!(out[from][page..page + len].iter().all(|out| !out));
                out[from][page..page + len].fill(true);
                runs.push((start, len));
            } else {
                let (start, len) = runs.swap_remove(random.below(runs.len()));
                let from = node_of(&arenas, start.as_ptr());
                let page = start.addr().get() / PAGE_SIZE - first(from);
                out[from][page..page + len].fill(false);
                // SAFETY: it came from this allocator.
                unsafe { pages.free(start, len) };
            }
            let free = out.map(|out| out.iter().filter(|out| !**out).count() * PAGE_SIZE);
            prop_assert_eq!(free_bytes(&pages), free);
        }
        for (start, len) in runs {
            // SAFETY: it came from this allocator.
            unsafe { pages.free(start, len) };
        }
        prop_assert_eq!(free_bytes(&pages), at_first);
    }

    #[test]
    fn objects_of_all_nodes_are_disjoint_and_entirely_freed(seed in 1_u64.., steps in 0..600_usize) {
        let arenas = arenas(512 << 10);
        let heap = heap_of(&arenas);
        let mut random = Random(seed);
        let mut objects: Vec<(*mut u8, Layout, u8)> = Vec::new();
        for step in 0..steps {
            ThreadCores::become_core(random.below(NODES));
            if objects.is_empty() || random.below(5) > 1 {
                let most = [64, 1000, 40_000][random.below(3)];
                let layout = Layout::from_size_align(1 + random.below(most), 8).unwrap();
                // SAFETY: the size is not 0.
                let object = unsafe { heap.alloc(layout) };
                if !object.is_null() {
                    // SAFETY: the test owns the object.
                    unsafe { object.write_bytes(step as u8, layout.size()) };
                    objects.push((object, layout, step as u8));
                }
            } else {
                let (object, layout, mark) = objects.swap_remove(random.below(objects.len()));
                // SAFETY: the test owns the object, and frees it once.
                unsafe {
                    prop_assert!((0..layout.size()).all(|offset| object.add(offset).read() == mark));
                    heap.dealloc(object, layout);
                }
            }
        }
        for (object, layout, _) in objects {
            // SAFETY: freed once.
            unsafe { heap.dealloc(object, layout) };
        }
        for core in 0..NODES {
            ThreadCores::become_core(core);
            heap.empty_cache();
        }
        let figures = heap.statistics();
        prop_assert_eq!((figures.large_bytes, figures.cached_bytes), (0, 0));
        prop_assert!(figures.object_bytes <= NODES * 1024, "only the caches remain");
    }
}
