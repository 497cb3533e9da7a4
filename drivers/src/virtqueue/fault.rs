//! Errors of a queue: faults of the device, and rejected buffers.

use core::fmt;

/// A protocol violation of the device. The queue rejects further work until the device has been reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It returned more buffers than it holds.
    IndexJump {
        /// The number of returned buffers by its used index.
        count: u16,
    },
    /// It returned a buffer id that the queue does not have.
    UnknownBuffer {
        /// The returned id.
        id: u32,
    },
    /// It returned a buffer that it does not hold: twice, or before the buffer was published.
    NotLent {
        /// The returned id.
        id: u32,
    },
    /// It reports more written bytes than the buffer has room for.
    TooLong {
        /// The reported length, in bytes.
        written: u32,
        /// The buffer's length, in bytes.
        writable: u32,
    },
    /// It returned a buffer that is shorter than a header.
    TooShort {
        /// The reported length, in bytes.
        written: u32,
    },
    /// It returned fewer buffers than it announced for a frame.
    TooFew,
    /// It reports success of a request, but fewer written bytes than the request asks for.
    Incomplete {
        /// The reported length, in bytes.
        written: u32,
        /// The requested length, in bytes.
        asked: u32,
    },
    /// It returned a request without a status, or with one that does not exist.
    UnknownStatus {
        /// The status.
        status: u8,
    },
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
            Self::Incomplete { written, asked } => {
                write!(f, "the device reports success but wrote {written} of {asked} bytes")
            }
            Self::UnknownStatus { status } => {
                write!(f, "the device answered with status {status:#x}, which does not exist")
            }
            Self::Silent => f.write_str("the device does not answer"),
        }?;
        f.write_str(": reset the device")
    }
}

impl core::error::Error for Fault {}

/// The reason for which a buffer was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no room until the device has returned buffers.
    Full,
    /// The buffer has more segments than a chain can ever have.
    TooManySegments,
    /// The buffer has no bytes.
    Empty,
    /// The buffer, or a segment of it, is not in memory that a device can access.
    NotDeviceMemory,
    /// The buffer has more than 4 GiB.
    TooLong,
    /// The buffer is shorter than the data that the device may write to it.
    TooShort,
    /// A readable part follows a writable one.
    OutOfOrder,
    /// A part extends beyond its region.
    OutsideRegion,
    /// The queue was created without memory for headers.
    NoHeaders,
    /// The frame requests an offload that was not negotiated.
    NotOffered,
    /// The device violated the protocol.
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

/// A rejected buffer with the reason.
#[derive(Debug)]
pub struct RejectedBuffer<B> {
    /// The buffer.
    pub buffer: B,
    /// The reason.
    pub reason: Refusal,
}

impl<B> fmt::Display for RejectedBuffer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl<B: fmt::Debug> core::error::Error for RejectedBuffer<B> {}
