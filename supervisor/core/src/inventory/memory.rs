//! Memory: a buddy system per NUMA node, with blocks from 2 MiB to 1 GiB (RainForest 5.3; any text on buddy systems,
//! for instance Knuth 2.5).
//!
//! A free block of order `n` has `2^n` chunks and is aligned to its length; its buddy is the other half of the block of
//! order `n + 1` around it. Two free buddies are always joined, so once all memory has come back, the free blocks are
//! those of the beginning.
//!
//! All memory of a new cell is zero. A bitmap has a bit per chunk, set for free chunks that are known to be zero. The
//! others are *dirty*: memory that came back from cells, and memory at boot that is not known to be zero. Only
//! [`Memory::scrub`] scrubs, a few pages a call. A request for more than the zero memory reserves its bytes
//! ([`Memory::reserve`]), and takes them once enough memory is zero ([`Memory::is_ready`]). Dirty and zero blocks are
//! joined and split alike.
//!
//! ```text
//!              put                     scrub
//!     cell's ------> free and dirty ----------> free and zero
//!       ^                                             |
//!       +---------------------------------------------+ take
//! ```
//!
//! A reservation is a number of bytes, not a set of blocks: it keeps other requests from taking the last free memory,
//! owns nothing, and a supervisor restart drops it without loss of memory. A request leaves [`ZERO_RESERVE`] bytes of
//! zero memory for the memory requests of running cells ([`Memory::take_block`]), as long as there is other free memory
//! to scrub.
//!
//! A chunk's bit is set when its last byte was scrubbed, and cleared when the chunk is given away, which also drops an
//! unfinished scrub of the chunk. So a set bit always refers to a free chunk.

mod bits;
mod block;
mod node;

use alloc::vec::Vec;
use bits::BitMap;
use isola_abi::id::{NodeId, PhysAddr, PhysRange};
use node::{Node, ORDERS};

pub use block::{Block, BlockRequest};

/// The unit of memory that is given to cells, in bytes.
pub const CHUNK: u64 = 2 << 20;

/// Zero memory that a request leaves for growing cells, in bytes, and the divisor of all memory that limits it.
pub const ZERO_RESERVE: u64 = 64 << 20;
const ZERO_RESERVE_PART: u64 = 64;

/// A token for physical memory that its holder may use.
pub trait Chunk: Sized {
    /// Returns the physical range.
    fn range(&self) -> PhysRange;

    /// Splits the memory after its first `len_bytes` bytes: a multiple of 4 KiB, more than none and less than all.
    fn split(self, len_bytes: u64) -> (Self, Self);

    /// Joins the memory with `next`, which begins at its end.
    fn join(self, next: Self) -> Self;

    /// Zeroes `len_bytes` bytes from `offset` on; both are multiples of 4 KiB. Reads first, and writes only if needed:
    /// reading an unused page takes no memory of a virtual machine's host.
    fn scrub(&mut self, offset: u64, len_bytes: u64);

    /// Returns whether the memory is known to be zero.
    fn is_zero(&self) -> bool;

    /// Records that the memory is zero, as the caller has scrubbed it.
    fn declare_zero(&mut self);
}

/// The memory of the machine.
#[derive(Debug)]
pub struct Memory<T> {
    nodes: Vec<Node<T>>,
    spans: Vec<(PhysRange, NodeId)>,
    zero: BitMap,
    total: u64,
    /// Free bytes for which pending requests wait.
    reserved: u64,
    /// The chunk that is being scrubbed, free and dirty, and the number of its scrubbed bytes.
    scrubbing: Option<(u64, u64)>,
    fragments: Vec<T>,
}

/// Whether there is memory left to scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scrub {
    /// There is dirty memory.
    Unfinished,
    /// All free memory is known to be zero.
    Finished,
}

/// The free blocks that qualify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Qualifying {
    /// Blocks that are known to be zero.
    Zero,
    /// All blocks.
    Any,
}

impl<T> Default for Memory<T> {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            spans: Vec::new(),
            zero: BitMap::default(),
            total: 0,
            reserved: 0,
            scrubbing: None,
            fragments: Vec::new(),
        }
    }
}

impl<T: Chunk> Memory<T> {
    /// Returns no memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Enters free memory, zero or not. Returns its parts at the edges, less than a chunk each.
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
        self.zero.cover(first / CHUNK, end / CHUNK);
        if memory.is_zero() {
            let (first, count) = chunks(memory.range());
            self.zero.set_all(first, count);
        }
        self.spans.push((PhysRange::new(PhysAddr(first), end - first), node));
        if !self.nodes.iter().any(|known| known.id == node) {
            self.nodes.push(Node::new(node));
        }
        self.total += end - first;
        self.insert(memory, node);
        edges
    }

    /// Enters memory that a cell owns or that is out of use: whole chunks.
    pub fn add_owned(&mut self, range: PhysRange, node: NodeId) {
        self.zero.cover(range.start.0 / CHUNK, range.end().0 / CHUNK);
        self.spans.push((range, node));
        if !self.nodes.iter().any(|known| known.id == node) {
            self.nodes.push(Node::new(node));
        }
        self.total += range.len_bytes;
    }

    /// Returns the bytes of all memory for cells.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the free bytes, zero or not.
    pub fn free(&self) -> u64 {
        self.nodes.iter().map(|node| node.free_bytes).sum()
    }

    /// Returns the free bytes that are not known to be zero.
    pub fn dirty(&self) -> u64 {
        self.nodes.iter().map(|node| node.dirty_bytes).sum()
    }

    /// Returns the free bytes that are not reserved.
    pub fn available(&self) -> u64 {
        self.free().saturating_sub(self.reserved)
    }

    /// Reserves [available](Self::available) bytes for a request that waits until they are zero.
    pub fn reserve(&mut self, len_bytes: u64) {
        self.reserved = self.reserved.saturating_add(len_bytes);
    }

    /// Ends a reservation of `len_bytes` bytes.
    pub fn unreserve(&mut self, len_bytes: u64) {
        self.reserved = self.reserved.saturating_sub(len_bytes);
    }

    /// Returns whether a request can [take](Self::take) `len_bytes` bytes now and leave the reserve for growing cells.
    /// All bytes must be zero, of `node` as far as it has that many free, the rest of other nodes.
    pub fn is_ready(&self, len_bytes: u64, node: NodeId) -> bool {
        if self.dirty() == 0 {
            return true;
        }
        let zero = self.free() - self.dirty();
        let left = self.available().saturating_sub(len_bytes);
        let reserve = (self.total / ZERO_RESERVE_PART).min(ZERO_RESERVE).min(left) / CHUNK * CHUNK;
        let near = self.nodes.iter().find(|known| known.id == node);
        zero >= len_bytes.saturating_add(reserve)
            && near.is_none_or(|near| near.free_bytes - near.dirty_bytes >= len_bytes.min(near.free_bytes))
    }

    /// Gives away `len_bytes` bytes of zero memory, rounded up to whole chunks: from `node` first, in as few blocks as
    /// possible. Returns `None`, and gives nothing, if fewer bytes are available and zero.
    #[must_use]
    pub fn take(&mut self, len_bytes: u64, node: NodeId) -> Option<Vec<T>> {
        let len = len_bytes.checked_next_multiple_of(CHUNK)?;
        if len > self.available().min(self.free() - self.dirty()) {
            return None;
        }
        let mut wanted = len / CHUNK;
        let mut taken = Vec::new();
        for index in self.nodes_from(node) {
            for order in (0..ORDERS).rev() {
                while wanted >= 1 << order
                    && let Some(block) = self.cut(index, order, Qualifying::Zero)
                {
                    wanted -= 1 << order;
                    taken.push(self.given(block));
                }
            }
        }
        Some(taken)
    }

    /// Returns the node of the memory at `address`.
    pub fn node_of(&self, address: PhysAddr) -> Option<NodeId> {
        self.spans.iter().find(|(span, _)| span.contains(address)).map(|(_, node)| *node)
    }

    /// Gives away `len_bytes` contiguous bytes, rounded up to whole chunks and not scrubbed, for the supervisor's own
    /// use. Returns `None` if no free block is as long.
    #[must_use]
    pub fn take_contiguous(&mut self, len_bytes: u64) -> Option<T> {
        let nodes: Vec<NodeId> = self.nodes.iter().map(|node| node.id).collect();
        nodes.into_iter().find_map(|node| self.take_contiguous_on(len_bytes, node))
    }

    /// Gives away memory of a node, like [`Self::take_contiguous`].
    #[must_use]
    pub fn take_contiguous_on(&mut self, len_bytes: u64, node: NodeId) -> Option<T> {
        let len = len_bytes.max(1).checked_next_multiple_of(CHUNK)?;
        if len > self.available() {
            return None;
        }
        let order = (len / CHUNK).checked_next_power_of_two()?.trailing_zeros() as usize;
        let index = self.nodes.iter().position(|known| known.id == node)?;
        let block = self.cut(index, order, Qualifying::Any)?;
        let start = block.range().start.0;
        let (block, rest) = split_off(block, start + len);
        if let Some(rest) = rest {
            self.insert(rest, node);
        }
        let (first, count) = chunks(block.range());
        self.zero.clear_all(first, count);
        Some(block)
    }

    /// Takes memory back, not scrubbed. The pieces may have any order and any boundaries, as long as together they are
    /// whole chunks; other pieces are kept out of use.
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

    /// Returns the bytes that came back in pieces that are not whole chunks: 0, unless the machine lost a part.
    pub fn fragment_bytes(&self) -> u64 {
        self.fragments.iter().map(|piece| piece.range().len_bytes).sum()
    }

    /// Returns the ranges of all free memory that is whole chunks.
    pub fn free_ranges(&self) -> impl Iterator<Item = PhysRange> {
        self.nodes.iter().flat_map(Node::pieces).map(T::range)
    }

    /// Scrubs the next `len_bytes` bytes, whole pages, of dirty free memory: of the node `near` first.
    pub fn scrub(&mut self, len_bytes: u64, near: Option<NodeId>) -> Scrub {
        let Some((chunk, done)) = self.scrubbing.or_else(|| Some((self.find_dirty(near)?, 0))) else {
            return Scrub::Finished;
        };
        let len = len_bytes.min(CHUNK - done);
        let is_done = done + len == CHUNK;
        self.scrubbing = (!is_done).then_some((chunk, done + len));
        for node in &mut self.nodes {
            let Some(block) = node.block_with(chunk) else { continue };
            let offset = chunk * CHUNK - block.range().start.0;
            block.scrub(offset + done, len);
            if is_done {
                self.zero.set(chunk);
                node.dirty_bytes -= CHUNK;
            }
        }
        if self.dirty() > 0 { Scrub::Unfinished } else { Scrub::Finished }
    }

    /// Returns the indices of all nodes, that of `node` first.
    fn nodes_from(&self, node: NodeId) -> Vec<usize> {
        let mut nodes: Vec<usize> = (0..self.nodes.len()).collect();
        nodes.sort_by_key(|&index| self.nodes.get(index).is_some_and(|at| at.id != node));
        nodes
    }

    fn find_dirty(&self, near: Option<NodeId>) -> Option<u64> {
        let dirty = || self.nodes.iter().filter(|node| node.dirty_bytes > 0);
        let node = dirty().find(|node| Some(node.id) == near).or_else(|| dirty().next())?;
        node.blocks().find_map(|(first, count)| self.zero.first_clear(first, count))
    }

    fn put_piece(&mut self, piece: T) {
        let range = piece.range();
        let span = self.spans.iter().find(|(span, _)| span.contains(range.start)).copied();
        let aligned = range.start.0.is_multiple_of(CHUNK) && range.len_bytes.is_multiple_of(CHUNK);
        let Some((span, node)) = span.filter(|_| aligned) else {
            self.fragments.push(piece);
            return;
        };
        let (piece, beyond) = split_off(piece, span.end().0);
        self.insert(piece, node);
        if let Some(beyond) = beyond {
            self.put_piece(beyond);
        }
    }

    /// Cuts a block of `order` from a node's free blocks.
    fn cut(&mut self, index: usize, order: usize, qualifying: Qualifying) -> Option<T> {
        let zero = &self.zero;
        let node = self.nodes.get_mut(index)?;
        if qualifying == Qualifying::Zero && node.dirty_bytes == node.free_bytes {
            return None;
        }
        let block = node.cut(order, |first| match qualifying {
            Qualifying::Zero => zero.all_set(first, 1 << order),
            Qualifying::Any => true,
        })?;
        let range = block.range();
        node.free_bytes -= range.len_bytes;
        node.dirty_bytes -= dirty_bytes(zero, range);
        self.scrubbing = self.scrubbing.filter(|(chunk, _)| !range.contains(PhysAddr(chunk * CHUNK)));
        Some(block)
    }

    /// Enters whole chunks as free blocks.
    fn insert(&mut self, memory: T, node: NodeId) {
        let Some(node) = self.nodes.iter_mut().find(|known| known.id == node) else {
            self.fragments.push(memory);
            return;
        };
        node.free_bytes += memory.range().len_bytes;
        node.dirty_bytes += dirty_bytes(&self.zero, memory.range());
        node.insert(memory);
    }

    /// Marks a zero block as given away to a cell.
    fn given(&mut self, mut block: T) -> T {
        let (first, count) = chunks(block.range());
        self.zero.clear_all(first, count);
        block.declare_zero();
        block
    }
}

/// Returns the bytes of a range of whole chunks that are not known to be zero.
fn dirty_bytes(zero: &BitMap, range: PhysRange) -> u64 {
    let (first, count) = chunks(range);
    zero.count_clear(first, count) * CHUNK
}

/// Returns the number of a range's first chunk, and the number of its chunks.
fn chunks(range: PhysRange) -> (u64, u64) {
    (range.start.0 / CHUNK, range.len_bytes / CHUNK)
}

/// Splits `memory` at `end`, if that is within it, into the parts before and after.
fn split_off<T: Chunk>(memory: T, end: u64) -> (T, Option<T>) {
    if memory.range().end().0 <= end {
        return (memory, None);
    }
    let len = end - memory.range().start.0;
    let (memory, behind) = memory.split(len);
    (memory, Some(behind))
}

/// Splits `memory` at `first`, if that is within it, into the parts before and after.
fn split_front<T: Chunk>(memory: T, first: u64) -> (Option<T>, T) {
    if memory.range().start.0 >= first {
        return (None, memory);
    }
    let len = first - memory.range().start.0;
    let (before, memory) = memory.split(len);
    (Some(before), memory)
}

#[cfg(test)]
mod tests;
