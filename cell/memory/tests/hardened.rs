//! The hardened allocator detects misuse of memory, and reports none in correct programs.
#![allow(unsafe_code, reason = "the caller of a free owns the memory, which no type can check")]

mod common;

use common::{Arena, Random, heap_of};
use isola_memory::Hardened;
use isola_memory::hardened::misuse_injection::{InjectedMisuse, inject};
use isola_memory::hardened::{FREED, FRESH};
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Returns the allocator's message on `body`; `None` if it detects no misuse.
fn found(allocator: &Hardened<System>, body: impl FnOnce()) -> Option<String> {
    let all = AssertUnwindSafe(|| {
        body();
        allocator.empty_quarantine();
    });
    Some(*catch_unwind(all).err()?.downcast::<String>().expect("the panic message is a String"))
}

#[test]
fn each_misuse_is_detected_and_the_message_names_the_object() {
    for (misuse, says) in [
        (InjectedMisuse::FreeTwice, "number 1, was freed twice"),
        (InjectedMisuse::FreeAsLarger, "number 1, was freed as one of 32 bytes, aligned at 8"),
        (InjectedMisuse::WriteBehind, "number 1, was written to 0 bytes behind its end"),
        (InjectedMisuse::WriteBefore, "number 1, was written to 1 bytes in front of its start"),
        (InjectedMisuse::WriteAfterFree, "was written to at offset 8 after it was freed"),
    ] {
        let allocator = Hardened::new(System);
        let message = found(&allocator, || inject(misuse, &allocator)).expect("the misuse is detected");
        assert!(message.contains("of 24 bytes, aligned at 8"), "{misuse:?}: {message}");
        assert!(message.contains(says), "{misuse:?}: {message}");
    }
}

#[test]
fn realloc_with_a_wrong_layout_is_detected() {
    let allocator = Hardened::new(System);
    let message = found(&allocator, || {
        // SAFETY: the second layout is wrong on purpose; the allocator must detect it before it accesses the object.
        unsafe {
            let object = allocator.alloc(Layout::new::<u64>());
            allocator.realloc(object, Layout::new::<u128>(), 64);
        }
    });
    assert!(message.expect("the misuse is detected").contains("was freed as one of 16 bytes, aligned at 16"));
}

#[test]
fn new_and_freed_objects_are_filled_with_a_pattern() {
    let allocator = Hardened::new(System);
    let layout = Layout::new::<[u8; 40]>();
    // SAFETY: a freed object stays in quarantine, where its memory may be read.
    unsafe {
        let object = allocator.alloc(layout);
        assert!((0..40).all(|offset| object.add(offset).read() == FRESH));
        allocator.dealloc(object, layout);
        assert!((0..40).all(|offset| object.add(offset).read() == FREED));
        let zeroed = allocator.alloc_zeroed(layout);
        assert!((0..40).all(|offset| zeroed.add(offset).read() == 0));
        allocator.dealloc(zeroed, layout);
    }
}

#[test]
fn the_quarantine_is_emptied_when_memory_runs_out() {
    let arena = Arena::new(256 << 10, 4096);
    let allocator = Hardened::new(heap_of(&arena));
    let layout = Layout::from_size_align(16 << 10, 4096).unwrap();
    for _ in 0..1000 {
        // SAFETY: the object is freed once.
        unsafe {
            let object = allocator.alloc(layout);
            assert!(!object.is_null() && object.addr().is_multiple_of(4096));
            allocator.dealloc(object, layout);
        }
    }
}

proptest! {
    #[test]
    fn correct_use_reports_no_misuse(seed in 1_u64.., steps in 0..400_usize) {
        let allocator = Hardened::new(System);
        let mut random = Random(seed);
        let mut objects: Vec<(*mut u8, Layout, u8)> = Vec::new();
        // SAFETY: writes are within an object's layout, and each object is freed once, with its layout.
        unsafe {
            for step in 0..steps {
                let value = step as u8;
                if objects.is_empty() || random.below(3) > 0 {
                    let most = if random.below(20) == 0 { 100_000 } else { 300 };
                    let size = 1 + random.below(most);
                    let layout = Layout::from_size_align(size, 1 << random.below(9)).unwrap();
                    let object = allocator.alloc(layout);
                    prop_assert!(object.addr().is_multiple_of(layout.align()));
                    object.write_bytes(value, size);
                    objects.push((object, layout, value));
                } else {
                    let (object, layout, value) = objects.swap_remove(random.below(objects.len()));
                    prop_assert!((0..layout.size()).all(|offset| object.add(offset).read() == value));
                    if random.below(2) == 0 {
                        let size = 1 + random.below(300);
                        let object = allocator.realloc(object, layout, size);
                        let kept = size.min(layout.size());
                        prop_assert!((0..kept).all(|offset| object.add(offset).read() == value));
                        object.write_bytes(value, size);
                        let layout = Layout::from_size_align(size, layout.align()).unwrap();
                        objects.push((object, layout, value));
                    } else {
                        allocator.dealloc(object, layout);
                    }
                }
            }
            objects.into_iter().for_each(|(object, layout, _)| allocator.dealloc(object, layout));
        }
        allocator.empty_quarantine();
    }
}
