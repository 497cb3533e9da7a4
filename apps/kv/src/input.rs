//! The received bytes that are not parsed yet, with a bound on the memory that they pin.
//!
//! A client can send a large value in segments of one byte, each in a frame of 2 KB. Views that waste memory are
//! therefore joined by copying once they pin much more memory than they hold.

use isola_iobuf::{Chain, IoBuf, IoBufMut};

/// The memory that may be pinned in addition to twice the number of bytes held.
const SLACK_BYTES: usize = 32 << 10;

/// The length below which a view is joined with its neighbours when too much memory is pinned, in bytes.
const SHORT_LEN: usize = 512;

/// The received bytes, in order.
#[derive(Debug, Default)]
pub(crate) struct Input {
    chain: Chain,
    /// An upper bound of the memory that the chain keeps alive. `None` if it was not computed: most requests are served
    /// as soon as they arrive.
    pinned_bytes: Option<usize>,
}

/// Returns the memory that the views of `chain` keep alive, including the views themselves.
fn pinned_by(chain: &Chain) -> usize {
    chain.parts().map(|part| part.storage_len() + size_of::<IoBuf>()).sum()
}

impl Input {
    /// Appends received bytes.
    pub fn receive(&mut self, data: Chain) {
        if self.chain.is_empty() {
            self.chain = data;
            self.pinned_bytes = None;
        } else {
            let pinned_bytes = self.pinned_bytes() + pinned_by(&data);
            self.chain.append(data);
            self.pinned_bytes = Some(pinned_bytes);
        }
    }

    /// Joins the views that waste memory. To be called after all complete requests were removed.
    #[inline]
    pub fn tidy(&mut self) {
        if !self.chain.is_empty() {
            self.tidy_rest();
        }
    }

    fn tidy_rest(&mut self) {
        let most_bytes = self.chain.len() * 2 + SLACK_BYTES;
        if self.pinned_bytes.is_none_or(|bytes| bytes > most_bytes) {
            let pinned_bytes = pinned_by(&self.chain);
            self.pinned_bytes = Some(pinned_bytes);
            if pinned_bytes > most_bytes {
                self.compact();
            }
        }
    }

    /// Returns the bytes.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Returns the bytes, for a parser that removes them.
    pub fn chain_mut(&mut self) -> &mut Chain {
        &mut self.chain
    }

    /// Drops the first `count` bytes.
    #[inline]
    pub fn advance(&mut self, count: usize) {
        if count == self.chain.len() {
            self.chain = Chain::new();
        } else {
            self.chain.advance(count);
        }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.chain.len()
    }

    /// Returns an upper bound of the memory that the bytes keep alive.
    pub fn pinned_bytes(&self) -> usize {
        if self.chain.is_empty() { 0 } else { self.pinned_bytes.unwrap_or_else(|| pinned_by(&self.chain)) }
    }

    /// Drops all bytes.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Copies each run of wasteful views into memory of its exact size.
    fn compact(&mut self) {
        let old = core::mem::take(&mut self.chain);
        let is_wasteful = |part: &IoBuf| part.len() < SHORT_LEN || part.len() * 2 < part.storage_len();
        let mut run = Chain::new();
        for part in old.parts() {
            if is_wasteful(part) {
                run.push_back(part.clone());
            } else {
                self.chain.push_back(join(&core::mem::take(&mut run)));
                self.chain.push_back(part.clone());
            }
        }
        self.chain.push_back(join(&run));
        self.pinned_bytes = Some(pinned_by(&self.chain));
    }
}

/// Copies a chain into one view.
fn join(chain: &Chain) -> IoBuf {
    let mut joined = IoBufMut::with_room(0, chain.len());
    if let Some(room) = joined.append(chain.len()) {
        // Cannot fail: the room is as long as the chain.
        let _ = chain.copy_to_slice(room);
    }
    joined.freeze()
}

/// Joins views such that the first `count` bytes of `chain` are in its first view, and returns that view. Returns
/// `None` if the chain is shorter.
pub(crate) fn contiguous(chain: &mut Chain, count: usize) -> Option<&IoBuf> {
    if chain.front()?.len() < count {
        let front = chain.split_to(count)?;
        chain.push_front(join(&front));
    }
    chain.front()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    #[test]
    fn bytes_that_arrive_one_by_one_do_not_pin_their_frames() {
        let mut input = Input::default();
        let mut expected = Vec::new();
        for number in 0..100_000u32 {
            let mut frame = IoBuf::from(vec![number as u8; 2048]);
            frame.truncate(1);
            expected.push(number as u8);
            input.receive(Chain::from(frame));
            input.tidy();
            assert!(input.pinned_bytes() <= input.len() * 2 + SLACK_BYTES);
        }
        assert_eq!(input.chain().to_vec(), expected);
    }

    #[test]
    fn full_frames_are_never_copied() {
        let mut input = Input::default();
        let mut addresses = Vec::new();
        for _ in 0..700 {
            let mut frame = IoBuf::from(vec![7; 1800]);
            frame.truncate(1460);
            addresses.push(frame.as_ptr());
            input.receive(Chain::from(frame));
            input.tidy();
        }
        assert!(input.chain().parts().map(|part| part.as_ptr()).eq(addresses));
    }

    #[test]
    fn contiguous_copies_only_if_the_first_view_is_too_short() {
        let mut chain = Chain::new();
        [&b"ab"[..], b"cd", b"ef"].iter().for_each(|part| chain.push_back(IoBuf::copy_from_slice(part)));
        assert_eq!(&contiguous(&mut chain, 2).unwrap()[..], b"ab");
        assert_eq!(&contiguous(&mut chain, 3).unwrap()[..], b"abc");
        assert_eq!(chain.to_vec(), b"abcdef");
        assert!(contiguous(&mut chain, 7).is_none());
    }
}
