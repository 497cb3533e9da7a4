//! Division of requests at the limits of a device.

use alloc::vec::Vec;
use isola_iobuf::{Chain, IoBuf, IoBufMut};
use isola_platform::block::{BlockLimits, BlockRefusal, BlockRequest, SECTOR_LEN, Unmap};

/// The most bytes that are copied together because their pieces are too small for the limits.
const COPIED_LEN: usize = 64 * 1024;

fn sectors(bytes: usize) -> u64 {
    bytes as u64 / u64::from(SECTOR_LEN)
}

/// Divides a read between its buffers.
pub(crate) fn of_read(
    limits: &BlockLimits,
    mut sector: u64,
    into: Vec<IoBufMut>,
) -> Result<Vec<BlockRequest>, BlockRefusal> {
    let block_len = limits.block_len as usize;
    if into.is_empty() || into.iter().any(|buffer| buffer.is_empty() || buffer.len() % block_len != 0) {
        return Err(BlockRefusal::Misaligned);
    }
    let len: usize = into.iter().map(|buffer| buffer.len()).sum();
    if len <= limits.data_len as usize && into.len() <= usize::from(limits.pieces) {
        return Ok(Vec::from([BlockRequest::Read { sector, into }]));
    }
    let (mut requests, mut part, mut part_len) = (Vec::new(), Vec::new(), 0);
    for buffer in into {
        let pieces = part.len() + 1;
        if part_len + buffer.len() > limits.data_len as usize || pieces > usize::from(limits.pieces) {
            push_read(&mut requests, &mut sector, core::mem::take(&mut part), part_len);
            part_len = 0;
        }
        part_len += buffer.len();
        part.push(buffer);
    }
    push_read(&mut requests, &mut sector, part, part_len);
    Ok(requests)
}

fn push_read(requests: &mut Vec<BlockRequest>, sector: &mut u64, into: Vec<IoBufMut>, len: usize) {
    if !into.is_empty() {
        requests.push(BlockRequest::Read { sector: *sector, into });
        *sector += sectors(len);
    }
}

/// Divides a write at blocks.
pub(crate) fn of_write(
    limits: &BlockLimits,
    mut sector: u64,
    mut from: Chain,
) -> Result<Vec<BlockRequest>, BlockRefusal> {
    let block_len = limits.block_len as usize;
    if from.is_empty() || !from.len().is_multiple_of(block_len) {
        return Err(BlockRefusal::Misaligned);
    }
    let mut requests = Vec::new();
    while !from.is_empty() {
        let whole_pieces: usize = from.parts().take(usize::from(limits.pieces)).map(IoBuf::len).sum();
        let len = whole_pieces.min(limits.data_len as usize) / block_len * block_len;
        let part = match from.split_to(len) {
            Some(part) if len > 0 => part,
            // The first pieces together are shorter than a block.
            _ => {
                let len = from.len().min(COPIED_LEN).min(limits.data_len as usize) / block_len * block_len;
                let part = from.split_to(len.max(block_len)).ok_or(BlockRefusal::Misaligned)?;
                IoBuf::from(part.to_vec()).into()
            }
        };
        let part_sectors = sectors(part.len());
        requests.push(BlockRequest::Write { sector, from: part });
        sector += part_sectors;
    }
    Ok(requests)
}

/// Divides a range of sectors.
pub(crate) fn of_range(
    most: Option<u32>,
    mut sector: u64,
    mut count: u64,
    request: impl Fn(u64, u32) -> BlockRequest,
) -> Result<Vec<BlockRequest>, BlockRefusal> {
    let most = most.filter(|most| *most > 0).ok_or(BlockRefusal::NotOffered)?;
    let mut requests = Vec::new();
    while count > 0 {
        let part = count.min(u64::from(most)) as u32;
        requests.push(request(sector, part));
        sector += u64::from(part);
        count -= u64::from(part);
    }
    Ok(requests)
}

/// Divides a request in two because the device has rejected it as too long. Returns it if it cannot be divided.
pub(crate) fn halves(
    request: BlockRequest,
    block_len: u32,
) -> Result<(BlockRequest, BlockRequest), BlockRequest> {
    match request {
        BlockRequest::Read { sector, mut into } if into.len() > 1 => {
            let second = into.split_off(into.len() / 2);
            let first_len = into.iter().map(|buffer| buffer.len()).sum();
            let after = sector + sectors(first_len);
            Ok((BlockRequest::Read { sector, into }, BlockRequest::Read { sector: after, into: second }))
        }
        BlockRequest::Write { sector, mut from } => {
            let block_len = block_len as usize;
            match from.split_to(from.len() / 2 / block_len * block_len) {
                Some(first) if !first.is_empty() => {
                    let after = sector + sectors(first.len());
                    let second = BlockRequest::Write { sector: after, from };
                    Ok((BlockRequest::Write { sector, from: first }, second))
                }
                _ => Err(BlockRequest::Write { sector, from }),
            }
        }
        other => Err(other),
    }
}

/// Returns the first sector of a request; 0 for a flush.
pub(crate) fn sector_of(request: &BlockRequest) -> u64 {
    match request {
        BlockRequest::Read { sector, .. }
        | BlockRequest::Write { sector, .. }
        | BlockRequest::Discard { sector, .. }
        | BlockRequest::WriteZeroes { sector, .. } => *sector,
        BlockRequest::Flush => 0,
    }
}

/// Returns the cost of a request in bytes. A request without data occupies the device as well: it costs a sector.
pub(crate) fn cost_of(request: &BlockRequest) -> u64 {
    let bytes = match request {
        BlockRequest::Read { into, .. } => into.iter().map(|buffer| buffer.len() as u64).sum(),
        BlockRequest::Write { from, .. } => from.len() as u64,
        BlockRequest::WriteZeroes { sectors, unmap: Unmap::Never, .. } => {
            u64::from(*sectors) * u64::from(SECTOR_LEN)
        }
        BlockRequest::Flush | BlockRequest::Discard { .. } | BlockRequest::WriteZeroes { .. } => 0,
    };
    bytes.max(u64::from(SECTOR_LEN))
}
