//! Pages as frames: for who fills virtual memory with them, and wants to know what is in them.

use super::info::Contents;
use super::node::NodeIndex;
use super::{PAGE_SIZE, PageNumber, Pages};
use crate::pages::ranges::Range;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use isola_abi::id::NodeId;

/// Binary logarithm of the pages that are cleared at once, with a node's lock held.
const CLEARED_ORDER: u32 = 2;

/// Pages that were handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The first.
    pub memory: NonNull<u8>,
    /// What is known of their bytes.
    pub contents: Contents,
}

impl Pages {
    /// Makes some free pages zero that are not known to be, by means of `clear`, to which they are passed with their
    /// length in bytes; false where there are none, or another core has to do with them. For a core that has time: the
    /// pages cannot be had meanwhile, but for which they are few.
    pub fn clear_some(&self, node: NodeId, mut clear: impl FnMut(NonNull<u8>, usize)) -> bool {
        // Before the look: what is given back meanwhile is looked for the next time.
        if !self.may_have_unclear.load(Ordering::Relaxed)
            || !self.may_have_unclear.swap(false, Ordering::Acquire)
        {
            return false;
        }
        let (mut has_cleared, mut has_seen_all) = (false, true);
        for node in self.nodes_from(NodeIndex::of(node)) {
            let Some(mut buddy) = self.buddy(node).try_lock() else {
                has_seen_all = false;
                continue;
            };
            let clear = |memory, pages| clear(memory, pages * PAGE_SIZE);
            has_cleared = buddy.clear(&self.ranges, CLEARED_ORDER, clear);
            if has_cleared {
                break;
            }
        }
        if has_cleared || !has_seen_all {
            self.has_unclear();
        }
        has_cleared
    }

    /// Returns whether [`Self::clear_some`] may have something to do.
    #[inline]
    pub fn may_have_unclear(&self) -> bool {
        self.may_have_unclear.load(Ordering::Relaxed)
    }

    /// As [`Self::allocate_near`].
    pub fn frame_near(&self, node: NodeId, pages: usize, align_pages: usize) -> Option<Frame> {
        let count = u32::try_from(pages).ok().filter(|&pages| pages > 0)?;
        let align_order = align_pages.max(1).ilog2();
        let taken = self
            .nodes_from(NodeIndex::of(node))
            .find_map(|node| self.buddy(node).lock().take(&self.ranges, count, align_order, Contents::Zero));
        self.frame(taken?, pages)
    }

    /// Hands out `pages` runs of one page each, one after the other; returns the first. Of `node` if that has them.
    pub fn frames_near(&self, node: NodeId, pages: usize) -> Option<Frame> {
        let count = u32::try_from(pages).ok().filter(|&pages| pages > 0)?;
        let taken = self.nodes_from(NodeIndex::of(node)).find_map(|node| {
            let mut buddy = self.buddy(node).lock();
            let taken = buddy.take(&self.ranges, count, 0, Contents::Zero)?;
            buddy.take_apart(taken.0, taken.1, count);
            Some(taken)
        });
        self.frame(taken?, pages)
    }

    /// Hands out a page whose address, in pages, leaves the remainder `color` when divided by `colors` (rounded up to
    /// a power of two); `None` where there is none. To be freed as any other.
    pub fn frame_of_color(&self, color: u32, colors: u32) -> Option<Frame> {
        let colors_order = colors.checked_next_power_of_two()?.ilog2();
        let taken = self
            .nodes_from(NodeIndex::of(NodeId(0)))
            .find_map(|node| self.buddy(node).lock().take_colored(&self.ranges, color, colors_order));
        self.frame(taken?, 1)
    }

    /// Hands out the largest block of at most `most` pages that the nearest node with any has, as runs of one page each;
    /// returns the first, and how many they are.
    pub(crate) fn largest_near(&self, node: NodeId, most: usize) -> Option<(Frame, usize)> {
        let most = u32::try_from(most).unwrap_or(u32::MAX).max(1);
        let (range, first, contents, count) = self
            .nodes_from(NodeIndex::of(node))
            .find_map(|node| self.buddy(node).lock().take_largest(&self.ranges, most))?;
        Some((self.frame((range, first, contents), count as usize)?, count as usize))
    }

    /// Makes a run of `pages` pages so many runs of one page.
    ///
    /// # Safety
    /// `start` came from this allocator with that many pages.
    pub(crate) unsafe fn take_apart(&self, start: NonNull<u8>, pages: usize) {
        let first = PageNumber::of(start.addr().get());
        let range = self.range_of(first, pages);
        self.buddy(range.node()).lock().take_apart(range, first, pages as u32);
    }

    /// Takes back `pages` runs of one page each, one after the other.
    ///
    /// # Safety
    /// They came from this allocator, and nobody uses them any more.
    pub(crate) unsafe fn free_apart(&self, start: NonNull<u8>, pages: usize) {
        let first = PageNumber::of(start.addr().get());
        let range = self.range_of(first, pages);
        self.buddy(range.node()).lock().give_apart(&self.ranges, range, first, pages as u32);
        self.has_unclear();
        self.usage.give(pages);
    }

    fn frame(&self, (range, first, contents): (&Range, PageNumber, Contents), pages: usize) -> Option<Frame> {
        self.usage.take(pages);
        Some(Frame { memory: range.memory(first), contents })
    }
}
