//! A window: an aligned range of chunks that is to become free although objects of the heap are in it.
//!
//! While a window is open, the page allocator holds back its free blocks, and those that are freed there. The central
//! lists withhold its spans, so that no object is allocated from them (`heap::central`). The holders of movable memory
//! copy what they have there to other memory, or free it. When the window is closed, its free blocks are available
//! again, and whole chunks can be withdrawn.
//!
//! Blocks are naturally aligned, and no block that is larger than the window is in it. Hence a block begins where the
//! window does, and the records of its blocks can be read one after the other. Held blocks are never merged.

use super::buddy::Buddy;
use super::info::{BlockState, KnownContents, PageNumber};
use super::ranges::Range;
use super::withdraw::CHUNK_PAGES;
use super::{NodeIndex, PAGE_SIZE, Pages};
use core::sync::atomic::{AtomicU64, Ordering};
use isola_abi::id::NodeId;

/// A window's extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionWindow {
    /// The address of its first byte, a multiple of its length.
    pub start: usize,
    /// Its length in bytes: a power of two, at least a chunk. The part outside of the cell's memory does not count.
    pub len_bytes: usize,
}

/// The memory in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowUse {
    /// Bytes in use.
    pub used_bytes: usize,
    /// Bytes of whole chunks of which no page is in use.
    pub free_chunk_bytes: usize,
}

/// The open window, if any, as one word: its first page in the low half, the number of its pages in the high half.
pub(super) struct OpenWindow(AtomicU64);

impl OpenWindow {
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    fn set(&self, first: PageNumber, pages: u32) {
        self.0.store(u64::from(pages) << 32 | u64::from(first.0), Ordering::Release);
    }

    fn get(&self) -> Option<(PageNumber, u32)> {
        let word = self.0.load(Ordering::Acquire);
        (word != 0).then_some((PageNumber(word as u32), (word >> 32) as u32))
    }
}

/// The pages of a window as they are counted while the emptiest one is searched.
#[derive(Clone, Copy)]
struct Candidate {
    first: PageNumber,
    used: u32,
    free: u32,
    /// Whether a block in use is larger than the window.
    has_larger_block: bool,
}

impl Candidate {
    fn is_suitable(&self) -> bool {
        self.used > 0 && self.used + self.free >= CHUNK_PAGES && !self.has_larger_block
    }

    /// Returns whether a smaller part of it is in use.
    fn is_emptier_than(&self, other: &Self) -> bool {
        let scaled = |one: &Self, other: &Self| u64::from(one.used) * u64::from(other.used + other.free);
        scaled(self, other) < scaled(other, self)
    }
}

impl Pages {
    /// Opens the window of `1 << chunks_order` chunks of which the smallest part is in use, and some. Leaves out windows
    /// for whose address `is_excluded` returns true. At most one window is open at a time.
    ///
    /// It looks at the record of each block of the cell with the node's lock held.
    pub(crate) fn open_window(
        &self,
        chunks_order: u32,
        is_excluded: impl Fn(usize) -> bool,
    ) -> Option<CompactionWindow> {
        if self.window.get().is_some() {
            return None;
        }
        let order = CHUNK_PAGES.trailing_zeros() + chunks_order;
        let mut best: Option<(Candidate, usize, &Range)> = None;
        for node in self.nodes_from(NodeIndex::of(NodeId(0))) {
            let _buddy = self.buddy(node).lock();
            for range in self.ranges.iter().filter(|range| range.pages() > 0 && range.node() == node) {
                let base = range.memory(range.first()).addr().get();
                each_candidate(range, order, |candidate| {
                    // Before the first page of the range for the first window.
                    let offset = candidate.first.since(range.first()) as i32 as isize * PAGE_SIZE as isize;
                    let start = base.wrapping_add_signed(offset);
                    let is_better = best.as_ref().is_none_or(|(best, ..)| candidate.is_emptier_than(best));
                    if candidate.is_suitable() && is_better && !is_excluded(start) {
                        best = Some((candidate, start, range));
                    }
                });
            }
        }
        let (Candidate { first, .. }, start, range) = best?;
        let mut buddy = self.buddy(range.node()).lock();
        // The blocks may have changed since the search: the chosen window is checked again.
        let mut is_unchanged = false;
        each_candidate(range, order, |candidate| {
            is_unchanged |= candidate.first == first && candidate.is_suitable();
        });
        if !is_unchanged {
            return None;
        }
        let (begin, end) = overlap(range, first, 1 << order)?;
        self.window.set(first, 1 << order);
        buddy.held_window = Some((first, 1 << order));
        for (block, state) in blocks(range, begin, end.since(begin)) {
            if let BlockState::Free { order, .. } = state {
                buddy.remove(&self.ranges, range, block, order);
                range.info(block).set_state(BlockState::Held { order });
            }
        }
        Some(CompactionWindow { start, len_bytes: PAGE_SIZE << order })
    }

    /// Returns the use of the open window.
    pub fn window_use(&self) -> WindowUse {
        let Some((first, pages)) = self.window.get() else { return WindowUse::default() };
        let (mut used, mut free_chunks) = (0, 0);
        for range in self.ranges.iter() {
            let Some((start, end)) = overlap(range, first, pages) else { continue };
            let _buddy = self.buddy(range.node()).lock();
            let mut free = 0;
            for (block, state) in blocks(range, start, end.since(start)) {
                if block.0.is_multiple_of(CHUNK_PAGES) {
                    free = 0;
                }
                match state {
                    BlockState::Used { order } => used += 1 << order,
                    BlockState::Free { order, .. } | BlockState::Held { order } => free += 1 << order,
                    BlockState::Absent => {}
                }
                // A block of several chunks is larger than `CHUNK_PAGES` alone.
                if free >= CHUNK_PAGES {
                    free_chunks += free / CHUNK_PAGES;
                    free = 0;
                }
            }
        }
        let chunk_bytes = CHUNK_PAGES as usize * PAGE_SIZE;
        WindowUse { used_bytes: used * PAGE_SIZE, free_chunk_bytes: free_chunks as usize * chunk_bytes }
    }

    /// Closes the window: its held blocks are available again.
    pub(crate) fn close_window(&self) {
        let Some((first, pages)) = self.window.get() else { return };
        self.window.0.store(0, Ordering::Release);
        for range in self.ranges.iter() {
            let Some((start, end)) = overlap(range, first, pages) else { continue };
            let mut buddy = self.buddy(range.node()).lock();
            buddy.held_window = None;
            // The iterator reads a block's state before the block is released and may become part of another.
            for (block, state) in blocks(range, start, end.since(start)) {
                if let BlockState::Held { order } = state {
                    buddy.release(&self.ranges, range, block, order, KnownContents::Unknown);
                }
            }
        }
        self.mark_unclear();
    }

    /// Returns whether a window is open, and contains the page.
    #[inline]
    pub(crate) fn is_in_window(&self, page: PageNumber) -> bool {
        self.window.get().is_some_and(|(first, pages)| page.since(first) < pages)
    }
}

impl Buddy {
    /// Returns whether the block is in the open window, so that it must not be allocated.
    #[inline]
    pub(super) fn must_hold(&self, block: PageNumber) -> bool {
        self.held_window.is_some_and(|(first, pages)| block.since(first) < pages)
    }
}

/// Passes the windows of `1 << order` pages of a range to `see`. The caller holds the node's lock.
fn each_candidate(range: &Range, order: u32, mut see: impl FnMut(Candidate)) {
    let window_of = |page: PageNumber| PageNumber(page.0 >> order << order);
    let new = |first| Candidate { first, used: 0, free: 0, has_larger_block: false };
    let mut current = new(window_of(range.first()));
    for (block, state) in blocks(range, range.first(), range.pages()) {
        let first = window_of(block);
        if first != current.first {
            see(core::mem::replace(&mut current, new(first)));
        }
        match state {
            BlockState::Used { order: larger } if larger > order => current.has_larger_block = true,
            BlockState::Used { order } => current.used += 1 << order,
            // The windows of a larger free block have no use: the walk does not even enter them.
            BlockState::Free { order: free, .. } | BlockState::Held { order: free } => {
                current.free += 1 << free.min(order);
            }
            BlockState::Absent => {}
        }
    }
    see(current);
}

/// Returns the part of a window that is in a range: its first page, and the first page behind it.
fn overlap(range: &Range, first: PageNumber, pages: u32) -> Option<(PageNumber, PageNumber)> {
    if range.pages() == 0 {
        return None;
    }
    let end = range.first().plus(range.pages());
    let starts_inside = range.contains(first, 1);
    let start = if starts_inside { first } else { range.first() };
    if !starts_inside && range.first().since(first) >= pages {
        return None;
    }
    let window_end = first.plus(pages);
    let is_whole = range.contains(window_end.plus(u32::MAX), 1);
    Some((start, if is_whole { window_end } else { end }))
}

/// Returns the blocks from the page `first`, where one begins, on. The caller holds the node's lock.
fn blocks(range: &Range, first: PageNumber, pages: u32) -> impl Iterator<Item = (PageNumber, BlockState)> {
    let pages = pages.min(range.pages() - first.since(range.first()).min(range.pages()));
    let mut done = 0;
    core::iter::from_fn(move || {
        let block = (done < pages).then(|| first.plus(done))?;
        let state = range.info(block).state();
        done += match state {
            BlockState::Used { order } | BlockState::Held { order } | BlockState::Free { order, .. } => {
                1_u32.checked_shl(order).unwrap_or(pages)
            }
            BlockState::Absent => CHUNK_PAGES,
        };
        Some((block, state))
    })
}
