//! Page frames for callers that fill virtual memory and need to know the contents of a page.

use super::info::KnownContents;
use super::node::NodeIndex;
use super::{PAGE_SIZE, PageNumber, Pages};
use crate::pages::ranges::Range;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use isola_abi::id::NodeId;

/// The binary logarithm of the pages that are cleared at once, with a node's lock held.
const CLEARED_ORDER: u32 = 2;

/// Allocated pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The address of the first page.
    pub memory: NonNull<u8>,
    /// The known contents of all pages.
    pub contents: KnownContents,
}

impl Pages {
    /// Zeroes some free pages with `clear`, which gets their address and length in bytes. Returns false if all free
    /// pages are known to be zero, or if other cores hold the nodes' locks. For idle cores: the pages, few at a time,
    /// cannot be allocated meanwhile.
    pub fn clear_some(&self, node: NodeId, mut clear: impl FnMut(NonNull<u8>, usize)) -> bool {
        // Reset before the search, so that a concurrent free sets it again for the next call.
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
            self.mark_unclear();
        }
        has_cleared
    }

    /// Returns whether [`Self::clear_some`] may have something to do.
    #[inline]
    pub fn may_have_unclear(&self) -> bool {
        self.may_have_unclear.load(Ordering::Relaxed)
    }

    /// Allocates as [`Self::allocate_near`] does, preferably zero pages.
    pub fn frame_near(&self, node: NodeId, pages: usize, align_pages: usize) -> Option<Frame> {
        let count = u32::try_from(pages).ok().filter(|&pages| pages > 0)?;
        let align_order = align_pages.max(1).ilog2();
        let taken = self.nodes_from(NodeIndex::of(node)).find_map(|node| {
            self.buddy(node).lock().take(&self.ranges, count, align_order, KnownContents::Zero)
        });
        self.frame(taken?, pages)
    }

    /// Allocates `pages` consecutive runs of one page, of `node` if possible; returns the first.
    pub fn frames_near(&self, node: NodeId, pages: usize) -> Option<Frame> {
        let count = u32::try_from(pages).ok().filter(|&pages| pages > 0)?;
        let taken = self.nodes_from(NodeIndex::of(node)).find_map(|node| {
            let mut buddy = self.buddy(node).lock();
            let taken = buddy.take(&self.ranges, count, 0, KnownContents::Zero)?;
            buddy.split_into_pages(taken.0, taken.1, count);
            Some(taken)
        });
        self.frame(taken?, pages)
    }

    /// Allocates a page whose number (address divided by the page size) is congruent to `color` modulo `colors`,
    /// rounded up to a power of two; `None` if there is none. It is freed like any other page.
    pub fn frame_of_color(&self, color: u32, colors: u32) -> Option<Frame> {
        let colors_order = colors.checked_next_power_of_two()?.ilog2();
        let taken = self
            .nodes_from(NodeIndex::of(NodeId(0)))
            .find_map(|node| self.buddy(node).lock().take_colored(&self.ranges, color, colors_order));
        self.frame(taken?, 1)
    }

    /// Allocates the largest free block of at most `most` pages of the first node, from `node` on, that has any free
    /// page, as runs of one page each. Returns the first run and their number.
    pub(crate) fn largest_near(&self, node: NodeId, most: usize) -> Option<(Frame, usize)> {
        let most = u32::try_from(most).unwrap_or(u32::MAX).max(1);
        let (range, first, contents, count) = self
            .nodes_from(NodeIndex::of(node))
            .find_map(|node| self.buddy(node).lock().take_largest(&self.ranges, most))?;
        Some((self.frame((range, first, contents), count as usize)?, count as usize))
    }

    /// Splits a run of `pages` pages into runs of one page.
    ///
    /// # Safety
    /// `start` came from this allocator with that many pages.
    pub(crate) unsafe fn split_into_pages(&self, start: NonNull<u8>, pages: usize) {
        let first = PageNumber::of(start.addr().get());
        let range = self.range_of(first, pages);
        self.buddy(range.node()).lock().split_into_pages(range, first, pages as u32);
    }

    /// Frees `pages` consecutive runs of one page.
    ///
    /// # Safety
    /// They came from this allocator, and are unused.
    pub(crate) unsafe fn free_single_pages(&self, start: NonNull<u8>, pages: usize) {
        let first = PageNumber::of(start.addr().get());
        let range = self.range_of(first, pages);
        self.buddy(range.node()).lock().give_single_pages(&self.ranges, range, first, pages as u32);
        self.mark_unclear();
        self.usage.give(pages);
    }

    fn frame(
        &self,
        (range, first, contents): (&Range, PageNumber, KnownContents),
        pages: usize,
    ) -> Option<Frame> {
        self.usage.take(pages);
        Some(Frame { memory: range.memory(first), contents })
    }
}
