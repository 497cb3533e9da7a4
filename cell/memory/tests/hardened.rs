//! The hardened allocator finds what is done wrong with memory, and nothing where nothing is.
#![allow(unsafe_code, reason = "giving memory back is a promise that no type can check")]

mod common;

use common::{Arena, Random, heap_of};
use isola_memory::Hardened;
use isola_memory::hardened::misdeed::{Misdeed, commit};
use isola_memory::hardened::{FREED, FRESH};
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What the allocator says of what `body` does; `None` where it finds nothing.
fn found(allocator: &Hardened<System>, body: impl FnOnce()) -> Option<String> {
    let all = AssertUnwindSafe(|| {
        body();
        allocator.empty_quarantine();
    });
    Some(*catch_unwind(all).err()?.downcast::<String>().expect("the message is formatted"))
}

#[test]
fn every_misdeed_is_found_and_names_the_object() {
    for (misdeed, says) in [
        (Misdeed::FreeTwice, "number 1, was freed twice"),
        (Misdeed::FreeAsLarger, "number 1, was freed as one of 32 bytes, aligned at 8"),
        (Misdeed::WriteBehind, "number 1, was written to 0 bytes behind its end"),
        (Misdeed::WriteBefore, "number 1, was written to 1 bytes in front of its start"),
        (Misdeed::WriteAfterFree, "was written to at offset 8 after it was freed"),
    ] {
        let allocator = Hardened::new(System);
        let message = found(&allocator, || commit(misdeed, &allocator)).expect("it is found");
        assert!(message.contains("of 24 bytes, aligned at 8"), "{misdeed:?}: {message}");
        assert!(message.contains(says), "{misdeed:?}: {message}");
    }
}

#[test]
fn an_object_is_not_resized_from_a_size_that_it_does_not_have() {
    let allocator = Hardened::new(System);
    let message = found(&allocator, || {
        // SAFETY: the second layout is wrong, which is to be found before anything is done with it.
        unsafe {
            let object = allocator.alloc(Layout::new::<u64>());
            allocator.realloc(object, Layout::new::<u128>(), 64);
        }
    });
    assert!(message.expect("it is found").contains("was freed as one of 16 bytes, aligned at 16"));
}

#[test]
fn new_and_freed_objects_are_conspicuous() {
    let allocator = Hardened::new(System);
    let layout = Layout::new::<[u8; 40]>();
    // SAFETY: the object's memory is kept back after it is freed, so that it may be looked at.
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
fn what_is_kept_back_is_given_back_before_memory_runs_out() {
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
    fn who_does_nothing_wrong_is_told_nothing(seed in 1_u64.., steps in 0..400_usize) {
        let allocator = Hardened::new(System);
        let mut random = Random(seed);
        let mut objects: Vec<(*mut u8, Layout, u8)> = Vec::new();
        // SAFETY: objects are written to within their layout, and freed once, with it.
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
