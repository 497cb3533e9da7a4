//! Finds items by key: linear hashing (Litwin, VLDB 1980) over buckets of linked items.
//!
//! With `b` buckets, `2^k < b <= 2^(k+1)`, an item's bucket is the lower `k+1` bits of its hash if that bucket exists,
//! and the lower `k` bits otherwise. One bucket is split for every item above the number of buckets, and merged back
//! when items were removed. The index therefore grows and shrinks in steps of a few instructions: no request waits
//! while a large table is rehashed.

use alloc::vec;
use alloc::vec::Vec;

use isola_events::reclaim::VacatedMemory;

use super::slab::{ItemSlot, Slab};
use super::vacate::{MovedMemory, move_vector};

const SEGMENT_BITS: u32 = 8;
const SEGMENT_LEN: usize = 1 << SEGMENT_BITS;

/// The memory that one more item can add to an index, in bytes.
pub(super) const SEGMENT_BYTES: usize = SEGMENT_LEN * size_of::<ItemSlot>();

/// The ratio of buckets to items above which the index shrinks.
const SPARSE: usize = 2;

#[derive(Debug)]
pub(super) struct Index {
    segments: Vec<Vec<ItemSlot>>,
    buckets: usize,
    /// `2^(k+1) - 1`.
    mask: usize,
}

impl Index {
    pub fn new() -> Self {
        Self {
            segments: vec![vec![ItemSlot::NONE; SEGMENT_LEN]],
            buckets: SEGMENT_LEN,
            mask: 2 * SEGMENT_LEN - 1,
        }
    }

    /// Returns the memory of the index, in bytes.
    pub fn bytes(&self) -> usize {
        self.segments.len() * SEGMENT_BYTES
    }

    /// Moves the segments, and their list, that are in this memory.
    pub fn vacate(&mut self, memory: &VacatedMemory, moved: &mut MovedMemory) {
        if let Some(original) = move_vector(&mut self.segments, memory) {
            moved.add_segment_list(original);
        }
        for segment in &mut self.segments {
            if let Some(original) = move_vector(segment, memory) {
                moved.add_segment(original);
            }
        }
    }

    /// Returns the number of buckets.
    pub fn buckets(&self) -> usize {
        self.buckets
    }

    fn bucket_of(&self, hash: u32) -> usize {
        let bucket = hash as usize & self.mask;
        if bucket < self.buckets { bucket } else { bucket & (self.mask >> 1) }
    }

    fn head(&self, bucket: usize) -> ItemSlot {
        self.segments
            .get(bucket >> SEGMENT_BITS)
            .and_then(|segment| segment.get(bucket & (SEGMENT_LEN - 1)))
            .copied()
            .unwrap_or(ItemSlot::NONE)
    }

    fn set_head(&mut self, bucket: usize, slot: ItemSlot) {
        let segment = self.segments.get_mut(bucket >> SEGMENT_BITS);
        if let Some(head) = segment.and_then(|segment| segment.get_mut(bucket & (SEGMENT_LEN - 1))) {
            *head = slot;
        }
    }

    /// Returns the slab index of the item with this key.
    pub fn find(&self, slab: &Slab, hash: u32, key: &[u8]) -> Option<ItemSlot> {
        let mut slot = self.head(self.bucket_of(hash));
        loop {
            let item = slab.get(slot)?;
            if item.hash == hash && item.body.key() == key {
                return Some(slot);
            }
            slot = item.next_in_bucket;
        }
    }

    /// Inserts the item at `slot`.
    pub fn insert(&mut self, slab: &mut Slab, slot: ItemSlot) {
        let Some(item) = slab.get_mut(slot) else { return };
        let bucket = self.bucket_of(item.hash);
        item.next_in_bucket = self.head(bucket);
        self.set_head(bucket, slot);
        if slab.len() > self.buckets {
            self.split(slab);
        }
    }

    /// Removes the item at `slot`, which is still in the slab.
    pub fn remove(&mut self, slab: &mut Slab, slot: ItemSlot) {
        let Some(item) = slab.get(slot) else { return };
        let (hash, next) = (item.hash, item.next_in_bucket);
        self.redirect(slab, hash, slot, next);
        while slab.len() * SPARSE < self.buckets && self.buckets > SEGMENT_LEN {
            self.merge(slab);
        }
    }

    /// Changes the link to `from`, in the bucket of `hash`, to `to`.
    pub fn redirect(&mut self, slab: &mut Slab, hash: u32, from: ItemSlot, to: ItemSlot) {
        let bucket = self.bucket_of(hash);
        let mut slot = self.head(bucket);
        if slot == from {
            return self.set_head(bucket, to);
        }
        while let Some(item) = slab.get_mut(slot) {
            slot = item.next_in_bucket;
            if slot == from {
                item.next_in_bucket = to;
                return;
            }
        }
    }

    /// Adds a bucket, and moves the items that belong there from the only bucket that can contain such items.
    fn split(&mut self, slab: &mut Slab) {
        let new = self.buckets;
        if new > self.mask {
            self.mask = self.mask << 1 | 1;
        }
        let old = new & (self.mask >> 1);
        if new & (SEGMENT_LEN - 1) == 0 {
            self.segments.push(vec![ItemSlot::NONE; SEGMENT_LEN]);
        }
        self.buckets += 1;
        let mut slot = self.head(old);
        let (mut kept, mut moved) = (ItemSlot::NONE, ItemSlot::NONE);
        while let Some(item) = slab.get_mut(slot) {
            let target = if self.bucket_of(item.hash) == new { &mut moved } else { &mut kept };
            let next = core::mem::replace(&mut item.next_in_bucket, *target);
            *target = slot;
            slot = next;
        }
        self.set_head(old, kept);
        self.set_head(new, moved);
    }

    /// Removes the last bucket, and moves its items to the bucket that they belong to without it.
    fn merge(&mut self, slab: &mut Slab) {
        let last = self.buckets - 1;
        let target = last & (self.mask >> 1);
        let mut slot = self.head(last);
        let mut head = self.head(target);
        while let Some(item) = slab.get_mut(slot) {
            let next = core::mem::replace(&mut item.next_in_bucket, head);
            head = slot;
            slot = next;
        }
        self.set_head(target, head);
        self.set_head(last, ItemSlot::NONE);
        self.buckets = last;
        if last <= (self.mask >> 1) + 1 {
            self.mask >>= 1;
        }
        if last & (SEGMENT_LEN - 1) == 0 {
            self.segments.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Payload;
    use crate::shard::item::{Item, build_body};
    use crate::time::{Deadline, UnixTime};
    use isola_iobuf::IoBuf;

    #[test]
    fn items_spread_over_all_buckets() {
        let (mut slab, mut index) = (Slab::default(), Index::new());
        for hash in 0..10_000 {
            let body = build_body(b"key", 0, Payload::One(IoBuf::copy_from_slice(b"value")));
            let slot = slab.push(Item::new(hash, body, 0, Deadline::NEVER, UnixTime(0)));
            index.insert(&mut slab, slot);
        }
        for bucket in 0..index.buckets() {
            let items =
                core::iter::successors(slab.get(index.head(bucket)), |item| slab.get(item.next_in_bucket));
            assert_eq!(items.count(), 1, "bucket {bucket}");
        }
    }
}
