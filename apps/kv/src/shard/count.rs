//! Arithmetic on items that hold decimal numbers.

use crate::key::Key;
use crate::number::parse_stored_number;
use crate::request::{Count, Direction};
use crate::response::{Body, Response, TimeLeft};
use crate::time::{Deadline, UnixTime};

use super::Shard;
use super::item::{Item, join_body};
use super::slab::ItemSlot;

impl Shard {
    pub(super) fn count(&mut self, now: UnixTime, key: &Key, count: Count) -> Response {
        let Some(slot) = self.find_live(now, key) else {
            return self.count_missing(now, key, count);
        };
        let Some(item) = self.table.get(slot) else { return Response::Miss(None) };
        if count.cas.is_some_and(|cas| cas != item.cas) {
            return Response::Exists;
        }
        let Some(number) = item.body.slices().and_then(|(_, value)| parse_stored_number(value)) else {
            return Response::NotANumber;
        };
        let old = item.deadline;
        let deadline = count.exptime.map_or(old, |exptime| exptime.deadline(now));
        let value = match count.direction {
            Direction::Up => {
                self.counters.incr_hits += 1;
                number.wrapping_add(count.delta)
            }
            Direction::Down => {
                self.counters.decr_hits += 1;
                number.saturating_sub(count.delta)
            }
        };
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(value).as_bytes();
        let cas = if digits.len() <= item.body.value_len() {
            self.rewrite(now, slot, digits, deadline)
        } else {
            self.grow(now, key, slot, digits, deadline)
        };
        let time_left = TimeLeft { before: old.left(now), after: deadline.left(now) };
        match cas {
            Some(cas) => Response::Number { value, cas, time_left },
            None => self.out_of_memory(None),
        }
    }

    fn count_missing(&mut self, now: UnixTime, key: &Key, count: Count) -> Response {
        let Some((value, exptime)) = count.initial else {
            match count.direction {
                Direction::Up => self.counters.incr_misses += 1,
                Direction::Down => self.counters.decr_misses += 1,
            }
            return Response::Miss(None);
        };
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(value).as_bytes();
        let body = join_body(key.bytes(), 0, digits.len(), core::iter::once(digits));
        if !self.can_ever_hold(&body) {
            return self.out_of_memory(None);
        }
        self.counters.cmd_set += 1;
        let deadline = exptime.deadline(now);
        let time_left = TimeLeft { before: deadline.left(now), after: deadline.left(now) };
        let item = Item::new(key.borrow().bucket_hash(), body, 0, deadline, now);
        Response::Number { value, cas: self.insert_new(now, item), time_left }
    }

    /// Writes a number over one of at least as many digits, and pads it with spaces as memcached does: in place unless
    /// a response shares the item's memory, otherwise into fresh memory of the same size.
    fn rewrite(&mut self, now: UnixTime, slot: ItemSlot, digits: &[u8], deadline: Deadline) -> Option<u64> {
        let item = self.table.get_mut(slot)?;
        item.deadline = deadline;
        if let Body::Whole(answer) = &mut item.body {
            answer.overwrite(|value| fill(value, digits));
        }
        let cas = self.next_cas();
        let item = self.table.get_mut(slot)?;
        item.cas = cas;
        item.used_at = now;
        let owner = item.owner;
        self.table.touch(slot, owner);
        Some(cas)
    }

    /// Replaces a number by one with more digits.
    fn grow(
        &mut self,
        now: UnixTime,
        key: &Key,
        slot: ItemSlot,
        digits: &[u8],
        deadline: Deadline,
    ) -> Option<u64> {
        let flags = self.table.get(slot)?.flags;
        let body = join_body(key.bytes(), flags, digits.len(), core::iter::once(digits));
        if !self.can_ever_hold(&body) {
            return None;
        }
        let old = self.remove(slot)?;
        Some(self.insert_new(now, Item::new(old.hash, body, old.flags, deadline, now)))
    }
}

fn fill(value: &mut [u8], digits: &[u8]) {
    let mut source = digits.iter();
    value.iter_mut().for_each(|byte| *byte = *source.next().unwrap_or(&b' '));
}
