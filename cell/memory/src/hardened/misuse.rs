//! What a program can do wrong with an object, in words that name the object.

use core::alloc::Layout;
use core::fmt;

/// An object, as it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Where it begins.
    pub address: usize,
    /// Its size and alignment.
    pub layout: Layout,
    /// The how-manieth object of the allocator it is: the same in every run that does the same. `None` where that is not
    /// known any more.
    pub number: Option<u64>,
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, layout, number } = self;
        write!(f, "the object at {address:#x} of {} bytes, aligned at {}", layout.size(), layout.align())?;
        number.map_or(Ok(()), |number| write!(f, ", number {number},"))
    }
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misuse {
    /// It was freed before.
    FreedTwice(Object),
    /// It was freed with this layout, which is not its own.
    OtherLayout(Object, Layout),
    /// The byte so many bytes in front of it was written.
    WrittenBefore(Object, usize),
    /// The byte so many bytes behind it was written.
    WrittenBehind(Object, usize),
    /// The byte there was written after it was freed.
    WrittenAfterFree(Object, usize),
    /// It is not of this allocator, was freed long ago, or what stands in front of it was overwritten.
    Unknown(Object),
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FreedTwice(object) => {
                write!(f, "{object} was freed twice: look for who else thinks that he owns it")
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
                "{object} was written to at offset {offset} after it was freed: look for who kept a pointer to it"
            ),
            Self::Unknown(object) => write!(
                f,
                "{object} was freed, but is none of this allocator, or its front was overwritten: look for where it was \
                 made"
            ),
        }
    }
}
