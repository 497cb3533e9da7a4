//! Granules that are to become free: what is free in them is *held*, that is, handed out to nobody, while what is in use
//! goes elsewhere.
//!
//! Held blocks are not put together with others. So as long as a page of a granule is held, or in use as a run of its own,
//! a block begins where the granule does: a block that began before it would be larger than the granule, and contain that
//! page as well. Its records may be read from there on.

use super::buddy::Buddy;
use super::info::{BlockState, Contents, PageNumber};
use super::ranges::Range;
use super::withdraw::GRANULE_PAGES;
use super::{Pages, Ranges};
use core::ptr::NonNull;

/// A granule, of which a page is held, or in use as a run of its own by who says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Granule(PageNumber);

impl Granule {
    /// The one that a page is in.
    pub fn of(page: NonNull<u8>) -> Self {
        Self(PageNumber(PageNumber::of(page.addr().get()).0 & !(GRANULE_PAGES - 1)))
    }
}

impl Pages {
    /// How many pages of a granule are in use; `None` where it is not a whole one, or has been given away.
    ///
    /// # Safety
    /// One of its pages is held, or a run of its own that nobody frees meanwhile.
    pub(crate) unsafe fn used_in(&self, granule: Granule) -> Option<u32> {
        let range = self.range_with(granule)?;
        let _buddy = self.buddy(range.node()).lock();
        let mut used = 0;
        for (_, state) in blocks(range, granule) {
            match state {
                BlockState::Used { order } => used += 1 << order,
                BlockState::Free { .. } | BlockState::Held { .. } => {}
                BlockState::Absent => return None,
            }
        }
        Some(used)
    }

    /// Holds what is free of a granule. Counted as free as before.
    ///
    /// # Safety
    /// As [`Self::used_in`].
    pub(crate) unsafe fn hold_free(&self, granule: Granule) {
        let Some(range) = self.range_with(granule) else { return };
        let mut buddy = self.buddy(range.node()).lock();
        for (block, state) in blocks(range, granule) {
            if let BlockState::Free { order, .. } = state {
                buddy.hold(self.ranges(), range, block, order);
            }
        }
    }

    /// Takes back a page that was a run of its own, and holds it.
    ///
    /// # Safety
    /// As [`Self::free`].
    pub(crate) unsafe fn free_and_hold(&self, page: NonNull<u8>) {
        let number = PageNumber::of(page.addr().get());
        let Some(range) = self.ranges().find(number) else { return };
        let _buddy = self.buddy(range.node()).lock();
        range.info(number).set_state(BlockState::Held { order: 0 });
        self.usage.give(1);
    }

    /// Hands out a page for what is at another: of the same node, where that has some.
    pub(crate) fn another_like(&self, page: NonNull<u8>) -> Option<NonNull<u8>> {
        let node = self.ranges().find(PageNumber::of(page.addr().get()))?.node();
        self.nodes_from(node).find_map(|node| self.allocate_on(node, 1, 1))
    }

    /// Lets what is held of a granule be handed out again.
    ///
    /// # Safety
    /// As [`Self::used_in`].
    pub(crate) unsafe fn let_go(&self, granule: Granule) {
        let Some(range) = self.range_with(granule) else { return };
        let mut buddy = self.buddy(range.node()).lock();
        // The next one is found before a block becomes part of another.
        for (block, state) in blocks(range, granule) {
            if let BlockState::Held { order } = state {
                buddy.release(self.ranges(), range, block, order, Contents::Unknown);
            }
        }
        self.has_unclear();
    }

    /// The range that all of a granule is in.
    fn range_with(&self, granule: Granule) -> Option<&Range> {
        self.ranges().find(granule.0).filter(|range| range.contains(granule.0, GRANULE_PAGES))
    }
}

/// The blocks of a granule, each as it is when it is come to. The node's lock is held.
fn blocks(range: &Range, granule: Granule) -> impl Iterator<Item = (PageNumber, BlockState)> {
    let mut done = 0;
    core::iter::from_fn(move || {
        let block = (done < GRANULE_PAGES).then(|| granule.0.plus(done))?;
        let state = range.info(block).state();
        done += match state {
            BlockState::Used { order } | BlockState::Held { order } | BlockState::Free { order, .. } => {
                1_u32.checked_shl(order).unwrap_or(GRANULE_PAGES)
            }
            BlockState::Absent => GRANULE_PAGES,
        };
        Some((block, state))
    })
}

impl Buddy {
    /// Takes a free block out of the lists.
    fn hold(&mut self, ranges: &Ranges, range: &Range, block: PageNumber, order: u32) {
        self.remove(ranges, range, block, order);
        range.info(block).set_state(BlockState::Held { order });
    }
}
