//! The memory of a queue that the device sees (virtio 1.2, 2.7).
//!
//! ```text
//!   0                 descriptors    16 bytes each: address, length, flags, next
//!   16 n              available      flags | idx | ring of n heads | used_event        the driver writes
//!   next cache line   used           flags | idx | ring of n {id, length} | avail_event  the device writes
//! ```
//!
//! Plain words at their places: nothing here is believed, and nothing decided.

use super::chain::{DESCRIPTOR_LEN, write_indirect};
use crate::transport::QueueAddresses;
use isola_machine::dma::DmaRegion;

/// Most descriptors of a queue. The format allows 32,768; more than this only makes the rings fall out of the
/// cache.
pub const MAX_QUEUE_SIZE: u16 = 1024;

/// In the available ring's flags: the driver wants no interrupts.
pub(super) const AVAILABLE_NO_INTERRUPT: u16 = 1;

/// In the used ring's flags: the device wants no notifications.
pub(super) const USED_NO_NOTIFY: u16 = 1;

/// Distance that keeps what driver and device write in different cache lines.
const CACHE_LINE: usize = 64;

/// The three parts of a queue.
#[derive(Debug)]
pub(super) struct Rings {
    memory: DmaRegion,
    size: u16,
    available: usize,
    used: usize,
}

impl Rings {
    /// Rings of at most `size` descriptors, in memory from `memory`.
    pub(super) fn new(size: u16, memory: &mut dyn FnMut(usize) -> DmaRegion) -> Self {
        let size = 1 << size.clamp(2, MAX_QUEUE_SIZE).ilog2();
        let entries = usize::from(size);
        let available = entries * DESCRIPTOR_LEN;
        let used = (available + 6 + entries * 2).next_multiple_of(CACHE_LINE);
        Self { memory: memory(used + 6 + entries * 8), size, available, used }
    }

    /// How many descriptors there are: a power of two.
    #[inline]
    pub(super) fn size(&self) -> u16 {
        self.size
    }

    /// Where the device finds the parts.
    pub(super) fn addresses(&self) -> QueueAddresses {
        QueueAddresses {
            size: self.size,
            descriptors: self.memory.device_address(0),
            available: self.memory.device_address(self.available),
            used: self.memory.device_address(self.used),
        }
    }

    /// The descriptors' memory, and where in it they begin.
    #[inline]
    pub(super) fn descriptors(&mut self) -> (&mut DmaRegion, usize) {
        (&mut self.memory, 0)
    }

    /// Makes the descriptor `index` stand for a table.
    pub(super) fn set_indirect(&mut self, index: u16, address: u64, len: u32) {
        write_indirect(&mut self.memory, usize::from(index) * DESCRIPTOR_LEN, address, len);
    }

    /// Where in a ring the position counted from the beginning of time is.
    #[inline]
    fn slot(&self, position: u16) -> usize {
        usize::from(position & (self.size - 1))
    }

    #[inline]
    pub(super) fn set_available_flags(&mut self, flags: u16) {
        self.memory.write_u16(self.available, flags);
    }

    #[inline]
    pub(super) fn set_available_index(&mut self, index: u16) {
        self.memory.write_u16(self.available + 2, index);
    }

    #[inline]
    pub(super) fn set_available(&mut self, position: u16, head: u16) {
        let place = self.available + 4 + self.slot(position) * 2;
        self.memory.write_u16(place, head);
    }

    #[inline]
    pub(super) fn set_used_event(&mut self, event: u16) {
        self.memory.write_u16(self.available + 4 + usize::from(self.size) * 2, event);
    }

    #[inline]
    pub(super) fn used_flags(&self) -> u16 {
        self.memory.read_u16(self.used)
    }

    #[inline]
    pub(super) fn used_index(&self) -> u16 {
        self.memory.read_u16(self.used + 2)
    }

    /// The id and the length of a returned buffer, as the device wrote them.
    #[inline]
    pub(super) fn used_entry(&self, position: u16) -> (u32, u32) {
        let place = self.used + 4 + self.slot(position) * 8;
        let [id, written] = self.memory.read_two_u32(place);
        (id, written)
    }

    #[inline]
    pub(super) fn available_event(&self) -> u16 {
        self.memory.read_u16(self.used + 4 + usize::from(self.size) * 8)
    }

    /// The rings' memory, with a page that no device knows in its place.
    pub(super) fn take_memory(&mut self) -> DmaRegion {
        core::mem::replace(&mut self.memory, DmaRegion::new(1))
    }
}
