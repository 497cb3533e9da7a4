//! Memory unplug and plug, in chunks of 2 MiB.
//!
//! Only free memory can be withdrawn. A range without pages in use is withdrawn as a whole, with its records, and its
//! slot is reused later. From other ranges single chunks are withdrawn; their records stay, with the state `Absent`.

use super::buddy::Buddy;
use super::info::{ABSENT_ORDER, BlockState, KnownContents, PageNumber};
use super::ranges::Range;
use super::{AddRangeError, MAX_ORDER, NodeIndex, PAGE_SIZE, Pages};
use core::ptr::NonNull;
use isola_abi::id::NodeId;
use isola_abi::unplug::{CHUNK, MAX_OFFERED};

/// Pages of a chunk.
pub(crate) const CHUNK_PAGES: u32 = 1 << ABSENT_ORDER;

const _: () = assert!(CHUNK_PAGES as usize * PAGE_SIZE == CHUNK as usize);

/// Withdrawn memory.
#[derive(Clone, Copy, Debug)]
pub struct WithdrawnMemory {
    blocks: [(usize, usize); MAX_OFFERED],
    count: usize,
    /// The slots of the withdrawn ranges, as bits.
    slots: u64,
}

impl Default for WithdrawnMemory {
    fn default() -> Self {
        Self { blocks: [(0, 0); MAX_OFFERED], count: 0, slots: 0 }
    }
}

impl WithdrawnMemory {
    /// Returns the blocks: each with its address and its length in bytes.
    pub fn blocks(&self) -> &[(usize, usize)] {
        self.blocks.get(..self.count).unwrap_or_default()
    }

    /// Returns the total length, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.blocks().iter().map(|(_, len)| len).sum()
    }

    /// Returns whether there is no room for another block.
    pub fn is_full(&self) -> bool {
        self.count == MAX_OFFERED
    }

    /// Returns the slots of the withdrawn ranges, to pass to [`Pages::reuse`] once no core reads them.
    pub fn slots(&self) -> u64 {
        self.slots
    }

    fn room(&self) -> usize {
        MAX_OFFERED - self.count
    }

    /// Adds a block, to the last one if it is adjacent.
    fn push(&mut self, start: usize, len: usize) {
        if let Some((last, so_far)) = self.count.checked_sub(1).and_then(|index| self.blocks.get_mut(index))
            && *last + *so_far == start
        {
            *so_far += len;
        } else if let Some(entry) = self.blocks.get_mut(self.count) {
            *entry = (start, len);
            self.count += 1;
        }
    }
}

impl Pages {
    /// Withdraws up to `most_bytes` bytes of free memory in whole chunks, which are no longer allocated. A sixteenth of
    /// the remaining memory stays free, so that memory is not short.
    pub fn withdraw(&self, most_bytes: usize) -> WithdrawnMemory {
        let mut left = most_bytes.min(self.spare_bytes()) / CHUNK as usize * CHUNK as usize;
        let mut withdrawn = WithdrawnMemory::default();
        for node in self.nodes_from(NodeIndex::of(NodeId(0))) {
            self.withdraw_ranges(node, &mut left, &mut withdrawn);
            self.withdraw_blocks(node, &mut left, &mut withdrawn);
            // A range whose free blocks were all that it had left can be withdrawn as a whole now.
            self.withdraw_ranges(node, &mut left, &mut withdrawn);
        }
        withdrawn
    }

    /// Returns the free bytes that may be withdrawn under that rule, whether or not they form whole chunks.
    pub fn spare_bytes(&self) -> usize {
        let figures = self.statistics();
        let free = figures.total_bytes.saturating_sub(figures.used_bytes);
        (16 * free).saturating_sub(figures.total_bytes) / 15
    }

    /// Adds withdrawn memory again, or other memory of `node`, in whole chunks.
    ///
    /// # Errors
    /// As [`Self::add_range_of`]; memory without a free range slot is not added.
    ///
    /// # Safety
    /// As [`Self::add_range_of`], and the bytes are as `contents` says.
    pub unsafe fn plug(
        &self,
        node: NodeId,
        start: NonNull<u8>,
        len_bytes: usize,
        contents: KnownContents,
    ) -> Result<(), AddRangeError> {
        let chunk = CHUNK as usize;
        let mut result = Ok(());
        let (mut offset, mut run) = (0, 0);
        while offset < len_bytes {
            // SAFETY: within the memory that the caller passes.
            let at = unsafe { start.add(offset) };
            let is_unplugged = len_bytes - offset >= chunk && self.fill_unplugged(at, contents);
            if !is_unplugged {
                run += chunk.min(len_bytes - offset);
            }
            offset += chunk.min(len_bytes - offset);
            if run > 0 && (is_unplugged || offset == len_bytes) {
                let behind = offset - if is_unplugged { chunk } else { 0 };
                // SAFETY: the caller's guarantee, for a part of the memory.
                result = result.and(unsafe { self.add(node, start.add(behind - run), run, contents) });
                run = 0;
            }
        }
        result
    }

    /// Allows the slots of withdrawn ranges to be reused.
    ///
    /// # Safety
    /// Since the ranges were withdrawn, every core has left any call of the page allocator that was in progress.
    pub unsafe fn reuse(&self, slots: u64) {
        let _adding = self.adding.lock();
        // SAFETY: the caller's guarantee that no reader is left; the lock is held.
        unsafe { self.ranges().reuse(slots) };
    }

    /// Fills the withdrawn chunk at `start`, if there is one; returns whether there was.
    fn fill_unplugged(&self, start: NonNull<u8>, contents: KnownContents) -> bool {
        let page = PageNumber::of(start.addr().get());
        let Some(range) = self.ranges().find(page).filter(|range| range.contains(page, CHUNK_PAGES)) else {
            return false;
        };
        let mut buddy = self.buddy(range.node()).lock();
        let is_absent = page.0.is_multiple_of(CHUNK_PAGES) && range.info(page).state() == BlockState::Absent;
        if is_absent {
            self.usage.add(CHUNK_PAGES as usize, 0);
            buddy.fill(self.ranges(), range, page, contents);
            self.mark_unclear();
        }
        is_absent
    }

    /// Withdraws ranges without pages in use.
    fn withdraw_ranges(&self, node: NodeIndex, left: &mut usize, withdrawn: &mut WithdrawnMemory) {
        let _adding = self.adding.lock();
        let mut buddy = self.buddy(node).lock();
        let is_there = |range: &&Range| range.pages() > 0 && range.node() == node;
        for range in self.ranges().iter().filter(is_there) {
            let Some(idle) = IdleRange::look(range) else { continue };
            if idle.present_bytes > *left || idle.extents > withdrawn.room() {
                continue;
            }
            idle.each_extent(|start, len| withdrawn.push(start, len));
            buddy.forget(self.ranges(), range);
            self.usage.leave(idle.present_bytes / PAGE_SIZE, range.record_pages() as usize);
            *left -= idle.present_bytes;
            withdrawn.slots |= self.ranges().remove_range(range);
        }
    }

    /// Withdraws free blocks of whole chunks, the largest first.
    fn withdraw_blocks(&self, node: NodeIndex, left: &mut usize, withdrawn: &mut WithdrawnMemory) {
        let mut buddy = self.buddy(node).lock();
        let mut order = MAX_ORDER;
        while order >= ABSENT_ORDER && !withdrawn.is_full() {
            let bytes = PAGE_SIZE << order;
            let taken = (bytes <= *left)
                .then(|| buddy.take(self.ranges(), 1 << order, order, KnownContents::Unknown))
                .flatten();
            let Some((range, first, _)) = taken else {
                order -= 1;
                continue;
            };
            for chunk in (0..1 << order).step_by(CHUNK_PAGES as usize) {
                range.info(first.plus(chunk)).set_state(BlockState::Absent);
            }
            self.usage.leave(1 << order, 0);
            *left -= bytes;
            withdrawn.push(range.memory(first).addr().get(), bytes);
        }
    }
}

/// A range of whole chunks without pages in use.
struct IdleRange<'a> {
    range: &'a Range,
    present_bytes: usize,
    /// The number of contiguous extents of its present memory.
    extents: usize,
}

impl<'a> IdleRange<'a> {
    fn look(range: &'a Range) -> Option<Self> {
        let whole_pages = range.record_pages() + range.pages();
        if !range.start().is_multiple_of(CHUNK as usize) || !whole_pages.is_multiple_of(CHUNK_PAGES) {
            return None;
        }
        let mut done = 0;
        while done < range.pages() {
            done += match range.info(range.first().plus(done)).state() {
                BlockState::Used { .. } | BlockState::Held { .. } => return None,
                BlockState::Free { order, .. } => 1 << order,
                BlockState::Absent => CHUNK_PAGES,
            };
        }
        let mut idle = Self { range, present_bytes: 0, extents: 0 };
        let (mut present_bytes, mut extents) = (0, 0);
        idle.each_extent(|_, len| (present_bytes, extents) = (present_bytes + len, extents + 1));
        (idle.present_bytes, idle.extents) = (present_bytes, extents);
        Some(idle)
    }

    /// Passes the address and length of each contiguous present extent to `see`.
    fn each_extent(&self, mut see: impl FnMut(usize, usize)) {
        let range = self.range;
        let at = |page: u32| range.start() + (range.record_pages() + page) as usize * PAGE_SIZE;
        let mut extent = range.start();
        let mut emit = |from: usize, to: usize| {
            if to > from {
                see(from, to - from);
            }
        };
        let mut done = 0;
        while done < range.pages() {
            match range.info(range.first().plus(done)).state() {
                BlockState::Absent => {
                    emit(extent, at(done));
                    done += CHUNK_PAGES;
                    extent = at(done);
                }
                BlockState::Used { order } | BlockState::Held { order } | BlockState::Free { order, .. } => {
                    done += 1 << order
                }
            }
        }
        emit(extent, at(range.pages()));
    }
}

impl Buddy {
    /// Removes all free blocks of a range without pages in use.
    fn forget(&mut self, ranges: &super::Ranges, range: &Range) {
        let mut done = 0;
        while done < range.pages() {
            let block = range.first().plus(done);
            done += match range.info(block).state() {
                BlockState::Used { order } | BlockState::Held { order } => 1 << order,
                BlockState::Free { order, .. } => {
                    self.remove(ranges, range, block, order);
                    1 << order
                }
                BlockState::Absent => CHUNK_PAGES,
            };
        }
    }

    /// Makes a withdrawn chunk free.
    fn fill(&mut self, ranges: &super::Ranges, range: &Range, chunk: PageNumber, contents: KnownContents) {
        self.release(ranges, range, chunk, ABSENT_ORDER, contents);
    }
}
