//! Several buffers as one byte sequence.

use crate::IoBuf;
use crate::cursor::Cursor;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};

/// A sequence of views, read as one byte sequence. It contains no empty view.
///
/// The first two views are in the chain itself, so a payload, alone or behind its header, needs no allocation. Chains
/// are moved on every packet, so the fields that only longer chains need are in a separate allocation.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    /// `None` only if the chain is empty.
    first: Option<IoBuf>,
    /// `None` only if the chain has fewer than two views.
    second: Option<IoBuf>,
    /// `None` if the chain never had more than two views.
    further: FurtherViews,
    len: usize,
}

/// The views after the first two. Most chains have none, and are dropped without a call.
#[derive(Clone, Debug, Default)]
#[expect(clippy::box_collection, reason = "a pointer is moved in a quarter of the instructions")]
struct FurtherViews(Option<Box<VecDeque<IoBuf>>>);

impl Deref for FurtherViews {
    type Target = Option<Box<VecDeque<IoBuf>>>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for FurtherViews {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Drop for FurtherViews {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(views) = self.0.take() {
            drop_views(views);
        }
    }
}

/// Drops the views out of line, for the few chains that have them.
#[cold]
#[inline(never)]
#[expect(clippy::box_collection, reason = "freed here, with its contents")]
fn drop_views(views: Box<VecDeque<IoBuf>>) {
    drop(views);
}

impl Chain {
    /// Returns an empty chain.
    pub const fn new() -> Self {
        Self { first: None, second: None, further: FurtherViews(None), len: 0 }
    }

    /// Returns the length of the whole sequence, in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the sequence has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the addresses of the chain's own allocations, which contain views and none of their bytes.
    pub fn list_addresses(&self) -> impl Iterator<Item = usize> {
        let addresses = |views: &VecDeque<IoBuf>| {
            // The views may begin in the middle of their allocation, but are never outside of it.
            let first = views.front().map(|view| core::ptr::from_ref(view).addr());
            [Some(core::ptr::from_ref(views).addr()), first]
        };
        self.further.as_deref().map(addresses).into_iter().flatten().flatten()
    }

    /// Appends a view.
    #[inline]
    pub fn push_back(&mut self, part: IoBuf) {
        if part.is_empty() {
            return;
        }
        self.len += part.len();
        if self.first.is_none() {
            self.first = Some(part);
        } else if self.second.is_none() {
            self.second = Some(part);
        } else {
            self.further.get_or_insert_default().push_back(part);
        }
    }

    /// Prepends a view, for example a header to its payload.
    #[inline]
    pub fn push_front(&mut self, part: IoBuf) {
        if part.is_empty() {
            return;
        }
        self.len += part.len();
        let Some(second) = self.first.replace(part) else { return };
        if let Some(third) = self.second.replace(second) {
            self.further.get_or_insert_default().push_front(third);
        }
    }

    /// Appends all views of `other`.
    #[inline]
    pub fn append(&mut self, mut other: Chain) {
        if self.is_empty() {
            *self = other;
        } else {
            other.drain(|part| self.push_back(part));
        }
    }

    /// Removes all views and passes them to `take`, in order.
    #[inline]
    pub fn drain(&mut self, mut take: impl FnMut(IoBuf)) {
        self.len = 0;
        let Some(first) = self.first.take() else { return };
        take(first);
        let Some(second) = self.second.take() else { return };
        take(second);
        self.further.iter_mut().flat_map(|further| further.drain(..)).for_each(take);
    }

    /// Reserves memory for `count` more views, for a caller that knows a chain's final length.
    pub fn reserve(&mut self, count: usize) {
        if count > 2 {
            self.further.get_or_insert_default().reserve(count);
        }
    }

    /// Returns the first view, if there is one.
    #[inline]
    pub fn front(&self) -> Option<&IoBuf> {
        self.first.as_ref()
    }

    /// Removes and returns the first view.
    #[inline]
    pub fn pop_front(&mut self) -> Option<IoBuf> {
        if self.second.is_none() {
            self.len = 0;
            return self.first.take();
        }
        let part = self.take_first()?;
        self.len -= part.len();
        Some(part)
    }

    /// Removes and returns the last view.
    pub fn pop_back(&mut self) -> Option<IoBuf> {
        let behind = self.further.as_mut().and_then(|further| further.pop_back());
        let part = behind.or_else(|| self.second.take()).or_else(|| self.first.take())?;
        self.len -= part.len();
        Some(part)
    }

    /// Removes and returns the first view without a change of the length.
    fn take_first(&mut self) -> Option<IoBuf> {
        let part = self.first.take()?;
        if let Some(second) = self.second.take() {
            self.first = Some(second);
            self.second = self.further.as_mut().and_then(|further| further.pop_front());
        }
        Some(part)
    }

    /// Returns the view at `index`.
    pub(crate) fn part(&self, index: usize) -> Option<&IoBuf> {
        match index {
            0 => self.first.as_ref(),
            1 => self.second.as_ref(),
            _ => self.further.as_ref()?.get(index - 2),
        }
    }

    /// Returns the views in order.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = &IoBuf> {
        let further = self.further.as_deref().map(VecDeque::iter).unwrap_or_default();
        Parts { first: self.first.as_ref(), second: self.second.as_ref(), further }
    }

    /// Removes the first `count` bytes, or all if there are fewer.
    pub fn advance(&mut self, count: usize) {
        let mut left = count.min(self.len);
        self.len -= left;
        while left > 0 {
            let Some(front) = &mut self.first else { return };
            if front.len() > left {
                front.advance(left);
                return;
            }
            left -= front.len();
            self.take_first();
        }
    }

    /// Splits the first `count` bytes off and returns them as a chain, without a copy.
    ///
    /// Returns `None`, and changes nothing, if there are fewer.
    pub fn split_to(&mut self, count: usize) -> Option<Chain> {
        if count >= self.len {
            return (count == self.len).then(|| core::mem::take(self));
        }
        let mut front = Chain::new();
        while front.len < count {
            let wanted = count - front.len;
            let part = self.first.as_mut()?;
            if part.len() > wanted {
                front.push_back(part.split_to(wanted)?);
            } else {
                front.push_back(self.take_first()?);
            }
        }
        self.len -= count;
        Some(front)
    }

    /// Returns `count` bytes from `offset` on as a chain that shares this one's memory.
    ///
    /// Returns `None` if they are not within the sequence.
    pub fn slice(&self, offset: usize, count: usize) -> Option<Chain> {
        if offset.checked_add(count)? > self.len {
            return None;
        }
        let mut out = Chain::new();
        let mut skip = offset;
        for part in self.parts() {
            if skip >= part.len() {
                skip -= part.len();
                continue;
            }
            let take = (part.len() - skip).min(count - out.len);
            out.push_back(part.slice(skip..skip + take)?);
            skip = 0;
            if out.len == count {
                break;
            }
        }
        Some(out)
    }

    /// Copies the first `out.len()` bytes, or returns `None` if there are fewer. For headers.
    pub fn copy_to_slice(&self, out: &mut [u8]) -> Option<()> {
        self.cursor().read_slice(out)
    }

    /// Returns a contiguous copy of the whole sequence, for tests and set-up.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len);
        self.parts().for_each(|part| out.extend_from_slice(part));
        out
    }

    /// Returns a reader at the start of the sequence, which does not change the chain.
    pub fn cursor(&self) -> Cursor<'_> {
        Cursor::new(self)
    }
}

impl From<IoBuf> for Chain {
    #[inline]
    fn from(part: IoBuf) -> Self {
        let mut chain = Self::new();
        chain.push_back(part);
        chain
    }
}

impl FromIterator<IoBuf> for Chain {
    fn from_iter<I: IntoIterator<Item = IoBuf>>(parts: I) -> Self {
        let mut chain = Self::new();
        parts.into_iter().for_each(|part| chain.push_back(part));
        chain
    }
}

impl PartialEq for Chain {
    /// Returns whether both have the same bytes, whatever the boundaries of their views.
    fn eq(&self, other: &Self) -> bool {
        if self.len != other.len {
            return false;
        }
        let (mut here, mut there) = (self.cursor(), other.cursor());
        while here.remaining() > 0 {
            let (one, two) = (here.chunk(), there.chunk());
            let both = one.len().min(two.len());
            if one[..both] != two[..both] || here.advance(both).is_none() || there.advance(both).is_none() {
                return false;
            }
        }
        true
    }
}

impl Eq for Chain {}

/// The views of a chain, in order.
struct Parts<'a> {
    first: Option<&'a IoBuf>,
    second: Option<&'a IoBuf>,
    further: alloc::collections::vec_deque::Iter<'a, IoBuf>,
}

impl<'a> Iterator for Parts<'a> {
    type Item = &'a IoBuf;

    #[inline]
    fn next(&mut self) -> Option<&'a IoBuf> {
        self.first.take().or_else(|| self.second.take()).or_else(|| self.further.next())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let inline = usize::from(self.first.is_some()) + usize::from(self.second.is_some());
        let left = inline + self.further.len();
        (left, Some(left))
    }
}

impl ExactSizeIterator for Parts<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(parts: &[&[u8]]) -> Chain {
        let mut chain = Chain::new();
        parts.iter().for_each(|part| chain.push_back(IoBuf::copy_from_slice(part)));
        chain
    }

    #[test]
    fn a_split_at_any_position_keeps_all_bytes_in_order() {
        for at in 0..=9 {
            let mut back = chain(&[b"abc", b"", b"de", b"fghi"]);
            let mut front = back.split_to(at).unwrap();
            assert_eq!((front.len(), back.len()), (at, 9 - at));
            front.append(back);
            assert_eq!(front.to_vec(), b"abcdefghi");
        }
        assert!(chain(&[b"abc"]).split_to(4).is_none());
    }

    #[test]
    fn views_keep_their_order_and_are_counted() {
        let mut all = chain(&[b"c", b"d"]);
        all.push_front(IoBuf::copy_from_slice(b"b"));
        all.push_front(IoBuf::copy_from_slice(b"a"));
        let mut empty = Chain::new();
        empty.append(all.clone());
        empty.append(chain(&[b"e", b"f"]));
        empty.append(Chain::new());
        assert_eq!((empty.to_vec().as_slice(), empty.len()), (&b"abcdef"[..], 6));
        {
            let mut parts = empty.parts();
            for left in (0..6).rev() {
                parts.next().unwrap();
                assert_eq!(parts.len(), left);
            }
        }
        for expected in b"abcdef" {
            assert_eq!(empty.front().unwrap()[..], [*expected]);
            assert_eq!(empty.pop_front().unwrap()[..], [*expected]);
        }
        assert!(
            empty.pop_front().is_none()
                && empty.pop_back().is_none()
                && empty.front().is_none()
                && empty.is_empty()
        );
        empty.push_back(IoBuf::copy_from_slice(b"g"));
        assert_eq!(empty.to_vec(), b"g");
    }

    #[test]
    fn drain_passes_all_views_in_order() {
        for parts in [&[][..], &[&b"a"[..]], &[b"a", b"bc"], &[b"a", b"bc", b"d", b"ef"]] {
            let (mut all, mut taken) = (chain(parts), Vec::new());
            all.drain(|part| taken.push(part.to_vec()));
            assert_eq!(taken, parts);
            assert!(all.is_empty() && all.front().is_none());
            all.push_back(IoBuf::copy_from_slice(b"g"));
            assert_eq!(all.to_vec(), b"g");
        }
    }

    #[test]
    fn pop_back_removes_views_until_none_is_left() {
        let mut all = chain(&[b"a", b"bc", b"d", b"ef"]);
        for (expected, left) in [(&b"ef"[..], 4), (b"d", 3), (b"bc", 1), (b"a", 0)] {
            assert_eq!((&all.pop_back().unwrap()[..], all.len()), (expected, left));
        }
        assert!(all.pop_back().is_none() && all.is_empty());
    }

    #[test]
    fn chains_with_equal_bytes_are_equal() {
        assert_eq!(chain(&[b"abc", b"de", b"fghi"]), chain(&[b"a", b"bcdefg", b"hi"]));
        assert_eq!(Chain::new(), chain(&[]));
        for other in [&[&b"abc"[..], b"dx"][..], &[b"abcd"], &[b"abcdef"]] {
            assert_ne!(chain(&[b"abc", b"de"]), chain(other));
        }
    }

    #[test]
    fn advance_removes_bytes_at_the_front() {
        for count in 0..=9 {
            let mut chain = chain(&[b"abc", b"de", b"fghi"]);
            chain.advance(count);
            assert_eq!(chain.to_vec(), b"abcdefghi"[count..]);
            assert_eq!(chain.len(), 9 - count);
        }
    }

    #[test]
    fn slices_have_the_bytes_of_their_range() {
        let chain = chain(&[b"abc", b"de", b"fghi"]);
        for offset in 0..=9 {
            for count in 0..=9 - offset {
                assert_eq!(
                    chain.slice(offset, count).unwrap().to_vec(),
                    b"abcdefghi"[offset..offset + count]
                );
            }
        }
        assert!(chain.slice(5, 5).is_none());
        assert!(chain.slice(usize::MAX, 2).is_none());
    }
}
