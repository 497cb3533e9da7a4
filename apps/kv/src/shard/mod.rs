//! A shard: the items whose keys hash to it, and all operations on them.
//!
//! The caller has exclusive access to the shard ([`crate::shards`]), so the shard contains no lock. Each call takes the
//! time as a parameter. The memory is counted exactly ([`Shard::bytes`]), and stores keep it within the limit: a store
//! that needs room evicts the least recently used items.
//!
//! - [`table`]: the items, found by key and ordered by use; it consists of [`slab`], [`index`], and [`owners`] with a
//!   [`lru`] for each.
//! - [`item`]: an item, and the rules for copying its value.
//! - [`store`] and [`count`]: the operations that write; [`meta`]: the operations of the meta commands.
//! - [`vacate`]: eviction by the amount, and the move of items to other memory.
//!
//! An item that has expired, or that was stored before a flush, is dead: no request sees it. A dead item is removed
//! when a request finds it, when it is the oldest item, or by [`Shard::reclaim`].

mod count;
mod counters;
mod index;
mod item;
mod lru;
mod meta;
mod owners;
mod prefixes;
mod slab;
mod store;
mod table;
mod vacate;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::config::Config;
use crate::key::{Key, KeyRef, ShardId};
use crate::owner::{ItemOwner, OwnedBytes};
use crate::request::{Broadcast, Operation, Request};
use crate::response::{Body, Details, Hit, ListedItem, Response};
use crate::time::{Exptime, UnixTime};

pub use counters::{Counters, Report};
use item::{Item, body_bytes};
use owners::{OwnerIndex, OwnerItems};
pub use prefixes::Prefixes;
pub(crate) use prefixes::fits_in_line;
use slab::ItemSlot;
use table::Table;
pub use vacate::MovedMemory;

/// The smallest memory limit of a shard, in bytes.
pub const SMALLEST_SHARD_BYTES: usize = Table::SMALLEST_BYTES;

/// A borrowed item.
pub(crate) struct ItemRef<'a> {
    pub flags: u32,
    pub cas: u64,
    pub body: &'a Body,
}

/// A part of the items.
#[derive(Debug)]
pub struct Shard {
    id: ShardId,
    table: Table,
    limit_bytes: usize,
    max_value_len: usize,
    /// The version of the last store. Each shard begins at its number and counts in steps of the number of shards, so
    /// no two stores of a server have the same version.
    last_cas: u64,
    cas_step: u64,
    /// Items of this version or an earlier one are flushed.
    flushed_cas: u64,
    /// The due time of the next flush.
    flush_at: Option<UnixTime>,
    /// The index of the next item that `reclaim` examines.
    reclaim_cursor: usize,
    /// The owner of what is stored now.
    storing: OwnerIndex,
    /// The memory of removed items, if they have several owners. See [`Shard::take_freed`].
    freed: Vec<OwnedBytes>,
    counters: Counters,
    /// The counts by key prefix, and whether the shard counts.
    prefixes: Box<Prefixes>,
    counts_prefixes: bool,
}

impl Shard {
    /// Creates the empty shard `id` of a server.
    pub fn new(id: ShardId, config: &Config) -> Self {
        Self {
            id,
            table: Table::new(),
            limit_bytes: config.shard_limit_bytes(),
            max_value_len: config.max_value_len(),
            last_cas: id.0.into(),
            cas_step: config.shard_count().into(),
            flushed_cas: id.0.into(),
            flush_at: None,
            reclaim_cursor: 0,
            storing: OwnerIndex::SERVER,
            freed: Vec::new(),
            counters: Counters::default(),
            prefixes: Box::default(),
            counts_prefixes: false,
        }
    }

    /// Returns the number of the shard.
    pub fn id(&self) -> ShardId {
        self.id
    }

    /// Returns the memory of all items and of the data structures that find them, in bytes. Stores keep it within the
    /// limit.
    pub fn bytes(&self) -> usize {
        self.table.bytes()
    }

    /// Sets another limit, of at least [`SMALLEST_SHARD_BYTES`]. If the shard exceeds it, the next stores evict items.
    pub fn set_limit_bytes(&mut self, limit_bytes: usize) {
        self.limit_bytes = limit_bytes.max(SMALLEST_SHARD_BYTES);
    }

    /// Returns the number of items, including dead items that are not removed yet.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Executes a request of a client that stores items for `owner`.
    pub fn execute_for(&mut self, owner: ItemOwner, now: UnixTime, request: Request) -> Response {
        self.storing = self.table.owners_mut().index_of(owner);
        let response = self.execute(now, request);
        self.storing = OwnerIndex::SERVER;
        response
    }

    /// Executes a request that stores items for the server itself. `now` may be slightly earlier than that of the previous
    /// call, because it comes from another core.
    pub fn execute(&mut self, now: UnixTime, request: Request) -> Response {
        self.flush_if_due(now);
        match request {
            Request::Item { key, operation } => match operation {
                Operation::Get => self.get(now, key, None),
                Operation::GetAndTouch(exptime) => self.get(now, key, Some(exptime)),
                Operation::Touch(exptime) => self.touch(now, &key, exptime),
                Operation::Store(store) => self.store(now, &key, store),
                Operation::RejectStore(stale) => self.reject_store(now, &key, stale),
                Operation::Delete { cas } => self.delete(now, &key, cas),
                Operation::Count(count) => self.count(now, &key, count),
                Operation::MetaGet(get) => self.meta_get(now, key, get),
                Operation::Inspect => self.inspect(now, key),
                Operation::Invalidate { cas, exptime } => self.invalidate(now, &key, cas, exptime),
            },
            Request::All(Broadcast::Flush(exptime)) => self.flush(now, exptime),
            Request::All(Broadcast::Stats) => Details::Report(self.report(now)).into(),
            Request::All(Broadcast::ResetStats) => {
                self.counters = Counters::default();
                self.prefixes.clear();
                Response::Done
            }
            Request::All(Broadcast::CountPrefixes(enabled)) => {
                self.counts_prefixes = enabled;
                Response::Done
            }
            Request::All(Broadcast::PrefixStats) => Details::Prefixes(Prefixes::clone(&self.prefixes)).into(),
            Request::All(Broadcast::List { limit }) => Details::List(self.list(now, limit)).into(),
        }
    }

    /// Examines up to `budget` items, in a cycle over all of them, and removes the dead ones. To be called in idle
    /// times, so that items that no client requests do not hold memory. Returns the number of removed items.
    pub fn reclaim(&mut self, now: UnixTime, budget: usize) -> usize {
        self.flush_if_due(now);
        let before = self.table.len();
        for _ in 0..budget.min(before) {
            if self.reclaim_cursor >= self.table.len() {
                self.reclaim_cursor = 0;
            }
            let slot = ItemSlot::new(self.reclaim_cursor);
            match self.table.get(slot) {
                Some(item) if self.is_dead(item, now) => self.remove_dead(now, slot),
                _ => self.reclaim_cursor += 1,
            }
        }
        before - self.table.len()
    }

    /// Returns the memory of removed items by owner since the last call, if the items have several owners. Whoever calls
    /// drops it in the running event, which may work for another one.
    #[inline]
    pub fn take_freed(&mut self) -> Vec<OwnedBytes> {
        core::mem::take(&mut self.freed)
    }

    /// Returns the memory of each owner's items, in bytes.
    pub fn usage(&self) -> impl Iterator<Item = OwnedBytes> {
        self.table.owners().iter().map(OwnerItems::bytes)
    }

    /// Sets the memory up to which each owner loses no item to others, in bytes.
    pub fn set_kept_bytes(&mut self, of: impl Fn(ItemOwner) -> usize) {
        self.table.owners_mut().iter_mut().for_each(|items| items.kept_bytes = of(items.owner));
    }

    /// Returns the counts and the memory use of the shard.
    pub fn report(&self, now: UnixTime) -> Report {
        let oldest = self.table.oldest(|_| true).and_then(|slot| self.table.get(slot));
        Report {
            time: now.0,
            counters: self.counters,
            curr_items: self.table.len() as u64,
            bytes: (self.table.bytes() - self.table.index_bytes()) as u64,
            limit_maxbytes: self.limit_bytes as u64,
            hash_bytes: self.table.index_bytes() as u64,
            hash_buckets: self.table.buckets() as u64,
            oldest_age_s: oldest.map_or(0, |item| u64::from(now.0.saturating_sub(item.used_at.0))),
            ..Report::default()
        }
    }

    /// Returns the most recently used items that are alive at `now`, at most `limit` of them.
    fn list(&self, now: UnixTime, limit: usize) -> Vec<ListedItem> {
        let live = self.table.newest_first().filter(|item| !self.is_dead(item, now));
        live.take(limit).map(|item| ListedItem { body: item.body.clone(), deadline: item.deadline }).collect()
    }

    fn get(&mut self, now: UnixTime, key: Key, exptime: Option<Exptime>) -> Response {
        match self.read(now, key.borrow(), exptime) {
            Some(ItemRef { flags, cas, body }) => Response::Hit(Hit { flags, cas, body: body.clone() }),
            None => Response::Miss(Some(key.into_bytes())),
        }
    }

    /// Executes a read as [`Shard::execute`] does, but borrows the item instead of building a response.
    pub(crate) fn read_in_place(&mut self, now: UnixTime, key: KeyRef<'_>) -> Option<ItemRef<'_>> {
        self.flush_if_due(now);
        self.read(now, key, None)
    }

    fn read(&mut self, now: UnixTime, key: KeyRef<'_>, exptime: Option<Exptime>) -> Option<ItemRef<'_>> {
        if self.counts_prefixes {
            self.count_read(now, key);
        }
        self.counters.cmd_get += 1;
        self.counters.cmd_touch += u64::from(exptime.is_some());
        let found = self.find_to_read(now, key);
        let Some((slot, owner)) = found else {
            self.counters.get_misses += 1;
            self.counters.touch_misses += u64::from(exptime.is_some());
            return None;
        };
        self.counters.get_hits += 1;
        self.table.touch(slot, owner);
        let item = self.table.get_mut(slot)?;
        item.used_at = now;
        item.was_read = true;
        if let Some(exptime) = exptime {
            item.deadline = exptime.deadline(now);
            self.counters.touch_hits += 1;
        }
        Some(ItemRef { flags: item.flags, cas: item.cas, body: &item.body })
    }

    /// Counts a read by key prefix. It looks the item up itself, so that reads compute nothing for it while the counts
    /// are disabled.
    #[cold]
    fn count_read(&mut self, now: UnixTime, key: KeyRef<'_>) {
        let item = self.table.find(key).and_then(|slot| self.table.get(slot));
        let is_hit = item.is_some_and(|item| !self.is_dead(item, now));
        self.prefixes.read(key.bytes(), is_hit);
    }

    /// Finds an item like [`Shard::find_live`], with its owner, and counts the reason if it is dead.
    #[inline(always)]
    fn find_to_read(&mut self, now: UnixTime, key: KeyRef<'_>) -> Option<(ItemSlot, OwnerIndex)> {
        let slot = self.table.find(key)?;
        let item = self.table.get(slot)?;
        if item.is_dead(now, self.flushed_cas) {
            match item.deadline.is_over(now) {
                true => self.counters.get_expired += 1,
                false => self.counters.get_flushed += 1,
            }
            self.remove_dead(now, slot);
            return None;
        }
        Some((slot, item.owner))
    }

    fn touch(&mut self, now: UnixTime, key: &Key, exptime: Exptime) -> Response {
        self.counters.cmd_touch += 1;
        let slot = self.find_live(now, key);
        let Some(item) = slot.and_then(|slot| self.table.get_mut(slot)) else {
            self.counters.touch_misses += 1;
            return Response::Miss(None);
        };
        item.deadline = exptime.deadline(now);
        item.used_at = now;
        self.counters.touch_hits += 1;
        Response::Touched { cas: item.cas, flags: item.flags }
    }

    fn delete(&mut self, now: UnixTime, key: &Key, cas: Option<u64>) -> Response {
        if self.counts_prefixes {
            self.prefixes.deleted(key.bytes());
        }
        let Some(slot) = self.find_live(now, key) else {
            self.counters.delete_misses += 1;
            return Response::Miss(None);
        };
        let current = self.table.get(slot).map(|item| item.cas);
        if cas.is_some() && cas != current {
            return Response::Exists;
        }
        self.remove(slot);
        self.counters.delete_hits += 1;
        Response::Deleted
    }

    fn flush(&mut self, now: UnixTime, exptime: Exptime) -> Response {
        // Every shard takes part in a flush; the first shard counts it.
        self.counters.cmd_flush += u64::from(self.id == ShardId(0));
        self.flush_at = Some(exptime.flush_time(now));
        self.flush_if_due(now);
        Response::Done
    }

    fn flush_if_due(&mut self, now: UnixTime) {
        if self.flush_at.is_some_and(|at| at <= now) {
            self.flush_at = None;
            self.flushed_cas = self.last_cas;
        }
    }

    /// Returns the version for the next store.
    fn next_cas(&mut self) -> u64 {
        self.last_cas += self.cas_step;
        self.last_cas
    }

    fn is_dead(&self, item: &Item, now: UnixTime) -> bool {
        item.is_dead(now, self.flushed_cas)
    }

    /// Finds the item with that key if it is alive. Removes a dead item.
    fn find_live(&mut self, now: UnixTime, key: &Key) -> Option<ItemSlot> {
        let slot = self.table.find(key.borrow())?;
        if self.table.get(slot).is_some_and(|item| self.is_dead(item, now)) {
            self.remove_dead(now, slot);
            return None;
        }
        Some(slot)
    }

    /// Removes a dead item.
    fn remove_dead(&mut self, now: UnixTime, slot: ItemSlot) {
        let Some(item) = self.remove(slot) else { return };
        self.counters.reclaimed += 1;
        self.counters.expired_unfetched += u64::from(item.deadline.is_over(now) && !item.was_read);
    }

    /// Removes an item, and notes its memory.
    fn remove(&mut self, slot: ItemSlot) -> Option<Item> {
        let item = self.table.remove(slot)?;
        self.note_freed(item.owner, body_bytes(&item.body));
        Some(item)
    }

    /// Notes that the memory of an owner's item is freed.
    fn note_freed(&mut self, owner: OwnerIndex, bytes: usize) {
        if self.table.owners().are_several() {
            let owner = self.table.owners().get(owner).owner;
            match self.freed.iter_mut().find(|freed| freed.owner == owner) {
                Some(freed) => freed.bytes += bytes,
                None => self.freed.push(OwnedBytes { owner, bytes }),
            }
        }
    }
}
