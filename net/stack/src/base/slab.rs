//! A table with stable indices, whose keys become invalid when their entries are removed.

use alloc::vec::Vec;

/// The key of an entry: an index, and the number of previous uses of that index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub index: u32,
    generation: u32,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// Entries by [`Key`]. Growth moves them, so large ones should be boxed.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    capacity: usize,
}

impl<T> Slab<T> {
    /// Returns an empty table for at most `capacity` entries.
    pub const fn new(capacity: usize) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), capacity }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the number of further entries that fit.
    pub fn room(&self) -> usize {
        self.capacity.saturating_sub(self.len())
    }

    /// Returns whether the table is full.
    pub fn is_full(&self) -> bool {
        self.len() >= self.capacity
    }

    /// Inserts a value, or returns it if the table is full.
    pub fn insert(&mut self, value: T) -> Result<Key, T> {
        if self.is_full() {
            return Err(value);
        }
        if let Some(index) = self.free.pop()
            && let Some(slot) = self.slots.get_mut(index as usize)
        {
            slot.value = Some(value);
            return Ok(Key { index, generation: slot.generation });
        }
        let Ok(index) = u32::try_from(self.slots.len()) else { return Err(value) };
        self.slots.push(Slot { generation: 0, value: Some(value) });
        Ok(Key { index, generation: 0 })
    }

    /// Returns the key of the current entry at an index.
    pub fn key_at(&self, index: u32) -> Option<Key> {
        let slot = self.slots.get(index as usize)?;
        slot.value.as_ref()?;
        Some(Key { index, generation: slot.generation })
    }

    /// Gives the entry a new key; the old one is invalid from now on.
    pub fn rekey(&mut self, key: Key) -> Option<Key> {
        let slot = self.slots.get_mut(key.index as usize).filter(|slot| slot.generation == key.generation)?;
        slot.value.as_ref()?;
        slot.generation = slot.generation.wrapping_add(1);
        Some(Key { index: key.index, generation: slot.generation })
    }

    /// Returns the entry of a key; `None` once it was removed.
    pub fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slots.get(key.index as usize)?;
        slot.value.as_ref().filter(|_| slot.generation == key.generation)
    }

    /// Returns the entry of a key, mutably.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation != key.generation {
            return None;
        }
        slot.value.as_mut()
    }

    /// Returns the current entry at an index.
    pub fn at(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.value.as_ref()
    }

    /// Returns the current entry at an index, mutably.
    pub fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.value.as_mut()
    }

    /// Returns the current entry at an index, mutably, and its key.
    #[inline]
    pub fn with_key_at(&mut self, index: u32) -> Option<(Key, &mut T)> {
        let slot = self.slots.get_mut(index as usize)?;
        let key = Key { index, generation: slot.generation };
        slot.value.as_mut().map(|value| (key, value))
    }

    /// Removes an entry; its key is invalid from now on.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation != key.generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index);
        Some(value)
    }

    /// Returns the indices in use.
    pub fn indices(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.iter().zip(0u32..).filter(|(slot, _)| slot.value.is_some()).map(|(_, index)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_removed_entry_does_not_find_its_successor() {
        let mut slab = Slab::new(1);
        let first = slab.insert('a').unwrap();
        assert_eq!(slab.insert('b'), Err('b'));
        assert_eq!(slab.remove(first), Some('a'));
        let second = slab.insert('c').unwrap();
        assert_eq!((first.index, slab.get(first)), (second.index, None));
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(second), Some(&'c'));
        assert_eq!(slab.key_at(second.index), Some(second));
        assert_eq!(slab.len(), 1);
    }

    #[test]
    fn the_room_shrinks_with_each_entry_and_grows_with_each_removal() {
        let mut slab = Slab::new(3);
        assert_eq!(slab.room(), 3);
        let first = slab.insert('a').unwrap();
        slab.insert('b').unwrap();
        slab.insert('c').unwrap();
        assert_eq!(slab.room(), 0);
        slab.remove(first);
        assert_eq!(slab.room(), 1);
    }
}
