//! The operations that only meta commands have: reads of an item's metadata, and staleness.
//!
//! One client stores a stale or soon expiring item again: the first one that reads it wins that right. The item is then
//! promised, and the answers to later readers report this until the next store.

use crate::key::Key;
use crate::request::{Bump, MetaGet};
use crate::response::{Description, Details, Hit, Response, TimeLeft};
use crate::time::{Exptime, UnixTime};

use super::Shard;
use super::item::{Item, body_bytes, join_body};
use super::slab::ItemSlot;

impl Shard {
    pub(super) fn meta_get(&mut self, now: UnixTime, key: Key, get: MetaGet) -> Response {
        if self.counts_prefixes {
            self.count_read(now, key.borrow());
        }
        self.counters.cmd_get += 1;
        self.counters.cmd_touch += u64::from(get.exptime.is_some());
        let found = self.find_to_read(now, key.borrow());
        let Some((slot, owner)) = found else {
            self.counters.get_misses += 1;
            self.counters.touch_misses += u64::from(get.exptime.is_some());
            let created = get.vivify.and_then(|exptime| self.vivify(now, &key, exptime));
            return created.unwrap_or_else(|| Response::Miss(Some(key.into_bytes())));
        };
        self.counters.get_hits += 1;
        self.counters.touch_hits += u64::from(get.exptime.is_some());
        let Some(item) = self.table.get_mut(slot) else { return Response::Miss(None) };
        let before = item.deadline;
        let ends_soon = get.recache.is_some_and(|recache| before.is_before(recache.deadline(now)));
        let mut description = describe(item, now);
        description.is_won = !item.is_promised && (item.is_stale || ends_soon);
        item.is_promised |= description.is_won;
        if let Some(exptime) = get.exptime {
            item.deadline = exptime.deadline(now);
            description.time_left.after = item.deadline.left(now);
        }
        if get.bump == Bump::Used {
            item.used_at = now;
            item.was_read = true;
            self.table.touch(slot, owner);
        }
        Details::Item(description).into()
    }

    /// Creates the empty item that a client is to fill. Returns `None` if the shard has no room for it.
    fn vivify(&mut self, now: UnixTime, key: &Key, exptime: Exptime) -> Option<Response> {
        let body = join_body(key.bytes(), 0, 0, core::iter::empty());
        if !self.can_ever_hold(&body) {
            return None;
        }
        let mut item = Item::new(key.borrow().bucket_hash(), body, 0, exptime.deadline(now), now);
        item.is_promised = true;
        item.was_read = true;
        self.insert_new(now, item);
        let item = self.table.get(self.table.find(key.borrow())?)?;
        let description =
            Description { is_won: true, is_promised: false, was_read: false, ..describe(item, now) };
        Some(Details::Item(description).into())
    }

    pub(super) fn inspect(&mut self, now: UnixTime, key: Key) -> Response {
        self.counters.cmd_meta += 1;
        match self.find_live(now, &key).and_then(|slot| self.table.get(slot)) {
            Some(item) => Details::Item(describe(item, now)).into(),
            None => Response::Miss(Some(key.into_bytes())),
        }
    }

    pub(super) fn invalidate(
        &mut self,
        now: UnixTime,
        key: &Key,
        cas: Option<u64>,
        exptime: Option<Exptime>,
    ) -> Response {
        let slot: Option<ItemSlot> = self.find_live(now, key);
        let Some(item) = slot.and_then(|slot| self.table.get_mut(slot)) else {
            self.counters.delete_misses += 1;
            return Response::Miss(None);
        };
        if cas.is_some_and(|cas| cas != item.cas) {
            return Response::Exists;
        }
        if let Some(exptime) = exptime {
            item.deadline = exptime.deadline(now);
        }
        item.is_stale = true;
        item.is_promised = false;
        self.last_cas += self.cas_step;
        item.cas = self.last_cas;
        Response::Deleted
    }
}

fn describe(item: &Item, now: UnixTime) -> Description {
    let left = item.deadline.left(now);
    Description {
        hit: Hit { flags: item.flags, cas: item.cas, body: item.body.clone() },
        time_left: TimeLeft { before: left, after: left },
        idle_s: now.0.saturating_sub(item.used_at.0),
        was_read: item.was_read,
        item_bytes: size_of::<Item>() + body_bytes(&item.body),
        is_stale: item.is_stale,
        is_promised: item.is_promised,
        is_won: false,
    }
}
