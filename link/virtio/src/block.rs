//! Requests of a block device (virtio 1.2, 5.2.6), and its configuration (5.2.4).

use crate::memory::DriverMemory;
use crate::queue::{Chain, DeviceQueue, DriverFault, EVENT_INDEX, INDIRECT_DESCRIPTORS, Segment, VERSION_1};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Deref;
use core::sync::atomic::AtomicU64;

/// The number of the device type.
pub const DEVICE_TYPE: u32 = 2;

/// The length of a sector in bytes.
pub const SECTOR_LEN: usize = 512;

/// Features.
const SEGMENTS: u64 = 1 << 2;
const READ_ONLY: u64 = 1 << 5;
const BLOCK_LEN: u64 = 1 << 6;
const FLUSH: u64 = 1 << 9;
const TOPOLOGY: u64 = 1 << 10;

/// The length of a request's header in bytes.
const HEADER_LEN: usize = 16;

/// The size, limits and features of a served device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSettings {
    /// The number of sectors.
    pub sectors: u64,
    /// The length of a block in bytes, of which every request has whole ones.
    pub block_len: u32,
    /// The length of a physical block in bytes.
    pub physical_block_len: u32,
    /// The most bytes of a request's data.
    pub most_bytes: usize,
    /// Whether it rejects writes.
    pub is_read_only: bool,
    /// Whether completed writes need a flush to be permanent.
    pub has_cache: bool,
}

impl BlockSettings {
    /// Returns the features that the device offers.
    pub fn features(&self) -> u64 {
        let if_set = |is_set, feature| if is_set { feature } else { 0 };
        VERSION_1
            | EVENT_INDEX
            | INDIRECT_DESCRIPTORS
            | SEGMENTS
            | BLOCK_LEN
            | TOPOLOGY
            | if_set(self.is_read_only, READ_ONLY)
            | if_set(self.has_cache, FLUSH)
    }

    /// Returns the device's configuration.
    pub fn configuration(&self, segments: u32) -> Vec<u8> {
        let mut bytes = vec![0; 60];
        let exponent = (self.physical_block_len / self.block_len.max(1)).max(1).ilog2();
        let parts: [(usize, &[u8]); 4] = [
            (0, &self.sectors.to_le_bytes()),
            (12, &segments.to_le_bytes()),
            (20, &self.block_len.to_le_bytes()),
            (24, &[exponent as u8]),
        ];
        for (offset, part) in parts {
            if let Some(place) = bytes.get_mut(offset..offset + part.len()) {
                place.copy_from_slice(part);
            }
        }
        bytes
    }
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOperation {
    /// Reads from this sector on.
    Read(u64),
    /// Writes from this sector on.
    Write(u64),
    /// Makes completed writes permanent.
    Flush,
    /// The device does not know the request, or it is not within the device: it is answered with this status.
    Refused(BlockStatus),
}

/// The status of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BlockStatus {
    /// It was executed.
    Ok = 0,
    /// It failed.
    IoError = 1,
    /// The device does not support it.
    Unsupported = 2,
}

/// A request of the driver, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRequest {
    /// The operation.
    pub operation: BlockOperation,
    /// The length of its data in bytes: whole blocks, at most [`BlockSettings::most_bytes`].
    pub data_len: usize,
    head: u16,
    data: Vec<Segment>,
    /// The offset of the byte for the status.
    status: usize,
}

impl BlockRequest {
    /// Checks a chain. A request that the device cannot execute is [`BlockOperation::Refused`].
    ///
    /// # Errors
    /// [`DriverFault::NoRequest`] if it has no header, or no room for a status.
    pub fn parse<M: Deref<Target = [AtomicU64]>>(
        memory: &DriverMemory<M>,
        chain: Chain,
        settings: &BlockSettings,
    ) -> Result<Self, DriverFault> {
        let Chain { head, mut segments } = chain;
        let status = segments.last_mut().filter(|last| last.is_writable && last.len > 0);
        let status = status.ok_or(DriverFault::NoRequest)?;
        status.len -= 1;
        let status = status.offset + status.len;
        let header = take_header(memory, &mut segments)?;
        segments.retain(|segment| segment.len > 0);
        let (kind, sector) = header;
        let data_len = segments.iter().map(|segment| segment.len).fold(0, usize::saturating_add);
        let is_writable = segments.iter().all(|segment| segment.is_writable);
        let is_readable = segments.iter().all(|segment| !segment.is_writable);
        let refused = BlockOperation::Refused;
        let operation = match kind {
            0 if is_writable => settings.check(sector, data_len, BlockOperation::Read(sector)),
            1 if settings.is_read_only => refused(BlockStatus::IoError),
            1 if is_readable => settings.check(sector, data_len, BlockOperation::Write(sector)),
            0 | 1 => refused(BlockStatus::IoError),
            4 if settings.has_cache => BlockOperation::Flush,
            _ => refused(BlockStatus::Unsupported),
        };
        let is_data = matches!(operation, BlockOperation::Read(_) | BlockOperation::Write(_));
        let (data, data_len) = if is_data { (segments, data_len) } else { (Vec::new(), 0) };
        Ok(Self { operation, data_len, head, data, status })
    }

    /// Copies the data of a write from the shared memory, up to the length of `into`, from byte `from` of the data on.
    pub fn copy_in<M: Deref<Target = [AtomicU64]>>(
        &self,
        memory: &DriverMemory<M>,
        from: usize,
        into: &mut [u8],
    ) {
        let mut rest = into;
        for (offset, len) in self.pieces(from, rest.len()) {
            let (part, later) = rest.split_at_mut(len.min(rest.len()));
            memory.read(offset, part);
            rest = later;
        }
    }

    /// Copies data of a read to the shared memory, from byte `from` of the data on.
    pub fn copy_out<M: Deref<Target = [AtomicU64]>>(
        &self,
        memory: &DriverMemory<M>,
        from: usize,
        bytes: &[u8],
    ) {
        let mut rest = bytes;
        for (offset, len) in self.pieces(from, bytes.len()) {
            let (part, later) = rest.split_at(len.min(rest.len()));
            memory.write(offset, part);
            rest = later;
        }
    }

    /// Returns offset and length of the pieces of `len` bytes of the data, from byte `from` on.
    fn pieces(&self, from: usize, len: usize) -> impl Iterator<Item = (usize, usize)> {
        let (mut skip, mut left) = (from, len);
        self.data.iter().filter_map(move |segment| {
            let skipped = skip.min(segment.len);
            skip -= skipped;
            let len = (segment.len - skipped).min(left);
            left -= len;
            (len > 0).then_some((segment.offset + skipped, len))
        })
    }

    /// Writes the status, and returns the request to the driver.
    pub fn finish<M: Deref<Target = [AtomicU64]>>(&self, queue: &mut DeviceQueue<M>, status: BlockStatus) {
        queue.memory().write(self.status, &[status as u8]);
        let read = matches!(self.operation, BlockOperation::Read(_)) && status == BlockStatus::Ok;
        let written = if read { self.data_len + 1 } else { 1 };
        queue.give_back(self.head, written as u32);
    }
}

/// Removes the header from the front of a request's segments. Returns its type and sector.
fn take_header<M: Deref<Target = [AtomicU64]>>(
    memory: &DriverMemory<M>,
    segments: &mut [Segment],
) -> Result<(u32, u64), DriverFault> {
    let mut header = [0; HEADER_LEN];
    let mut rest = &mut header[..];
    for segment in segments.iter_mut().take_while(|segment| !segment.is_writable) {
        let count = segment.len.min(rest.len());
        let (part, later) = rest.split_at_mut(count);
        memory.read(segment.offset, part);
        (segment.offset, segment.len) = (segment.offset + count, segment.len - count);
        rest = later;
    }
    if !rest.is_empty() {
        return Err(DriverFault::NoRequest);
    }
    let [kind, _] = header.first_chunk::<8>().map_or([0; 2], |first| {
        let word = u64::from_le_bytes(*first);
        [word as u32, (word >> 32) as u32]
    });
    let sector = header.last_chunk::<8>().map_or(0, |last| u64::from_le_bytes(*last));
    Ok((kind, sector))
}

impl BlockSettings {
    /// Returns `operation` if it is within the device.
    fn check(&self, sector: u64, data_len: usize, operation: BlockOperation) -> BlockOperation {
        let block_len = self.block_len as usize;
        let is_whole = data_len > 0
            && data_len.is_multiple_of(block_len)
            && sector.is_multiple_of((block_len / SECTOR_LEN) as u64);
        let end = sector.checked_add((data_len / SECTOR_LEN) as u64);
        let fits = data_len <= self.most_bytes && end.is_some_and(|end| end <= self.sectors);
        if is_whole && fits { operation } else { BlockOperation::Refused(BlockStatus::IoError) }
    }
}
