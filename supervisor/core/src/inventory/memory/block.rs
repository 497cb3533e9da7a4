//! Single zero blocks for growing cells.

use super::{CHUNK, Chunk, Memory, Qualifying};
use alloc::vec::Vec;
use isola_abi::growth::{LARGEST_BLOCK, SMALLEST_BLOCK};
use isola_abi::id::{NodeId, PhysAddr, PhysRange};

const _: () = assert!(SMALLEST_BLOCK == CHUNK && LARGEST_BLOCK == CHUNK << (super::ORDERS - 1));

/// A request for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRequest {
    /// The least bytes needed: a power of two of chunks.
    pub least_bytes: u64,
    /// The most bytes wanted: a power of two of chunks, not less than `least_bytes`.
    pub largest_bytes: u64,
    /// The preferred node: a smaller block of this node is preferred to a larger one of another.
    pub node: NodeId,
}

/// The result of a [`BlockRequest`].
#[derive(Debug)]
pub enum Block<T> {
    /// A zero block and its node.
    Given(T, NodeId),
    /// A block is free, but must be scrubbed first.
    Later,
    /// No block is free.
    Exhausted,
}

impl<T: Chunk> Memory<T> {
    /// Gives away the largest zero block within the request, without the reserved bytes. Scrubs nothing; the cost is
    /// bounded by the number of free blocks, and is close to none if too little memory is zero.
    #[must_use]
    pub fn take_block(&mut self, request: BlockRequest) -> Block<T> {
        let order = |bytes: u64| (bytes / CHUNK).max(1).ilog2() as usize;
        let available = self.available();
        let largest_bytes = request.largest_bytes.min(available);
        let (least, largest) = (order(request.least_bytes), order(largest_bytes).min(super::ORDERS - 1));
        if available < CHUNK << least {
            return Block::Exhausted;
        }
        let has_zero = self.free() - self.dirty() >= CHUNK << least;
        let nodes = if has_zero { self.nodes_from(request.node) } else { Vec::new() };
        for index in nodes {
            for order in (least..=largest).rev() {
                if let Some(block) = self.cut(index, order, Qualifying::Zero) {
                    let node = self.nodes.get(index).map_or(request.node, |node| node.id);
                    return Block::Given(self.given(block), node);
                }
            }
        }
        if self.has_block(least) { Block::Later } else { Block::Exhausted }
    }

    /// Returns whether a block of `len_bytes` bytes, rounded up to a power of two of chunks, would be free if the
    /// ranges `idle` were free as well. Reserved bytes count as taken.
    pub fn has_block_with(&self, len_bytes: u64, idle: &[PhysRange]) -> bool {
        let Some(len) = len_bytes.max(CHUNK).checked_next_power_of_two() else { return false };
        let order = (len / CHUNK).ilog2() as usize;
        let idle_bytes: u64 = idle.iter().map(|range| range.len_bytes).sum();
        if order >= super::ORDERS || self.available() + idle_bytes < len {
            return false;
        }
        let is_whole = |start: u64| {
            let mut at = start;
            while at < start + len {
                let idle = idle.iter().find(|range| range.contains(PhysAddr(at))).map(|range| range.end().0);
                let free = || self.nodes.iter().find_map(|node| node.end_of_block_with(at / CHUNK));
                let Some(end) = idle.or_else(free) else { return false };
                at = end;
            }
            self.node_of(PhysAddr(start)) == self.node_of(PhysAddr(start + len - 1))
        };
        // A block that is not free now contains a part of an idle range.
        let around = |range: &PhysRange| (range.start.0 / len * len..range.end().0).step_by(len as usize);
        self.has_block(order) || idle.iter().flat_map(around).any(is_whole)
    }

    fn has_block(&self, order: usize) -> bool {
        self.nodes.iter().any(|node| node.has(order))
    }
}
