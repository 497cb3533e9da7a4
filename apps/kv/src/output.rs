//! The answers that wait for the client: few buffers, and no copies of large values.
//!
//! An answer that is a single view, of an item or of the image, leaves unchanged unless another answer follows before
//! the client takes it. Otherwise headers and small values are written one after the other into one buffer, so that the
//! answers to a pipeline of requests leave in one piece. A value above [`LARGEST_COPIED_VALUE`] leaves as a view of the
//! item. The view and the end of the answer are two more buffers for the network stack and the device. They cost 1,400
//! instructions more than a copy of 600 bytes, and still 1,000 more than a copy of 2,000 bytes; but a copy also costs
//! cycles for the bytes that are not in the cache.

use isola_iobuf::{Chain, IoBuf, IoBufMut};

/// The largest value that is copied next to its header, in bytes.
pub(crate) const LARGEST_COPIED_VALUE: usize = 2048;

/// The bounds of a buffer's size, in bytes: one small answer fills the smallest, a long pipeline the largest.
const SMALLEST_ROOM: usize = 64;
const LARGEST_ROOM: usize = 4096;

/// The bytes for the client, in order.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// The whole output, if it is one view.
    lone: Option<IoBuf>,
    sealed: Chain,
    open: Option<IoBufMut>,
    /// The number of bytes that were written into buffers between the last two takes. The next buffer has room for as
    /// many.
    expected: usize,
    written: usize,
    len: usize,
}

impl Output {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds a view, without a copy if it is the only one or large.
    #[inline]
    pub fn add(&mut self, view: &IoBuf) {
        if self.len == 0 {
            self.len = view.len();
            self.lone = Some(view.clone());
        } else if is_copied(view.len()) {
            self.write_slice(view);
        } else {
            self.push(Chain::from(view.clone()));
        }
    }

    /// Adds bytes of the image.
    pub fn add_static(&mut self, bytes: &'static [u8]) {
        if self.len == 0 {
            self.add(&IoBuf::from_static(bytes));
        } else {
            self.write_slice(bytes);
        }
    }

    /// Moves the lone view to the chain or a buffer, so that others can follow it.
    #[inline]
    fn settle(&mut self) {
        if let Some(view) = self.lone.take() {
            self.len = 0;
            if is_copied(view.len()) { self.write_slice(&view) } else { self.push(Chain::from(view)) }
        }
    }

    /// Adds `count` bytes, which `fill` writes.
    #[inline]
    pub fn write(&mut self, count: usize, fill: impl FnOnce(&mut [u8])) {
        self.settle();
        self.written += count;
        self.len += count;
        if self.open.as_ref().is_none_or(|open| open.tailroom() < count) {
            self.seal();
            let room = self.expected.max(self.written).clamp(SMALLEST_ROOM, LARGEST_ROOM).max(count);
            self.open = Some(IoBufMut::with_room(0, room));
        }
        if let Some(room) = self.open.as_mut().and_then(|open| open.append(count)) {
            fill(room);
        }
    }

    /// Adds a copy of `bytes`.
    #[inline(never)]
    pub fn write_slice(&mut self, bytes: &[u8]) {
        self.write(bytes.len(), |room| room.copy_from_slice(bytes));
    }

    /// Adds views, without a copy.
    pub fn push(&mut self, views: Chain) {
        self.settle();
        self.seal();
        self.len += views.len();
        self.sealed.append(views);
    }

    /// Removes and returns the first bytes, at most `limit` of them.
    pub fn take(&mut self, limit: usize) -> Chain {
        if limit >= self.len {
            self.len = 0;
            if let Some(view) = self.lone.take() {
                return Chain::from(view);
            }
            self.seal();
            self.expected = core::mem::take(&mut self.written);
            return core::mem::take(&mut self.sealed);
        }
        self.settle();
        if limit > self.sealed.len() {
            self.seal();
        }
        let taken = self.sealed.split_to(limit).unwrap_or_default();
        self.len -= taken.len();
        taken
    }

    fn seal(&mut self) {
        if let Some(open) = self.open.take() {
            self.sealed.push_back(open.freeze());
        }
    }
}

/// A writer that fills a slice from its front.
pub(crate) struct Writer<'a> {
    room: &'a mut [u8],
}

impl<'a> Writer<'a> {
    /// Returns a writer for the whole of `room`.
    pub fn new(room: &'a mut [u8]) -> Self {
        Self { room }
    }

    /// Writes `bytes`. Writes nothing if the room is too small, which is a mistake of the caller.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        let room = core::mem::take(&mut self.room);
        debug_assert!(room.len() >= bytes.len());
        if let Some((here, rest)) = room.split_at_mut_checked(bytes.len()) {
            here.copy_from_slice(bytes);
            self.room = rest;
        }
    }

    /// Writes a few bytes, for which a loop is the fastest copy.
    #[inline]
    pub fn put_digits(&mut self, digits: &[u8]) {
        digits.iter().for_each(|digit| self.put_array(&[*digit]));
    }

    /// Writes a number of bytes that is known at compile time, which needs no loop.
    #[inline]
    pub fn put_array<const N: usize>(&mut self, bytes: &[u8; N]) {
        let room = core::mem::take(&mut self.room);
        debug_assert!(room.len() >= N);
        if let Some((here, rest)) = room.split_first_chunk_mut() {
            *here = *bytes;
            self.room = rest;
        }
    }
}

/// Returns whether a value of that length is copied next to its header instead of being sent as a view.
pub(crate) fn is_copied(value_len: usize) -> bool {
    value_len <= LARGEST_COPIED_VALUE
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_iobuf::IoBuf;

    #[test]
    fn the_answers_to_a_pipeline_share_a_buffer_from_the_second_round_on() {
        let mut output = Output::default();
        for round in 0..3 {
            (0..100).for_each(|_| output.write_slice(b"STORED\r\n"));
            let taken = output.take(usize::MAX);
            assert_eq!(taken.len(), 800);
            assert!(round == 0 || taken.parts().len() == 1);
        }
    }

    #[test]
    fn a_lone_view_is_not_copied_and_small_views_share_a_buffer() {
        let (small, large) = (IoBuf::copy_from_slice(&[b's'; 99]), IoBuf::copy_from_slice(&[b'l'; 3000]));
        let mut output = Output::default();
        for view in [&small, &large] {
            output.add(view);
            assert_eq!(output.len(), view.len());
            let taken = output.take(usize::MAX);
            assert_eq!((output.len(), taken.front().unwrap().as_ptr()), (0, view.as_ptr()));
        }
        [&small, &small, &large, &small].iter().for_each(|view| output.add(view));
        output.add_static(b"END");
        assert_eq!(output.len(), 3 * 99 + 3000 + 3);
        let taken = output.take(usize::MAX);
        let lens: alloc::vec::Vec<_> = taken.parts().map(|part| part.len()).collect();
        assert_eq!(lens, [99, 99, 3000, 102]);
        assert_eq!(taken.to_vec(), [&small[..], &small, &large, &small, b"END"].concat());
        output.add_static(b"0123456789");
        assert_eq!(output.take(4).to_vec(), b"0123");
        output.add_static(b"XY");
        assert_eq!(output.take(usize::MAX).to_vec(), b"456789XY");
    }

    #[test]
    fn pushed_views_are_in_order_and_not_copied() {
        let mut output = Output::default();
        let view = IoBuf::copy_from_slice(&[b'v'; 600]);
        output.write_slice(b"head");
        output.push(Chain::from(view.clone()));
        output.write_slice(b"tail");
        let taken = output.take(usize::MAX);
        assert_eq!(taken.len(), 608);
        assert!(taken.parts().any(|part| part.as_ptr() == view.as_ptr()));
        assert_eq!(&taken.to_vec()[..5], b"headv");
        assert_eq!(&taken.to_vec()[603..], b"vtail");
    }

    #[test]
    fn output_taken_in_pieces_is_complete() {
        let mut output = Output::default();
        output.write_slice(b"0123456789");
        output.push(Chain::from(IoBuf::from_static(b"abcdef")));
        output.write_slice(b"XY");
        let mut all = Chain::new();
        while output.len() > 0 {
            let piece = output.take(5);
            assert!(piece.len() <= 5 && !piece.is_empty());
            all.append(piece);
        }
        assert_eq!(all.to_vec(), b"0123456789abcdefXY");
    }
}
