//! The heap on a hosted cell's cores, which their own blocks identify.
#![allow(unsafe_code, reason = "giving memory back is a promise that no type can check")]

mod common;

use common::Arena;
use isola_hosted::Settings;
use isola_memory::pages::PAGE_SIZE;
use isola_memory::{Heap, ThisCore};
use std::alloc::{GlobalAlloc, Layout};
use std::sync::Arc;

/// A heap and its memory.
struct Given {
    heap: Heap,
    _arena: Arena,
}

// SAFETY: the arena is dropped only with the last reference.
unsafe impl Sync for Given {}
// SAFETY: as above.
unsafe impl Send for Given {}

#[test]
fn each_core_of_a_cell_has_its_own_cache() {
    const CORES: usize = 24;
    let arena = Arena::new(4 << 20, PAGE_SIZE);
    let heap = Heap::new(ThisCore);
    // SAFETY: the arena is dropped with the heap.
    unsafe { heap.pages().add_range(arena.start, arena.len_bytes()) }.unwrap();
    let given = Arc::new(Given { heap, _arena: arena });
    let cores = Arc::clone(&given);
    isola_hosted::run(Settings { cores: CORES, ..Settings::default() }, Vec::new(), move |_| {
        let layout = Layout::new::<[u64; 8]>();
        let mut objects = Vec::new();
        for turn in 0..1_000 {
            // SAFETY: the size is not 0, and objects are freed once.
            unsafe {
                let object = cores.heap.alloc(layout);
                assert!(!object.is_null() && !objects.contains(&object));
                object.cast::<u64>().write(turn);
                objects.push(object);
                if turn % 2 == 0 {
                    cores.heap.dealloc(objects.swap_remove(turn as usize % objects.len()), layout);
                }
            }
        }
        for object in objects {
            // SAFETY: as above.
            unsafe { cores.heap.dealloc(object, layout) };
        }
        cores.heap.note();
    });
    let class = given.heap.class_statistics().find(|class| class.size_bytes == 64).unwrap();
    assert_eq!(class.used, 0);
    assert!(class.cached >= CORES, "every core has some in its cache");
    assert_eq!(given.heap.statistics().object_bytes, CORES * 1024, "only the caches remain");
}
