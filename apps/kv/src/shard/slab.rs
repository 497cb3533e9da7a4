//! The items in dense chunks: without holes, so that the memory shrinks with the number of items.
//!
//! Removing an item moves the last item to its index, and all references to that item must be updated. Growing adds a
//! chunk and moves nothing, so no store waits for a large copy.

use alloc::vec::Vec;

use isola_events::reclaim::VacatedMemory;

use super::item::Item;
use super::vacate::{MovedMemory, move_vector};

const CHUNK_BITS: u32 = 6;
const CHUNK_LEN: usize = 1 << CHUNK_BITS;
const CHUNK_MASK: usize = CHUNK_LEN - 1;

/// The memory of one chunk, in bytes.
pub(super) const CHUNK_BYTES: usize = CHUNK_LEN * size_of::<Item>();

/// The index of an item. It is smaller than an `Option` of an index, and an item contains three of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ItemSlot(u32);

impl ItemSlot {
    /// No item.
    pub const NONE: Self = Self(u32::MAX);

    /// Creates the reference to an index that the slab can have.
    pub fn new(index: usize) -> Self {
        Self(index as u32)
    }

    fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug, Default)]
pub(super) struct Slab {
    chunks: Vec<Vec<Item>>,
    len: usize,
}

impl Slab {
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the memory of the slab, in bytes, without the list of chunks (8 bytes in some 5,000).
    pub fn bytes(&self) -> usize {
        self.chunks.len() * CHUNK_BYTES
    }

    /// Returns the memory that another item would add, in bytes.
    pub fn growth_bytes(&self) -> usize {
        if self.len == self.chunks.len() << CHUNK_BITS { CHUNK_BYTES } else { 0 }
    }

    pub fn get(&self, slot: ItemSlot) -> Option<&Item> {
        self.chunks.get(slot.index() >> CHUNK_BITS)?.get(slot.index() & CHUNK_MASK)
    }

    pub fn get_mut(&mut self, slot: ItemSlot) -> Option<&mut Item> {
        self.chunks.get_mut(slot.index() >> CHUNK_BITS)?.get_mut(slot.index() & CHUNK_MASK)
    }

    /// Returns whether the index is the first of a chunk.
    pub fn begins_chunk(slot: ItemSlot) -> bool {
        slot.index() & CHUNK_MASK == 0
    }

    /// Moves the list of chunks if it is in this memory.
    pub fn vacate_list(&mut self, memory: &VacatedMemory, moved: &mut MovedMemory) {
        if let Some(original) = move_vector(&mut self.chunks, memory) {
            moved.add_chunk_list(original);
        }
    }

    /// Moves the chunk that contains `slot` if it is in this memory.
    pub fn vacate_chunk(&mut self, slot: ItemSlot, memory: &VacatedMemory, moved: &mut MovedMemory) {
        let chunk = self.chunks.get_mut(slot.index() >> CHUNK_BITS);
        if let Some(original) = chunk.and_then(|chunk| move_vector(chunk, memory)) {
            moved.add_chunk(original);
        }
    }

    pub fn push(&mut self, item: Item) -> ItemSlot {
        let slot = ItemSlot::new(self.len);
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK_LEN) {
            self.chunks.push(Vec::with_capacity(CHUNK_LEN));
        }
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.push(item);
            self.len += 1;
        }
        slot
    }

    /// Removes the item at `slot`, and moves the last item there. Returns the removed item and the previous index of
    /// the moved item, which is `None` if the removed item was the last.
    pub fn swap_remove(&mut self, slot: ItemSlot) -> Option<(Item, Option<ItemSlot>)> {
        self.get(slot)?;
        let last_chunk = self.chunks.last_mut()?;
        let last = last_chunk.pop()?;
        if last_chunk.is_empty() {
            self.chunks.pop();
        }
        self.len -= 1;
        if slot.index() == self.len {
            return Some((last, None));
        }
        let item = core::mem::replace(self.get_mut(slot)?, last);
        Some((item, Some(ItemSlot::new(self.len))))
    }
}
