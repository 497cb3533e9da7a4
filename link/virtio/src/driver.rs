//! The driver side of a split virtqueue, for one message at a time.
//!
//! The device is another cell, and can write any bytes to the memory at any time. So each word of the used ring is read
//! once and checked, and nothing is read back that this side has written: a device that violates the protocol gets a
//! [`DeviceFault`], and its queue is of no use any more.

use crate::memory::DriverMemory;
use crate::queue::QueuePlace;
use core::fmt;
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering, fence};

/// The descriptors of the queue: a message, and the room for its answer.
pub const QUEUE_SIZE: u16 = 2;

/// The length of the queue in bytes, at an offset that is a multiple of 16.
pub const QUEUE_LEN: usize = USED + 6 + 8 * QUEUE_SIZE as usize;

/// The offsets of the rings in the queue.
const AVAILABLE: usize = 16 * QUEUE_SIZE as usize;
const USED: usize = (AVAILABLE + 6 + 2 * QUEUE_SIZE as usize).next_multiple_of(8);

/// Flags of a descriptor.
const NEXT: u64 = 1;
const WRITE: u64 = 2;

/// A part of the shared memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its offset.
    pub offset: usize,
    /// Its length.
    pub len: usize,
}

/// A violation of the protocol by the device. The queue is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceFault {
    /// The device returned more chains than it has.
    IndexJump(u16),
    /// The device returned a chain that it does not have.
    NoChain(u32),
    /// The device has written more bytes than there is room for.
    TooLong(u32),
}

impl fmt::Display for DeviceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IndexJump(count) => write!(f, "the device returned {count} chains, and had one at most"),
            Self::NoChain(id) => write!(f, "the device returned the chain {id}, which it does not have"),
            Self::TooLong(len) => {
                write!(f, "the device has written {len} bytes, more than there is room for")
            }
        }
    }
}

impl core::error::Error for DeviceFault {}

/// A queue, with the event index of virtio negotiated.
#[derive(Debug)]
pub struct DriverQueue<M> {
    memory: DriverMemory<M>,
    offset: usize,
    /// The index of the next message, and of the next answer: the same while the device has no message.
    next: u16,
    returned: u16,
    /// The room for the answer to the message that the device has.
    room: usize,
}

impl<M: Deref<Target = [AtomicU64]>> DriverQueue<M> {
    /// Starts a queue at an offset in the memory, of which no device knows yet.
    pub fn new(memory: DriverMemory<M>, offset: usize) -> Self {
        memory.write(offset, &[0; QUEUE_LEN]);
        Self { memory, offset, next: 0, returned: 0, room: 0 }
    }

    /// Returns the position of the queue, for the device. Device addresses are offsets.
    pub fn place(&self) -> QueuePlace {
        let at = |part: usize| (self.offset + part) as u64;
        QueuePlace { size: QUEUE_SIZE, descriptors: at(0), available: at(AVAILABLE), used: at(USED) }
    }

    /// Returns whether the device has a message.
    pub fn is_busy(&self) -> bool {
        self.next != self.returned
    }

    /// Gives the device a message and room for its answer, of 0 bytes if none is expected. Returns whether the device wants a
    /// notification. The device has no other message.
    pub fn send(&mut self, message: Part, answer: Part) -> bool {
        debug_assert!(!self.is_busy(), "one message at a time");
        let has_answer = answer.len > 0;
        self.describe(0, message, if has_answer { NEXT | 1 << 16 } else { 0 });
        self.describe(1, answer, WRITE);
        self.room = answer.len;
        // The entry of the ring is the index of the first descriptor: always 0.
        let before = self.next;
        self.next = before.wrapping_add(1);
        self.memory.write_u16(self.offset + AVAILABLE + 2, self.next);
        // The device writes its event and reads the index; this side writes the index and reads the event.
        fence(Ordering::SeqCst);
        let event = self.memory.read_u16(self.offset + USED + 4 + 8 * usize::from(QUEUE_SIZE));
        event == before
    }

    fn describe(&self, index: usize, part: Part, flags_and_next: u64) {
        let at = self.offset + 16 * index;
        self.memory.write(at, &(part.offset as u64).to_le_bytes());
        self.memory.write(at + 8, &(part.len as u64 | flags_and_next << 32).to_le_bytes());
    }

    /// Takes the answer's length in bytes, if the device has returned the message.
    ///
    /// # Errors
    /// A [`DeviceFault`].
    pub fn take(&mut self) -> Result<Option<usize>, DeviceFault> {
        let count = self.memory.read_u16(self.offset + USED + 2).wrapping_sub(self.returned);
        match count {
            0 => return Ok(None),
            1 if self.is_busy() => {}
            _ => return Err(DeviceFault::IndexJump(count)),
        }
        let slot = usize::from(self.returned % QUEUE_SIZE);
        let mut entry = [0; 8];
        self.memory.read(self.offset + USED + 4 + 8 * slot, &mut entry);
        let entry = u64::from_le_bytes(entry);
        let (id, len) = (entry as u32, (entry >> 32) as u32);
        if id != 0 {
            return Err(DeviceFault::NoChain(id));
        }
        if len as usize > self.room {
            return Err(DeviceFault::TooLong(len));
        }
        self.returned = self.returned.wrapping_add(1);
        Ok(Some(len as usize))
    }

    /// Requests a notification for the answer. Returns whether it is there already: then none may come.
    pub fn arm(&mut self) -> bool {
        let event = self.offset + AVAILABLE + 4 + 2 * usize::from(QUEUE_SIZE);
        self.memory.write_u16(event, self.returned);
        fence(Ordering::SeqCst);
        self.memory.read_u16(self.offset + USED + 2) != self.returned
    }

    /// Returns the shared memory.
    pub fn memory(&self) -> &DriverMemory<M> {
        &self.memory
    }
}
