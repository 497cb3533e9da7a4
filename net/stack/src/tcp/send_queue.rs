//! Data that the application has sent, from the first unacknowledged byte on.
//!
//! The bytes stay in the application's buffers: a segment, new or retransmitted, is a chain of views. A cursor marks
//! the next byte to send, so that segments in order are found in constant time.

use alloc::collections::VecDeque;
use isola_iobuf::{Chain, IoBuf};

/// Maximum number of views in a segment, so that devices with few descriptors can send it. A segment of smaller pieces
/// is shorter than its maximum size.
pub(crate) const MAX_PARTS: usize = 16;

/// The bytes of one direction that the peer has not acknowledged.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    /// `None` only if the queue is empty. A single part needs no allocation.
    first: Option<IoBuf>,
    others: VecDeque<IoBuf>,
    len: usize,
    /// The part that contains the cursor, and the cursor's offset in it.
    part: usize,
    offset: usize,
    /// Bytes before the cursor.
    sent: usize,
}

impl SendQueue {
    /// Returns the number of bytes in the queue.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of bytes behind the cursor.
    #[inline]
    pub fn unsent(&self) -> usize {
        self.len - self.sent
    }

    /// Moves all bytes of the chain to the end of the queue.
    #[inline(always)]
    pub fn push(&mut self, chain: &mut Chain) {
        self.len += chain.len();
        if self.first.is_none() {
            self.first = chain.pop_front();
        }
        if !chain.is_empty() {
            self.push_others(chain);
        }
    }

    fn push_others(&mut self, chain: &mut Chain) {
        chain.drain(|part| self.others.push_back(part));
    }

    /// Returns the part with this number.
    #[inline(always)]
    fn part(&self, number: usize) -> Option<&IoBuf> {
        match number.checked_sub(1) {
            None => self.first.as_ref(),
            Some(behind) => self.others.get(behind),
        }
    }

    /// Removes `count` acknowledged bytes from the front.
    #[inline]
    pub fn acked(&mut self, count: usize) {
        if count >= self.len {
            self.len = 0;
            self.first = None;
            if !self.others.is_empty() {
                self.others.clear();
            }
            self.rewind();
        } else {
            self.acked_part(count);
        }
    }

    /// Removes `count` bytes from the front, fewer than the queue has.
    fn acked_part(&mut self, count: usize) {
        self.len -= count;
        let mut left = count;
        let mut dropped = 0;
        while let Some(first) = self.first.as_mut() {
            if first.len() > left {
                first.advance(left);
                break;
            }
            left -= first.len();
            dropped += 1;
            self.first = self.others.pop_front();
        }
        if count >= self.sent {
            self.rewind();
            return;
        }
        self.sent -= count;
        match self.part.checked_sub(dropped) {
            // The cursor is in the part that has been shortened.
            Some(0) => {
                self.part = 0;
                self.offset -= left;
            }
            Some(part) => self.part = part,
            None => self.rewind(),
        }
    }

    /// Moves the cursor to the front.
    #[inline]
    fn rewind(&mut self) {
        self.part = 0;
        self.offset = 0;
        self.sent = 0;
    }

    /// Returns `len` bytes at the cursor as one view, and advances the cursor behind them; `None` if they are not in
    /// one part.
    #[inline(always)]
    pub fn take_view(&mut self, len: usize) -> Option<IoBuf> {
        let part = self.part(self.part)?;
        let end = self.offset + len;
        let whole = self.offset == 0 && end == part.len();
        let view = if whole { part.clone() } else { part.slice(self.offset..end)? };
        (self.part, self.offset) = if end == part.len() { (self.part + 1, 0) } else { (self.part, end) };
        self.sent += len;
        Some(view)
    }

    /// Moves views of up to `max` bytes at the cursor into `taken`, which is empty, and advances the cursor behind
    /// them.
    #[inline]
    pub fn take_into(&mut self, max: usize, taken: &mut Chain) {
        match self.take_view(max) {
            Some(view) => taken.push_back(view),
            None => self.take_parts(max, taken),
        }
    }

    #[cold]
    fn take_parts(&mut self, max: usize, taken: &mut Chain) {
        let (views, part, offset) = self.views(self.part, self.offset, max);
        self.part = part;
        self.offset = offset;
        self.sent += views.len();
        *taken = views;
    }

    /// Returns views of up to `max` bytes from the front, independent of the cursor.
    pub fn front(&self, max: usize) -> Chain {
        self.views(0, 0, max).0
    }

    /// Returns views of up to `max` bytes from offset `skipped` on, independent of the cursor. Searches the offset from
    /// the front.
    pub fn range(&self, mut skipped: usize, max: usize) -> Chain {
        let mut part = 0;
        while let Some(buf) = self.part(part)
            && skipped >= buf.len()
        {
            skipped -= buf.len();
            part += 1;
        }
        self.views(part, skipped, max).0
    }

    /// Returns views of up to `max` bytes from a position on, and the position behind them.
    fn views(&self, mut part: usize, mut offset: usize, max: usize) -> (Chain, usize, usize) {
        let mut chain = Chain::new();
        let mut count = 0;
        while chain.len() < max && count < MAX_PARTS {
            let Some(buf) = self.part(part) else { break };
            let end = buf.len().min(offset + max - chain.len());
            if let Some(view) = buf.slice(offset..end) {
                chain.push_back(view);
            }
            count += 1;
            if end == buf.len() {
                part += 1;
                offset = 0;
            } else {
                offset = end;
            }
        }
        (chain, part, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn chain(bytes: &[u8], piece: usize) -> Chain {
        let mut chain = Chain::new();
        bytes.chunks(piece).for_each(|part| chain.push_back(IoBuf::copy_from_slice(part)));
        chain
    }

    #[test]
    fn taking_acknowledging_and_rewinding_in_any_order_preserves_the_stream() {
        let bytes: Vec<u8> = (0..4000u32).map(|i| (i * 7 % 251) as u8).collect();
        let mut state = 3u64;
        for piece in [1, 3, 10, 1000] {
            let mut queue = SendQueue::default();
            let (mut pushed, mut acked, mut next, mut max) = (0, 0, 0, 0);
            while acked < bytes.len() {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let amount = (state >> 40) as usize % 60;
                match state >> 61 {
                    0 | 1 => {
                        let end = (pushed + amount).min(bytes.len());
                        queue.push(&mut chain(&bytes[pushed..end], piece));
                        pushed = end;
                    }
                    2..=4 => {
                        let mut taken = Chain::new();
                        queue.take_into(amount, &mut taken);
                        let taken = taken.to_vec();
                        assert!(taken.len() == amount.min(pushed - next) || taken.len() >= MAX_PARTS);
                        assert_eq!(taken, bytes[next..next + taken.len()]);
                        next += taken.len();
                        max = max.max(next);
                    }
                    5 => {
                        let count = amount.min(max - acked);
                        queue.acked(count);
                        acked += count;
                        next = next.max(acked);
                    }
                    6 => {
                        queue.rewind();
                        next = acked;
                    }
                    _ => {
                        let front = queue.front(amount).to_vec();
                        assert_eq!(front, bytes[acked..acked + front.len()]);
                        let from = (acked + amount / 2).min(pushed);
                        let range = queue.range(from - acked, amount).to_vec();
                        assert!(range.len() == amount.min(pushed - from) || range.len() >= MAX_PARTS);
                        assert_eq!(range, bytes[from..from + range.len()]);
                    }
                }
                assert_eq!((queue.len(), queue.unsent()), (pushed - acked, pushed - next));
            }
        }
    }

    #[test]
    fn segments_are_views_of_the_sent_buffers() {
        let buf = IoBuf::copy_from_slice(&[9; 100]);
        let mut queue = SendQueue::default();
        queue.push(&mut Chain::from(buf.clone()));
        let mut taken = Chain::new();
        queue.take_into(50, &mut taken);
        assert_eq!(taken.front().unwrap().as_ptr(), buf.as_ptr());
        assert_eq!(queue.front(10).front().unwrap().as_ptr(), buf.as_ptr());
    }
}
