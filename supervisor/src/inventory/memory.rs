//! Memory: a buddy system per NUMA node, of blocks from 2 MiB to 1 GiB (RainForest 5.3; any text on buddy
//! systems, for instance Knuth 2.5).
//!
//! A free block of order `n` is `2^n` chunks long and aligned to its length; its buddy is the block that it
//! was cut from a block of order `n + 1` with. Two free buddies are always joined, so that after everything
//! has come back the free blocks are those of the beginning.
//!
//! All memory that is handed out is zeroed. What comes back is zeroed at once, so that no content outlives its
//! cell; a bit a chunk remembers that, because memory that no cell has had yet is not zeroed before somebody
//! wants it: that keeps booting fast, and unused memory unused.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use isola_abi::id::{NodeId, PhysAddr, PhysRange};

/// The smallest piece of memory that is given to a cell, in bytes.
pub const CHUNK: u64 = 2 << 20;

/// Number of block sizes: 2 MiB, 4 MiB, ... 1 GiB.
const ORDERS: usize = 10;

/// Stands for physical memory that its holder may use.
pub trait Chunk: Sized {
    /// Which memory.
    fn range(&self) -> PhysRange;

    /// Cuts it in two behind its first `len_bytes` bytes, a multiple of 4 KiB that is more than none and less
    /// than all of it.
    fn split(self, len_bytes: u64) -> (Self, Self);

    /// Joins it with `next`, which begins where it ends.
    fn join(self, next: Self) -> Self;

    /// Fills `len_bytes` bytes from `offset` on with zeros.
    fn zero(&mut self, offset: u64, len_bytes: u64);

    /// Whether it is known to hold nothing but zeros.
    fn is_zero(&self) -> bool;

    /// Says that it holds nothing but zeros, as the caller has seen to, piece by piece.
    fn declare_zero(&mut self);
}

/// The memory of the machine.
#[derive(Debug)]
pub struct Memory<T> {
    nodes: Vec<Node<T>>,
    spans: Vec<(PhysRange, NodeId)>,
    zeroed: BitMap,
    total: u64,
    free: u64,
    stray: Vec<T>,
}

#[derive(Debug)]
struct Node<T> {
    id: NodeId,
    /// The free blocks of each order, by the number of their first chunk.
    free: [BTreeMap<u64, T>; ORDERS],
}

impl<T> Default for Memory<T> {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            spans: Vec::new(),
            zeroed: BitMap::default(),
            total: 0,
            free: 0,
            stray: Vec::new(),
        }
    }
}

impl<T: Chunk> Memory<T> {
    /// No memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Enters memory, zeroed or not. Returns what is left of it at its edges: less than a chunk each.
    #[must_use]
    pub fn add(&mut self, memory: T, node: NodeId) -> Vec<T> {
        let range = memory.range();
        let first = range.start.0.next_multiple_of(CHUNK);
        let end = range.end().0 / CHUNK * CHUNK;
        if first >= end {
            return alloc::vec![memory];
        }
        let mut edges = Vec::new();
        let (memory, behind) = split_off(memory, end);
        edges.extend(behind);
        let (before, memory) = split_front(memory, first);
        edges.extend(before);
        self.zeroed.cover(first / CHUNK, end / CHUNK);
        if memory.is_zero() {
            self.zeroed.set(memory.range());
        }
        self.spans.push((PhysRange::new(PhysAddr(first), end - first), node));
        if !self.nodes.iter().any(|known| known.id == node) {
            self.nodes.push(Node { id: node, free: Default::default() });
        }
        self.total += end - first;
        self.insert(memory, node);
        edges
    }

    /// Bytes of all memory that can be given to cells.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Bytes that are free.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// Gives away `len_bytes` bytes, rounded up to whole chunks, as few blocks as can be; from `node` as long
    /// as it has any. Returns `None`, and gives nothing, where so much is not free.
    #[must_use]
    pub fn take(&mut self, len_bytes: u64, node: NodeId) -> Option<Vec<T>> {
        let len = len_bytes.checked_next_multiple_of(CHUNK)?;
        if len > self.free {
            return None;
        }
        let mut nodes: Vec<usize> = (0..self.nodes.len()).collect();
        nodes.sort_by_key(|&index| self.nodes.get(index).is_some_and(|at| at.id != node));
        let mut wanted = len / CHUNK;
        let mut taken = Vec::new();
        for index in nodes {
            for order in (0..ORDERS).rev() {
                while wanted >= 1 << order
                    && let Some(block) = self.nodes.get_mut(index).and_then(|node| node.cut(order))
                {
                    wanted -= 1 << order;
                    taken.push(self.hand_out(block));
                }
            }
        }
        Some(taken)
    }

    /// Gives away `len_bytes` bytes in one piece, rounded up to whole chunks. Returns `None` where no free
    /// block is so long.
    #[must_use]
    pub fn take_contiguous(&mut self, len_bytes: u64) -> Option<T> {
        let len = len_bytes.max(1).checked_next_multiple_of(CHUNK)?;
        let order = (len / CHUNK).checked_next_power_of_two()?.trailing_zeros() as usize;
        let (block, node) = self.nodes.iter_mut().find_map(|node| Some((node.cut(order)?, node.id)))?;
        let start = block.range().start.0;
        let (block, rest) = split_off(block, start + len);
        self.free -= rest.as_ref().map_or(0, |rest| rest.range().len_bytes);
        if let Some(rest) = rest {
            self.insert(rest, node);
        }
        Some(self.hand_out(block))
    }

    /// Takes memory back and zeroes it. Pieces may come in any order and cut in any way, as long as together
    /// they are whole chunks again; pieces that are not are kept out of use.
    pub fn put(&mut self, mut pieces: Vec<T>) {
        pieces.sort_by_key(|piece| piece.range().start);
        let mut whole: Option<T> = None;
        for piece in pieces {
            whole = Some(match whole.take() {
                Some(before) if before.range().end() == piece.range().start => before.join(piece),
                Some(before) => {
                    self.put_piece(before);
                    piece
                }
                None => piece,
            });
        }
        if let Some(last) = whole {
            self.put_piece(last);
        }
    }

    /// Memory that came back in pieces that are no whole chunks: none, unless the machine forgot a part.
    pub fn stray_bytes(&self) -> u64 {
        self.stray.iter().map(|piece| piece.range().len_bytes).sum()
    }

    fn put_piece(&mut self, mut piece: T) {
        let range = piece.range();
        piece.zero(0, range.len_bytes);
        let span = self.spans.iter().find(|(span, _)| span.contains(range.start)).copied();
        let aligned = range.start.0.is_multiple_of(CHUNK) && range.len_bytes.is_multiple_of(CHUNK);
        let Some((span, node)) = span.filter(|_| aligned) else {
            self.stray.push(piece);
            return;
        };
        let (piece, beyond) = split_off(piece, span.end().0);
        self.zeroed.set(piece.range());
        self.insert(piece, node);
        if let Some(beyond) = beyond {
            self.put_piece(beyond);
        }
    }

    /// Zeroes what of a block is not known to be zeroed, and counts it as given.
    fn hand_out(&mut self, mut block: T) -> T {
        let range = block.range();
        self.free -= range.len_bytes;
        for offset in (0..range.len_bytes).step_by(CHUNK as usize) {
            if !self.zeroed.take((range.start.0 + offset) / CHUNK) {
                block.zero(offset, CHUNK);
            }
        }
        block.declare_zero();
        block
    }

    /// Enters whole chunks as free blocks.
    fn insert(&mut self, memory: T, node: NodeId) {
        let Some(node) = self.nodes.iter_mut().find(|known| known.id == node) else {
            self.stray.push(memory);
            return;
        };
        self.free += memory.range().len_bytes;
        let mut rest = Some(memory);
        while let Some(memory) = rest.take() {
            let range = memory.range();
            let (first, chunks) = (range.start.0 / CHUNK, range.len_bytes / CHUNK);
            let order = first.trailing_zeros().min(chunks.ilog2()).min(ORDERS as u32 - 1);
            let (block, behind) = split_off(memory, range.start.0 + (CHUNK << order));
            node.join_in(block, order as usize);
            rest = behind;
        }
    }
}

impl<T: Chunk> Node<T> {
    /// Enters a free block, joined with its buddy as far as buddies are free.
    fn join_in(&mut self, mut block: T, mut order: usize) {
        while order + 1 < ORDERS {
            let first = block.range().start.0 / CHUNK;
            let Some(buddy) = self.free.get_mut(order).and_then(|free| free.remove(&(first ^ (1 << order))))
            else {
                break;
            };
            let upwards = block.range().start < buddy.range().start;
            block = if upwards { block.join(buddy) } else { buddy.join(block) };
            order += 1;
        }
        if let Some(free) = self.free.get_mut(order) {
            free.insert(block.range().start.0 / CHUNK, block);
        }
    }

    /// Takes a free block of `order`, cut from the smallest that is large enough, the lowest of these.
    fn cut(&mut self, order: usize) -> Option<T> {
        let larger =
            (order..ORDERS).find(|&order| self.free.get(order).is_some_and(|free| !free.is_empty()))?;
        let (_, mut block) = self.free.get_mut(larger)?.pop_first()?;
        for order in (order..larger).rev() {
            let (lower, upper) = block.split(CHUNK << order);
            self.free.get_mut(order)?.insert(upper.range().start.0 / CHUNK, upper);
            block = lower;
        }
        Some(block)
    }
}

/// Cuts `memory` at `end`, where that is within it: what is before, and what is behind.
fn split_off<T: Chunk>(memory: T, end: u64) -> (T, Option<T>) {
    if memory.range().end().0 <= end {
        return (memory, None);
    }
    let len = end - memory.range().start.0;
    let (memory, behind) = memory.split(len);
    (memory, Some(behind))
}

/// Cuts `memory` at `first`, where that is within it: what is before, and what is behind.
fn split_front<T: Chunk>(memory: T, first: u64) -> (Option<T>, T) {
    if memory.range().start.0 >= first {
        return (None, memory);
    }
    let len = first - memory.range().start.0;
    let (before, memory) = memory.split(len);
    (Some(before), memory)
}

/// A bit a chunk, for all chunks from the lowest to the highest of the machine.
#[derive(Debug, Default)]
struct BitMap {
    first: u64,
    words: Vec<u64>,
}

impl BitMap {
    /// Extends the map to chunks `first..end`.
    fn cover(&mut self, first: u64, end: u64) {
        let first = first / 64 * 64;
        if self.words.is_empty() {
            self.first = first;
        }
        if first < self.first {
            let more = (self.first - first) / 64;
            self.words.splice(0..0, core::iter::repeat_n(0, more as usize));
            self.first = first;
        }
        let words = (end - self.first).div_ceil(64) as usize;
        if words > self.words.len() {
            self.words.resize(words, 0);
        }
    }

    fn word(&mut self, chunk: u64) -> Option<&mut u64> {
        let index = chunk.checked_sub(self.first)? / 64;
        self.words.get_mut(index as usize)
    }

    fn set(&mut self, range: PhysRange) {
        for chunk in range.start.0 / CHUNK..range.end().0 / CHUNK {
            if let Some(word) = self.word(chunk) {
                *word |= 1 << (chunk % 64);
            }
        }
    }

    /// Clears a bit and returns what it was.
    fn take(&mut self, chunk: u64) -> bool {
        let Some(word) = self.word(chunk) else { return false };
        let bit = 1 << (chunk % 64);
        let was = *word & bit != 0;
        *word &= !bit;
        was
    }
}

#[cfg(test)]
mod tests;
