//! Memory that leaves the allocator, and comes back to it, in granules of 2 MiB.
//!
//! What leaves is free. Where nothing of a range is in use, all of the range leaves, with its records, and its slot is used
//! again later; of other ranges single granules leave, whose records stay and say that they are absent.

use super::buddy::Buddy;
use super::info::{ABSENT_ORDER, BlockState, Contents, PageNumber};
use super::ranges::Range;
use super::{AddRangeError, MAX_ORDER, NodeIndex, PAGE_SIZE, Pages};
use core::ptr::NonNull;
use isola_abi::id::NodeId;
use isola_abi::unplug::{GRANULE, MAX_OFFERED};

/// Pages of a granule.
pub(crate) const GRANULE_PAGES: u32 = 1 << ABSENT_ORDER;

const _: () = assert!(GRANULE_PAGES as usize * PAGE_SIZE == GRANULE as usize);

/// Memory that left.
#[derive(Clone, Copy, Debug)]
pub struct Withdrawn {
    blocks: [(usize, usize); MAX_OFFERED],
    count: usize,
    /// The slots of ranges that left, as bits.
    slots: u64,
}

impl Default for Withdrawn {
    fn default() -> Self {
        Self { blocks: [(0, 0); MAX_OFFERED], count: 0, slots: 0 }
    }
}

impl Withdrawn {
    /// The blocks: the address of each, and its length in bytes.
    pub fn blocks(&self) -> &[(usize, usize)] {
        self.blocks.get(..self.count).unwrap_or_default()
    }

    /// All of it, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.blocks().iter().map(|(_, len)| len).sum()
    }

    /// Whether no more blocks fit in.
    pub fn is_full(&self) -> bool {
        self.count == MAX_OFFERED
    }

    /// The slots of ranges that are used again when nobody looks at what was there: for [`Pages::reuse`].
    pub fn slots(&self) -> u64 {
        self.slots
    }

    fn room(&self) -> usize {
        MAX_OFFERED - self.count
    }

    /// Adds a block, to the last one if it is behind it.
    fn push(&mut self, start: usize, len: usize) {
        if let Some((last, so_far)) = self.count.checked_sub(1).and_then(|index| self.blocks.get_mut(index))
            && *last + *so_far == start
        {
            *so_far += len;
        } else if let Some(place) = self.blocks.get_mut(self.count) {
            *place = (start, len);
            self.count += 1;
        }
    }
}

impl Pages {
    /// Takes out up to `most_bytes` bytes of free memory, as it is, in whole granules: nobody is handed it any more. Leaves a
    /// sixteenth of what is left free, so that memory is not short.
    pub fn withdraw(&self, most_bytes: usize) -> Withdrawn {
        let mut left = most_bytes.min(self.spare_bytes()) / GRANULE as usize * GRANULE as usize;
        let mut withdrawn = Withdrawn::default();
        for node in self.nodes_from(NodeIndex::of(NodeId(0))) {
            self.withdraw_ranges(node, &mut left, &mut withdrawn);
            self.withdraw_blocks(node, &mut left, &mut withdrawn);
            // What had nothing but these blocks left has nothing now.
            self.withdraw_ranges(node, &mut left, &mut withdrawn);
        }
        withdrawn
    }

    /// How much of it can leave, free as it is, in pieces or not.
    pub fn spare_bytes(&self) -> usize {
        let figures = self.statistics();
        let free = figures.total_bytes.saturating_sub(figures.used_bytes);
        (16 * free).saturating_sub(figures.total_bytes) / 15
    }

    /// Takes memory in that left, or other memory of `node`: whole granules.
    ///
    /// # Errors
    /// As [`Self::add_range_of`]; what there is no place for stays out.
    ///
    /// # Safety
    /// As [`Self::add_range_of`], and where `contents` says so, all bytes are zero.
    pub unsafe fn bring_back(
        &self,
        node: NodeId,
        start: NonNull<u8>,
        len_bytes: usize,
        contents: Contents,
    ) -> Result<(), AddRangeError> {
        let granule = GRANULE as usize;
        let mut result = Ok(());
        let (mut offset, mut run) = (0, 0);
        while offset < len_bytes {
            // SAFETY: within the memory that the caller passes.
            let at = unsafe { start.add(offset) };
            let is_hole = len_bytes - offset >= granule && self.fill_hole(at, contents);
            if !is_hole {
                run += granule.min(len_bytes - offset);
            }
            offset += granule.min(len_bytes - offset);
            if run > 0 && (is_hole || offset == len_bytes) {
                let behind = offset - if is_hole { granule } else { 0 };
                // SAFETY: the caller's promise, for a part of the memory.
                result = result.and(unsafe { self.add(node, start.add(behind - run), run, contents) });
                run = 0;
            }
        }
        result
    }

    /// Lets slots of ranges that left serve for others.
    ///
    /// # Safety
    /// Since they left, every core has come out of whatever it did with pages.
    pub unsafe fn reuse(&self, slots: u64) {
        let _adding = self.adding.lock();
        // SAFETY: the caller's promise; the lock is held.
        unsafe { self.ranges().reuse(slots) };
    }

    /// Fills the granule that left from there, if one did.
    fn fill_hole(&self, start: NonNull<u8>, contents: Contents) -> bool {
        let page = PageNumber::of(start.addr().get());
        let Some(range) = self.ranges().find(page).filter(|range| range.contains(page, GRANULE_PAGES)) else {
            return false;
        };
        let mut buddy = self.buddy(range.node()).lock();
        let is_absent =
            page.0.is_multiple_of(GRANULE_PAGES) && range.info(page).state() == BlockState::Absent;
        if is_absent {
            self.usage.add(GRANULE_PAGES as usize, 0);
            buddy.fill(self.ranges(), range, page, contents);
            self.has_unclear();
        }
        is_absent
    }

    /// Takes out ranges of which nothing is in use.
    fn withdraw_ranges(&self, node: NodeIndex, left: &mut usize, withdrawn: &mut Withdrawn) {
        let _adding = self.adding.lock();
        let mut buddy = self.buddy(node).lock();
        let is_there = |range: &&Range| range.pages() > 0 && range.node() == node;
        for range in self.ranges().iter().filter(is_there) {
            let Some(idle) = Idle::look(range) else { continue };
            if idle.present_bytes > *left || idle.pieces > withdrawn.room() {
                continue;
            }
            idle.each_piece(|start, len| withdrawn.push(start, len));
            buddy.forget(self.ranges(), range);
            self.usage.leave(idle.present_bytes / PAGE_SIZE, range.record_pages() as usize);
            *left -= idle.present_bytes;
            withdrawn.slots |= self.ranges().take_out(range);
        }
    }

    /// Takes out free blocks of whole granules, the largest first.
    fn withdraw_blocks(&self, node: NodeIndex, left: &mut usize, withdrawn: &mut Withdrawn) {
        let mut buddy = self.buddy(node).lock();
        let mut order = MAX_ORDER;
        while order >= ABSENT_ORDER && !withdrawn.is_full() {
            let bytes = PAGE_SIZE << order;
            let taken = (bytes <= *left)
                .then(|| buddy.take(self.ranges(), 1 << order, order, Contents::Unknown))
                .flatten();
            let Some((range, first, _)) = taken else {
                order -= 1;
                continue;
            };
            for granule in (0..1 << order).step_by(GRANULE_PAGES as usize) {
                range.info(first.plus(granule)).set_state(BlockState::Absent);
            }
            self.usage.leave(1 << order, 0);
            *left -= bytes;
            withdrawn.push(range.memory(first).addr().get(), bytes);
        }
    }
}

/// A range of whole granules of which nothing is in use.
struct Idle<'a> {
    range: &'a Range,
    present_bytes: usize,
    /// In how many pieces what is present is.
    pieces: usize,
}

impl<'a> Idle<'a> {
    fn look(range: &'a Range) -> Option<Self> {
        let whole_pages = range.record_pages() + range.pages();
        if !range.start().is_multiple_of(GRANULE as usize) || !whole_pages.is_multiple_of(GRANULE_PAGES) {
            return None;
        }
        let mut done = 0;
        while done < range.pages() {
            done += match range.info(range.first().plus(done)).state() {
                BlockState::Used { .. } | BlockState::Held { .. } => return None,
                BlockState::Free { order, .. } => 1 << order,
                BlockState::Absent => GRANULE_PAGES,
            };
        }
        let mut idle = Self { range, present_bytes: 0, pieces: 0 };
        let (mut present_bytes, mut pieces) = (0, 0);
        idle.each_piece(|_, len| (present_bytes, pieces) = (present_bytes + len, pieces + 1));
        (idle.present_bytes, idle.pieces) = (present_bytes, pieces);
        Some(idle)
    }

    /// What is present of it: addresses and lengths.
    fn each_piece(&self, mut see: impl FnMut(usize, usize)) {
        let range = self.range;
        let at = |page: u32| range.start() + (range.record_pages() + page) as usize * PAGE_SIZE;
        let mut piece = range.start();
        let mut emit = |from: usize, to: usize| {
            if to > from {
                see(from, to - from);
            }
        };
        let mut done = 0;
        while done < range.pages() {
            match range.info(range.first().plus(done)).state() {
                BlockState::Absent => {
                    emit(piece, at(done));
                    done += GRANULE_PAGES;
                    piece = at(done);
                }
                BlockState::Used { order } | BlockState::Held { order } | BlockState::Free { order, .. } => {
                    done += 1 << order
                }
            }
        }
        emit(piece, at(range.pages()));
    }
}

impl Buddy {
    /// Takes all blocks of a range out, none of which is in use.
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
                BlockState::Absent => GRANULE_PAGES,
            };
        }
    }

    /// Makes an absent granule free.
    fn fill(&mut self, ranges: &super::Ranges, range: &Range, granule: PageNumber, contents: Contents) {
        self.release(ranges, range, granule, ABSENT_ORDER, contents);
    }
}
