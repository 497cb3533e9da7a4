//! The buddy system: a record of the free blocks of `1 << order` pages.
//!
//! Blocks are naturally aligned, by address. A run (any number of consecutive pages) consists of blocks: it is cut from
//! a block that is large enough, and the remainder is free at once.
//!
//! The one invariant: *every page of a range belongs to exactly one block, and the record of the block's first page has
//! its order and state.* It follows that the buddy of a block always begins where some block begins, so that its record
//! may be read: a block that began earlier and reached into the buddy would also contain the block itself.
//!
//! Blocks that are known to be zero have lists of their own. Free buddies with the same contents are merged at once,
//! others only when a larger block is needed and none exists ([`Buddy::put_together`]).

use super::MAX_ORDER;
use super::info::{BlockState, KnownContents, PageNumber};
use super::list::BlockList;
use super::ranges::{Range, Ranges};
use core::ptr::NonNull;

const ORDERS: usize = MAX_ORDER as usize + 1;

/// The blocks of each order and contents that [`Buddy::take_colored`] searches before it takes a larger block.
const BLOCKS_LOOKED_AT: usize = 64;

/// The free blocks of a node.
pub(crate) struct Buddy {
    /// The lists of zero blocks, then those of blocks with unknown contents.
    lists: [Lists; 2],
    free_pages: usize,
    /// Bit n: there may be free buddies of order n with different contents, which are not merged.
    mixed: u32,
    /// The first page and the number of pages of the open window, if it is of this node (see `window`).
    pub(super) held_window: Option<(PageNumber, u32)>,
}

/// The free blocks with the same contents.
struct Lists {
    by_order: [BlockList; ORDERS],
    /// Bit n: list n has a block.
    occupied: u32,
}

impl Lists {
    const fn new() -> Self {
        Self { by_order: [const { BlockList::new() }; ORDERS], occupied: 0 }
    }
}

/// Returns the index in [`Buddy::lists`] of blocks with these contents.
const fn kind(contents: KnownContents) -> usize {
    match contents {
        KnownContents::Zero => 0,
        KnownContents::Unknown => 1,
    }
}

impl Buddy {
    /// Returns a system without pages.
    pub const fn new() -> Self {
        Self { lists: [Lists::new(), Lists::new()], free_pages: 0, mixed: 0, held_window: None }
    }

    /// Returns the number of free pages.
    pub fn free_pages(&self) -> usize {
        self.free_pages
    }

    /// Makes all pages of a new range free.
    pub fn adopt(&mut self, ranges: &Ranges, range: &Range, contents: KnownContents) {
        let end = range.first().plus(range.pages());
        let mut block = range.first();
        while block != end {
            let order = block.0.trailing_zeros().min(end.since(block).ilog2()).min(MAX_ORDER);
            self.insert(ranges, range, block, order, contents);
            block = block.plus(1 << order);
        }
    }

    /// Allocates `pages` (at least one) consecutive pages, the first aligned at `1 << align_order` pages, from blocks
    /// with the wanted contents if possible.
    pub fn take<'a>(
        &mut self,
        ranges: &'a Ranges,
        pages: u32,
        align_order: u32,
        wanted: KnownContents,
    ) -> Option<(&'a Range, PageNumber, KnownContents)> {
        let order = pages.checked_next_power_of_two()?.ilog2().max(align_order);
        if order > MAX_ORDER || self.free_pages >> order == 0 {
            return None;
        }
        let found = self.first_of(order, wanted).or_else(|| {
            self.put_together(ranges, order);
            self.first_of(order, wanted)
        });
        let (block, order) = found?;
        let range = ranges.find(block)?;
        let contents = self.remove(ranges, range, block, order);
        self.cut(ranges, range, block, order, pages, contents);
        Some((range, block, contents))
    }

    /// Returns the smallest free block of at least that order, and its order; prefers the wanted contents to the
    /// smaller block.
    fn first_of(&self, order: u32, wanted: KnownContents) -> Option<(PageNumber, u32)> {
        [kind(wanted), 1 - kind(wanted)].into_iter().find_map(|kind| {
            let lists = self.lists.get(kind)?;
            let order = order + first_set(lists.occupied.checked_shr(order)?)?;
            Some((lists.by_order.get(order as usize)?.first()?, order))
        })
    }

    /// Returns a bit mask of the orders that have a free block.
    fn occupied(&self) -> u32 {
        self.lists.iter().fold(0, |orders, lists| orders | lists.occupied)
    }

    /// Merges free buddies with different contents until a block of order `wanted` exists; their contents are unknown
    /// afterwards. Considers only the orders in `mixed`, and walks the shorter of the two lists of each.
    fn put_together(&mut self, ranges: &Ranges, wanted: u32) {
        while let Some(order) = first_set(self.mixed).filter(|order| *order < wanted)
            && self.occupied() >> wanted == 0
        {
            self.mixed &= !(1 << order);
            let [zero, unknown] = self.lists.each_ref().map(|lists| &lists.by_order[order as usize]);
            let in_both = zero.iter(ranges).zip(unknown.iter(ranges)).count();
            let shorter = if zero.iter(ranges).nth(in_both).is_none() { zero } else { unknown };
            let mut next = shorter.first();
            while let Some((block, range)) = next.and_then(|block| Some((block, ranges.find(block)?))) {
                next = Some(range.info(block).next()).filter(|next| *next != PageNumber::NONE);
                let buddy = buddy_of(block, order);
                // If the buddy is free, its contents differ from the block's: otherwise both would be merged already.
                if contents_of_free(range, buddy, order).is_some() {
                    self.remove(ranges, range, block, order);
                    self.remove(ranges, range, buddy, order);
                    self.release(
                        ranges,
                        range,
                        PageNumber(block.0 & buddy.0),
                        order + 1,
                        KnownContents::Unknown,
                    );
                }
            }
        }
    }

    /// Zeroes up to `1 << order` free pages with `clear`; false if all free pages are known to be zero.
    pub fn clear(&mut self, ranges: &Ranges, order: u32, clear: impl FnOnce(NonNull<u8>, usize)) -> bool {
        let [_, unknown] = &self.lists;
        let Some(found) = first_set(unknown.occupied) else { return false };
        let Some(block) = unknown.by_order[found as usize].first() else { return false };
        let Some(range) = ranges.find(block) else { return false };
        self.remove(ranges, range, block, found);
        for rest in (order..found).rev() {
            self.insert(ranges, range, block.plus(1 << rest), rest, KnownContents::Unknown);
        }
        let order = order.min(found);
        clear(range.memory(block), 1 << order);
        self.release(ranges, range, block, order, KnownContents::Zero);
        true
    }

    /// Allocates a page whose number is congruent to `color` modulo `1 << colors_order`. Prefers blocks that are too
    /// small for pages of all colours, but limits that search while there is a larger block.
    pub fn take_colored<'a>(
        &mut self,
        ranges: &'a Ranges,
        color: u32,
        colors_order: u32,
    ) -> Option<(&'a Range, PageNumber, KnownContents)> {
        let mask = 1_u32.checked_shl(colors_order)? - 1;
        let page_in = |block: PageNumber| block.plus(color.wrapping_sub(block.0) & mask);
        let large = colors_order.min(MAX_ORDER + 1);
        let small = |buddy: &Self, most: usize| {
            (0..large).find_map(|order| {
                let lists = buddy.lists.iter().filter_map(|lists| lists.by_order.get(order as usize));
                let mut blocks = lists.flat_map(|list| list.iter(ranges).take(most));
                blocks.find(|block| page_in(*block).since(*block) < 1 << order).map(|block| (block, order))
            })
        };
        let mut found = small(self, BLOCKS_LOOKED_AT).or_else(|| self.first_of(large, KnownContents::Zero));
        if found.is_none() {
            self.put_together(ranges, large);
            found = self.first_of(large, KnownContents::Zero).or_else(|| small(self, usize::MAX));
        }
        let (block, order) = found?;
        let range = ranges.find(block)?;
        let contents = self.remove(ranges, range, block, order);
        let page = page_in(block);
        let mut rest = block;
        for order in (0..order).rev() {
            let upper = rest.plus(1 << order);
            let free =
                if page.since(rest) < 1 << order { upper } else { core::mem::replace(&mut rest, upper) };
            self.insert(ranges, range, free, order, contents);
        }
        range.info(page).set_state(BlockState::Used { order: 0 });
        Some((range, page, contents))
    }

    /// Allocates the largest free block of at most `most` (at least one) pages, cut from a larger block if need be, as
    /// single-page blocks. Also returns the number of pages.
    pub fn take_largest<'a>(
        &mut self,
        ranges: &'a Ranges,
        most: u32,
    ) -> Option<(&'a Range, PageNumber, KnownContents, u32)> {
        let order = most.ilog2().min(MAX_ORDER);
        self.put_together(ranges, order);
        let at_most = self.occupied() & ((2 << order) - 1);
        let order = if self.occupied() >> order == 0 { at_most.checked_ilog2()? } else { order };
        let (range, first, contents) = self.take(ranges, 1 << order, 0, KnownContents::Unknown)?;
        set_apart(range, first, 1 << order);
        Some((range, first, contents, 1 << order))
    }

    /// Splits a run into single-page blocks.
    ///
    /// # Panics
    /// As [`Self::give`].
    pub fn split_into_pages(&mut self, range: &Range, start: PageNumber, pages: u32) {
        let mut done = 0;
        while done < pages {
            let block = start.plus(done);
            let len = 1 << order_in_use(range, block);
            done += len;
            assert!(done <= pages, "memory taken apart that has another size");
            set_apart(range, block, len);
        }
    }

    /// Frees consecutive single-page blocks.
    ///
    /// # Panics
    /// If it finds another block. Detection is not guaranteed.
    pub fn give_single_pages(&mut self, ranges: &Ranges, range: &Range, start: PageNumber, pages: u32) {
        let mut done = 0;
        while done < pages {
            let block = start.plus(done);
            let order = block.0.trailing_zeros().min((pages - done).ilog2()).min(MAX_ORDER);
            assert_eq!(order_in_use(range, block), 0, "pages freed one by one that are a run");
            self.release(ranges, range, block, order, KnownContents::Unknown);
            done += 1 << order;
        }
    }

    /// Frees a run.
    ///
    /// # Panics
    /// If the run does not consist of exactly these blocks in use: the caller does not own it.
    pub fn give(&mut self, ranges: &Ranges, range: &Range, start: PageNumber, pages: u32) {
        let mut done = 0;
        while done < pages {
            let block = start.plus(done);
            let order = order_in_use(range, block);
            done += 1 << order;
            assert!(done <= pages, "memory freed with a size that it does not have");
            self.release(ranges, range, block, order, KnownContents::Unknown);
        }
    }

    /// Frees the pages of a run of `pages` behind the first `kept`.
    ///
    /// # Panics
    /// As [`Self::give`].
    pub fn shrink(&mut self, ranges: &Ranges, range: &Range, start: PageNumber, pages: u32, kept: u32) {
        let mut done = 0;
        while done < pages {
            let block = start.plus(done);
            let order = order_in_use(range, block);
            let len = 1 << order;
            assert!(done + len <= pages, "memory resized that has another size");
            if done >= kept {
                self.release(ranges, range, block, order, KnownContents::Unknown);
            } else if done + len > kept {
                self.cut(ranges, range, block, order, kept - done, KnownContents::Unknown);
            }
            done += len;
        }
    }

    /// Extends a run of `pages` pages to `wanted`; true if the pages behind it were free.
    pub fn grow(
        &mut self,
        ranges: &Ranges,
        range: &Range,
        start: PageNumber,
        pages: u32,
        wanted: u32,
    ) -> bool {
        if !range.contains(start, wanted) {
            return false;
        }
        let mut found = pages;
        while found < wanted {
            let BlockState::Free { order, .. } = range.info(start.plus(found)).state() else { return false };
            found += 1 << order;
        }
        let mut done = pages;
        while done < wanted {
            let block = start.plus(done);
            let BlockState::Free { order, .. } = range.info(block).state() else { return false };
            let contents = self.remove(ranges, range, block, order);
            self.cut(ranges, range, block, order, (wanted - done).min(1 << order), contents);
            done += 1 << order;
        }
        true
    }

    /// Marks the first `pages` pages of a block that is in no list as blocks in use, and the others as free blocks.
    /// These need no merge: the buddy of each is in use or contains a block in use.
    fn cut(
        &mut self,
        ranges: &Ranges,
        range: &Range,
        block: PageNumber,
        order: u32,
        pages: u32,
        contents: KnownContents,
    ) {
        let mut done = 0;
        while done < pages {
            let order = (pages - done).ilog2();
            range.info(block.plus(done)).set_state(BlockState::Used { order });
            done += 1 << order;
        }
        while done < 1 << order {
            let order = done.trailing_zeros();
            self.insert(ranges, range, block.plus(done), order, contents);
            done += 1 << order;
        }
    }

    /// Makes a block free, and merges it with its buddy while that is free and has the same contents.
    pub(super) fn release(
        &mut self,
        ranges: &Ranges,
        range: &Range,
        block: PageNumber,
        order: u32,
        contents: KnownContents,
    ) {
        let (mut block, mut order) = (block, order);
        while order < MAX_ORDER {
            let buddy = buddy_of(block, order);
            match contents_of_free(range, buddy, order) {
                Some(same) if same == contents => {}
                other => {
                    self.mixed |= u32::from(other.is_some()) << order;
                    break;
                }
            }
            self.remove(ranges, range, buddy, order);
            block = PageNumber(block.0 & !(1 << order));
            order += 1;
        }
        self.insert(ranges, range, block, order, contents);
    }

    fn insert(
        &mut self,
        ranges: &Ranges,
        range: &Range,
        block: PageNumber,
        order: u32,
        contents: KnownContents,
    ) {
        if self.must_hold(block) {
            return range.info(block).set_state(BlockState::Held { order });
        }
        range.info(block).set_state(BlockState::Free { order, contents });
        let lists = &mut self.lists[kind(contents)];
        if let Some(list) = lists.by_order.get_mut(order as usize) {
            list.push(ranges, range, block);
            lists.occupied |= 1 << order;
            self.free_pages += 1 << order;
        }
    }

    /// Removes a free block from its list; returns its contents.
    pub(super) fn remove(
        &mut self,
        ranges: &Ranges,
        range: &Range,
        block: PageNumber,
        order: u32,
    ) -> KnownContents {
        let BlockState::Free { contents, .. } = range.info(block).state() else {
            return KnownContents::Unknown;
        };
        let lists = &mut self.lists[kind(contents)];
        if let Some(list) = lists.by_order.get_mut(order as usize) {
            list.remove(ranges, range, block);
            if list.first().is_none() {
                lists.occupied &= !(1 << order);
            }
            self.free_pages -= 1 << order;
        }
        contents
    }
}

/// Returns the index of the lowest bit that is set.
fn first_set(bits: u32) -> Option<u32> {
    (bits != 0).then(|| bits.trailing_zeros())
}

/// Returns the block with which this one forms a block of the next order.
fn buddy_of(block: PageNumber, order: u32) -> PageNumber {
    PageNumber(block.0 ^ (1 << order))
}

/// Returns the contents of a block, if it is in the range, free and of that order.
fn contents_of_free(range: &Range, block: PageNumber, order: u32) -> Option<KnownContents> {
    let state = range.contains(block, 1 << order).then(|| range.info(block).state())?;
    match state {
        BlockState::Free { order: free, contents } if free == order => Some(contents),
        _ => None,
    }
}

/// Marks each of some pages in use as a block of its own.
fn set_apart(range: &Range, first: PageNumber, pages: u32) {
    (0..pages).for_each(|page| range.info(first.plus(page)).set_state(BlockState::Used { order: 0 }));
}

fn order_in_use(range: &Range, block: PageNumber) -> u32 {
    match range.info(block).state() {
        BlockState::Used { order } => order,
        BlockState::Free { .. } | BlockState::Held { .. } => panic!("memory freed that is free already"),
        BlockState::Absent => panic!("memory freed that was given away"),
    }
}
