//! The ranges of memory that pages are handed out from.
//!
//! Ranges are added and never removed. A reader takes no lock: a slot is written before the count that
//! covers it is stored (release), and not changed after.

use super::NodeIndex;
use super::info::{InfoRef, PageInfo, PageNumber};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Most ranges of a cell's memory.
pub const MAX_RANGES: usize = 64;

/// A range of pages, without the pages that hold its records.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    /// The memory of its first page.
    pub base: NonNull<u8>,
    /// The record of its first page; the others follow.
    pub records: NonNull<PageInfo>,
    /// Its first page.
    pub first: PageNumber,
    /// How many pages it has.
    pub pages: u32,
    /// The node that all of it belongs to.
    pub node: NodeIndex,
}

impl Range {
    /// Whether all those pages are in the range.
    pub fn contains(&self, page: PageNumber, pages: u32) -> bool {
        let offset = page.since(self.first);
        offset < self.pages && pages <= self.pages - offset
    }

    /// Whether a page, be it one of records, is in both.
    pub fn collides(&self, other: &Range) -> bool {
        let extent = |range: &Range| {
            let start = PageNumber::of(range.records.addr().get());
            (start.0, range.first.since(start) + range.pages)
        };
        let ((start, pages), (other_start, other_pages)) = (extent(self), extent(other));
        other_start.wrapping_sub(start) < pages || start.wrapping_sub(other_start) < other_pages
    }

    /// The record of a page of this range.
    pub fn info(&self, page: PageNumber) -> InfoRef {
        debug_assert!(self.contains(page, 1));
        // SAFETY: the page is in the range, so its record is among the range's records, which
        // `Pages::add_range` has set aside for as long as the allocator exists.
        unsafe { InfoRef::new(self.records.add(page.since(self.first) as usize)) }
    }

    /// The memory of a page of this range.
    pub fn memory(&self, page: PageNumber) -> NonNull<u8> {
        debug_assert!(self.contains(page, 1));
        // SAFETY: the page is in the range, so the offset stays within the memory that was added.
        unsafe { self.base.add((page.since(self.first) as usize) << super::info::PAGE_SHIFT) }
    }
}

/// All ranges.
pub(crate) struct Ranges {
    count: AtomicUsize,
    slots: [UnsafeCell<MaybeUninit<Range>>; MAX_RANGES],
}

// SAFETY: slots below the count are only read, the others are only written, by the one that holds the lock
// for that (see `push`). The pointers in a `Range` are used under the rules of `info`.
unsafe impl Sync for Ranges {}
// SAFETY: nothing in it belongs to a core.
unsafe impl Send for Ranges {}

impl Ranges {
    /// No ranges.
    pub const fn new() -> Self {
        Self {
            count: AtomicUsize::new(0),
            slots: [const { UnsafeCell::new(MaybeUninit::uninit()) }; MAX_RANGES],
        }
    }

    /// All of them, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Range> {
        let count = self.count.load(Ordering::Acquire).min(MAX_RANGES);
        // SAFETY: `push` has written the slots below the count, before it stored the count that was read
        // with acquire order here; nobody writes them again.
        self.slots.iter().take(count).map(|slot| unsafe { (*slot.get()).assume_init_ref() })
    }

    /// The range which that page is in.
    pub fn find(&self, page: PageNumber) -> Option<&Range> {
        self.iter().find(|range| range.contains(page, 1))
    }

    /// Adds a range; gives it back where there is no slot left.
    ///
    /// # Safety
    /// The caller holds the lock for adding ranges.
    pub unsafe fn push(&self, range: Range) -> Result<(), Range> {
        let count = self.count.load(Ordering::Relaxed);
        let Some(slot) = self.slots.get(count) else { return Err(range) };
        // SAFETY: readers do not touch slots from the count on, and other writers wait for the lock.
        unsafe { (*slot.get()).write(range) };
        self.count.store(count + 1, Ordering::Release);
        Ok(())
    }
}
