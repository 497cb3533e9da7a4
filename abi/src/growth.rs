//! Memory requests of a running cell (XOS IV-B, IV-E), and memory hot-plug.
//!
//! ```text
//!   cell                                            supervisor
//!   GrowthRequest: least, largest, node;
//!   number + 1; notifies ------------------------>  reads the unanswered number,
//!                                                   maps a zeroed block in the cell's direct map;
//!                                                   PluggedMemory: the block, then `count`,
//!   polls `answered` until its timeout <----------  then `answer`, then `answered` = number
//! ```
//!
//! The request is in the report, which the cell writes. The plugged blocks are in the descriptor's live words, which
//! the cell cannot write, so the cell cannot misstate its own memory. The supervisor stores `count` (release) after the
//! block that it covers, and `answered` (release) after `answer` and `count`; the cell stores the number (release)
//! after the request. A late answer remains valid: the cell owns a block once `count` covers it, whether or not a core
//! waits.
//!
//! The supervisor also plugs blocks without a request, on a resize by the host tool. [`crate::unplug`] describes the
//! return of memory. The entry of a block that the cell has returned completely is vacant, and the supervisor reuses
//! it.

use crate::id::{NodeId, PhysAddr, PhysRange};
use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use serde::{Deserialize, Serialize};

/// The maximum number of plugged blocks that a cell has at a time.
pub const MAX_PLUGGED_BLOCKS: usize = 48;

/// The smallest block, in bytes. The length of a block is a power of two, and the block is aligned to its length.
pub const SMALLEST_BLOCK: u64 = 2 << 20;

/// The largest block, in bytes.
pub const LARGEST_BLOCK: u64 = 1 << 30;

/// A cell's memory request, in its report.
#[repr(C)]
#[derive(Debug, Default)]
pub struct GrowthRequest {
    /// The number of the latest request, incremented with each request; stored last (release).
    pub number: AtomicU32,
    /// The preferred [`NodeId`].
    pub node: AtomicU32,
    /// The smallest acceptable block, in bytes.
    pub least_bytes: AtomicU64,
    /// The largest useful block, in bytes.
    pub largest_bytes: AtomicU64,
}

/// The memory plugged into a cell since its creation, in the descriptor's live words.
#[repr(C)]
#[derive(Debug)]
pub struct PluggedMemory {
    /// The number of the latest answered request; stored last (release).
    pub answered: AtomicU32,
    /// An [`Answer`].
    pub answer: AtomicU32,
    /// The number of blocks ever plugged, modulo 2^32; stored (release) after them.
    pub count: AtomicU32,
    /// Unused.
    pub reserved: AtomicU32,
    /// The cell's memory limit, in bytes, if it has changed since the cell's creation; otherwise 0.
    pub limit_bytes: AtomicU64,
    /// The plugged blocks, in no particular order.
    pub blocks: [PluggedBlockWords; MAX_PLUGGED_BLOCKS],
}

/// A plugged block: memory of one node, in the cell's direct map, zeroed at the time of the plug.
#[repr(C)]
#[derive(Debug, Default)]
pub struct PluggedBlockWords {
    /// The first byte.
    pub start: AtomicU64,
    /// The length in bytes; 0 if the entry is vacant. Stored last (release), and set to 0 before any other field
    /// changes.
    pub len_bytes: AtomicU64,
    /// The block's [`NodeId`].
    pub node: AtomicU32,
    /// The block's serial number among all blocks ever plugged, from 1.
    pub serial: AtomicU32,
}

/// The answer to a memory request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The supervisor has plugged a block.
    Given,
    /// The supervisor has plugged no block.
    Refused(Refusal),
}

/// The reason for a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u32)]
pub enum Refusal {
    /// The cell would exceed its memory limit or [`MAX_PLUGGED_BLOCKS`].
    Limit = 1,
    /// The machine has no free block of the requested size.
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
    /// Returns the number that encodes the answer.
    pub const fn to_u32(self) -> u32 {
        match self {
            Self::Given => 0,
            Self::Refused(refusal) => refusal as u32,
        }
    }

    /// Decodes an answer; an unknown number is a refusal.
    pub const fn from_u32(value: u32) -> Self {
        match value {
            0 => Self::Given,
            1 => Self::Refused(Refusal::Limit),
            _ => Self::Refused(Refusal::Exhausted),
        }
    }
}

impl Default for PluggedMemory {
    fn default() -> Self {
        Self {
            answered: AtomicU32::new(0),
            answer: AtomicU32::new(0),
            count: AtomicU32::new(0),
            reserved: AtomicU32::new(0),
            limit_bytes: AtomicU64::new(0),
            blocks: [const { PluggedBlockWords::new() }; MAX_PLUGGED_BLOCKS],
        }
    }
}

impl PluggedBlockWords {
    const fn new() -> Self {
        Self {
            start: AtomicU64::new(0),
            len_bytes: AtomicU64::new(0),
            node: AtomicU32::new(0),
            serial: AtomicU32::new(0),
        }
    }

    /// Returns the block, its node and its serial number. A concurrent change of the entry yields the old or the new
    /// block, because the supervisor stores the new length last.
    fn read(&self) -> Option<(PhysRange, NodeId, u32)> {
        let len_bytes = self.len_bytes.load(Ordering::Acquire);
        let start = PhysAddr(self.start.load(Ordering::Acquire));
        let (node, serial) = (self.node.load(Ordering::Acquire), self.serial.load(Ordering::Acquire));
        let is_whole = len_bytes > 0 && self.len_bytes.load(Ordering::Acquire) == len_bytes;
        is_whole.then(|| (PhysRange::new(start, len_bytes), NodeId(node), serial))
    }
}

impl GrowthRequest {
    /// Makes a request. Returns its number, which is never 0. For the cell.
    pub fn make(&self, least_bytes: u64, largest_bytes: u64, node: NodeId) -> u32 {
        self.least_bytes.store(least_bytes, Ordering::Relaxed);
        self.largest_bytes.store(largest_bytes, Ordering::Relaxed);
        self.node.store(node.0, Ordering::Relaxed);
        let number = self.number.load(Ordering::Relaxed).wrapping_add(1).max(1);
        self.number.store(number, Ordering::Release);
        number
    }
}

impl PluggedMemory {
    /// Adds a block. Returns whether an entry was vacant for it. For the supervisor.
    #[must_use]
    pub fn push(&self, memory: PhysRange, node: NodeId) -> bool {
        let is_vacant = |entry: &&PluggedBlockWords| entry.len_bytes.load(Ordering::Relaxed) == 0;
        let Some(entry) = self.blocks.iter().find(is_vacant) else { return false };
        let count = self.count.load(Ordering::Relaxed).wrapping_add(1);
        entry.start.store(memory.start.0, Ordering::Relaxed);
        entry.node.store(node.0, Ordering::Relaxed);
        entry.serial.store(count, Ordering::Relaxed);
        entry.len_bytes.store(memory.len_bytes, Ordering::Release);
        self.count.store(count, Ordering::Release);
        true
    }

    /// Makes the entry of the block at `start` vacant, after the cell has returned all of the block. For the
    /// supervisor.
    pub fn vacate(&self, start: PhysAddr) {
        let is_it = |entry: &&PluggedBlockWords| {
            entry.len_bytes.load(Ordering::Relaxed) > 0 && entry.start.load(Ordering::Relaxed) == start.0
        };
        if let Some(entry) = self.blocks.iter().find(is_it) {
            entry.len_bytes.store(0, Ordering::Release);
        }
    }

    /// Answers the request `number`. For the supervisor.
    pub fn reply(&self, number: u32, answer: Answer) {
        self.answer.store(answer.to_u32(), Ordering::Relaxed);
        self.answered.store(number, Ordering::Release);
    }

    /// Returns the answer to the request `number`, or `None` if the supervisor has not answered it yet.
    pub fn answer_to(&self, number: u32) -> Option<Answer> {
        (self.answered.load(Ordering::Acquire) == number)
            .then(|| Answer::from_u32(self.answer.load(Ordering::Relaxed)))
    }

    /// Returns the plugged blocks that the cell has.
    pub fn iter(&self) -> impl Iterator<Item = (PhysRange, NodeId)> {
        // `push` takes the first vacant entry, so the entries from index `count` on were never used.
        let used = self.count.load(Ordering::Acquire) as usize;
        self.blocks
            .iter()
            .take(used)
            .filter_map(PluggedBlockWords::read)
            .map(|(memory, node, _)| (memory, node))
    }

    /// Returns the block with the lowest serial number after `serial`, and that number.
    pub fn next_after(&self, serial: u32) -> Option<(PhysRange, NodeId, u32)> {
        let age = |at: &(PhysRange, NodeId, u32)| at.2.wrapping_sub(serial);
        let later = |at: &(PhysRange, NodeId, u32)| (1..=u32::MAX / 2).contains(&age(at));
        self.blocks.iter().filter_map(PluggedBlockWords::read).filter(later).min_by_key(age)
    }

    /// Returns the number of blocks ever plugged, modulo 2^32.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(number: u64) -> (PhysRange, NodeId) {
        (PhysRange::new(PhysAddr(number << 30), (number + 1) << 20), NodeId(number as u32 % 3))
    }

    #[test]
    fn blocks_read_back_and_cannot_exceed_the_entries() {
        let plugged_memory = PluggedMemory::default();
        for number in 0..MAX_PLUGGED_BLOCKS as u64 {
            let (memory, node) = block(number);
            assert!(plugged_memory.push(memory, node));
            assert_eq!(plugged_memory.iter().last(), Some(block(number)));
        }
        assert!(!plugged_memory.push(PhysRange::new(PhysAddr(0), 1), NodeId(0)));
        assert!(plugged_memory.iter().eq((0..MAX_PLUGGED_BLOCKS as u64).map(block)));
    }

    #[test]
    fn a_vacant_entry_is_reused_and_its_block_is_the_latest() {
        let plugged_memory = PluggedMemory::default();
        for number in 0..MAX_PLUGGED_BLOCKS as u64 {
            let (memory, node) = block(number);
            assert!(plugged_memory.push(memory, node));
        }
        plugged_memory.vacate(block(5).0.start);
        assert_eq!(plugged_memory.iter().count(), MAX_PLUGGED_BLOCKS - 1);
        assert!(plugged_memory.iter().all(|at| at != block(5)));
        let (memory, node) = block(99);
        assert!(plugged_memory.push(memory, node));
        assert!(!plugged_memory.push(memory, node));
        assert_eq!(plugged_memory.count(), MAX_PLUGGED_BLOCKS as u32 + 1);
        let (memory, node, serial) = plugged_memory.next_after(MAX_PLUGGED_BLOCKS as u32).unwrap();
        assert_eq!(((memory, node), serial), (block(99), MAX_PLUGGED_BLOCKS as u32 + 1));
        assert_eq!(plugged_memory.next_after(serial), None);
        let first = plugged_memory.next_after(0).unwrap();
        assert_eq!((first.0, first.2), (block(0).0, 1));
        assert_eq!(plugged_memory.next_after(5).map(|at| at.2), Some(7), "the sixth block was returned");
    }

    #[test]
    fn an_answer_belongs_to_its_request() {
        let (request, plugged_memory) = (GrowthRequest::default(), PluggedMemory::default());
        for answer in [Answer::Given, Answer::Refused(Refusal::Limit), Answer::Refused(Refusal::Exhausted)] {
            let number = request.make(1, 2, NodeId(3));
            assert_eq!(plugged_memory.answer_to(number), None);
            plugged_memory.reply(number, answer);
            assert_eq!(plugged_memory.answer_to(number), Some(answer));
        }
        request.number.store(u32::MAX, Ordering::Relaxed);
        assert_ne!(request.make(1, 2, NodeId(3)), 0, "0 counts as answered from the start");
    }
}
