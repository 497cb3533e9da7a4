//! The requests of a connection: received data, divided into heads.

use crate::head::{self, Head, MAX_HEAD_BYTES, Parsed};
use alloc::vec::Vec;
use isola_iobuf::{Chain, IoBuf};

/// Received data that was not processed yet.
#[derive(Debug, Default)]
pub struct Requests {
    input: Chain,
    /// The beginning of a head that arrived in several frames, copied into one buffer.
    part: Vec<u8>,
    /// The number of its bytes that were searched for the end of the head.
    searched: usize,
}

impl Requests {
    /// Takes received data.
    #[inline]
    pub fn receive(&mut self, data: Chain) {
        self.input.append(data);
    }

    /// Passes the next request to `answer` and returns its result; `None` if the next request is incomplete.
    #[inline]
    pub fn next<T>(&mut self, answer: impl FnOnce(Parsed<'_>) -> T) -> Option<T> {
        if self.part.is_empty() {
            // Usually the request is contained in one frame.
            let parsed = head::parse(self.input.front()?);
            if let Some(len) = parsed.len() {
                let answered = answer(parsed);
                self.input.advance(len);
                return Some(answered);
            }
            self.searched = 0;
        }
        self.next_in_part(answer)
    }

    /// Passes the next request to `answer` if it is valid and contained in one frame. If `answer` returns `false`, or was
    /// not called, the request stays. Returns whether a request was answered.
    pub fn answer_whole(&mut self, answer: impl FnOnce(&Head<'_>) -> bool) -> bool {
        let whole = self.input.front().filter(|_| self.part.is_empty()).map(|front| head::parse(front));
        let Some(Parsed::Request(head, len)) = whole else { return false };
        let is_answered = answer(&head);
        if is_answered {
            self.input.advance(len);
        }
        is_answered
    }

    /// Does the same as [`Self::next`] for a request that arrived in several frames.
    fn next_in_part<T>(&mut self, answer: impl FnOnce(Parsed<'_>) -> T) -> Option<T> {
        self.gather();
        // If the client sends single bytes, the head is parsed once and not once per byte.
        if !self.part_may_be_whole() {
            return None;
        }
        let parsed = head::parse(&self.part);
        let len = parsed.len()?;
        let answered = answer(parsed);
        let mut rest = Chain::from(IoBuf::copy_from_slice(&self.part[len..]));
        self.part = Vec::new();
        rest.append(core::mem::take(&mut self.input));
        self.input = rest;
        Some(answered)
    }

    /// Moves input into the buffer of the head, up to the maximum length of a head.
    fn gather(&mut self) {
        let count = self.input.len().min(MAX_HEAD_BYTES.saturating_sub(self.part.len()));
        let start = self.part.len();
        self.part.resize(start + count, 0);
        // Cannot fail: the input has `count` bytes.
        let _ = self.input.copy_to_slice(&mut self.part[start..]);
        self.input.advance(count);
    }

    /// Returns whether the buffer may contain a complete head, or has its maximum length.
    fn part_may_be_whole(&mut self) -> bool {
        let new = &self.part[self.searched.saturating_sub(2)..];
        self.searched = self.part.len();
        let is_end = |bytes: &[u8]| bytes.starts_with(b"\n\n") || bytes.starts_with(b"\n\r\n");
        self.part.len() >= MAX_HEAD_BYTES || (0..new.len()).any(|at| is_end(&new[at..]))
    }

    /// Returns whether a request has begun.
    #[inline]
    pub fn has_begun(&self) -> bool {
        !self.part.is_empty() || !self.input.is_empty()
    }

    /// Returns the memory that the requests hold, in bytes.
    pub fn held_bytes(&self) -> usize {
        self.part.capacity() + self.input.parts().map(IoBuf::storage_len).sum::<usize>()
    }
}
