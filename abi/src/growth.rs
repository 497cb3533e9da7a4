//! How a cell gets more memory while it runs (XOS IV-B, IV-E): it asks, and is told yes or no.
//!
//! ```text
//!   cell                                          supervisor
//!   Request: least, largest, node; number + 1
//!   rings the doorbell --------------------------> sees a number that it has not answered
//!                                                  takes a block of zeros, maps it in the cell's direct map
//!                                                  Grown: the chunk, then `count`
//!   reads `answered`, as long as it has patience <- `answer`, then `answered` = number
//! ```
//!
//! The request is in the report, which the cell writes; what it got is in the descriptor's live words, which it
//! cannot write: what a cell owns is never what it says. `count` is stored (release) after the chunk that it
//! covers, and `answered` (release) after `answer` and `count`; numbers are stored (release) after the request. An
//! answer that comes late is as good: chunks are the cell's from `count` on, whether it waits or not.
//!
//! A cell gets chunks without a request, too, where the host tool has asked for that; and what it has it gives back when it
//! is asked to: see [`crate::unplug`]. The place of a chunk of which all has gone is vacant, and serves for another.

use crate::id::{NodeId, PhysAddr, PhysRange};
use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use serde::{Deserialize, Serialize};

/// Most chunks that a cell has at a time of those that it gets while it runs.
pub const MAX_CHUNKS: usize = 48;

/// The smallest chunk, in bytes. All are powers of two, and begin at a multiple of their length.
pub const SMALLEST_CHUNK: u64 = 2 << 20;

/// The largest chunk, in bytes.
pub const LARGEST_CHUNK: u64 = 1 << 30;

/// Memory that a cell wants, in its report.
#[repr(C)]
#[derive(Debug, Default)]
pub struct GrowthRequest {
    /// Counted up with each request; stored last (release).
    pub number: AtomicU32,
    /// The [`NodeId`] whose memory is preferred.
    pub node: AtomicU32,
    /// The least that will do, in bytes.
    pub least_bytes: AtomicU64,
    /// The most that is wanted, in bytes.
    pub largest_bytes: AtomicU64,
}

/// What a cell has got since it was built, in its descriptor's live words.
#[repr(C)]
#[derive(Debug)]
pub struct Grown {
    /// The number of the last request that was answered; stored last (release).
    pub answered: AtomicU32,
    /// An [`Answer`].
    pub answer: AtomicU32,
    /// How many chunks ever came; stored (release) after them.
    pub count: AtomicU32,
    /// Not used.
    pub reserved: AtomicU32,
    /// The most memory that the cell may have, in bytes, where that was changed since it was built; else 0.
    pub limit_bytes: AtomicU64,
    /// The chunks, in no order.
    pub chunks: [ChunkWords; MAX_CHUNKS],
}

/// A chunk: memory of one node, in the cell's direct map, zeroed when it came.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ChunkWords {
    /// Its first byte.
    pub start: AtomicU64,
    /// Its length; 0: the place is vacant. Stored last (release), and 0 before anything else changes.
    pub len_bytes: AtomicU64,
    /// Its [`NodeId`].
    pub node: AtomicU32,
    /// Which chunk of all that ever came it is, from 1.
    pub serial: AtomicU32,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// There is a chunk more.
    Given,
    /// There is none.
    Refused(Refusal),
}

/// Why a request is not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u32)]
pub enum Refusal {
    /// The cell would have more than it may have, or more chunks than [`MAX_CHUNKS`].
    Limit = 1,
    /// The machine has no such block free.
    Exhausted = 2,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Limit => "it has all that it may have: give it a larger memory-max",
            Self::Exhausted => "the machine has no such block free: stop a cell, or start a larger machine",
        })
    }
}

impl Answer {
    /// The number by which it is told.
    pub const fn to_u32(self) -> u32 {
        match self {
            Self::Given => 0,
            Self::Refused(refusal) => refusal as u32,
        }
    }

    /// The answer of that number; an unknown one refuses.
    pub const fn from_u32(value: u32) -> Self {
        match value {
            0 => Self::Given,
            1 => Self::Refused(Refusal::Limit),
            _ => Self::Refused(Refusal::Exhausted),
        }
    }
}

impl Default for Grown {
    fn default() -> Self {
        Self {
            answered: AtomicU32::new(0),
            answer: AtomicU32::new(0),
            count: AtomicU32::new(0),
            reserved: AtomicU32::new(0),
            limit_bytes: AtomicU64::new(0),
            chunks: [const { ChunkWords::new() }; MAX_CHUNKS],
        }
    }
}

impl ChunkWords {
    const fn new() -> Self {
        Self {
            start: AtomicU64::new(0),
            len_bytes: AtomicU64::new(0),
            node: AtomicU32::new(0),
            serial: AtomicU32::new(0),
        }
    }

    /// The chunk and its serial number. A place that changes meanwhile is read as it was or as it becomes: a new length
    /// is stored last.
    fn read(&self) -> Option<(PhysRange, NodeId, u32)> {
        let len_bytes = self.len_bytes.load(Ordering::Acquire);
        let start = PhysAddr(self.start.load(Ordering::Acquire));
        let (node, serial) = (self.node.load(Ordering::Acquire), self.serial.load(Ordering::Acquire));
        let is_whole = len_bytes > 0 && self.len_bytes.load(Ordering::Acquire) == len_bytes;
        is_whole.then(|| (PhysRange::new(start, len_bytes), NodeId(node), serial))
    }
}

impl GrowthRequest {
    /// Makes a request. Returns its number, which is never 0.
    pub fn make(&self, least_bytes: u64, largest_bytes: u64, node: NodeId) -> u32 {
        self.least_bytes.store(least_bytes, Ordering::Relaxed);
        self.largest_bytes.store(largest_bytes, Ordering::Relaxed);
        self.node.store(node.0, Ordering::Relaxed);
        let number = self.number.load(Ordering::Relaxed).wrapping_add(1).max(1);
        self.number.store(number, Ordering::Release);
        number
    }
}

impl Grown {
    /// Enters a chunk. Returns whether there was a place for it.
    #[must_use]
    pub fn push(&self, memory: PhysRange, node: NodeId) -> bool {
        let is_vacant = |place: &&ChunkWords| place.len_bytes.load(Ordering::Relaxed) == 0;
        let Some(place) = self.chunks.iter().find(is_vacant) else { return false };
        let count = self.count.load(Ordering::Relaxed).wrapping_add(1);
        place.start.store(memory.start.0, Ordering::Relaxed);
        place.node.store(node.0, Ordering::Relaxed);
        place.serial.store(count, Ordering::Relaxed);
        place.len_bytes.store(memory.len_bytes, Ordering::Release);
        self.count.store(count, Ordering::Release);
        true
    }

    /// Makes the place of the chunk that begins at `start` vacant: all of it has gone.
    pub fn vacate(&self, start: PhysAddr) {
        let is_it = |place: &&ChunkWords| {
            place.len_bytes.load(Ordering::Relaxed) > 0 && place.start.load(Ordering::Relaxed) == start.0
        };
        if let Some(place) = self.chunks.iter().find(is_it) {
            place.len_bytes.store(0, Ordering::Release);
        }
    }

    /// Answers the request of that number.
    pub fn reply(&self, number: u32, answer: Answer) {
        self.answer.store(answer.to_u32(), Ordering::Relaxed);
        self.answered.store(number, Ordering::Release);
    }

    /// What came of the request of that number; `None` as long as it was not answered.
    pub fn answer_to(&self, number: u32) -> Option<Answer> {
        (self.answered.load(Ordering::Acquire) == number)
            .then(|| Answer::from_u32(self.answer.load(Ordering::Relaxed)))
    }

    /// The chunks that the cell has.
    pub fn iter(&self) -> impl Iterator<Item = (PhysRange, NodeId)> {
        // The first vacant place is taken: behind so many nothing ever stood.
        let used = self.count.load(Ordering::Acquire) as usize;
        self.chunks.iter().take(used).filter_map(ChunkWords::read).map(|(memory, node, _)| (memory, node))
    }

    /// Of the chunks that came after the one of that number, the one that came first, and its number.
    pub fn next_after(&self, serial: u32) -> Option<(PhysRange, NodeId, u32)> {
        let age = |at: &(PhysRange, NodeId, u32)| at.2.wrapping_sub(serial);
        let later = |at: &(PhysRange, NodeId, u32)| (1..=u32::MAX / 2).contains(&age(at));
        self.chunks.iter().filter_map(ChunkWords::read).filter(later).min_by_key(age)
    }

    /// How many chunks ever came.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(number: u64) -> (PhysRange, NodeId) {
        (PhysRange::new(PhysAddr(number << 30), (number + 1) << 20), NodeId(number as u32 % 3))
    }

    #[test]
    fn a_chunk_is_read_as_it_was_entered_and_no_more_come_than_there_are_places() {
        let grown = Grown::default();
        for number in 0..MAX_CHUNKS as u64 {
            let (memory, node) = chunk(number);
            assert!(grown.push(memory, node));
            assert_eq!(grown.iter().last(), Some(chunk(number)));
        }
        assert!(!grown.push(PhysRange::new(PhysAddr(0), 1), NodeId(0)));
        assert!(grown.iter().eq((0..MAX_CHUNKS as u64).map(chunk)));
    }

    #[test]
    fn the_place_of_a_chunk_that_has_gone_serves_for_another_which_is_found_as_the_latest() {
        let grown = Grown::default();
        for number in 0..MAX_CHUNKS as u64 {
            let (memory, node) = chunk(number);
            assert!(grown.push(memory, node));
        }
        grown.vacate(chunk(5).0.start);
        assert_eq!(grown.iter().count(), MAX_CHUNKS - 1);
        assert!(grown.iter().all(|at| at != chunk(5)));
        let (memory, node) = chunk(99);
        assert!(grown.push(memory, node));
        assert!(!grown.push(memory, node));
        assert_eq!(grown.count(), MAX_CHUNKS as u32 + 1);
        let (memory, node, serial) = grown.next_after(MAX_CHUNKS as u32).unwrap();
        assert_eq!(((memory, node), serial), (chunk(99), MAX_CHUNKS as u32 + 1));
        assert_eq!(grown.next_after(serial), None);
        let first = grown.next_after(0).unwrap();
        assert_eq!((first.0, first.2), (chunk(0).0, 1));
        assert_eq!(grown.next_after(5).map(|at| at.2), Some(7), "the sixth has gone");
    }

    #[test]
    fn an_answer_is_that_of_its_request() {
        let (request, grown) = (GrowthRequest::default(), Grown::default());
        for answer in [Answer::Given, Answer::Refused(Refusal::Limit), Answer::Refused(Refusal::Exhausted)] {
            let number = request.make(1, 2, NodeId(3));
            assert_eq!(grown.answer_to(number), None);
            grown.reply(number, answer);
            assert_eq!(grown.answer_to(number), Some(answer));
        }
        request.number.store(u32::MAX, Ordering::Relaxed);
        assert_ne!(request.make(1, 2, NodeId(3)), 0, "which counts as answered from the start");
    }
}
