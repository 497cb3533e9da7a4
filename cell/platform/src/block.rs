//! The interface of a block device to the library OS: queues that execute requests without copies of their data.
//!
//! ```text
//!   submit, submit, flush ----> device executes, in any order ----> take_completion, each request once
//! ```
//!
//! A queue orders nothing: a caller that needs one request executed after another submits it after the other's
//! completion. Sectors have [`SECTOR_LEN`] bytes.

use crate::Instant;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::task::Waker;
use isola_abi::volume::VolumeMount;
use isola_iobuf::{Chain, IoBufMut};

/// Length of a sector, the unit of positions and of the capacity, in bytes.
pub const SECTOR_LEN: u32 = 512;

/// A block device with a volume.
pub struct VolumePort {
    /// The volume, and the path at which the cell mounts it.
    pub mount: VolumeMount,
    /// The device.
    pub port: BlockPort,
}

/// A block device.
pub struct BlockPort {
    /// The limits of its requests.
    pub limits: BlockLimits,
    /// The device as a whole.
    pub control: Box<dyn BlockControl + Send>,
    /// The queues, of which the first is in use. Each can serve another core.
    pub queues: Vec<Box<dyn BlockQueue + Send>>,
}

/// The limits of a block device's requests, constant while the cell runs. A queue rejects requests beyond them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLimits {
    /// Length of a logical block, in bytes: every request consists of whole ones. A power of two from [`SECTOR_LEN`].
    pub block_len: u32,
    /// Length of a physical block, in bytes: shorter writes make the device read first.
    pub physical_block_len: u32,
    /// The length in bytes from which longer requests gain nothing; `None` if the device does not report it.
    pub optimal_len: Option<u32>,
    /// The most bytes of data of a request.
    pub data_len: u32,
    /// The most pieces of a request's data, each of at most [`Self::piece_len`] bytes and physically contiguous. The
    /// queue divides longer pieces.
    pub pieces: u16,
    /// The most bytes of a piece.
    pub piece_len: u32,
    /// Whether the device can be written.
    pub writability: Writability,
    /// Whether a completed write can be lost in a power failure.
    pub cache: WriteCache,
    /// The most sectors of a discard; `None` if the device does not support it.
    pub discard_sectors: Option<u32>,
    /// The most sectors of a [`BlockRequest::WriteZeroes`]; `None` if the device does not support it.
    pub write_zeroes_sectors: Option<u32>,
}

/// Whether a device can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writability {
    /// It can.
    Writable,
    /// It rejects writes.
    ReadOnly,
}

/// Whether a completed write can be lost in a power failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteCache {
    /// It can, until a later [`BlockRequest::Flush`] is completed.
    Volatile,
    /// It cannot, and the device rejects flushes.
    None,
}

/// Whether the device may free the storage of sectors that it fills with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmap {
    /// It may.
    Allowed,
    /// It keeps the storage allocated.
    Never,
}

/// Operations on a block device as a whole.
pub trait BlockControl {
    /// Reads the capacity, in sectors. It can change while the cell runs: from this call on the queues reject requests
    /// beyond the returned one. If the device does not answer with a stable value, that is the previous one.
    fn capacity(&mut self) -> u64;
}

/// A request to a block device, with its data.
#[derive(Debug)]
pub enum BlockRequest {
    /// Fills the buffers, all of their data parts in order.
    Read {
        /// The first sector.
        sector: u64,
        /// The memory that the device fills.
        into: Vec<IoBufMut>,
    },
    /// Writes the views, in order.
    Write {
        /// The first sector.
        sector: u64,
        /// The data, unchanged until completion as views are immutable.
        from: Chain,
    },
    /// Makes all writes permanent that were completed before this request was submitted.
    Flush,
    /// Declares the contents of sectors unneeded; until they are written they read as anything.
    Discard {
        /// The first sector.
        sector: u64,
        /// The number of sectors.
        sectors: u32,
    },
    /// Fills sectors with zeros.
    WriteZeroes {
        /// The first sector.
        sector: u64,
        /// The number of sectors.
        sectors: u32,
        /// Whether the device may free their storage.
        unmap: Unmap,
    },
}

/// A queue of a block device, used by one core at a time. Its number of requests is bounded.
pub trait BlockQueue {
    /// Returns the vector of the queue's interrupt, on the core that called [`Self::attach`] last; `None` if the queue has
    /// no interrupt and wakes a task instead.
    fn vector(&self) -> Option<u8>;

    /// Makes a queue without an interrupt wake that task where another one would interrupt.
    fn wake_by(&mut self, waker: &Waker) {
        let _ = waker;
    }

    /// Routes the queue's interrupt to the calling core.
    fn attach(&mut self);

    /// Routes the queue's interrupt to the core that now runs the calling vcore, after the vcore was passed on.
    fn redirect(&mut self) {}

    /// Queues a request with a caller's id. The device begins with it at the latest at the next [`Self::flush`].
    ///
    /// # Errors
    /// Returns the request with the reason. [`BlockRefusal::Full`] is temporary: it ends when completions are taken.
    fn submit(&mut self, request: BlockRequest, id: u64) -> Result<(), RejectedBlockRequest>;

    /// Notifies the device of all queued requests.
    fn flush(&mut self);

    /// Returns the next completed request, if there is one. Every submitted request completes once, in any order; if
    /// the device fails, all of its requests do.
    fn take_completion(&mut self) -> Option<BlockCompletion>;

    /// Gives the device up because it exceeds a time limit of the caller: all requests of the queue complete as
    /// [`BlockOutcome::DeviceFailed`].
    fn give_up(&mut self);

    /// Returns the number of requests that were submitted and not taken back.
    fn in_flight(&self) -> u16;

    /// Enables one interrupt for completions. Returns whether there are some already: these cause no interrupt, so the
    /// caller has to take them first.
    fn enable_interrupts(&mut self) -> CompletionsPending;

    /// Disables interrupts: the caller polls.
    fn disable_interrupts(&mut self);
}

/// Whether completed requests wait in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum CompletionsPending {
    /// Some wait.
    Yes,
    /// None waits.
    No,
}

/// A completed request, with the facts of a consumption record.
#[derive(Debug)]
pub struct BlockCompletion {
    /// The caller's id.
    pub id: u64,
    /// The outcome.
    pub outcome: BlockOutcome,
    /// The request with its memory; `None` if the device may still access the memory.
    pub request: Option<BlockRequest>,
    /// The length of its data, in bytes.
    pub data_len: u32,
    /// The time of its submission.
    pub submitted: Instant,
    /// The number of requests that were in the queue at that time.
    pub ahead: u16,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOutcome {
    /// The device has executed it.
    Done,
    /// The device failed to execute it; the sectors of a write have any contents.
    IoError,
    /// The device does not support it.
    Unsupported,
    /// The device violated its protocol or was given up: the request may or may not have been executed. The queue
    /// rejects all further requests.
    DeviceFailed,
}

/// A rejected request.
#[derive(Debug)]
pub struct RejectedBlockRequest {
    /// The request, unchanged.
    pub request: BlockRequest,
    /// The reason.
    pub reason: BlockRefusal,
}

/// The reason for which a request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockRefusal {
    /// The queue is full.
    Full,
    /// It extends beyond the capacity.
    OutsideDevice,
    /// It does not begin and end at logical blocks, or is empty.
    Misaligned,
    /// It has more bytes or sectors than the limits allow.
    TooLong,
    /// Its data has more pieces than the limits allow.
    TooManyPieces,
    /// Its data is not in memory that the device can access.
    NotDeviceMemory,
    /// The device cannot be written.
    ReadOnly,
    /// The device does not support requests of this type.
    NotOffered,
    /// The device has failed.
    DeviceFailed,
}

impl fmt::Display for BlockRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the queue of the block device is full: take completions and try again",
            Self::OutsideDevice => "the request goes beyond the capacity of the block device",
            Self::Misaligned => "the request does not consist of whole blocks of the device",
            Self::TooLong => "the request is longer than the limits of the block device: split it",
            Self::TooManyPieces => {
                "the data of the request has too many pieces: copy it together or split it"
            }
            Self::NotDeviceMemory => "the data of the request is not on the heap: copy it there",
            Self::ReadOnly => "the block device is read-only",
            Self::NotOffered => "the block device does not support requests of this type",
            Self::DeviceFailed => "the block device has failed: restart the cell",
        })
    }
}

impl core::error::Error for BlockRefusal {}
