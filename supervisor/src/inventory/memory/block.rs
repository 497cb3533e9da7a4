//! Single blocks for cells that grow: known to be zero already, so that giving one away takes no time.

use super::{CHUNK, Chunk, Memory, Which};
use alloc::vec::Vec;
use isola_abi::growth::{LARGEST_CHUNK, SMALLEST_CHUNK};
use isola_abi::id::NodeId;

const _: () = assert!(SMALLEST_CHUNK == CHUNK && LARGEST_CHUNK == CHUNK << (super::ORDERS - 1));

/// Which block a cell is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockWish {
    /// The least that will do, in bytes: a power of two of chunks.
    pub least_bytes: u64,
    /// The most that is wanted; likewise, and not less.
    pub largest_bytes: u64,
    /// Whose memory is preferred: a smaller block of this node to a larger one of another.
    pub node: NodeId,
}

/// What came of a [`BlockWish`].
#[derive(Debug)]
pub enum Block<T> {
    /// A block of zeros.
    Given(T, NodeId),
    /// There is one, once it is scrubbed.
    Later,
    /// There is none.
    Exhausted,
}

impl<T: Chunk> Memory<T> {
    /// Gives away one block of memory that is known to be zero, the largest that there is within the wish. Scrubs
    /// nothing: what a wish costs is bounded by the number of free blocks, and is next to nothing where less than the
    /// least is known to be zero.
    #[must_use]
    pub fn take_block(&mut self, wish: BlockWish) -> Block<T> {
        let order = |bytes: u64| (bytes / CHUNK).max(1).ilog2() as usize;
        let (least, largest) = (order(wish.least_bytes), order(wish.largest_bytes).min(super::ORDERS - 1));
        let has_zero = self.free - self.dirty >= CHUNK << least;
        let nodes = if has_zero { self.nodes_from(wish.node) } else { Vec::new() };
        for index in nodes {
            for order in (least..=largest).rev() {
                if let Some(block) = self.cut(index, order, Which::Zero) {
                    let node = self.nodes.get(index).map_or(wish.node, |node| node.id);
                    return Block::Given(self.made_zero(block), node);
                }
            }
        }
        match self.nodes.iter().any(|node| node.has(least)) {
            true => Block::Later,
            false => Block::Exhausted,
        }
    }
}
