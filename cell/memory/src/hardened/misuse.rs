//! The kinds of misuse that the allocator detects, with messages that name the object.

use core::alloc::Layout;
use core::fmt;

/// An object, as allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// The address of its first byte.
    pub address: usize,
    /// Its size and alignment.
    pub layout: Layout,
    /// The sequence number of the allocation, the same in every run of a deterministic program; `None` if it is no
    /// longer known.
    pub number: Option<u64>,
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, layout, number } = self;
        write!(f, "the object at {address:#x} of {} bytes, aligned at {}", layout.size(), layout.align())?;
        number.map_or(Ok(()), |number| write!(f, ", number {number},"))
    }
}

/// A detected misuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misuse {
    /// The object was freed before.
    FreedTwice(Object),
    /// The object was freed with this layout, which is not its own.
    OtherLayout(Object, Layout),
    /// The byte this many bytes in front of the object was written.
    WrittenBefore(Object, usize),
    /// The byte at this offset behind the end of the object was written.
    WrittenBehind(Object, usize),
    /// The byte at this offset was written after the object was freed.
    WrittenAfterFree(Object, usize),
    /// The object is not of this allocator, was freed long ago, or had its header overwritten.
    Unknown(Object),
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FreedTwice(object) => {
                write!(f, "{object} was freed twice: look for its second owner")
            }
            Self::OtherLayout(object, layout) => write!(
                f,
                "{object} was freed as one of {} bytes, aligned at {}: free it with the layout that it was made with",
                layout.size(),
                layout.align()
            ),
            Self::WrittenBefore(object, bytes) => write!(
                f,
                "{object} was written to {bytes} bytes in front of its start: look for an index below 0"
            ),
            Self::WrittenBehind(object, bytes) => write!(
                f,
                "{object} was written to {bytes} bytes behind its end: look for an index that is too large"
            ),
            Self::WrittenAfterFree(object, offset) => write!(
                f,
                "{object} was written to at offset {offset} after it was freed: look for a pointer that was kept"
            ),
            Self::Unknown(object) => write!(
                f,
                "{object} was freed, but is none of this allocator, or its front was overwritten: look for where it was \
                 made"
            ),
        }
    }
}
