//! Deliberate misuse of memory, for tests of its detection.

use core::alloc::{GlobalAlloc, Layout};
use core::hint::black_box;

/// A kind of misuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misdeed {
    /// Frees an object twice.
    FreeTwice,
    /// Frees an object of 24 bytes as one of 32.
    FreeAsLarger,
    /// Writes the byte behind an object.
    WriteBehind,
    /// Writes the byte in front of an object.
    WriteBefore,
    /// Writes to an object after its free. The allocator detects it when the object leaves the quarantine.
    WriteAfterFree,
}

impl Misdeed {
    /// All kinds.
    pub const ALL: [Self; 5] =
        [Self::FreeTwice, Self::FreeAsLarger, Self::WriteBehind, Self::WriteBefore, Self::WriteAfterFree];
}

/// Commits the misuse on an object of `allocator`. An allocator without checks is corrupt afterwards.
pub fn commit(misdeed: Misdeed, allocator: &impl GlobalAlloc) {
    let layout = Layout::new::<[u64; 3]>();
    // SAFETY: none. The function breaks the rules of `GlobalAlloc` on purpose, for a caller that tests the detection.
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
