//! The received buffers whose memory the queue uses again.
//!
//! The stack receives a frame as views of the buffer that the device filled, and may drop the
//! last view on any core. The queue keeps a view of each of the latest buffers. Once that is the only view left, the
//! queue uses the memory again, without allocating or zeroing it. If the stack holds views for long, the queue
//! allocates fresh buffers and leaves the old ones to the holders of their views.

use alloc::vec::Vec;
use isola_iobuf::{IoBuf, IoBufMut};
use isola_platform::VacatedMemory;

/// Received buffers of which a view is kept, per buffer of the device: as many as can be in use by the stack.
const RECYCLED_PER_BUFFER: usize = 4;

/// A ring of views of the last received buffers. The queue recycles the memory of a buffer once this is its only view.
pub(super) struct RecycledBuffers {
    views: Vec<IoBuf>,
    /// Index of the oldest view.
    next: usize,
    /// Upper bound of the number of views.
    most: usize,
}

impl RecycledBuffers {
    /// Returns an empty ring, for a device that has at most `most_lent` buffers.
    pub(super) fn new(most_lent: u16) -> Self {
        Self { views: Vec::new(), next: 0, most: usize::from(most_lent) * RECYCLED_PER_BUFFER }
    }

    /// Replaces the oldest view by one of the received buffer. Returns the memory of the oldest; `None` if it is still
    /// in use.
    #[inline(always)]
    pub(super) fn exchange(&mut self, received: &IoBuf) -> Option<IoBufMut> {
        let index = if self.next < self.views.len() { self.next } else { 0 };
        self.next = index + 1;
        let view = received.clone();
        let Some(oldest) = self.views.get_mut(index) else { return self.insert(index, view) };
        match core::mem::replace(oldest, view).try_into_mut() {
            Ok(memory) => Some(memory),
            Err(in_use) => {
                let view = core::mem::replace(oldest, in_use);
                self.insert(index, view)
            }
        }
    }

    /// Forgets the buffers in memory that is to become free.
    #[cold]
    #[inline(never)]
    pub(super) fn vacate(&mut self, memory: &VacatedMemory) {
        self.views.retain(|view| !memory.has_some_of(view.as_ptr(), view.len()));
    }

    /// Inserts a view into the ring behind the youngest, so before the oldest.
    #[cold]
    #[inline(never)]
    fn insert(&mut self, oldest: usize, view: IoBuf) -> Option<IoBufMut> {
        if self.views.len() < self.most {
            self.views.insert(oldest, view);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received() -> IoBuf {
        IoBufMut::with_room(0, 100).freeze()
    }

    #[test]
    fn buffers_in_memory_that_becomes_free_are_forgotten() {
        let mut recycled = RecycledBuffers::new(4);
        let buffers = [received(), received(), received()];
        for buffer in &buffers {
            assert!(recycled.exchange(buffer).is_none(), "there was none before");
        }
        let middle = buffers[1].as_ptr().addr();
        recycled.vacate(&VacatedMemory::new(middle..middle + 1, |address| address));
        let kept = buffers.map(|buffer| buffer.try_into_mut().is_err());
        assert_eq!(kept, [true, false, true]);
    }
}
