//! The owners of a shard's items, each with its items in the order of use.
//!
//! An item has the index of its owner in a byte. The shard counts the memory of each owner, so that the owner that has
//! more than its share loses items first. Owners beyond [`MAX_OWNERS`] in one shard share the entry of the server.

use alloc::vec::Vec;

use crate::owner::{ItemOwner, OwnedBytes};

use super::item::Item;
use super::lru::Lru;
use super::slab::{ItemSlot, Slab};

/// The most owners of items in one shard, the server among them.
const MAX_OWNERS: usize = 1 << u8::BITS;

/// The index of an owner in its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnerIndex(u8);

impl OwnerIndex {
    /// The server itself.
    pub const SERVER: Self = Self(0);
}

/// An owner, and its items.
#[derive(Debug)]
pub(super) struct OwnerItems {
    pub owner: ItemOwner,
    pub lru: Lru,
    pub len: usize,
    /// The memory of the bodies, in bytes.
    pub body_bytes: usize,
    /// Up to this memory, the owner loses no item to others, in bytes.
    pub kept_bytes: usize,
}

impl OwnerItems {
    fn new(owner: ItemOwner) -> Self {
        Self { owner, lru: Lru::new(), len: 0, body_bytes: 0, kept_bytes: 0 }
    }

    /// Returns the memory of the items with that of their entries in the slab and the index.
    pub fn bytes(&self) -> OwnedBytes {
        let entries = self.len * (size_of::<Item>() + size_of::<ItemSlot>());
        OwnedBytes { owner: self.owner, bytes: self.body_bytes + entries }
    }

    /// Returns whether the owner loses items to others.
    pub fn is_above_kept(&self) -> bool {
        self.bytes().bytes > self.kept_bytes
    }
}

/// The owners of a shard's items.
#[derive(Debug)]
pub(super) struct Owners {
    /// The first one is the server.
    entries: Vec<OwnerItems>,
}

impl Owners {
    pub fn new() -> Self {
        Self { entries: Vec::from([OwnerItems::new(ItemOwner::SERVER)]) }
    }

    /// Returns the index of an owner, and adds the owner if there is room.
    pub fn index_of(&mut self, owner: ItemOwner) -> OwnerIndex {
        let known = self.entries.iter().position(|entry| entry.owner == owner);
        OwnerIndex(known.unwrap_or_else(|| self.add(owner)) as u8)
    }

    #[cold]
    fn add(&mut self, owner: ItemOwner) -> usize {
        if self.entries.len() < MAX_OWNERS {
            self.entries.push(OwnerItems::new(owner));
            return self.entries.len() - 1;
        }
        let unused =
            self.entries.iter().skip(1).position(|entry| entry.len == 0).map(|position| position + 1);
        if let Some(unused) = unused {
            self.entries[unused] = OwnerItems::new(owner);
        }
        unused.unwrap_or_default()
    }

    /// Returns an owner with its items.
    #[inline]
    pub fn get(&self, owner: OwnerIndex) -> &OwnerItems {
        &self.entries[usize::from(owner.0)]
    }

    #[inline]
    pub fn get_mut(&mut self, owner: OwnerIndex) -> &mut OwnerItems {
        &mut self.entries[usize::from(owner.0)]
    }

    /// Returns whether there are owners besides the server.
    #[inline]
    pub fn are_several(&self) -> bool {
        self.entries.len() > 1
    }

    /// Returns all owners.
    pub fn iter(&self) -> impl Iterator<Item = &OwnerItems> {
        self.entries.iter()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut OwnerItems> {
        self.entries.iter_mut()
    }

    /// Returns the least recently used item of the owners that `may_lose` accepts. Of items that were last used in the
    /// same second, that of the owner with the most memory counts as the least recently used.
    pub fn oldest(&self, slab: &Slab, may_lose: impl Fn(&OwnerItems) -> bool) -> Option<ItemSlot> {
        if let [only] = self.entries.as_slice() {
            return may_lose(only).then(|| only.lru.oldest());
        }
        let accepted = self.entries.iter().filter(|entry| entry.len > 0 && may_lose(entry));
        let oldest = accepted.filter_map(|entry| {
            let slot = entry.lru.oldest();
            Some((slab.get(slot)?.used_at, usize::MAX - entry.body_bytes, slot))
        });
        oldest.min_by_key(|(used_at, rest, _)| (*used_at, *rest)).map(|(.., slot)| slot)
    }

    /// Returns the items from the most recently used one on.
    pub fn newest_first<'a>(&self, slab: &'a Slab) -> impl Iterator<Item = &'a Item> {
        let mut next: Vec<ItemSlot> = self.entries.iter().map(|entry| entry.lru.newest()).collect();
        core::iter::from_fn(move || {
            let of_owners = next.iter_mut().filter_map(|slot| Some((slab.get(*slot)?, slot)));
            let (item, slot) = of_owners.max_by_key(|(item, _)| item.used_at)?;
            *slot = item.older;
            Some(item)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::key::{Key, KeyHasher, ShardId};
    use crate::request::{Broadcast, OlderVersion, Operation, Payload, Request, Store, StoreMode};
    use crate::response::{Details, Response};
    use crate::shard::Shard;
    use crate::time::{Exptime, UnixTime};
    use alloc::collections::BTreeMap;
    use alloc::format;
    use alloc::vec;
    use isola_iobuf::IoBuf;
    use proptest::prelude::*;

    fn time(second: u32) -> UnixTime {
        UnixTime(1_800_000_000 + second)
    }

    fn shard() -> Shard {
        let config = Config::new(1 << 20, 1).unwrap().with_max_value_len(10_000).unwrap();
        Shard::new(ShardId(0), &config)
    }

    fn key(number: u32) -> Key {
        let text = format!("key{number}");
        Key::new(IoBuf::copy_from_slice(text.as_bytes()), &KeyHasher::new(3)).unwrap()
    }

    fn put(shard: &mut Shard, owner: u32, second: u32, number: u32, len: usize) {
        let store = Store {
            mode: StoreMode::Set,
            flags: number,
            exptime: Exptime(0),
            cas: None,
            older: OlderVersion::Refused,
            value: Payload::One(IoBuf::from(vec![b'x'; len])),
        };
        let request = Request::Item { key: key(number), operation: Operation::Store(store) };
        let response = shard.execute_for(ItemOwner::numbered(owner), time(second), request);
        assert!(matches!(response, Response::Stored { .. }));
    }

    fn delete(shard: &mut Shard, owner: u32, number: u32) {
        let request = Request::Item { key: key(number), operation: Operation::Delete { cas: None } };
        shard.execute_for(ItemOwner::numbered(owner), time(0), request);
    }

    fn has(shard: &mut Shard, second: u32, number: u32) -> bool {
        shard.read_in_place(time(second), key(number).borrow()).is_some()
    }

    fn present(shard: &mut Shard, second: u32, numbers: core::ops::Range<u32>) -> usize {
        numbers.filter(|number| has(shard, second, *number)).count()
    }

    fn bytes_of(shard: &Shard, owner: u32) -> usize {
        let of = ItemOwner::numbered(owner);
        shard.usage().find(|owned| owned.owner == of).map_or(0, |owned| owned.bytes)
    }

    #[test]
    fn freed_memory_is_that_of_the_owner_whoever_frees_it() {
        let mut shard = shard();
        put(&mut shard, 1, 0, 7, 1_000);
        assert!(shard.take_freed().is_empty());
        let of_first = bytes_of(&shard, 1);
        put(&mut shard, 2, 0, 7, 3_000);
        let (owner, entry) = (ItemOwner::numbered(1), size_of::<Item>() + size_of::<ItemSlot>());
        assert_eq!(shard.take_freed(), [OwnedBytes { owner, bytes: of_first - entry }]);
        assert_eq!(bytes_of(&shard, 1), 0);
        assert!((3_000..3_200).contains(&bytes_of(&shard, 2)));
        delete(&mut shard, 1, 7);
        assert_eq!(shard.take_freed().first().map(|freed| freed.owner), Some(ItemOwner::numbered(2)));
        assert_eq!(bytes_of(&shard, 2), 0);
    }

    #[test]
    fn an_owner_within_its_budget_loses_no_item_to_others() {
        for kept_bytes in [200_000, 0] {
            let mut shard = shard();
            (0..100).for_each(|number| put(&mut shard, 1, 0, number, 1_000));
            put(&mut shard, 2, 0, 999, 1_000);
            let kept = |owner| if owner == ItemOwner::numbered(1) { kept_bytes } else { 0 };
            shard.set_kept_bytes(kept);
            (1_000..4_000).for_each(|number| put(&mut shard, 2, 1, number, 1_000));
            let left = present(&mut shard, 1, 0..100);
            assert_eq!(left, if kept_bytes > 0 { 100 } else { 0 });
            // Beyond its budget it loses its own.
            (4_000..7_000).for_each(|number| put(&mut shard, 1, 2, number, 1_000));
            assert!(bytes_of(&shard, 1) > 600_000);
            assert_eq!(bytes_of(&shard, 2), 0, "the items that were used least recently are evicted first");
        }
    }

    #[test]
    fn memory_is_freed_of_the_owner_that_is_to_lose_it() {
        let mut shard = shard();
        (0..100).for_each(|number| put(&mut shard, 1, number, number, 1_000));
        (100..200).for_each(|number| put(&mut shard, 2, number, number, 1_000));
        let of = |number| move |owner| owner == ItemOwner::numbered(number);
        assert!((50_000..54_000).contains(&shard.evict_of(time(300), 50_000, of(2))));
        assert_eq!(present(&mut shard, 300, 0..100), 100);
        assert_eq!(present(&mut shard, 300, 100..140), 0, "those used least recently");
        assert_eq!(present(&mut shard, 300, 160..200), 40);
        assert!(shard.evict_of(time(300), usize::MAX, of(2)) > 40_000);
        assert_eq!((shard.evict_of(time(300), 1, of(2)), shard.evict_of(time(300), 1, of(3))), (0, 0));
    }

    #[test]
    fn a_list_has_the_items_of_all_owners_by_their_use() {
        let mut shard = shard();
        (0..9).for_each(|number| put(&mut shard, number % 3, number, number, 10));
        assert!(has(&mut shard, 20, 4));
        let list = shard.execute(time(20), Request::All(Broadcast::List { limit: 4 }));
        let Response::Details(details) = list else { panic!("a list") };
        let Details::List(items) = *details else { panic!("a list") };
        let keys: Vec<_> = items.iter().map(|item| item.body.key().to_vec()).collect();
        assert_eq!(keys, [b"key4", b"key8", b"key7", b"key6"]);
    }

    #[test]
    fn owners_beyond_the_most_share_the_entry_of_the_server_until_another_has_no_items() {
        let mut shard = shard();
        let most = MAX_OWNERS as u32 - 1;
        (0..most + 1).for_each(|number| put(&mut shard, number, 0, number, 10));
        assert!(bytes_of(&shard, most) == 0 && bytes_of(&shard, most - 1) > 0);
        let of_server = |shard: &Shard| shard.usage().next().map(|owned| owned.bytes);
        assert!(of_server(&shard) > Some(0));
        delete(&mut shard, most, most);
        delete(&mut shard, 5, 5);
        assert_eq!(of_server(&shard), Some(0));
        put(&mut shard, most, 0, most, 10);
        assert!(bytes_of(&shard, most) > 0);
    }

    proptest! {
        /// The memory of each owner is that in a shard which has stored the same items once.
        #[test]
        fn the_memory_of_owners_is_exact(steps in proptest::collection::vec((0..4u32, 0..60u32, 0..3000usize), 1..300)) {
            let (mut used, mut fresh) = (shard(), shard());
            let mut model: BTreeMap<u32, (u32, usize)> = BTreeMap::new();
            for (owner, number, len) in steps {
                if len % 5 == 0 {
                    delete(&mut used, owner, number);
                    model.remove(&number);
                } else {
                    put(&mut used, owner, 0, number, len);
                    model.insert(number, (owner, len));
                }
            }
            model.iter().for_each(|(number, (owner, len))| put(&mut fresh, *owner, 0, *number, *len));
            for owner in 0..4 {
                prop_assert_eq!(bytes_of(&used, owner), bytes_of(&fresh, owner));
            }
            prop_assert_eq!(used.bytes(), fresh.bytes());
        }
    }
}
