//! The memory of a queue that the device can access (virtio 1.2, 2.7).
//!
//! ```text
//!   0                 descriptors    16 bytes each: address, length, flags, next
//!   16 n              available      flags | idx | ring of n heads | used_event        the driver writes
//!   next cache line   used           flags | idx | ring of n {id, length} | avail_event  the device writes
//! ```
//!
//! This module reads and writes words; it neither checks them nor decides anything.

use super::chain::{DESCRIPTOR_LEN, Descriptors};
use crate::transport::QueueAddresses;
use isola_machine::dma::DmaRegion;
use isola_machine::dma_ring::{DmaRing, DmaWord, RingMemory};

/// The most descriptors of a queue. The format allows 32,768, but longer rings do not fit in the cache.
pub const MAX_QUEUE_SIZE: u16 = 1024;

/// Flag of the available ring: the driver suppresses interrupts.
pub(super) const AVAILABLE_NO_INTERRUPT: u16 = 1;

/// Flag of the used ring: the device suppresses notifications.
pub(super) const USED_NO_NOTIFY: u16 = 1;

/// Alignment that separates the driver's and the device's writes into different cache lines.
const CACHE_LINE: usize = 64;

/// The three parts of a queue.
#[derive(Debug)]
pub(super) struct Rings {
    memory: RingMemory,
    addresses: QueueAddresses,
    descriptors: Descriptors,
    available_flags: DmaWord,
    available_index: DmaWord,
    available: DmaRing<u16>,
    used_event: DmaWord,
    used_flags: DmaWord,
    used_index: DmaWord,
    used: DmaRing<[u32; 2]>,
    available_event: DmaWord,
}

impl Rings {
    /// Creates rings of at most `size` descriptors. `memory` allocates their memory.
    pub(super) fn new(size: u16, memory: &mut dyn FnMut(usize) -> DmaRegion) -> Self {
        let size = 1 << size.clamp(2, MAX_QUEUE_SIZE).ilog2();
        let entries = usize::from(size);
        let available = entries * DESCRIPTOR_LEN;
        let used = (available + 6 + entries * 2).next_multiple_of(CACHE_LINE);
        let mut memory = RingMemory::new(memory(used + 6 + entries * 8));
        let addresses = QueueAddresses {
            size,
            descriptors: memory.device_address(0),
            available: memory.device_address(available),
            used: memory.device_address(used),
        };
        Self {
            addresses,
            descriptors: memory.ring(0, entries),
            available_flags: memory.word(available),
            available_index: memory.word(available + 2),
            available: memory.ring(available + 4, entries),
            used_event: memory.word(available + 4 + entries * 2),
            used_flags: memory.word(used),
            used_index: memory.word(used + 2),
            used: memory.ring(used + 4, entries),
            available_event: memory.word(used + 4 + entries * 8),
            memory,
        }
    }

    /// Returns the number of descriptors, a power of two.
    #[inline]
    pub(super) fn size(&self) -> u16 {
        self.addresses.size
    }

    /// Returns the device addresses of the parts.
    pub(super) fn addresses(&self) -> QueueAddresses {
        self.addresses
    }

    #[inline]
    pub(super) fn descriptors(&mut self) -> &mut Descriptors {
        &mut self.descriptors
    }

    #[inline]
    pub(super) fn set_available_flags(&mut self, flags: u16) {
        self.available_flags.write(flags);
    }

    #[inline]
    pub(super) fn set_available_index(&mut self, index: u16) {
        self.available_index.write(index);
    }

    #[inline]
    pub(super) fn set_available(&mut self, position: u64, head: u16) {
        self.available.write(position as usize, head);
    }

    #[inline]
    pub(super) fn set_used_event(&mut self, event: u16) {
        self.used_event.write(event);
    }

    #[inline]
    pub(super) fn used_flags(&self) -> u16 {
        self.used_flags.read()
    }

    #[inline]
    pub(super) fn used_index(&self) -> u16 {
        self.used_index.read()
    }

    /// Returns id and length of a returned buffer, unchecked.
    #[inline]
    pub(super) fn used_entry(&self, position: u64) -> (u32, u32) {
        let [id, written] = self.used.read(position as usize);
        (id, written)
    }

    #[inline]
    pub(super) fn available_event(&self) -> u16 {
        self.available_event.read()
    }

    /// Writes the indices and flags of a new queue, for a device that does not access the memory.
    pub(super) fn clear(&mut self) {
        for word in [
            &mut self.available_flags,
            &mut self.available_index,
            &mut self.used_event,
            &mut self.used_flags,
            &mut self.used_index,
            &mut self.available_event,
        ] {
            word.write(0);
        }
    }

    /// Leaks the memory.
    pub(super) fn leak(&self) {
        self.memory.leak();
    }
}
