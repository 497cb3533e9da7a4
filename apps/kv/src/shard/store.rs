//! Stores: their conditions, the resulting value, and the eviction of other items.

use crate::key::Key;
use crate::request::{ExistingItem, OlderVersion, Store, StoreMode};
use crate::response::{Body, NotStored, Response};
use crate::time::{Deadline, UnixTime};

use super::Shard;
use super::item::{Item, body_bytes, build_body, join_body};
use super::owners::OwnerItems;
use super::slab::ItemSlot;
use super::table::Table;

impl Shard {
    pub(super) fn store(&mut self, now: UnixTime, key: &Key, store: Store) -> Response {
        self.counters.cmd_set += 1;
        if self.counts_prefixes {
            self.prefixes.stored(key.bytes());
        }
        let old = self.find_live(now, key);
        let overwrites = store.mode == StoreMode::Set && store.cas.is_none();
        if let Err(refusal) = self.check(old, &store) {
            return refusal;
        }
        let replaced = old.and_then(|slot| self.table.get(slot));
        let outdated = match replaced {
            Some(item) if store.older == OlderVersion::StoredAsStale && store.cas != Some(item.cas) => {
                Some((item.deadline, item.is_promised))
            }
            _ => None,
        };
        let Some((flags, deadline, body)) = self.result(now, key, old, store) else {
            self.counters.store_too_large += 1;
            return Response::TooLarge;
        };
        if !self.can_ever_hold(&body) {
            return self.out_of_memory(old.filter(|_| overwrites));
        }
        let mut item = Item::new(key.borrow().bucket_hash(), body, flags, deadline, now);
        if let Some((deadline, is_promised)) = outdated {
            item = Item { deadline, is_promised, is_stale: true, ..item };
        }
        Response::Stored { cas: self.put(now, old, item) }
    }

    pub(super) fn reject_store(&mut self, now: UnixTime, key: &Key, stale: ExistingItem) -> Response {
        self.counters.store_too_large += 1;
        if stale == ExistingItem::Removed
            && let Some(slot) = self.find_live(now, key)
        {
            self.remove(slot);
        }
        Response::TooLarge
    }

    /// Checks the store's condition against the existing item.
    fn check(&mut self, old: Option<ItemSlot>, store: &Store) -> Result<(), Response> {
        let item = old.and_then(|slot| self.table.get(slot));
        let extends = matches!(store.mode, StoreMode::Append | StoreMode::Prepend);
        match (item, store.cas) {
            (None, _) if extends => return Err(Response::NotStored(NotStored::NothingToExtend)),
            (None, Some(_)) => {
                self.counters.cas_misses += 1;
                return Err(Response::Miss(None));
            }
            (Some(item), Some(cas))
                if store.older == OlderVersion::StoredAsStale && (1..item.cas).contains(&cas) =>
            {
                self.counters.cas_hits += 1;
                return Ok(());
            }
            (Some(item), Some(cas)) if item.cas != cas => {
                self.counters.cas_badval += 1;
                return Err(Response::Exists);
            }
            (Some(_), Some(_)) => {
                self.counters.cas_hits += 1;
                return Ok(());
            }
            _ => {}
        }
        match (store.mode, item.map(|item| item.owner)) {
            (StoreMode::Add, Some(present)) => {
                // An `add` whose key is present counts as a use of the item.
                if let Some(slot) = old {
                    self.table.touch(slot, present);
                }
                Err(Response::NotStored(NotStored::Present))
            }
            (StoreMode::Replace, None) => Err(Response::NotStored(NotStored::Absent)),
            _ => Ok(()),
        }
    }

    /// Returns the flags, the deadline and the body of the item after the store, or `None` if its value is too large.
    fn result(
        &self,
        now: UnixTime,
        key: &Key,
        old: Option<ItemSlot>,
        store: Store,
    ) -> Option<(u32, Deadline, Body)> {
        let old = match store.mode {
            StoreMode::Append | StoreMode::Prepend => old.and_then(|slot| self.table.get(slot)),
            StoreMode::Set | StoreMode::Add | StoreMode::Replace => None,
        };
        let len = store.value.len() + old.map_or(0, |old| old.body.value_len());
        if len > self.max_value_len {
            return None;
        }
        let Some(old) = old else {
            return Some((
                store.flags,
                store.exptime.deadline(now),
                build_body(key.bytes(), store.flags, store.value),
            ));
        };
        let (there, added) = (old.body.value(), store.value);
        let (there, added) = (there.parts().map(|part| &**part), added.parts().map(|part| &**part));
        let body = match store.mode {
            StoreMode::Prepend => join_body(key.bytes(), old.flags, len, added.chain(there)),
            _ => join_body(key.bytes(), old.flags, len, there.chain(added)),
        };
        Some((old.flags, old.deadline, body))
    }

    /// Returns whether the body fits in a shard that has evicted all other items.
    pub(super) fn can_ever_hold(&self, body: &Body) -> bool {
        Table::SMALLEST_BYTES + body_bytes(body) <= self.limit_bytes
    }

    /// Counts a store that fails for lack of memory. Removes `old`, the item that a `set` was to replace, because its
    /// writer believes it to be overwritten.
    pub(super) fn out_of_memory(&mut self, old: Option<ItemSlot>) -> Response {
        self.counters.store_no_memory += 1;
        if let Some(slot) = old {
            self.remove(slot);
        }
        Response::OutOfMemory
    }

    /// Inserts an item that fits, in place of `old`, which has the same key. Returns its version.
    fn put(&mut self, now: UnixTime, old: Option<ItemSlot>, mut item: Item) -> u64 {
        let Some(old) = old else { return self.insert_new(now, item) };
        if self.table.bytes_once_replaced(old, body_bytes(&item.body)) > self.limit_bytes {
            self.remove(old);
            return self.insert_new(now, item);
        }
        item.cas = self.next_cas();
        item.owner = self.storing;
        let cas = item.cas;
        self.counters.total_items += 1;
        if let Some(before) = self.table.get(old) {
            self.note_freed(before.owner, body_bytes(&before.body));
        }
        self.table.replace(old, item);
        cas
    }

    /// Inserts an item that fits and whose key is absent, and evicts as many items as necessary. Returns its version.
    pub(super) fn insert_new(&mut self, now: UnixTime, mut item: Item) -> u64 {
        let needed = body_bytes(&item.body);
        while self.table.bytes_with(needed) > self.limit_bytes && self.table.len() > 0 {
            self.evict(now);
        }
        let cas = self.next_cas();
        item.cas = cas;
        item.owner = self.storing;
        self.counters.total_items += 1;
        self.table.insert(item);
        cas
    }

    /// Evicts the least recently used item of the owners that have more than they keep, or of all if none has.
    fn evict(&mut self, now: UnixTime) {
        let of_those_above = self.table.oldest(OwnerItems::is_above_kept);
        if let Some(slot) = of_those_above.or_else(|| self.table.oldest(|_| true)) {
            self.evict_item(now, slot);
        }
    }

    pub(super) fn evict_item(&mut self, now: UnixTime, slot: ItemSlot) {
        match self.table.get(slot) {
            Some(item) if self.is_dead(item, now) => self.remove_dead(now, slot),
            Some(item) => {
                self.counters.evicted_unfetched += u64::from(!item.was_read);
                self.counters.evictions += 1;
                self.counters.evicted_nonzero += u64::from(item.deadline != Deadline::NEVER);
                self.remove(slot);
            }
            None => {}
        }
    }
}
