//! What can go wrong in a queue, by the caller's doing and by the device's.

use core::fmt;

/// A rule that the device broke. The queue takes no more work until the device has been reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It returned more than it holds.
    IndexJump {
        /// How many buffers, by its used index.
        count: u16,
    },
    /// It returned a buffer that the queue does not have.
    UnknownBuffer {
        /// The id that it named.
        id: u32,
    },
    /// It returned a buffer that it does not hold: twice, or before it was published.
    NotLent {
        /// The id that it named.
        id: u32,
    },
    /// It claims to have written more than the buffer holds.
    TooLong {
        /// What it claims, in bytes.
        written: u32,
        /// What the buffer holds, in bytes.
        writable: u32,
    },
    /// It returned a buffer with less in it than its header needs.
    TooShort {
        /// How much it says is in it, in bytes.
        written: u32,
    },
    /// It returned fewer buffers than it says that a frame takes.
    TooFew,
    /// It does not answer.
    Silent,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IndexJump { count } => {
                write!(f, "the device returned {count} buffers at once, more than it holds")
            }
            Self::UnknownBuffer { id } => write!(f, "the device returned buffer {id}, which does not exist"),
            Self::NotLent { id } => write!(f, "the device returned buffer {id}, which it does not hold"),
            Self::TooLong { written, writable } => {
                write!(f, "the device claims to have written {written} bytes to a buffer of {writable}")
            }
            Self::TooShort { written } => {
                write!(f, "the device wrote {written} bytes, which is less than a header")
            }
            Self::TooFew => f.write_str("the device returned fewer buffers than it says that a frame takes"),
            Self::Silent => f.write_str("the device does not answer"),
        }?;
        f.write_str(": reset the device")
    }
}

impl core::error::Error for Fault {}

/// Why a buffer was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no room until the device has returned something.
    Full,
    /// The buffer has more segments than a chain can ever have.
    TooManySegments,
    /// The buffer has no bytes.
    Empty,
    /// The buffer, or a segment of it, is not in memory that a device can reach.
    NotDeviceMemory,
    /// The buffer has more than 4 GiB.
    TooLong,
    /// The buffer is shorter than what the device may write to it.
    TooShort,
    /// A part that the device reads follows one that it writes.
    OutOfOrder,
    /// A part is not all within its region.
    OutsideRegion,
    /// The queue was made without room for headers.
    NoHeaders,
    /// The device was not asked to do what the frame wants of it.
    NotOffered,
    /// The device broke the rules.
    Broken(Fault),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => {
                f.write_str("the queue is full: take back what the device has returned and try again")
            }
            Self::TooManySegments => f.write_str("the buffer has too many segments: copy it together"),
            Self::Empty => f.write_str("the buffer is empty"),
            Self::NotDeviceMemory => f.write_str("the buffer is not on the heap: copy it there"),
            Self::TooLong => f.write_str("the buffer has more than 4 GiB: split it"),
            Self::TooShort => {
                f.write_str("the buffer is too short for what the device may write: make it longer")
            }
            Self::OutOfOrder => f.write_str("what the device reads must come before what it writes"),
            Self::OutsideRegion => f.write_str("a part is not within its region"),
            Self::NoHeaders => f.write_str("the queue has no room for headers"),
            Self::NotOffered => f.write_str("the device does not offer this: do it before sending"),
            Self::Broken(fault) => fault.fmt(f),
        }
    }
}

/// A buffer that was not taken, and why.
#[derive(Debug)]
pub struct Refused<B> {
    /// The buffer.
    pub buffer: B,
    /// Why.
    pub reason: Refusal,
}

impl<B> fmt::Display for Refused<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl<B: fmt::Debug> core::error::Error for Refused<B> {}
