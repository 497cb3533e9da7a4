//! Chunks that are to become free. Compaction holds back their free blocks, which are then not allocated, while it
//! migrates their used pages.
//!
//! Held blocks are never merged. So while a page of a chunk is held, or in use as a run of its own, a block begins
//! where the chunk does: a block that began earlier would be larger than the chunk and contain that page too. Hence the
//! chunk's records can be read from its first page on.

use super::buddy::Buddy;
use super::info::{BlockState, KnownContents, PageNumber};
use super::ranges::Range;
use super::withdraw::CHUNK_PAGES;
use super::{Pages, Ranges};
use core::ptr::NonNull;

/// A chunk of which at least one page is held, or in use as a run of its own by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkNumber(PageNumber);

impl ChunkNumber {
    /// Returns the chunk of a page.
    pub fn of(page: NonNull<u8>) -> Self {
        Self(PageNumber(PageNumber::of(page.addr().get()).0 & !(CHUNK_PAGES - 1)))
    }
}

impl Pages {
    /// Returns the number of used pages of a chunk; `None` if part of it is outside its range or unplugged.
    ///
    /// # Safety
    /// One of its pages is held, or is a run of its own that is not freed during the call.
    pub(crate) unsafe fn used_in(&self, chunk: ChunkNumber) -> Option<u32> {
        let range = self.range_with(chunk)?;
        let _buddy = self.buddy(range.node()).lock();
        let mut used = 0;
        for (_, state) in blocks(range, chunk) {
            match state {
                BlockState::Used { order } => used += 1 << order,
                BlockState::Free { .. } | BlockState::Held { .. } => {}
                BlockState::Absent => return None,
            }
        }
        Some(used)
    }

    /// Holds back the free blocks of a chunk. They still count as free.
    ///
    /// # Safety
    /// As [`Self::used_in`].
    pub(crate) unsafe fn hold_free(&self, chunk: ChunkNumber) {
        let Some(range) = self.range_with(chunk) else { return };
        let mut buddy = self.buddy(range.node()).lock();
        for (block, state) in blocks(range, chunk) {
            if let BlockState::Free { order, .. } = state {
                buddy.hold(self.ranges(), range, block, order);
            }
        }
    }

    /// Frees a page that was a run of its own, and holds it back.
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

    /// Allocates a page to which another can migrate, on the same node if possible.
    pub(crate) fn allocate_migration_target(&self, page: NonNull<u8>) -> Option<NonNull<u8>> {
        let node = self.ranges().find(PageNumber::of(page.addr().get()))?.node();
        self.nodes_from(node).find_map(|node| self.allocate_on(node, 1, 1))
    }

    /// Makes the held blocks of a chunk available again.
    ///
    /// # Safety
    /// As [`Self::used_in`].
    pub(crate) unsafe fn release_held(&self, chunk: ChunkNumber) {
        let Some(range) = self.range_with(chunk) else { return };
        let mut buddy = self.buddy(range.node()).lock();
        // The iterator reads a block's state before the block is released and may become part of another.
        for (block, state) in blocks(range, chunk) {
            if let BlockState::Held { order } = state {
                buddy.release(self.ranges(), range, block, order, KnownContents::Unknown);
            }
        }
        self.mark_unclear();
    }

    /// Returns the range that contains the whole chunk.
    fn range_with(&self, chunk: ChunkNumber) -> Option<&Range> {
        self.ranges().find(chunk.0).filter(|range| range.contains(chunk.0, CHUNK_PAGES))
    }
}

/// Returns the blocks of a chunk, each with its state at that moment. The caller holds the node's lock.
fn blocks(range: &Range, chunk: ChunkNumber) -> impl Iterator<Item = (PageNumber, BlockState)> {
    let mut done = 0;
    core::iter::from_fn(move || {
        let block = (done < CHUNK_PAGES).then(|| chunk.0.plus(done))?;
        let state = range.info(block).state();
        done += match state {
            BlockState::Used { order } | BlockState::Held { order } | BlockState::Free { order, .. } => {
                1_u32.checked_shl(order).unwrap_or(CHUNK_PAGES)
            }
            BlockState::Absent => CHUNK_PAGES,
        };
        Some((block, state))
    })
}

impl Buddy {
    /// Removes a free block from its list and marks it as held.
    fn hold(&mut self, ranges: &Ranges, range: &Range, block: PageNumber, order: u32) {
        self.remove(ranges, range, block, order);
        range.info(block).set_state(BlockState::Held { order });
    }
}
