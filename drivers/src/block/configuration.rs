//! Features, configuration and limits of a block device (virtio 1.2, 5.2.3 and 5.2.4). No value of the configuration
//! is used before it is checked.

use super::{SECTOR_LEN, SECTOR_SHIFT};
use crate::device::{Device, DeviceError};
use crate::transport::Transport;
use crate::virtqueue::{MAX_CHAIN, OWN_DESCRIPTORS};

/// The device's features.
pub(super) mod bits {
    pub const SEGMENT_LEN: u64 = 1 << 1;
    pub const SEGMENTS: u64 = 1 << 2;
    pub const READ_ONLY: u64 = 1 << 5;
    pub const BLOCK_LEN: u64 = 1 << 6;
    pub const FLUSH: u64 = 1 << 9;
    pub const TOPOLOGY: u64 = 1 << 10;
    pub const SEVERAL_QUEUES: u64 = 1 << 12;
    pub const DISCARD: u64 = 1 << 13;
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// All that the driver uses.
    pub const ALL: u64 = SEGMENT_LEN
        | SEGMENTS
        | READ_ONLY
        | BLOCK_LEN
        | FLUSH
        | TOPOLOGY
        | SEVERAL_QUEUES
        | DISCARD
        | WRITE_ZEROES;
}

/// Offsets in the device's configuration.
mod offset {
    pub const CAPACITY: usize = 0;
    pub const SEGMENT_LEN: usize = 8;
    pub const SEGMENTS: usize = 12;
    pub const BLOCK_LEN: usize = 20;
    pub const PHYSICAL_EXPONENT: usize = 24;
    pub const OPTIMAL_BLOCKS: usize = 28;
    pub const QUEUES: usize = 34;
    pub const DISCARD_SECTORS: usize = 36;
    pub const DISCARD_ALIGNMENT: usize = 44;
    pub const WRITE_ZEROES_SECTORS: usize = 48;
    pub const WRITE_ZEROES_UNMAPS: usize = 56;
}

/// The most bytes of data of a request, so that none occupies the device for long.
pub const MAX_DATA_LEN: u32 = 4 << 20;

/// The longest logical block that the driver accepts, in bytes.
pub const MAX_BLOCK_LEN: u32 = 64 << 10;

/// The most logical blocks in a physical one, as a power of two, that the driver believes.
const MAX_PHYSICAL_EXPONENT: u8 = 8;

/// Whether a device can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writability {
    /// It can.
    Writable,
    /// It rejects writes, and so does the driver.
    ReadOnly,
}

/// Whether a completed write can be lost in a power failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteCache {
    /// It can, until a later flush is completed.
    Volatile,
    /// It cannot, and the device offers no flush.
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

/// The limits of a device's requests, constant while it runs. Sectors have 512 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLimits {
    /// Length of a logical block, in bytes: every request consists of whole ones.
    pub block_len: u32,
    /// Length of a physical block, in bytes: shorter writes make the device read first.
    pub physical_block_len: u32,
    /// The length in bytes from which longer requests gain nothing; 0 if the device does not report it.
    pub optimal_len: u32,
    /// The most bytes of data of a request.
    pub data_len: u32,
    /// The most segments of a request's data: physically contiguous pieces of at most [`Self::segment_len`].
    pub segments: u16,
    /// The most bytes of a segment. The driver divides longer pieces.
    pub segment_len: u32,
    /// Whether the device can be written.
    pub writability: Writability,
    /// Whether writes need a flush.
    pub cache: WriteCache,
    /// The most sectors of a discard; 0 if the device does not support it.
    pub discard_sectors: u32,
    /// The alignment in sectors from which a discard frees storage; 0 if the device does not report it.
    pub discard_alignment: u32,
    /// The most sectors of a request to write zeros; 0 if the device does not support it.
    pub write_zeroes_sectors: u32,
    /// Whether the device can free the storage of these.
    pub write_zeroes_unmap: Unmap,
}

/// The most sectors that the driver believes: positions in bytes have 64 bits.
const MAX_SECTORS: u64 = u64::MAX >> SECTOR_SHIFT;

/// Reads the capacity in sectors.
pub(super) fn read_capacity(device: &Device) -> Result<u64, DeviceError> {
    device.configuration(|transport| {
        let low = transport.configuration_u32(offset::CAPACITY)?;
        let high = transport.configuration_u32(offset::CAPACITY + 4)?;
        Some((u64::from(low) | u64::from(high) << 32).min(MAX_SECTORS))
    })
}

/// Reads the number of queues.
pub(super) fn read_queues(device: &Device) -> Result<u16, DeviceError> {
    if !device.has(bits::SEVERAL_QUEUES) {
        return Ok(1);
    }
    Ok(device.configuration(|transport| transport.configuration_u16(offset::QUEUES))?.max(1))
}

/// Reads a word that the configuration has if the device has the feature.
fn word(device: &Device, feature: u64, offset: usize) -> Result<Option<u32>, DeviceError> {
    match device.has(feature) {
        true => device.configuration(|transport| transport.configuration_u32(offset)).map(Some),
        false => Ok(None),
    }
}

/// Reads a byte, as [`word`].
fn byte(device: &Device, feature: u64, offset: usize) -> Result<Option<u8>, DeviceError> {
    let read = |transport: &dyn Transport| transport.configuration_u8(offset);
    if device.has(feature) { device.configuration(read).map(Some) } else { Ok(None) }
}

/// Reads and checks the limits.
///
/// # Errors
/// [`DeviceError::InvalidBlockLen`], [`DeviceError::InvalidSegmentLen`]; errors of the configuration.
pub(super) fn read_limits(device: &Device) -> Result<BlockLimits, DeviceError> {
    let block_len = word(device, bits::BLOCK_LEN, offset::BLOCK_LEN)?.unwrap_or(SECTOR_LEN);
    if !block_len.is_power_of_two() || !(SECTOR_LEN..=MAX_BLOCK_LEN).contains(&block_len) {
        return Err(DeviceError::InvalidBlockLen { len: block_len });
    }
    let segment_len = word(device, bits::SEGMENT_LEN, offset::SEGMENT_LEN)?.unwrap_or(MAX_DATA_LEN);
    if segment_len < SECTOR_LEN {
        return Err(DeviceError::InvalidSegmentLen { len: segment_len });
    }
    let longest = MAX_CHAIN - OWN_DESCRIPTORS;
    // Devices report 0 where they mean 1.
    let segments = word(device, bits::SEGMENTS, offset::SEGMENTS)?
        .map_or(longest, |segments| u16::try_from(segments).unwrap_or(u16::MAX).clamp(1, longest));
    let exponent = byte(device, bits::TOPOLOGY, offset::PHYSICAL_EXPONENT)?;
    let exponent = exponent.filter(|exponent| *exponent <= MAX_PHYSICAL_EXPONENT).unwrap_or(0);
    let optimal = word(device, bits::TOPOLOGY, offset::OPTIMAL_BLOCKS)?.unwrap_or(0);
    let unmaps = byte(device, bits::WRITE_ZEROES, offset::WRITE_ZEROES_UNMAPS)?.unwrap_or(0);
    let is = |feature| device.has(feature);
    Ok(BlockLimits {
        block_len,
        physical_block_len: block_len << exponent,
        optimal_len: optimal.saturating_mul(block_len),
        data_len: MAX_DATA_LEN,
        segments,
        segment_len,
        writability: if is(bits::READ_ONLY) { Writability::ReadOnly } else { Writability::Writable },
        cache: if is(bits::FLUSH) { WriteCache::Volatile } else { WriteCache::None },
        discard_sectors: word(device, bits::DISCARD, offset::DISCARD_SECTORS)?.unwrap_or(0),
        discard_alignment: word(device, bits::DISCARD, offset::DISCARD_ALIGNMENT)?.unwrap_or(0),
        write_zeroes_sectors: word(device, bits::WRITE_ZEROES, offset::WRITE_ZEROES_SECTORS)?.unwrap_or(0),
        write_zeroes_unmap: if unmaps == 0 { Unmap::Never } else { Unmap::Allowed },
    })
}
