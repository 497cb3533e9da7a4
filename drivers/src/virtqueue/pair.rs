//! Chains of one or two descriptors, which suffice for most frames: a receive buffer, or a header and its payload. They
//! are written without a loop. `short.rs` handles longer ones.

use super::chain::{Access, write_link};
use super::{LentChain, VirtQueue};
use isola_machine::dma::{DmaBuffer, SegmentPair, device_piece};

/// A device address and a length in bytes.
pub(super) type Piece = (u64, u32);

/// The device addresses of a buffer of one or two pieces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    first: Piece,
    second: Option<Piece>,
    len: u32,
}

impl Pair {
    /// Returns the pieces of `buffer`, `None` unless it has one or two that are each physically contiguous.
    #[inline(always)]
    fn of(buffer: &impl DmaBuffer, access: Access) -> Option<Self> {
        let SegmentPair { first, second } = buffer.segment_pair()?;
        let first = whole(first, access)?;
        let Some(second) = second else { return Some(Self { first, second: None, len: first.1 }) };
        let second = whole(second, access)?;
        Some(Self { first, second: Some(second), len: first.1.checked_add(second.1)? })
    }
}

/// Returns the device address of a piece that is physically contiguous.
#[inline(always)]
pub(super) fn whole((start, len): (*const u8, usize), access: Access) -> Option<Piece> {
    let (address, in_a_row) = device_piece(start, len, access)?;
    (in_a_row == len).then_some((address, u32::try_from(len).ok()?))
}

impl<B: DmaBuffer> VirtQueue<B> {
    /// Lends a buffer of one or two pieces. Returns any other buffer, and any buffer while fewer than two descriptors
    /// are free. Stores the buffer first and reads its addresses from there, so that it is moved once.
    #[inline(always)]
    pub(super) fn lend_pair(&mut self, buffer: B, access: Access) -> Result<(), B> {
        let head = self.free.first();
        let Some(slot) = self.buffers.get_mut(usize::from(head)) else { return Err(buffer) };
        if self.free.count() < 2 || self.fault.is_some() {
            return Err(buffer);
        }
        let kept = slot.insert(buffer);
        let Some(pair) = Pair::of(kept, access) else {
            // The slot holds the buffer that was stored above.
            return slot.take().map_or(Ok(()), Err);
        };
        let descriptors = self.rings.descriptors();
        let (last, count) = match pair.second {
            None => {
                write_link(descriptors, head, pair.first, access, None);
                (head, 1)
            }
            Some(second) => {
                let next = self.free.links().get(usize::from(head)).copied().unwrap_or(0);
                write_link(descriptors, head, pair.first, access, Some(next));
                write_link(descriptors, next, second, access, None);
                (next, 2)
            }
        };
        let writable = if access == Access::DeviceWrites { pair.len } else { 0 };
        self.stage(head, LentChain { last, count, table: None, position: self.staged, writable });
        Ok(())
    }
}
