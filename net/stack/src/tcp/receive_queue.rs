//! Data that came in, in order, and that the application has not read.
//!
//! Payloads stay in the frames that they arrived in. A peer that sends a byte a frame could so keep a frame's
//! memory alive for each byte, so the queue counts the memory that its views keep alive, and beyond
//! [`PINNED_PER_BYTE`] times the window it copies what comes in: into the room behind the last view where
//! that memory is the queue's alone, or into a fresh block. An application that keeps up never sees a copy.

use crate::counters::{Counter, Counters};
use isola_iobuf::{Chain, IoBuf, IoBufMut};

/// Memory that may be kept alive for each byte of the window before payloads are copied.
const PINNED_PER_BYTE: usize = 2;
/// Memory that may always be kept alive: some frames of any size.
const PINNED_FREE: usize = 64 << 10;
/// Size of the blocks into which small payloads are copied.
const BLOCK: usize = 4096;

/// How much memory may be kept alive by the payloads of a connection with this window.
pub(crate) fn pinned_limit(window: u32) -> usize {
    (window as usize).saturating_mul(PINNED_PER_BYTE).max(PINNED_FREE)
}

/// The unread part of one direction.
#[derive(Debug, Default)]
pub(crate) struct ReceiveQueue {
    parts: Chain,
    pinned: usize,
}

impl ReceiveQueue {
    /// Unread bytes.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Memory that the queue keeps alive.
    pub fn pinned(&self) -> usize {
        self.pinned
    }

    /// Adds a payload at the end; `limit` is what may be pinned (see [`pinned_limit`]).
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

    /// Adds several payloads at the end, as [`Self::push`] does with each.
    pub fn append(&mut self, mut payloads: Chain, limit: usize, counters: &mut Counters) {
        let pinned: usize = payloads.parts().map(IoBuf::storage_len).sum();
        if self.pinned + pinned <= limit {
            self.pinned += pinned;
            self.parts.append(payloads);
        } else {
            payloads.drain(|payload| self.push(payload, limit, counters));
        }
    }

    /// Takes the first piece.
    pub fn pop(&mut self) -> Option<IoBuf> {
        let part = self.parts.pop_front()?;
        self.pinned = self.pinned.saturating_sub(part.storage_len());
        Some(part)
    }

    /// Takes everything.
    #[inline]
    pub fn take(&mut self) -> Chain {
        self.pinned = 0;
        core::mem::take(&mut self.parts)
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn frame(byte: u8, len: usize) -> IoBuf {
        let mut frame = IoBufMut::with_room(0, 2048);
        frame.append_slice(&alloc::vec![byte; 54 + len]).unwrap();
        let mut payload = frame.freeze();
        payload.advance(54);
        payload
    }

    #[test]
    fn payloads_of_a_reader_that_keeps_up_are_not_copied() {
        let (mut queue, mut counters) = (ReceiveQueue::default(), Counters::new());
        for _ in 0..1000 {
            let payload = frame(1, 10);
            let address = payload.as_ptr();
            queue.push(payload, pinned_limit(1000), &mut counters);
            assert_eq!(queue.pop().unwrap().as_ptr(), address);
        }
        assert_eq!((queue.len(), queue.pinned(), counters.get(Counter::TcpCompactedBytes)), (0, 0, 0));
    }

    #[test]
    fn a_byte_a_frame_does_not_pin_a_frame_a_byte() {
        let (mut queue, mut counters) = (ReceiveQueue::default(), Counters::new());
        let limit = pinned_limit(1000);
        for i in 0..10_000u32 {
            queue.push(frame(i as u8, 1), limit, &mut counters);
        }
        assert!(queue.pinned() <= limit + 10_000 + 2 * BLOCK, "{}", queue.pinned());
        let mut read = Vec::new();
        while let Some(part) = queue.pop() {
            read.extend_from_slice(&part);
        }
        assert!(read.iter().copied().eq((0..10_000u32).map(|i| i as u8)));
        assert_eq!((queue.len(), queue.pinned()), (0, 0));
    }
}
