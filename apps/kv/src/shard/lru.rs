//! The order of use: a doubly linked list of an owner's items.

use super::slab::{ItemSlot, Slab};

#[derive(Debug)]
pub(super) struct Lru {
    newest: ItemSlot,
    oldest: ItemSlot,
}

impl Lru {
    pub const fn new() -> Self {
        Self { newest: ItemSlot::NONE, oldest: ItemSlot::NONE }
    }

    /// Returns the least recently used item.
    pub fn oldest(&self) -> ItemSlot {
        self.oldest
    }

    /// Returns the most recently used item.
    pub fn newest(&self) -> ItemSlot {
        self.newest
    }

    /// Inserts the item at `slot`, which is not in the list, as the newest.
    pub fn insert(&mut self, slab: &mut Slab, slot: ItemSlot) {
        let before = core::mem::replace(&mut self.newest, slot);
        if let Some(item) = slab.get_mut(slot) {
            item.older = before;
            item.newer = ItemSlot::NONE;
        }
        match slab.get_mut(before) {
            Some(item) => item.newer = slot,
            None => self.oldest = slot,
        }
    }

    /// Makes the item at `slot` the newest.
    pub fn touch(&mut self, slab: &mut Slab, slot: ItemSlot) {
        if self.newest != slot {
            self.remove(slab, slot);
            self.insert(slab, slot);
        }
    }

    /// Removes the item at `slot` from the list.
    pub fn remove(&mut self, slab: &mut Slab, slot: ItemSlot) {
        let Some(item) = slab.get(slot) else { return };
        let (newer, older) = (item.newer, item.older);
        match slab.get_mut(newer) {
            Some(item) => item.older = older,
            None => self.newest = older,
        }
        match slab.get_mut(older) {
            Some(item) => item.newer = newer,
            None => self.oldest = newer,
        }
    }

    /// Updates the links to an item that the slab has moved to `slot`.
    pub fn moved(&mut self, slab: &mut Slab, slot: ItemSlot) {
        let Some(item) = slab.get(slot) else { return };
        let (newer, older) = (item.newer, item.older);
        match slab.get_mut(newer) {
            Some(item) => item.older = slot,
            None => self.newest = slot,
        }
        match slab.get_mut(older) {
            Some(item) => item.newer = slot,
            None => self.oldest = slot,
        }
    }
}
