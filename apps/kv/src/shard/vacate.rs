//! Freeing of memory: eviction by the amount, and the move of items out of addresses that are to become free.
//!
//! All memory of a shard can move: a body is shared with responses in transit, which keep the original until they are
//! sent, and everything else has one owner. A caller passes [`MovedMemory`] from call to call of one event, and drops
//! the originals at its end, so that no copy is allocated where an original was.

use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_events::reclaim::VacatedMemory;
use isola_iobuf::IoBuf;

use crate::owner::ItemOwner;
use crate::response::{Body, Parts};
use crate::time::UnixTime;

use super::item::Item;
use super::slab::{ItemSlot, Slab};
use super::{SMALLEST_SHARD_BYTES, Shard};

/// An upper bound of the memory of an item besides its value and the item table, in bytes.
const LARGEST_REST: usize = 4096;

/// The originals of moved memory.
#[derive(Default)]
pub struct MovedMemory {
    bodies: Vec<Body>,
    chunks: Vec<Vec<Item>>,
    segments: Vec<Vec<ItemSlot>>,
    chunk_lists: Vec<Vec<Vec<Item>>>,
    segment_lists: Vec<Vec<Vec<ItemSlot>>>,
    len_bytes: usize,
}

impl MovedMemory {
    /// Returns the approximate length of the originals, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn add_body(&mut self, body: Body) {
        self.len_bytes += body.value_len() + size_of::<Body>();
        self.bodies.push(body);
    }

    pub(super) fn add_chunk(&mut self, chunk: Vec<Item>) {
        self.len_bytes += chunk.capacity() * size_of::<Item>();
        self.chunks.push(chunk);
    }

    pub(super) fn add_segment(&mut self, segment: Vec<ItemSlot>) {
        self.len_bytes += segment.capacity() * size_of::<ItemSlot>();
        self.segments.push(segment);
    }

    pub(super) fn add_chunk_list(&mut self, list: Vec<Vec<Item>>) {
        self.chunk_lists.push(list);
    }

    pub(super) fn add_segment_list(&mut self, list: Vec<Vec<ItemSlot>>) {
        self.segment_lists.push(list);
    }
}

/// Moves a vector to another allocation if some of it is in this memory. Returns the original, which is empty.
pub(super) fn move_vector<T>(vector: &mut Vec<T>, memory: &VacatedMemory) -> Option<Vec<T>> {
    if !memory.has_some_of(vector.as_ptr(), vector.capacity() * size_of::<T>()) {
        return None;
    }
    let mut moved = Vec::with_capacity(vector.capacity());
    moved.append(vector);
    Some(core::mem::replace(vector, moved))
}

impl Shard {
    /// Evicts least recently used items of at least `len_bytes` bytes, if there are as many, of the owners that `may_lose`
    /// accepts. Returns the freed bytes.
    pub fn evict_of(
        &mut self,
        now: UnixTime,
        len_bytes: usize,
        may_lose: impl Fn(ItemOwner) -> bool,
    ) -> usize {
        let before = self.bytes();
        let target = before.saturating_sub(len_bytes);
        while self.bytes() > target
            && !self.is_empty()
            && let Some(slot) = self.table.oldest(|items| may_lose(items.owner))
        {
            self.evict_item(now, slot);
        }
        before - self.bytes()
    }

    /// Lowers the limit to what the shard uses, so that stores do not take freed memory again, but at least to the memory
    /// of one value of the largest length: no store fails. See [`Shard::set_limit_bytes`].
    pub fn lower_limit(&mut self) {
        // A value in received frames takes up to a quarter more than its length.
        let largest = SMALLEST_SHARD_BYTES + self.max_value_len / 4 * 5 + LARGEST_REST;
        self.limit_bytes = self.limit_bytes.min(self.bytes().max(largest));
    }

    /// Moves what is in `memory` of up to `budget` items, from index `from` on. The originals are added to
    /// `moved`. Returns the index at which to continue; `None` at the end.
    pub fn vacate(
        &mut self,
        memory: &VacatedMemory,
        from: usize,
        budget: usize,
        moved: &mut MovedMemory,
    ) -> Option<usize> {
        if from == 0 {
            self.table.vacate_lists(memory, moved);
        }
        let end = self.table.len().min(from.saturating_add(budget));
        for index in from..end {
            let slot = ItemSlot::new(index);
            if index == from || Slab::begins_chunk(slot) {
                self.table.vacate_chunk(slot, memory, moved);
            }
            let Some(item) = self.table.get(slot) else { break };
            if let Some(copy) = copy_if_inside(&item.body, memory)
                && let Some(original) = self.table.replace_body(slot, copy)
            {
                moved.add_body(original);
            }
        }
        (end < self.table.len()).then_some(end)
    }
}

/// Returns a copy of a body of which some is in this memory.
fn copy_if_inside(body: &Body, memory: &VacatedMemory) -> Option<Body> {
    match body {
        Body::Whole(answer) => {
            let bytes = answer.bytes();
            memory.has_some_of(bytes.as_ptr(), bytes.len()).then(|| Body::Whole(answer.copied()))
        }
        Body::Parts(parts) => {
            let Parts { key, value } = &**parts;
            let is_inside = |view: &IoBuf| memory.has_some_of(view.as_ptr(), view.len());
            let any = memory.has_object(&**parts)
                || value
                    .list_addresses()
                    .any(|list| memory.has_some_of(core::ptr::without_provenance::<u8>(list), 1))
                || is_inside(key)
                || value.parts().any(is_inside);
            let copy = |view: &IoBuf| match is_inside(view) {
                true => IoBuf::copy_from_slice(view),
                false => view.clone(),
            };
            any.then(|| {
                Body::Parts(Arc::new(Parts { key: copy(key), value: value.parts().map(copy).collect() }))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Answer;
    use alloc::vec;

    fn memory_at(addresses: core::ops::Range<usize>) -> VacatedMemory {
        VacatedMemory::new(addresses, |address| address)
    }

    fn parts(value: &Body) -> &Arc<Parts> {
        let Body::Parts(parts) = value else { panic!("in one piece") };
        parts
    }

    #[test]
    fn each_allocation_of_an_item_moves_if_it_is_inside() {
        let view = |len: usize| IoBuf::from(vec![b'x'; len]);
        let value = (1..20).map(|number| view(number * 100)).collect();
        let body = Body::Parts(Arc::new(Parts { key: view(10), value }));
        let of = parts(&body);
        let mut addresses: Vec<usize> = of.value.parts().map(|view| view.as_ptr().addr()).collect();
        addresses.extend([Arc::as_ptr(of).addr(), of.key.as_ptr().addr()]);
        let lists: Vec<usize> = of.value.list_addresses().collect();
        assert_eq!(lists.len(), 2, "the list of views and its record");
        addresses.extend(lists);
        for address in addresses {
            let copy = copy_if_inside(&body, &memory_at(address..address + 1)).expect("the item moves");
            let copied = parts(&copy);
            let now =
                copied.value.list_addresses().chain([Arc::as_ptr(copied).addr(), copied.key.as_ptr().addr()]);
            let views = copied.value.parts().map(|view| view.as_ptr().addr());
            assert!(now.chain(views).all(|now| now != address));
            assert_eq!(copied.value.to_vec(), of.value.to_vec());
        }
        assert!(copy_if_inside(&body, &memory_at(0..1)).is_none());
        let whole = Body::Whole(Answer::join(b"key", 0, 5, core::iter::once(&b"value"[..])));
        let Body::Whole(answer) = &whole else { unreachable!() };
        let address = answer.bytes().as_ptr().addr();
        assert!(copy_if_inside(&whole, &memory_at(address..address + 1)).is_some());
        assert!(copy_if_inside(&whole, &memory_at(address + 1..address + 2)).is_some());
    }
}
