//! Chains of up to four descriptors, which suffice for nearly all buffers: they are checked before any write, and then
//! written at once. The general code of `chain.rs` handles the others, and finds the reason if a buffer cannot be lent.

use super::chain::{Access, write_link};
use super::{LentChain, VirtQueue, tables};
use isola_machine::dma::{DmaBuffer, device_piece};

/// The longest such chain: headers, the head of a response, a value, and the end of the response.
const LONGEST: usize = 4;

/// A chain that could use a table, and so one descriptor, gets as many as it has segments if this multiple of that
/// number is free: to write a table takes the driver three times as many instructions.
const PLENTY: u16 = 8;

/// The segments of a buffer with such a chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShortChain {
    segments: [(u64, u32); LONGEST],
    count: u16,
    len: u32,
}

impl ShortChain {
    /// Returns the segments of `buffer`, `None` if there are more than [`LONGEST`], one is not physically contiguous,
    /// or their sum exceeds 32 bits.
    #[inline]
    pub(super) fn of(buffer: &impl DmaBuffer, access: Access) -> Option<Self> {
        let mut short = Self { segments: [(0, 0); LONGEST], count: 0, len: 0 };
        let mut fits = true;
        buffer.for_each_segment(|start, len| {
            if len == 0 {
                return;
            }
            let whole = device_piece(start, len, access).filter(|&(_, piece)| piece == len);
            let total = u32::try_from(len).ok().and_then(|len| short.len.checked_add(len));
            match (whole, total, short.segments.get_mut(usize::from(short.count))) {
                (Some((address, _)), Some(total), Some(segment)) => {
                    *segment = (address, len as u32);
                    short.count += 1;
                    short.len = total;
                }
                _ => fits = false,
            }
        });
        (fits && short.count > 0).then_some(short)
    }
}

impl<B> VirtQueue<B> {
    /// Lends a buffer with these segments. Returns it if there is no room now.
    #[inline]
    pub(super) fn add_short(&mut self, buffer: B, short: ShortChain, access: Access) -> Result<(), B> {
        let head = self.free.first();
        let needed = if short.count <= tables::DIRECT_MAX { short.count } else { short.count * PLENTY };
        if needed > self.free.count() || self.fault.is_some() {
            return Err(buffer);
        }
        let (mut last, mut left) = (head, short.count);
        for &(address, len) in short.segments.iter().take(usize::from(short.count)) {
            left -= 1;
            let next = self.free.links().get(usize::from(last)).copied().unwrap_or(0);
            let next_link = (left > 0).then_some(next);
            write_link(self.rings.descriptors(), last, (address, len), access, next_link);
            if left > 0 {
                last = next;
            }
        }
        let writable = if access == Access::DeviceWrites { short.len } else { 0 };
        self.keep(head, buffer);
        self.stage(
            head,
            LentChain { last, count: short.count, table: None, position: self.staged, writable },
        );
        Ok(())
    }
}
