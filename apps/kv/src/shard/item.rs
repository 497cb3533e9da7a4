//! One item, and the memory it costs.

use alloc::sync::Arc;

use isola_iobuf::{Chain, IoBuf, IoBufMut};

use crate::answer::Answer;
use crate::request::Payload;
use crate::response::{Body, Parts};
use crate::time::{Deadline, UnixTime};

use super::slab::Place;

/// What memory of an `Arc<[u8]>` costs besides its bytes: two counters, and rounding by the heap.
const ALLOCATION_OVERHEAD: usize = 16;
const ALLOCATION_GRAIN: usize = 16;

/// Bytes in a block of a large value: with an allocation's overhead, 64 KiB.
///
/// One piece of memory for a value of 1 MiB and its key takes a run of 257 pages, and such a run begins in a free
/// block of 2 MiB: after a few of them there is none left, with half of the memory free. Blocks of a power of two
/// fit wherever another has been.
const BLOCK_LEN: usize = (64 << 10) - ALLOCATION_OVERHEAD;

/// The smallest value that may stay in the frames it came in. Below, one copy costs less than the views.
const SMALLEST_VIEWED_VALUE: usize = 16 << 10;

/// An item in the slab. 80 bytes on a 64-bit machine: with its entry in the index, what an item costs
/// besides its bytes and the text around them ([`Answer`]).
#[derive(Debug)]
pub(super) struct Item {
    /// Key and value.
    pub body: Body,
    /// The version: no two stores of a server have the same.
    pub cas: u64,
    /// The lower half of the key's hash.
    pub hash: u32,
    /// The client's bits.
    pub flags: u32,
    /// When it ends.
    pub deadline: Deadline,
    /// When it was last read or written.
    pub used_at: UnixTime,
    /// The next item of the same bucket.
    pub next_in_bucket: Place,
    /// The item that was used next after this one.
    pub newer: Place,
    /// The item that was used last before this one.
    pub older: Place,
    /// Whether it was read since it was stored.
    pub was_read: bool,
    /// Whether a client marked it as stale.
    pub is_stale: bool,
    /// Whether a client was asked to store it anew.
    pub is_promised: bool,
}

const _: () = assert!(size_of::<Item>() <= 96);

impl Item {
    /// An item that is linked nowhere yet.
    pub fn new(hash: u32, body: Body, flags: u32, deadline: Deadline, now: UnixTime) -> Self {
        Self {
            body,
            cas: 0,
            hash,
            flags,
            deadline,
            used_at: now,
            next_in_bucket: Place::NONE,
            newer: Place::NONE,
            older: Place::NONE,
            was_read: false,
            is_stale: false,
            is_promised: false,
        }
    }

    /// Whether no request may see the item any more: it is past its end, or of a version that is flushed.
    pub fn is_dead(&self, now: UnixTime, flushed_cas: u64) -> bool {
        self.cas <= flushed_cas || self.deadline.is_over(now)
    }
}

/// Heap memory that holds `len` bytes.
pub(super) fn allocation_bytes(len: usize) -> usize {
    (len + ALLOCATION_OVERHEAD).next_multiple_of(ALLOCATION_GRAIN)
}

/// Heap memory that a body keeps alive.
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

/// Memory that views keep alive, with the views themselves. A frame that two of them share counts twice.
fn viewed_bytes<'a>(views: impl Iterator<Item = &'a IoBuf>) -> usize {
    views.map(|view| allocation_bytes(view.storage_len()) + size_of::<IoBuf>()).sum()
}

/// Builds the body of an item: a copy in memory of its size, or the views of a large value in frames
/// that it nearly fills.
///
/// A small value has to be copied: its view would keep a whole received frame alive. A large one in frames
/// that it fills to four fifths costs less memory and time as it is.
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

/// Builds a body of `key` and `pieces`, whose lengths add up to `value_len`, by copying them: into one piece of
/// memory, or a large value into blocks.
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
            // Cannot fail: the piece was cut at the room.
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
    fn a_small_value_does_not_keep_its_frame() {
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
    fn a_value_of_the_largest_size_takes_no_large_piece_of_memory() {
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
    fn a_large_value_leaves_frames_that_it_does_not_fill() {
        let body = build_body(b"key", 0, frames(20, 4096, 1000));
        assert_eq!((body.value().parts().len(), body.value_len()), (1, 20_000));
        assert!(body_bytes(&body) < 20_100);
    }
}
