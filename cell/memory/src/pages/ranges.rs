//! The ranges of memory from which pages are allocated.
//!
//! Readers take no lock: a slot is written before the count that covers it is stored (release).
//!
//! A range without pages in use can be removed (`withdraw`): its extent becomes empty, so no lookup finds it. A
//! concurrent reader that found it earlier may still read the slot. Therefore the slot is written again only after the
//! platform guarantees that no such reader is left ([`Ranges::reuse`]).

use super::NodeIndex;
use super::info::{InfoRef, PageInfo, PageNumber};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The maximum number of ranges of a cell's memory.
pub const MAX_RANGES: usize = 64;

/// A range of pages, without the pages that contain its records.
///
/// The extent is one word, so a lookup sees either the old or the new one. Only a reader that found a page in the
/// extent reads the rest.
pub(crate) struct Range {
    /// The first page's number in the low half, the number of pages in the high half: 0 once the range is removed.
    extent: AtomicU64,
    location: UnsafeCell<RangeLocation>,
}

/// The location of a range.
#[derive(Clone, Copy)]
struct RangeLocation {
    /// The memory of its first page.
    base: NonNull<u8>,
    /// The record of its first page; the others follow.
    records: NonNull<PageInfo>,
    /// The node of the whole range.
    node: NodeIndex,
}

impl Range {
    /// Returns a range of `pages` pages with their memory at `base`, and its records.
    pub fn new(base: NonNull<u8>, records: NonNull<PageInfo>, pages: u32, node: NodeIndex) -> Self {
        let first = PageNumber::of(base.addr().get());
        let extent = AtomicU64::new(u64::from(pages) << 32 | u64::from(first.0));
        Self { extent, location: UnsafeCell::new(RangeLocation { base, records, node }) }
    }

    fn extent(&self) -> (PageNumber, u32) {
        let extent = self.extent.load(Ordering::Acquire);
        (PageNumber(extent as u32), (extent >> 32) as u32)
    }

    fn location(&self) -> RangeLocation {
        // SAFETY: the location is written before the extent that makes it visible, and again only after the guarantee
        // of `Ranges::reuse` that no reader of an earlier extent is left.
        unsafe { *self.location.get() }
    }

    /// Returns the first page.
    pub fn first(&self) -> PageNumber {
        self.extent().0
    }

    /// Returns the number of pages.
    pub fn pages(&self) -> u32 {
        self.extent().1
    }

    /// Returns the node of the whole range.
    pub fn node(&self) -> NodeIndex {
        self.location().node
    }

    /// Returns the address of the range's first byte, which is the first of its records.
    pub fn start(&self) -> usize {
        self.location().records.addr().get()
    }

    /// Returns the number of pages of the records.
    pub fn record_pages(&self) -> u32 {
        self.first().since(PageNumber::of(self.location().records.addr().get()))
    }

    /// Returns whether all these pages are in the range.
    pub fn contains(&self, page: PageNumber, pages: u32) -> bool {
        let (first, all) = self.extent();
        let offset = page.since(first);
        offset < all && pages <= all - offset
    }

    /// Returns whether the two ranges overlap, including their records.
    pub fn collides(&self, other: &Range) -> bool {
        let extent = |range: &Range| {
            let start = PageNumber::of(range.location().records.addr().get());
            (start.0, range.first().since(start) + range.pages())
        };
        if self.pages() == 0 || other.pages() == 0 {
            return false;
        }
        let ((start, pages), (other_start, other_pages)) = (extent(self), extent(other));
        other_start.wrapping_sub(start) < pages || start.wrapping_sub(other_start) < other_pages
    }

    /// Returns the record of a page of this range.
    pub fn info(&self, page: PageNumber) -> InfoRef {
        debug_assert!(self.contains(page, 1));
        // SAFETY: the page is in the range, so its record is one of the range's records, which `Pages::add_range`
        // reserves for as long as the range exists.
        unsafe { InfoRef::new(self.location().records.add(page.since(self.first()) as usize)) }
    }

    /// Returns the memory of a page of this range.
    pub fn memory(&self, page: PageNumber) -> NonNull<u8> {
        debug_assert!(self.contains(page, 1));
        // SAFETY: the page is in the range, so the offset is within the memory that was added.
        unsafe { self.location().base.add((page.since(self.first()) as usize) << super::info::PAGE_SHIFT) }
    }
}

/// All ranges.
pub(crate) struct Ranges {
    count: AtomicUsize,
    /// Bit n: slot n may be written again.
    vacant: AtomicU64,
    slots: [UnsafeCell<MaybeUninit<Range>>; MAX_RANGES],
}

// SAFETY: slots below the count are only read, except for a range's location (see `Range::location`). The others are
// written only with the lock for adding ranges held (see `push`). The pointers in a `Range` are used under the rules of
// `info`.
unsafe impl Sync for Ranges {}
// SAFETY: no part of it is bound to a core or thread.
unsafe impl Send for Ranges {}

impl Ranges {
    /// Returns a table without ranges.
    pub const fn new() -> Self {
        Self {
            count: AtomicUsize::new(0),
            vacant: AtomicU64::new(0),
            slots: [const { UnsafeCell::new(MaybeUninit::uninit()) }; MAX_RANGES],
        }
    }

    /// Returns all ranges, in the order of their slots.
    pub fn iter(&self) -> impl Iterator<Item = &Range> {
        let count = self.count.load(Ordering::Acquire).min(MAX_RANGES);
        // SAFETY: `push` has written the slots below the count before its release store of the count, which was read
        // here with acquire. It writes none of them again as a whole, and a vacant one's location only after all
        // readers have left (`reuse`).
        self.slots.iter().take(count).map(|slot| unsafe { (*slot.get()).assume_init_ref() })
    }

    /// Returns the range that contains a page.
    pub fn find(&self, page: PageNumber) -> Option<&Range> {
        self.iter().find(|range| range.contains(page, 1))
    }

    /// Adds a range; returns it as the error if there is no free slot.
    ///
    /// # Safety
    /// The caller holds the lock for adding ranges.
    pub unsafe fn push(&self, range: Range) -> Result<(), Range> {
        let vacant = self.vacant.load(Ordering::Acquire);
        if vacant != 0
            && let Some(old) = self.iter().nth(vacant.trailing_zeros() as usize)
        {
            self.vacant.store(vacant & (vacant - 1), Ordering::Relaxed);
            // SAFETY: the old range has no pages, and by the guarantee of `reuse` no reader from the time when it had
            // some is left; other writers wait for the lock.
            unsafe { *old.location.get() = range.location() };
            old.extent.store(range.extent.load(Ordering::Relaxed), Ordering::Release);
            return Ok(());
        }
        let count = self.count.load(Ordering::Relaxed);
        let Some(slot) = self.slots.get(count) else { return Err(range) };
        // SAFETY: readers do not access slots from the count on, and other writers wait for the lock.
        unsafe { (*slot.get()).write(range) };
        self.count.store(count + 1, Ordering::Release);
        Ok(())
    }

    /// Removes a range without pages in use: its extent is empty from here on. Returns its slot, as a bit.
    pub fn remove_range(&self, range: &Range) -> u64 {
        range.extent.store(range.first().0.into(), Ordering::Release);
        let index = self.iter().position(|other| core::ptr::eq(other, range));
        index.map_or(0, |index| 1 << index)
    }

    /// Allows the slots of these bits to be written again.
    ///
    /// # Safety
    /// The caller holds the lock for adding ranges. The slots are of removed ranges, and no reader that found such a
    /// range before its removal is left.
    pub unsafe fn reuse(&self, slots: u64) {
        self.vacant.fetch_or(slots, Ordering::Release);
    }
}

const _: () = assert!(MAX_RANGES <= u64::BITS as usize);
