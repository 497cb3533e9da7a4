//! The device side of a split virtqueue (virtio 1.2, 2.7).
//!
//! ```text
//!   descriptors    16 bytes each: address, length, flags, next         the driver writes
//!   available      flags | idx | ring of n heads | used_event          the driver writes
//!   used           flags | idx | ring of n {id, length} | avail_event  this side writes
//! ```

use crate::memory::{DriverMemory, OutsideMemory};
use alloc::vec::Vec;
use core::fmt;
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Chains can use indirect tables of descriptors (virtio 1.2, 6).
pub const INDIRECT_DESCRIPTORS: u64 = 1 << 28;

/// Both sides suppress notifications by index.
pub const EVENT_INDEX: u64 = 1 << 29;

/// The device has the modern interface.
pub const VERSION_1: u64 = 1 << 32;

/// The most descriptors of a queue.
pub const MAX_QUEUE_SIZE: u16 = 256;

/// The most segments of a chain.
pub const MAX_SEGMENTS: usize = 64;

/// Flags of a descriptor.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Flag of the available ring: the driver wants no notifications.
const NO_INTERRUPT: u16 = 1;

/// Flag of the used ring: this side wants no notifications.
const NO_NOTIFY: u16 = 1;

/// A violation of the protocol by the driver. The queue is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverFault {
    /// The queue's size is no power of two from 2 to [`MAX_QUEUE_SIZE`].
    BadSize(u16),
    /// A part of the queue is not aligned.
    Unaligned(u64),
    /// Something is not in the shared memory.
    Outside(OutsideMemory),
    /// The driver made more chains available than the queue has descriptors.
    IndexJump(u16),
    /// A descriptor does not exist.
    NoDescriptor(u16),
    /// A chain has more segments than the queue has descriptors, or than [`MAX_SEGMENTS`]; it may be a loop.
    Endless,
    /// A table of descriptors in a table, one that was not negotiated, or one with a wrong length.
    BadTable,
    /// A segment that the device reads follows one that it writes.
    OutOfOrder,
    /// A chain is no request of the device type.
    NoRequest,
}

impl fmt::Display for DriverFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadSize(size) => write!(f, "a queue of {size} descriptors"),
            Self::Unaligned(address) => write!(f, "a ring at {address:#x}, which is not aligned"),
            Self::Outside(outside) => outside.fmt(f),
            Self::IndexJump(count) => write!(f, "{count} chains became available, more than the queue has"),
            Self::NoDescriptor(index) => write!(f, "descriptor {index} does not exist"),
            Self::Endless => f.write_str("a chain is longer than its queue"),
            Self::BadTable => f.write_str("a table of descriptors is not permitted there"),
            Self::OutOfOrder => f.write_str("a readable segment follows a writable one"),
            Self::NoRequest => f.write_str("a chain is no request"),
        }
    }
}

impl core::error::Error for DriverFault {}

impl From<OutsideMemory> for DriverFault {
    fn from(outside: OutsideMemory) -> Self {
        Self::Outside(outside)
    }
}

/// The position of a queue, in device addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePlace {
    /// The number of descriptors.
    pub size: u16,
    /// The descriptors.
    pub descriptors: u64,
    /// The available ring.
    pub available: u64,
    /// The used ring.
    pub used: u64,
}

/// A part of a buffer, within the shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its offset in the shared memory, in bytes.
    pub offset: usize,
    /// Its length in bytes.
    pub len: usize,
    /// Whether the device may write it; else it may read it.
    pub is_writable: bool,
}

/// A buffer of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The index of its first descriptor, by which it is returned.
    pub head: u16,
    /// Its segments: first those that the device reads.
    pub segments: Vec<Segment>,
}

/// A queue.
#[derive(Debug)]
pub struct DeviceQueue<M> {
    memory: DriverMemory<M>,
    size: u16,
    has_tables: bool,
    has_event_index: bool,
    /// Offsets in the memory.
    descriptors: usize,
    available: usize,
    used: usize,
    /// The index of the next chain to take.
    next: u16,
    /// The index of the next entry of the used ring.
    returned: u16,
    /// The value of `returned` at the last decision about a notification.
    considered: u16,
    fault: Option<DriverFault>,
}

impl<M: Deref<Target = [AtomicU64]>> DeviceQueue<M> {
    /// Returns the queue at `place`, with the features that the driver accepted.
    ///
    /// # Errors
    /// A [`DriverFault`] if the queue is not in the memory, or not as it must be.
    pub fn new(memory: DriverMemory<M>, place: QueuePlace, features: u64) -> Result<Self, DriverFault> {
        let QueuePlace { size, descriptors, available, used } = place;
        if !size.is_power_of_two() || !(2..=MAX_QUEUE_SIZE).contains(&size) {
            return Err(DriverFault::BadSize(size));
        }
        let entries = usize::from(size);
        let part = |address: u64, align: u64, len| {
            let offset = memory.offset(address, len)?;
            // The alignment of the offset counts: words are read by it.
            if address.is_multiple_of(align) && (offset as u64).is_multiple_of(align) {
                Ok(offset)
            } else {
                Err(DriverFault::Unaligned(address))
            }
        };
        let descriptors = part(descriptors, 16, 16 * entries)?;
        let available = part(available, 2, 6 + 2 * entries)?;
        let used = part(used, 4, 6 + 8 * entries)?;
        Ok(Self {
            size,
            has_tables: features & INDIRECT_DESCRIPTORS != 0,
            has_event_index: features & EVENT_INDEX != 0,
            descriptors,
            available,
            used,
            next: 0,
            returned: 0,
            considered: 0,
            fault: None,
            memory,
        })
    }

    /// Returns the shared memory.
    pub fn memory(&self) -> &DriverMemory<M> {
        &self.memory
    }

    /// Returns the violation that broke the queue.
    pub fn fault(&self) -> Option<DriverFault> {
        self.fault
    }

    /// Breaks the queue: a caller found a chain that is no request.
    pub fn break_off(&mut self, fault: DriverFault) -> DriverFault {
        *self.fault.get_or_insert(fault)
    }

    /// Returns whether a chain waits, or the queue is broken.
    #[inline]
    pub fn has_available(&self) -> bool {
        self.fault.is_some() || self.memory.read_u16(self.available + 2) != self.next
    }

    /// Takes the next available chain; `None` if there is none.
    ///
    /// # Errors
    /// The [`DriverFault`] that breaks the queue, now or earlier.
    pub fn take(&mut self) -> Result<Option<Chain>, DriverFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let waiting = self.memory.read_u16(self.available + 2).wrapping_sub(self.next);
        if waiting == 0 {
            return Ok(None);
        }
        if waiting > self.size {
            return Err(self.break_off(DriverFault::IndexJump(waiting)));
        }
        let slot = usize::from(self.next & (self.size - 1));
        let head = self.memory.read_u16(self.available + 4 + 2 * slot);
        self.next = self.next.wrapping_add(1);
        match self.chain(head) {
            Ok(segments) => Ok(Some(Chain { head, segments })),
            Err(fault) => Err(self.break_off(fault)),
        }
    }

    /// Follows a chain. Reads each descriptor once.
    fn chain(&self, head: u16) -> Result<Vec<Segment>, DriverFault> {
        // Most chains are a header, data and a status.
        let mut segments = Vec::with_capacity(4);
        let (mut table, mut entries, mut index) = (self.descriptors, usize::from(self.size), head);
        let mut is_in_table = false;
        loop {
            if usize::from(index) >= entries {
                return Err(DriverFault::NoDescriptor(index));
            }
            // Both the queue's descriptors and a table are aligned to words, as checked.
            let word = table / 8 + 2 * usize::from(index);
            let (address, rest) = (self.memory.load(word), self.memory.load(word + 1));
            let (len, flags, next) = (rest as u32 as usize, (rest >> 32) as u16, (rest >> 48) as u16);
            if flags & INDIRECT != 0 {
                let is_permitted =
                    self.has_tables && !is_in_table && flags & NEXT == 0 && segments.is_empty();
                if !is_permitted || len == 0 || !len.is_multiple_of(16) {
                    return Err(DriverFault::BadTable);
                }
                table = self.memory.offset(address, len)?;
                if !table.is_multiple_of(8) {
                    return Err(DriverFault::BadTable);
                }
                (entries, index, is_in_table) = (len / 16, 0, true);
                continue;
            }
            let segment =
                Segment { offset: self.memory.offset(address, len)?, len, is_writable: flags & WRITE != 0 };
            if segments.last().is_some_and(|last: &Segment| last.is_writable && !segment.is_writable) {
                return Err(DriverFault::OutOfOrder);
            }
            segments.push(segment);
            if flags & NEXT == 0 {
                return Ok(segments);
            }
            if segments.len() >= entries.min(MAX_SEGMENTS) {
                return Err(DriverFault::Endless);
            }
            index = next;
        }
    }

    /// Returns a chain to the driver, of which the device has written `written` bytes.
    pub fn give_back(&mut self, head: u16, written: u32) {
        let slot = usize::from(self.returned & (self.size - 1));
        let entry = self.used + 4 + 8 * slot;
        self.memory.write_u32(entry, head.into());
        self.memory.write_u32(entry + 4, written);
        self.returned = self.returned.wrapping_add(1);
        // Ordered after the entry, and after the contents of the buffer.
        self.memory.write_u16(self.used + 2, self.returned);
    }

    /// Requests a notification for the next chain. Returns whether one waits already: then none may come.
    pub fn arm(&mut self) -> bool {
        if self.has_event_index {
            let event = self.used + 4 + 8 * usize::from(self.size);
            self.memory.write_u16(event, self.next);
        } else {
            self.memory.write_u16(self.used, 0);
        }
        // The driver writes its index and reads the event; this side writes the event and reads the index.
        fence(Ordering::SeqCst);
        self.has_available()
    }

    /// Suppresses notifications while chains are polled.
    pub fn disarm(&mut self) {
        // With the index, the event of the past stays: the driver notifies only when it passes it.
        if !self.has_event_index {
            self.memory.write_u16(self.used, NO_NOTIFY);
        }
    }

    /// Returns whether the driver wants a notification for the chains that were returned since the last call.
    pub fn must_notify(&mut self) -> bool {
        let before = core::mem::replace(&mut self.considered, self.returned);
        if before == self.returned || self.fault.is_some() {
            return false;
        }
        fence(Ordering::SeqCst);
        if !self.has_event_index {
            return self.memory.read_u16(self.available) & NO_INTERRUPT == 0;
        }
        let event = self.memory.read_u16(self.available + 4 + 2 * usize::from(self.size));
        // The entry with the index `event` is among the returned ones (virtio 1.2, 2.7.10.1).
        self.returned.wrapping_sub(event).wrapping_sub(1) < self.returned.wrapping_sub(before)
    }
}
