//! Doing wrong with memory on purpose, for tests of what happens then.

use core::alloc::{GlobalAlloc, Layout};
use core::hint::black_box;

/// What is done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misdeed {
    /// An object is freed twice.
    FreeTwice,
    /// An object of 24 bytes is freed as one of 32.
    FreeAsLarger,
    /// The byte behind an object is written.
    WriteBehind,
    /// The byte in front of an object is written.
    WriteBefore,
    /// An object is written to after it was freed; found when its memory is to be used again.
    WriteAfterFree,
}

impl Misdeed {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::FreeTwice, Self::FreeAsLarger, Self::WriteBehind, Self::WriteBefore, Self::WriteAfterFree];
}

/// Commits it on an object of `allocator`. Under one that does not look, memory is corrupt from here on.
pub fn commit(misdeed: Misdeed, allocator: &impl GlobalAlloc) {
    let layout = Layout::new::<[u64; 3]>();
    // SAFETY: none. The rules are broken on purpose: the caller wants to see what happens.
    unsafe {
        let object = black_box(allocator.alloc(layout));
        if object.is_null() {
            return;
        }
        match misdeed {
            Misdeed::FreeTwice => {
                allocator.dealloc(object, layout);
                allocator.dealloc(black_box(object), layout);
            }
            Misdeed::FreeAsLarger => allocator.dealloc(object, Layout::new::<[u64; 4]>()),
            Misdeed::WriteBehind => {
                object.add(layout.size()).write(1);
                allocator.dealloc(black_box(object), layout);
            }
            Misdeed::WriteBefore => {
                object.sub(1).write(1);
                allocator.dealloc(black_box(object), layout);
            }
            Misdeed::WriteAfterFree => {
                allocator.dealloc(object, layout);
                black_box(object).add(8).write(1);
            }
        }
    }
}
