//! Deliberate misuse of memory, for tests of its detection.

use core::alloc::{GlobalAlloc, Layout};
use core::hint::black_box;

/// A kind of misuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedMisuse {
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

impl InjectedMisuse {
    /// All kinds.
    pub const ALL: [Self; 5] =
        [Self::FreeTwice, Self::FreeAsLarger, Self::WriteBehind, Self::WriteBefore, Self::WriteAfterFree];
}

/// Injects the misuse on an object of `allocator`. An allocator without checks is corrupt afterwards.
pub fn inject(misuse: InjectedMisuse, allocator: &impl GlobalAlloc) {
    let layout = Layout::new::<[u64; 3]>();
    // SAFETY: none. The function breaks the rules of `GlobalAlloc` on purpose, for a caller that tests the detection.
    unsafe {
        let object = black_box(allocator.alloc(layout));
        if object.is_null() {
            return;
        }
        match misuse {
            InjectedMisuse::FreeTwice => {
                allocator.dealloc(object, layout);
                allocator.dealloc(black_box(object), layout);
            }
            InjectedMisuse::FreeAsLarger => allocator.dealloc(object, Layout::new::<[u64; 4]>()),
            InjectedMisuse::WriteBehind => {
                object.add(layout.size()).write(1);
                allocator.dealloc(black_box(object), layout);
            }
            InjectedMisuse::WriteBefore => {
                object.sub(1).write(1);
                allocator.dealloc(black_box(object), layout);
            }
            InjectedMisuse::WriteAfterFree => {
                allocator.dealloc(object, layout);
                black_box(object).add(8).write(1);
            }
        }
    }
}
