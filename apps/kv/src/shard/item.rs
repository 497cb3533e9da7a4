//! Items, and their memory.

use alloc::sync::Arc;

use isola_iobuf::{Chain, IoBuf, IoBufMut};

use crate::answer::Answer;
use crate::request::Payload;
use crate::response::{Body, Parts};
use crate::time::{Deadline, UnixTime};

use super::owners::OwnerIndex;
use super::slab::ItemSlot;

/// The memory of an `Arc<[u8]>` in addition to its bytes: two counters, and the rounding of the heap.
const ALLOCATION_OVERHEAD: usize = 16;
const ALLOCATION_GRAIN: usize = 16;

/// The length of a block of a large value. With the overhead of an allocation it is 64 KiB.
///
/// A contiguous allocation for a value of 1 MiB and its key takes a run of 257 pages, and such a run begins in a free
/// block of 2 MiB. A few of them use up all such blocks while half of the memory is still free. Blocks whose size is a
/// power of two fit into the space of any freed block.
const BLOCK_LEN: usize = (64 << 10) - ALLOCATION_OVERHEAD;

/// The length of the smallest value that may remain in the received frames. For a smaller value, one copy costs less
/// than the views.
const SMALLEST_VIEWED_VALUE: usize = 16 << 10;

/// An item in the slab. It has 80 bytes on a 64-bit machine. Together with its entry in the index, this is the memory
/// of an item besides its key, its value and the text around them ([`Answer`]).
#[derive(Debug)]
pub(super) struct Item {
    /// The key and the value.
    pub body: Body,
    /// The version. No two stores of a server have the same.
    pub cas: u64,
    /// The lower half of the key's hash.
    pub hash: u32,
    /// The flags of the client.
    pub flags: u32,
    /// The deadline.
    pub deadline: Deadline,
    /// The time of the last read or write.
    pub used_at: UnixTime,
    /// The next item of the same bucket.
    pub next_in_bucket: ItemSlot,
    /// The item with the next later use.
    pub newer: ItemSlot,
    /// The item with the next earlier use.
    pub older: ItemSlot,
    /// Whether the item was read since it was stored.
    pub was_read: bool,
    /// Whether a client marked the item as stale.
    pub is_stale: bool,
    /// Whether a client was asked to store the item again.
    pub is_promised: bool,
    /// The owner.
    pub owner: OwnerIndex,
}

const _: () = assert!(size_of::<Item>() <= 80);

impl Item {
    /// Creates an item of the server that is in no list yet.
    pub fn new(hash: u32, body: Body, flags: u32, deadline: Deadline, now: UnixTime) -> Self {
        Self {
            body,
            cas: 0,
            hash,
            flags,
            deadline,
            used_at: now,
            next_in_bucket: ItemSlot::NONE,
            newer: ItemSlot::NONE,
            older: ItemSlot::NONE,
            was_read: false,
            is_stale: false,
            is_promised: false,
            owner: OwnerIndex::SERVER,
        }
    }

    /// Returns whether the item is dead: it has expired, or its version is flushed.
    pub fn is_dead(&self, now: UnixTime, flushed_cas: u64) -> bool {
        self.cas <= flushed_cas || self.deadline.is_over(now)
    }
}

/// Returns the heap memory that an allocation of `len` bytes takes.
pub(super) fn allocation_bytes(len: usize) -> usize {
    (len + ALLOCATION_OVERHEAD).next_multiple_of(ALLOCATION_GRAIN)
}

/// Returns the heap memory that a body keeps alive.
pub(super) fn body_bytes(body: &Body) -> usize {
    match body {
        Body::Whole(answer) => allocation_bytes(answer.bytes().storage_len()),
        Body::Parts(parts) => {
            allocation_bytes(size_of::<Parts>())
                + allocation_bytes(parts.key.storage_len())
                + viewed_bytes(parts.value.parts())
        }
    }
}

/// Returns the memory that views keep alive, including the views themselves. A frame that two views share counts twice.
fn viewed_bytes<'a>(views: impl Iterator<Item = &'a IoBuf>) -> usize {
    views.map(|view| allocation_bytes(view.storage_len()) + size_of::<IoBuf>()).sum()
}

/// Builds the body of an item: a copy in memory of its exact size, or the views of a large value in frames that it
/// nearly fills.
///
/// A small value must be copied, because its view would keep a whole received frame alive. For a large value that fills
/// at least four fifths of its frames, keeping the views takes less memory and time than a copy.
pub(super) fn build_body(key: &[u8], flags: u32, value: Payload) -> Body {
    let len = value.len();
    if len >= SMALLEST_VIEWED_VALUE && viewed_bytes(value.parts()) <= len + len / 4 {
        let value = match value {
            Payload::One(view) => Chain::from(view),
            Payload::Many(chain) => chain,
        };
        return Body::Parts(Arc::new(Parts { key: IoBuf::copy_from_slice(key), value }));
    }
    join_body(key, flags, len, value.parts().map(|part| &**part))
}

/// Builds a body by copying `key` and `pieces`, whose lengths add up to `value_len`: into contiguous memory, or, for a
/// large value, into blocks.
pub(super) fn join_body<'a>(
    key: &[u8],
    flags: u32,
    value_len: usize,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> Body {
    if key.len() + value_len + Answer::MOST_ADDED > BLOCK_LEN {
        let value = join_in_blocks(value_len, pieces);
        return Body::Parts(Arc::new(Parts { key: IoBuf::copy_from_slice(key), value }));
    }
    Body::Whole(Answer::join(key, flags, value_len, pieces))
}

/// Copies `pieces`, whose lengths add up to `len`, into blocks.
fn join_in_blocks<'a>(len: usize, pieces: impl Iterator<Item = &'a [u8]>) -> Chain {
    let mut blocks = Chain::new();
    let mut left = len;
    let mut block = IoBufMut::with_room(0, left.min(BLOCK_LEN));
    for mut piece in pieces {
        while left > 0 && !piece.is_empty() {
            if block.tailroom() == 0 {
                let next = IoBufMut::with_room(0, left.min(BLOCK_LEN));
                blocks.push_back(core::mem::replace(&mut block, next).freeze());
            }
            let (here, rest) = piece.split_at(piece.len().min(block.tailroom()));
            // Cannot fail: the piece was cut to the remaining room.
            let _ = block.append_slice(here);
            left -= here.len();
            piece = rest;
        }
    }
    blocks.push_back(block.freeze());
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    fn frames(count: usize, storage: usize, used: usize) -> Payload {
        let mut chain = Chain::new();
        for _ in 0..count {
            let mut frame = IoBuf::from(vec![b'x'; storage]);
            frame.truncate(used);
            chain.push_back(frame);
        }
        Payload::Many(chain)
    }

    #[test]
    fn a_small_value_does_not_pin_its_frame() {
        let mut frame = IoBuf::from(vec![b'x'; 2048]);
        frame.truncate(100);
        let body = build_body(b"key", 0, Payload::One(frame));
        assert_eq!((body.key(), body.value_len()), (&b"key"[..], 100));
        assert!(body_bytes(&body) <= allocation_bytes(3 + 100 + Answer::MOST_ADDED));
    }

    #[test]
    fn a_large_value_stays_in_frames_that_it_fills() {
        let value = frames(20, 1500, 1460);
        let address = value.parts().next().unwrap().as_ptr();
        let body = build_body(b"key", 0, value);
        assert_eq!(body.value().front().unwrap().as_ptr(), address);
        assert!(body_bytes(&body) >= 20 * 1500);
    }

    #[test]
    fn a_value_of_the_largest_size_takes_no_allocation_above_64_kib() {
        let value: Vec<u8> = (0..1 << 20).map(|number: u32| (number / 5) as u8).collect();
        let mut chain = Chain::new();
        for piece in value.chunks(1460) {
            let mut frame = vec![0; 2048];
            frame[..piece.len()].copy_from_slice(piece);
            let mut frame = IoBuf::from(frame);
            frame.truncate(piece.len());
            chain.push_back(frame);
        }
        let body = build_body(b"key", 0, Payload::Many(chain));
        assert_eq!((body.key(), body.value_len()), (&b"key"[..], 1 << 20));
        assert!(body.value().to_vec() == value);
        assert!(body.value().parts().all(|part| allocation_bytes(part.storage_len()) <= 64 << 10));
        assert!(body_bytes(&body) < (1 << 20) + 4096);
    }

    #[test]
    fn a_large_value_is_copied_from_frames_that_it_does_not_fill() {
        let body = build_body(b"key", 0, frames(20, 4096, 1000));
        assert_eq!((body.value().parts().len(), body.value_len()), (1, 20_000));
        assert!(body_bytes(&body) < 20_100);
    }
}
