//! The order of use: a list through the items, linked by place.

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

    /// The item that was not used for the longest time.
    pub fn oldest(&self) -> Place {
        self.oldest
    }

    /// The item that was used last.
    pub fn newest(&self) -> Place {
        self.newest
    }

    /// Enters the item at `place`, which is in no list, as the newest.
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

    /// Takes the item at `place` out of the order.
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

    /// Follows an item that the slab moved to `place`, where it is already.
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
