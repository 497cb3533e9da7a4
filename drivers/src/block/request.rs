//! Requests of a block device: their checks, and their header and range (virtio 1.2, 5.2.6).

use super::configuration::{BlockLimits, Unmap, Writability, WriteCache};
use super::{SECTOR_LEN, SECTOR_SHIFT};
use crate::virtqueue::{Access, PART_LEN, Refusal, RequestParts};
use core::fmt;
use isola_machine::dma::DmaBuffer;

/// The types of requests.
mod kind {
    pub const READ: u32 = 0;
    pub const WRITE: u32 = 1;
    pub const FLUSH: u32 = 4;
    pub const DISCARD: u32 = 11;
    pub const WRITE_ZEROES: u32 = 13;
}

/// Flag of a range: the device may free its storage.
const RANGE_UNMAP: u32 = 1;

/// A request with its buffer `B`: all of the buffer's segments, in order. Sectors have 512 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<B> {
    /// Reads from the device.
    Read {
        /// The first sector.
        sector: u64,
        /// The memory that the device fills.
        into: B,
    },
    /// Writes to the device.
    Write {
        /// The first sector.
        sector: u64,
        /// The memory that the device reads.
        from: B,
    },
    /// Makes all writes permanent that were completed before this request.
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

impl<B> Request<B> {
    /// Returns the buffer.
    pub fn buffer(&self) -> Option<&B> {
        match self {
            Self::Read { into: buffer, .. } | Self::Write { from: buffer, .. } => Some(buffer),
            Self::Flush | Self::Discard { .. } | Self::WriteZeroes { .. } => None,
        }
    }
}

/// The reason for which a request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestRefusal {
    /// The queue rejects it; [`Refusal::Full`] is temporary.
    Queue(Refusal),
    /// It extends beyond the device's last sector.
    OutsideDevice {
        /// The device's capacity, in sectors.
        capacity: u64,
    },
    /// It does not begin and end at logical blocks.
    Misaligned {
        /// Length of a logical block, in bytes.
        block_len: u32,
    },
    /// It has more bytes, or sectors, than the device's limits allow.
    TooLong,
    /// The device cannot be written.
    ReadOnly,
    /// The device does not support requests of this type.
    NotOffered,
}

impl fmt::Display for RequestRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(refusal) => refusal.fmt(f),
            Self::OutsideDevice { capacity } => {
                write!(f, "the device has {capacity} sectors, and the request goes beyond them")
            }
            Self::Misaligned { block_len } => {
                write!(f, "the device has blocks of {block_len} bytes: request whole ones")
            }
            Self::TooLong => f.write_str("the request is longer than the device's limits: split it"),
            Self::ReadOnly => f.write_str("the device is read-only"),
            Self::NotOffered => f.write_str("the device does not support requests of this type"),
        }
    }
}

impl core::error::Error for RequestRefusal {}

/// A checked request: its parts and the length of its data in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckedRequest {
    pub parts: RequestParts,
    pub data_len: u32,
}

/// Checks a request against the limits of a device with `capacity` sectors.
pub(super) fn check<B: DmaBuffer>(
    request: &Request<B>,
    limits: &BlockLimits,
    capacity: u64,
) -> Result<CheckedRequest, RequestRefusal> {
    let is_read_only = limits.writability == Writability::ReadOnly;
    match request {
        Request::Read { .. } => {}
        Request::Flush if limits.cache == WriteCache::None => return Err(RequestRefusal::NotOffered),
        Request::Flush => {}
        Request::Write { .. } | Request::Discard { .. } | Request::WriteZeroes { .. } if is_read_only => {
            return Err(RequestRefusal::ReadOnly);
        }
        Request::Write { .. } => {}
        Request::Discard { .. } if limits.discard_sectors == 0 => return Err(RequestRefusal::NotOffered),
        Request::Discard { .. } => {}
        Request::WriteZeroes { .. } if limits.write_zeroes_sectors == 0 => {
            return Err(RequestRefusal::NotOffered);
        }
        Request::WriteZeroes { .. } => {}
    }
    match *request {
        Request::Read { sector, ref into } => data(kind::READ, sector, into, limits, capacity),
        Request::Write { sector, ref from } => data(kind::WRITE, sector, from, limits, capacity),
        Request::Flush => Ok(CheckedRequest { parts: parts(kind::FLUSH, 0, None, limits), data_len: 0 }),
        Request::Discard { sector, sectors } => {
            check_sectors(sector, sectors.into(), limits.discard_sectors.into(), limits, capacity)?;
            let range = range(sector, sectors, 0);
            Ok(CheckedRequest { parts: parts(kind::DISCARD, 0, Some(range), limits), data_len: 0 })
        }
        Request::WriteZeroes { sector, sectors, unmap } => {
            check_sectors(sector, sectors.into(), limits.write_zeroes_sectors.into(), limits, capacity)?;
            // A device that cannot free the storage ignores the flag; it is not set there all the same.
            let frees = unmap == Unmap::Allowed && limits.write_zeroes_unmap == Unmap::Allowed;
            let range = range(sector, sectors, if frees { RANGE_UNMAP } else { 0 });
            Ok(CheckedRequest { parts: parts(kind::WRITE_ZEROES, 0, Some(range), limits), data_len: 0 })
        }
    }
}

/// Checks a request with data.
fn data(
    kind: u32,
    sector: u64,
    buffer: &impl DmaBuffer,
    limits: &BlockLimits,
    capacity: u64,
) -> Result<CheckedRequest, RequestRefusal> {
    let mut len = 0_usize;
    buffer.for_each_segment(|_, segment| len = len.saturating_add(segment));
    let len = len as u64;
    if !len.is_multiple_of(SECTOR_LEN.into()) {
        return Err(RequestRefusal::Misaligned { block_len: limits.block_len });
    }
    let most = u64::from(limits.data_len >> SECTOR_SHIFT);
    check_sectors(sector, len >> SECTOR_SHIFT, most, limits, capacity)?;
    // At most `data_len`, as checked.
    Ok(CheckedRequest { parts: parts(kind, sector, None, limits), data_len: len as u32 })
}

/// Checks the sectors of a request.
fn check_sectors(
    sector: u64,
    sectors: u64,
    most: u64,
    limits: &BlockLimits,
    capacity: u64,
) -> Result<(), RequestRefusal> {
    let block_len = limits.block_len;
    let block = u64::from(block_len >> SECTOR_SHIFT);
    if sectors == 0 {
        return Err(RequestRefusal::Queue(Refusal::Empty));
    }
    if sectors > most {
        return Err(RequestRefusal::TooLong);
    }
    if !sector.is_multiple_of(block) || !sectors.is_multiple_of(block) {
        return Err(RequestRefusal::Misaligned { block_len });
    }
    match sector.checked_add(sectors) {
        Some(end) if end <= capacity => Ok(()),
        _ => Err(RequestRefusal::OutsideDevice { capacity }),
    }
}

/// Returns the parts of a request.
fn parts(kind: u32, sector: u64, range: Option<[u8; PART_LEN]>, limits: &BlockLimits) -> RequestParts {
    let access = if kind == kind::READ { Access::DeviceWrites } else { Access::DeviceReads };
    let header = two_words(u64::from(kind), sector);
    RequestParts { header, range, access, segment_len: limits.segment_len, segments: limits.segments }
}

/// Returns a range of sectors, as `virtio_blk_discard_write_zeroes`.
fn range(sector: u64, sectors: u32, flags: u32) -> [u8; PART_LEN] {
    two_words(sector, u64::from(sectors) | u64::from(flags) << 32)
}

fn two_words(first: u64, second: u64) -> [u8; PART_LEN] {
    let mut bytes = [0; PART_LEN];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..].copy_from_slice(&second.to_le_bytes());
    bytes
}
