//! Requests of device types whose chain is a message and room for its answer, as those of file systems (virtio 1.2, 5.11).

use crate::memory::DriverMemory;
use crate::queue::{Chain, DriverFault, Segment};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Deref;
use core::sync::atomic::AtomicU64;

impl Chain {
    /// Returns a copy of the message: the segments that the device reads.
    ///
    /// # Errors
    /// [`DriverFault::NoRequest`] if it has more than `most_bytes` bytes.
    pub fn message<M: Deref<Target = [AtomicU64]>>(
        &self,
        memory: &DriverMemory<M>,
        most_bytes: usize,
    ) -> Result<Vec<u8>, DriverFault> {
        let len = self.len_of(|segment| !segment.is_writable);
        if len > most_bytes {
            return Err(DriverFault::NoRequest);
        }
        let mut message = vec![0; len];
        let mut rest = &mut message[..];
        for segment in self.segments.iter().filter(|segment| !segment.is_writable) {
            let (part, later) = rest.split_at_mut(segment.len.min(rest.len()));
            memory.read(segment.offset, part);
            rest = later;
        }
        Ok(message)
    }

    /// Returns the room for the answer in bytes: the segments that the device writes.
    pub fn room(&self) -> usize {
        self.len_of(|segment| segment.is_writable)
    }

    /// Writes the answer, as far as there is room. Returns the number of bytes.
    pub fn answer<M: Deref<Target = [AtomicU64]>>(&self, memory: &DriverMemory<M>, answer: &[u8]) -> usize {
        let mut rest = answer;
        for segment in self.segments.iter().filter(|segment| segment.is_writable) {
            let (part, later) = rest.split_at(segment.len.min(rest.len()));
            memory.write(segment.offset, part);
            rest = later;
        }
        answer.len() - rest.len()
    }

    fn len_of(&self, choose: impl Fn(&Segment) -> bool) -> usize {
        let chosen = self.segments.iter().filter(|segment| choose(segment));
        chosen.map(|segment| segment.len).fold(0, usize::saturating_add)
    }
}
