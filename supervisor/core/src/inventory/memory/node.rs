//! The free memory of a NUMA node: the buddy system itself.

use super::{CHUNK, Chunk, split_off};
use alloc::collections::BTreeMap;
use isola_abi::id::NodeId;

/// The number of block sizes: 2 MiB, 4 MiB, ... 1 GiB.
pub(super) const ORDERS: usize = 10;

/// The free blocks of a node.
#[derive(Debug)]
pub(super) struct Node<T> {
    pub(super) id: NodeId,
    /// Bytes of the free blocks.
    pub(super) free_bytes: u64,
    /// Bytes of the free blocks that are not known to be zero.
    pub(super) dirty_bytes: u64,
    /// The free blocks of each order, by the number of their first chunk.
    free: [BTreeMap<u64, T>; ORDERS],
}

impl<T: Chunk> Node<T> {
    /// Returns a node without free blocks.
    pub(super) fn new(id: NodeId) -> Self {
        Self { id, free_bytes: 0, dirty_bytes: 0, free: Default::default() }
    }

    /// Returns whether there is a block of `order`, or a larger one.
    pub(super) fn has(&self, order: usize) -> bool {
        self.free.iter().skip(order).any(|blocks| !blocks.is_empty())
    }

    /// Returns all blocks: the number of the first chunk, and the number of chunks.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (u64, u64)> {
        let of = |(order, blocks)| BTreeMap::keys(blocks).map(move |&first| (first, 1_u64 << order));
        self.free.iter().enumerate().flat_map(of)
    }

    /// Returns the free block that contains the chunk.
    pub(super) fn block_with(&mut self, chunk: u64) -> Option<&mut T> {
        let mut orders = self.free.iter_mut().enumerate();
        orders.find_map(|(order, blocks)| blocks.get_mut(&(chunk >> order << order)))
    }

    /// Returns the end address of the free block that contains the chunk.
    pub(super) fn end_of_block_with(&self, chunk: u64) -> Option<u64> {
        let mut orders = self.free.iter().enumerate();
        let block = orders.find_map(|(order, blocks)| blocks.get(&(chunk >> order << order)))?;
        Some(block.range().end().0)
    }

    /// Enters whole chunks as blocks, joined with their buddies as far as these are free.
    pub(super) fn insert(&mut self, memory: T) {
        let mut rest = Some(memory);
        while let Some(memory) = rest.take() {
            let range = memory.range();
            let (first, chunks) = (range.start.0 / CHUNK, range.len_bytes / CHUNK);
            let order = first.trailing_zeros().min(chunks.ilog2()).min(ORDERS as u32 - 1);
            let (block, behind) = split_off(memory, range.start.0 + (CHUNK << order));
            self.join_in(block, order as usize);
            rest = behind;
        }
    }

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

    /// Cuts out a block of `order` whose first chunk satisfies `will_do`: from the smallest free block that contains
    /// one, the lowest of these.
    pub(super) fn cut(&mut self, order: usize, will_do: impl Fn(u64) -> bool) -> Option<T> {
        let of_block = |(larger, block): (usize, u64)| {
            let mut parts = (block..block + (1 << larger)).step_by(1 << order);
            Some((larger, block, parts.find(|&part| will_do(part))?))
        };
        let of_order = |(larger, blocks)| BTreeMap::keys(blocks).map(move |&block| (larger, block));
        let mut candidates = self.free.iter().enumerate().skip(order).flat_map(of_order);
        let (larger, start, wanted) = candidates.find_map(of_block)?;
        let mut block = self.free.get_mut(larger)?.remove(&start)?;
        for order in (order..larger).rev() {
            let (lower, upper) = block.split(CHUNK << order);
            let middle = upper.range().start.0 / CHUNK;
            let (kept, rest) = if wanted < middle { (lower, upper) } else { (upper, lower) };
            self.free.get_mut(order)?.insert(rest.range().start.0 / CHUNK, rest);
            block = kept;
        }
        Some(block)
    }

    /// Returns the free blocks.
    pub(super) fn pieces(&self) -> impl Iterator<Item = &T> {
        self.free.iter().flat_map(BTreeMap::values)
    }
}
