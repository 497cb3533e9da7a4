//! Data received in order that the application has not read.
//!
//! Payloads stay in the frames of their arrival. A peer that sends one byte per frame could therefore pin a frame's
//! memory for each byte. So the queue counts the memory that its views pin. Beyond [`PINNED_PER_BYTE`] times the window
//! (or [`PINNED_FREE`], if that is more), it copies payloads: into the space behind the last view, if that buffer is
//! not shared, or into a new block. If the application keeps up, no data is copied.

use crate::base::{Counter, Counters};
use isola_iobuf::{Chain, IoBuf, IoBufMut};

/// Memory that may be pinned for each byte of the window before payloads are copied, in bytes.
const PINNED_PER_BYTE: usize = 2;
/// Memory that may always be pinned, in bytes: some frames of any size.
const PINNED_FREE: usize = 64 << 10;
/// Size of the blocks into which small payloads are copied, in bytes.
const BLOCK: usize = 4096;

/// Returns the memory that the payloads of a connection with this window may pin, in bytes.
pub(crate) fn pinned_limit(window: u32) -> usize {
    (window as usize).saturating_mul(PINNED_PER_BYTE).max(PINNED_FREE)
}

/// The unread data of one direction.
#[derive(Debug, Default)]
pub(crate) struct ReceiveQueue {
    parts: Chain,
    pinned: usize,
}

impl ReceiveQueue {
    /// Returns the number of unread bytes.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Returns the memory that the queue pins, in bytes.
    pub fn pinned(&self) -> usize {
        self.pinned
    }

    /// Appends a payload. `limit` is the maximum pinned memory (see [`pinned_limit`]).
    #[inline]
    pub fn push(&mut self, payload: IoBuf, limit: usize, counters: &mut Counters) {
        if payload.is_empty() {
            return;
        }
        if self.pinned + payload.storage_len() <= limit {
            self.pinned += payload.storage_len();
            self.parts.push_back(payload);
            return;
        }
        counters.add(Counter::TcpCompactedBytes, payload.len() as u64);
        if let Some(last) = self.parts.pop_back() {
            match last.try_into_mut() {
                Ok(mut block) => {
                    let fits = block.append_slice(&payload).is_some();
                    self.parts.push_back(block.freeze());
                    if fits {
                        return;
                    }
                }
                Err(shared) => self.parts.push_back(shared),
            }
        }
        let mut block = IoBufMut::with_room(0, BLOCK.max(payload.len()));
        if block.append_slice(&payload).is_some() {
            let block = block.freeze();
            self.pinned += block.storage_len();
            self.parts.push_back(block);
        }
    }

    /// Appends several payloads, as [`Self::push`] does with each.
    pub fn append(&mut self, mut payloads: Chain, limit: usize, counters: &mut Counters) {
        let pinned: usize = payloads.parts().map(IoBuf::storage_len).sum();
        if self.pinned + pinned <= limit {
            self.pinned += pinned;
            self.parts.append(payloads);
        } else {
            payloads.drain(|payload| self.push(payload, limit, counters));
        }
    }

    /// Removes and returns the first payload, or its first `most` bytes. Its memory counts until all of it is removed.
    pub fn pop(&mut self, most: usize) -> Option<IoBuf> {
        if self.parts.front()?.len() > most {
            return self.parts.split_to(most)?.pop_front();
        }
        let part = self.parts.pop_front()?;
        self.pinned = self.pinned.saturating_sub(part.storage_len());
        Some(part)
    }

    /// Removes and returns all payloads.
    #[inline]
    pub fn take(&mut self) -> Chain {
        self.pinned = 0;
        core::mem::take(&mut self.parts)
    }

    /// Drops all payloads.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    fn frame(byte: u8, len: usize) -> IoBuf {
        let mut frame = IoBufMut::with_room(0, 2048);
        frame.append_slice(&alloc::vec![byte; 54 + len]).unwrap();
        let mut payload = frame.freeze();
        payload.advance(54);
        payload
    }

    #[test]
    fn payloads_are_not_copied_if_the_reader_keeps_up() {
        let (mut queue, mut counters) = (ReceiveQueue::default(), Counters::new());
        for _ in 0..1000 {
            let payload = frame(1, 10);
            let address = payload.as_ptr();
            queue.push(payload, pinned_limit(1000), &mut counters);
            assert_eq!(queue.pop(usize::MAX).unwrap().as_ptr(), address);
        }
        assert_eq!((queue.len(), queue.pinned(), counters.get(Counter::TcpCompactedBytes)), (0, 0, 0));
    }

    #[test]
    fn a_payload_read_in_parts_is_pinned_until_its_last_byte() {
        let (mut queue, mut counters) = (ReceiveQueue::default(), Counters::new());
        queue.push(frame(1, 10), pinned_limit(1000), &mut counters);
        queue.push(frame(2, 5), pinned_limit(1000), &mut counters);
        let pinned = queue.pinned();
        assert_eq!((queue.pop(4).unwrap().to_vec(), queue.len(), queue.pinned()), (vec![1; 4], 11, pinned));
        assert_eq!((queue.pop(6).unwrap().to_vec(), queue.pinned()), (vec![1; 6], pinned / 2));
        assert_eq!((queue.pop(100).unwrap().to_vec(), queue.pinned()), (vec![2; 5], 0));
        assert!(queue.pop(1).is_none());
    }

    #[test]
    fn frames_of_one_byte_pin_bounded_memory() {
        let (mut queue, mut counters) = (ReceiveQueue::default(), Counters::new());
        let limit = pinned_limit(1000);
        for i in 0..10_000u32 {
            queue.push(frame(i as u8, 1), limit, &mut counters);
        }
        assert!(queue.pinned() <= limit + 10_000 + 2 * BLOCK, "{}", queue.pinned());
        let mut read = Vec::new();
        while let Some(part) = queue.pop(usize::MAX) {
            read.extend_from_slice(&part);
        }
        assert!(read.iter().copied().eq((0..10_000u32).map(|i| i as u8)));
        assert_eq!((queue.len(), queue.pinned()), (0, 0));
    }
}
