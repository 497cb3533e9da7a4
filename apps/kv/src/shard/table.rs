//! The items of a shard: keeps the slab, the index and the order of use consistent, and counts their memory exactly.

use crate::key::KeyRef;
use crate::response::Body;

use isola_events::reclaim::VacatedMemory;

use super::index::{Index, SEGMENT_BYTES};
use super::item::{Item, body_bytes};
use super::owners::{OwnerIndex, OwnerItems, Owners};
use super::slab::{CHUNK_BYTES, ItemSlot, Slab};
use super::vacate::MovedMemory;

#[derive(Debug)]
pub(super) struct Table {
    slab: Slab,
    index: Index,
    owners: Owners,
    /// The memory of all bodies, in bytes.
    body_bytes: usize,
}

impl Table {
    /// The largest memory of a table with one item, without its body, in bytes.
    pub const SMALLEST_BYTES: usize = 2 * SEGMENT_BYTES + CHUNK_BYTES;

    pub fn new() -> Self {
        Self { slab: Slab::default(), index: Index::new(), owners: Owners::new(), body_bytes: 0 }
    }

    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Returns the memory of the table, in bytes.
    pub fn bytes(&self) -> usize {
        self.body_bytes + self.slab.bytes() + self.index.bytes()
    }

    /// Returns the memory of the index, in bytes.
    pub fn index_bytes(&self) -> usize {
        self.index.bytes()
    }

    /// Returns the number of buckets of the index.
    pub fn buckets(&self) -> usize {
        self.index.buckets()
    }

    /// Returns an upper bound of the memory after inserting an item with a body of `body_bytes`.
    pub fn bytes_with(&self, body_bytes: usize) -> usize {
        self.bytes() + body_bytes + self.slab.growth_bytes() + SEGMENT_BYTES
    }

    pub fn find(&self, key: KeyRef<'_>) -> Option<ItemSlot> {
        self.index.find(&self.slab, key.bucket_hash(), key.bytes())
    }

    pub fn get(&self, slot: ItemSlot) -> Option<&Item> {
        self.slab.get(slot)
    }

    /// Returns the item. The caller must not change its key or the length of its value.
    pub fn get_mut(&mut self, slot: ItemSlot) -> Option<&mut Item> {
        self.slab.get_mut(slot)
    }

    /// Returns the owners of the items.
    pub fn owners(&self) -> &Owners {
        &self.owners
    }

    pub fn owners_mut(&mut self) -> &mut Owners {
        &mut self.owners
    }

    /// Returns the least recently used item of the owners that `may_lose` accepts.
    pub fn oldest(&self, may_lose: impl Fn(&OwnerItems) -> bool) -> Option<ItemSlot> {
        self.owners.oldest(&self.slab, may_lose)
    }

    /// Returns the items from the most recently used one on.
    pub fn newest_first(&self) -> impl Iterator<Item = &Item> {
        self.owners.newest_first(&self.slab)
    }

    /// Makes an item of that owner the newest.
    #[inline]
    pub fn touch(&mut self, slot: ItemSlot, owner: OwnerIndex) {
        self.owners.get_mut(owner).lru.touch(&mut self.slab, slot);
    }

    /// Inserts an item whose key is absent, as the newest.
    pub fn insert(&mut self, item: Item) {
        let (bytes, owner) = (body_bytes(&item.body), item.owner);
        let slot = self.slab.push(item);
        self.index.insert(&mut self.slab, slot);
        self.add_to_owner(slot, owner, bytes);
    }

    fn add_to_owner(&mut self, slot: ItemSlot, owner: OwnerIndex, bytes: usize) {
        self.body_bytes += bytes;
        let items = self.owners.get_mut(owner);
        items.len += 1;
        items.body_bytes += bytes;
        items.lru.insert(&mut self.slab, slot);
    }

    fn remove_from_owner(&mut self, slot: ItemSlot, owner: OwnerIndex, bytes: usize) {
        self.body_bytes -= bytes;
        let items = self.owners.get_mut(owner);
        items.len -= 1;
        items.body_bytes -= bytes;
        items.lru.remove(&mut self.slab, slot);
    }

    /// Returns the memory after replacing the body of the item at `slot` by one of `bytes`.
    pub fn bytes_once_replaced(&self, slot: ItemSlot, bytes: usize) -> usize {
        self.bytes() + bytes - self.slab.get(slot).map_or(0, |item| body_bytes(&item.body))
    }

    /// Replaces an item by one with the same key, as the newest.
    pub fn replace(&mut self, slot: ItemSlot, item: Item) {
        let Some(old) = self.slab.get_mut(slot) else { return };
        let (before, after) = (body_bytes(&old.body), body_bytes(&item.body));
        let (old_owner, owner) = (old.owner, item.owner);
        let Item { next_in_bucket, newer, older, .. } = *old;
        *old = Item { next_in_bucket, newer, older, ..item };
        if old_owner != owner {
            self.remove_from_owner(slot, old_owner, before);
            return self.add_to_owner(slot, owner, after);
        }
        self.resize_body(owner, before, after);
        self.touch(slot, owner);
    }

    fn resize_body(&mut self, owner: OwnerIndex, before: usize, after: usize) {
        self.body_bytes = self.body_bytes + after - before;
        let items = self.owners.get_mut(owner);
        items.body_bytes = items.body_bytes + after - before;
    }

    /// Moves the index and the list of the slab's chunks, as far as they are in this memory.
    pub fn vacate_lists(&mut self, memory: &VacatedMemory, moved: &mut MovedMemory) {
        self.slab.vacate_list(memory, moved);
        self.index.vacate(memory, moved);
    }

    /// Moves the slab's chunk that contains `slot` if it is in this memory.
    pub fn vacate_chunk(&mut self, slot: ItemSlot, memory: &VacatedMemory, moved: &mut MovedMemory) {
        self.slab.vacate_chunk(slot, memory, moved);
    }

    /// Replaces the body of an item by a copy of it. Returns the original.
    pub fn replace_body(&mut self, slot: ItemSlot, copy: Body) -> Option<Body> {
        let item = self.slab.get_mut(slot)?;
        let (owner, before, after) = (item.owner, body_bytes(&item.body), body_bytes(&copy));
        let original = core::mem::replace(&mut item.body, copy);
        self.resize_body(owner, before, after);
        Some(original)
    }

    /// Removes the item. The last item of the slab moves to its index.
    pub fn remove(&mut self, slot: ItemSlot) -> Option<Item> {
        let (owner, bytes) = self.slab.get(slot).map(|item| (item.owner, body_bytes(&item.body)))?;
        self.index.remove(&mut self.slab, slot);
        self.remove_from_owner(slot, owner, bytes);
        let (item, moved_from) = self.slab.swap_remove(slot)?;
        if let Some(from) = moved_from
            && let Some((hash, owner)) = self.slab.get(slot).map(|item| (item.hash, item.owner))
        {
            self.index.redirect(&mut self.slab, hash, from, slot);
            self.owners.get_mut(owner).lru.moved(&mut self.slab, slot);
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Key, KeyHasher};
    use crate::request::Payload;
    use crate::shard::item::build_body;
    use crate::time::{Deadline, UnixTime};
    use alloc::collections::BTreeMap;
    use alloc::format;
    use alloc::vec::Vec;
    use isola_iobuf::IoBuf;
    use proptest::prelude::*;

    fn key(number: u32) -> Key {
        let text = format!("key{number}");
        Key::new(IoBuf::copy_from_slice(text.as_bytes()), &KeyHasher::new(3)).unwrap()
    }

    fn insert(table: &mut Table, number: u32) {
        let key = key(number);
        let value = Payload::One(IoBuf::copy_from_slice(format!("value{number}").as_bytes()));
        let body = build_body(key.bytes(), 0, value);
        table.insert(Item::new(key.borrow().bucket_hash(), body, number, Deadline::NEVER, UnixTime(0)));
    }

    #[test]
    fn a_replaced_item_is_the_newest_and_its_memory_is_counted() {
        let mut table = Table::new();
        (0..3).for_each(|number| insert(&mut table, number));
        let slot = table.find(key(1).borrow()).unwrap();
        for len in [5_000, 10] {
            let body = build_body(b"key1", 7, Payload::One(IoBuf::copy_from_slice(&[b'x'; 5_000][..len])));
            let (before, bytes) = (table.bytes(), body_bytes(&body));
            let expected = table.bytes_once_replaced(slot, bytes);
            let hash = key(1).borrow().bucket_hash();
            table.replace(slot, Item::new(hash, body, 7, Deadline::NEVER, UnixTime(9)));
            assert_eq!((table.bytes(), table.bytes() > before), (expected, len > 10));
            assert_eq!(order(&table), [0, 2, 7]);
            let found = table.find(key(1).borrow()).and_then(|slot| table.get(slot)).unwrap();
            assert_eq!((found.flags, found.used_at, found.body.value_len()), (7, UnixTime(9), len));
        }
        for number in 0..3 {
            let slot = table.find(key(number).borrow()).unwrap();
            table.remove(slot).unwrap();
        }
        assert_eq!((table.len(), table.bytes()), (0, Table::new().bytes()));
    }

    fn order(table: &Table) -> Vec<u32> {
        let mut order = Vec::new();
        let mut slot = table.oldest(|_| true);
        while let Some(item) = slot.and_then(|slot| table.get(slot)) {
            order.push(item.flags);
            slot = Some(item.newer);
        }
        order
    }

    proptest! {
        /// Compares the table with a map of last uses: every item is found by its key, and the order is the same.
        #[test]
        fn items_can_be_found_and_are_in_order(steps in proptest::collection::vec((0..4u8, 0..900u32), 1..3000)) {
            let mut table = Table::new();
            let mut clock = 0u64;
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            for (step, number) in steps {
                clock += 1;
                let slot = table.find(key(number).borrow());
                prop_assert_eq!(slot.is_some(), model.contains_key(&number));
                match (slot, step) {
                    (None, 0 | 1) => {
                        insert(&mut table, number);
                        model.insert(number, clock);
                    }
                    (Some(slot), 2) => {
                        let owner = table.get(slot).unwrap().owner;
                        table.touch(slot, owner);
                        model.insert(number, clock);
                    }
                    (Some(slot), 3) => {
                        prop_assert_eq!(table.remove(slot).map(|item| item.flags), Some(number));
                        model.remove(&number);
                    }
                    _ => {}
                }
            }
            let mut expected: Vec<(u64, u32)> = model.iter().map(|(&number, &used)| (used, number)).collect();
            expected.sort();
            prop_assert_eq!(order(&table), expected.iter().map(|&(_, number)| number).collect::<Vec<_>>());
            for &number in model.keys() {
                let item = table.find(key(number).borrow()).and_then(|slot| table.get(slot));
                prop_assert_eq!(item.map(|item| item.flags), Some(number));
            }
        }
    }

    #[test]
    fn memory_shrinks_with_the_number_of_items() {
        let mut table = Table::new();
        let empty = table.bytes();
        (0..10_000).for_each(|number| insert(&mut table, number));
        assert!(table.buckets() >= 10_000);
        for number in (0..10_000).rev().step_by(2).chain((0..10_000).step_by(2)) {
            let slot = table.find(key(number).borrow()).unwrap();
            table.remove(slot).unwrap();
        }
        assert_eq!((table.len(), table.bytes(), table.buckets()), (0, empty, 256));
    }
}
