//! The order of use: a doubly linked list of the items.

use super::slab::{Place, Slab};

#[derive(Debug)]
pub(super) struct Lru {
    newest: Place,
    oldest: Place,
}

impl Lru {
    pub const fn new() -> Self {
        Self { newest: Place::NONE, oldest: Place::NONE }
    }

    /// Returns the least recently used item.
    pub fn oldest(&self) -> Place {
        self.oldest
    }

    /// Returns the most recently used item.
    pub fn newest(&self) -> Place {
        self.newest
    }

    /// Inserts the item at `place`, which is not in the list, as the newest.
    pub fn insert(&mut self, slab: &mut Slab, place: Place) {
        let before = core::mem::replace(&mut self.newest, place);
        if let Some(item) = slab.get_mut(place) {
            item.older = before;
            item.newer = Place::NONE;
        }
        match slab.get_mut(before) {
            Some(item) => item.newer = place,
            None => self.oldest = place,
        }
    }

    /// Makes the item at `place` the newest.
    pub fn touch(&mut self, slab: &mut Slab, place: Place) {
        if self.newest != place {
            self.remove(slab, place);
            self.insert(slab, place);
        }
    }

    /// Removes the item at `place` from the list.
    pub fn remove(&mut self, slab: &mut Slab, place: Place) {
        let Some(item) = slab.get(place) else { return };
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

    /// Updates the links to an item that the slab has moved to `place`.
    pub fn moved(&mut self, slab: &mut Slab, place: Place) {
        let Some(item) = slab.get(place) else { return };
        let (newer, older) = (item.newer, item.older);
        match slab.get_mut(newer) {
            Some(item) => item.older = place,
            None => self.newest = place,
        }
        match slab.get_mut(older) {
            Some(item) => item.newer = place,
            None => self.oldest = place,
        }
    }
}
