//! Chains of one or two descriptors, as those of most frames are: a buffer to receive into, a head and its payload. They are
//! written without a loop. Others go the way of `short.rs`.

use super::chain::{Access, write_link};
use super::{Lent, VirtQueue};
use isola_machine::dma::{DmaBuffer, OneOrTwo, device_piece};

/// A piece of memory as a device knows it: its address and its length in bytes.
type Piece = (u64, u32);

/// The pieces of a buffer, for a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    first: Piece,
    second: Option<Piece>,
    len: u32,
}

impl Pair {
    /// The pieces of `buffer`; `None` where there are others than one or two that are each in a row for devices.
    #[inline]
    pub(super) fn of(buffer: &impl DmaBuffer, access: Access) -> Option<Self> {
        let OneOrTwo { first, second } = buffer.one_or_two()?;
        let first = whole(first, access)?;
        let Some(second) = second else { return Some(Self { first, second: None, len: first.1 }) };
        let second = whole(second, access)?;
        Some(Self { first, second: Some(second), len: first.1.checked_add(second.1)? })
    }
}

/// A piece that is in a row for devices.
#[inline]
fn whole((start, len): (*const u8, usize), access: Access) -> Option<Piece> {
    let (address, in_a_row) = device_piece(start, len, access)?;
    (in_a_row == len).then_some((address, u32::try_from(len).ok()?))
}

impl<B> VirtQueue<B> {
    /// Lends a buffer of these pieces; gives it back where there is no room for it now.
    #[inline(always)]
    pub(super) fn add_pair(&mut self, buffer: B, pair: Pair, access: Access) -> Result<(), B> {
        let head = self.free.first();
        let count = if pair.second.is_some() { 2 } else { 1 };
        if count > self.free.count() || self.fault.is_some() {
            return Err(buffer);
        }
        let Some(slot) = self.lent.get_mut(usize::from(head)) else { return Err(buffer) };
        let position = self.staged;
        let (memory, base) = self.rings.descriptors();
        let last = match pair.second {
            None => {
                write_link((memory, base), head, pair.first, access, None);
                head
            }
            Some(second) => {
                let next = self.free.links().get(usize::from(head)).copied().unwrap_or(0);
                write_link((memory, base), head, pair.first, access, Some(next));
                write_link((memory, base), next, second, access, None);
                next
            }
        };
        let writable = if access == Access::DeviceWrites { pair.len } else { 0 };
        *slot = Some(Lent { buffer, last, count, table: None, position, writable });
        self.free.take(last, count);
        self.rings.set_available(position as u16, head);
        self.staged = position + 1;
        Ok(())
    }
}
