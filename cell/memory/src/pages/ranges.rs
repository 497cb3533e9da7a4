//! The ranges of memory that pages are handed out from.
//!
//! A reader takes no lock: a slot is written before the count that covers it is stored (release).
//!
//! A range of which nothing is in use can be taken out, see `leave`: it has no pages then, so that nobody finds any in
//! it, and nobody has one. Who has just found it may still look at the slot; so the slot is written again only when it was
//! said that nobody does any more ([`Ranges::reuse`]).

use super::NodeIndex;
use super::info::{InfoRef, PageInfo, PageNumber};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Most ranges of a cell's memory.
pub const MAX_RANGES: usize = 64;

/// A range of pages, without the pages that hold its records.
///
/// Which pages it has is one word, so that who looks for a page finds a range as it was or as it is. The rest is read by
/// who has found one of its pages there, alone.
pub(crate) struct Range {
    /// The first page's number, and above it how many there are; none any more where the range was taken out.
    extent: AtomicU64,
    place: UnsafeCell<Place>,
}

/// Where a range is.
#[derive(Clone, Copy)]
struct Place {
    /// The memory of its first page.
    base: NonNull<u8>,
    /// The record of its first page; the others follow.
    records: NonNull<PageInfo>,
    /// The node that all of it belongs to.
    node: NodeIndex,
}

impl Range {
    /// A range of `pages` pages, whose memory is at `base`, with its records.
    pub fn new(base: NonNull<u8>, records: NonNull<PageInfo>, pages: u32, node: NodeIndex) -> Self {
        let first = PageNumber::of(base.addr().get());
        let extent = AtomicU64::new(u64::from(pages) << 32 | u64::from(first.0));
        Self { extent, place: UnsafeCell::new(Place { base, records, node }) }
    }

    fn extent(&self) -> (PageNumber, u32) {
        let extent = self.extent.load(Ordering::Acquire);
        (PageNumber(extent as u32), (extent >> 32) as u32)
    }

    fn place(&self) -> Place {
        // SAFETY: it is written before the extent that leads here, and again only when it was promised that nobody who has
        // seen an earlier extent is still here.
        unsafe { *self.place.get() }
    }

    /// Its first page.
    pub fn first(&self) -> PageNumber {
        self.extent().0
    }

    /// How many pages it has.
    pub fn pages(&self) -> u32 {
        self.extent().1
    }

    /// The node that all of it belongs to.
    pub fn node(&self) -> NodeIndex {
        self.place().node
    }

    /// The address of its first byte, which is one of its records.
    pub fn start(&self) -> usize {
        self.place().records.addr().get()
    }

    /// How many pages its records take.
    pub fn record_pages(&self) -> u32 {
        self.first().since(PageNumber::of(self.place().records.addr().get()))
    }

    /// Whether all those pages are in the range.
    pub fn contains(&self, page: PageNumber, pages: u32) -> bool {
        let (first, all) = self.extent();
        let offset = page.since(first);
        offset < all && pages <= all - offset
    }

    /// Whether a page, be it one of records, is in both.
    pub fn collides(&self, other: &Range) -> bool {
        let extent = |range: &Range| {
            let start = PageNumber::of(range.place().records.addr().get());
            (start.0, range.first().since(start) + range.pages())
        };
        if self.pages() == 0 || other.pages() == 0 {
            return false;
        }
        let ((start, pages), (other_start, other_pages)) = (extent(self), extent(other));
        other_start.wrapping_sub(start) < pages || start.wrapping_sub(other_start) < other_pages
    }

    /// The record of a page of this range.
    pub fn info(&self, page: PageNumber) -> InfoRef {
        debug_assert!(self.contains(page, 1));
        // SAFETY: the page is in the range, so its record is among the range's records, which
        // `Pages::add_range` has set aside for as long as the range is there.
        unsafe { InfoRef::new(self.place().records.add(page.since(self.first()) as usize)) }
    }

    /// The memory of a page of this range.
    pub fn memory(&self, page: PageNumber) -> NonNull<u8> {
        debug_assert!(self.contains(page, 1));
        // SAFETY: the page is in the range, so the offset stays within the memory that was added.
        unsafe { self.place().base.add((page.since(self.first()) as usize) << super::info::PAGE_SHIFT) }
    }
}

/// All ranges.
pub(crate) struct Ranges {
    count: AtomicUsize,
    /// Bit n: slot n may be written again.
    vacant: AtomicU64,
    slots: [UnsafeCell<MaybeUninit<Range>>; MAX_RANGES],
}

// SAFETY: slots below the count are only read, the others are only written, by the one that holds the lock
// for that (see `push`), but for a range's place, see there. The pointers in a `Range` are used under the rules of `info`.
unsafe impl Sync for Ranges {}
// SAFETY: nothing in it belongs to a core.
unsafe impl Send for Ranges {}

impl Ranges {
    /// No ranges.
    pub const fn new() -> Self {
        Self {
            count: AtomicUsize::new(0),
            vacant: AtomicU64::new(0),
            slots: [const { UnsafeCell::new(MaybeUninit::uninit()) }; MAX_RANGES],
        }
    }

    /// All of them, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Range> {
        let count = self.count.load(Ordering::Acquire).min(MAX_RANGES);
        // SAFETY: `push` has written the slots below the count, before it stored the count that was read
        // with acquire order here; it writes none of them again that anybody may look at, see `reuse`.
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
        let vacant = self.vacant.load(Ordering::Acquire);
        if vacant != 0
            && let Some(old) = self.iter().nth(vacant.trailing_zeros() as usize)
        {
            self.vacant.store(vacant & (vacant - 1), Ordering::Relaxed);
            // SAFETY: the old range has no pages, and nobody is still where it had some, as `reuse` was promised; writers
            // wait for the lock.
            unsafe { *old.place.get() = range.place() };
            old.extent.store(range.extent.load(Ordering::Relaxed), Ordering::Release);
            return Ok(());
        }
        let count = self.count.load(Ordering::Relaxed);
        let Some(slot) = self.slots.get(count) else { return Err(range) };
        // SAFETY: readers do not touch slots from the count on, and other writers wait for the lock.
        unsafe { (*slot.get()).write(range) };
        self.count.store(count + 1, Ordering::Release);
        Ok(())
    }

    /// Takes out a range of which nothing is in use: it has no pages from here on. Its slot, as a bit.
    pub fn take_out(&self, range: &Range) -> u64 {
        range.extent.store(range.first().0.into(), Ordering::Release);
        let index = self.iter().position(|other| core::ptr::eq(other, range));
        index.map_or(0, |index| 1 << index)
    }

    /// Lets the slots of these bits be written again.
    ///
    /// # Safety
    /// The caller holds the lock for adding ranges. They are of ranges that were taken out, and since then whoever may have
    /// looked at them has let go of them.
    pub unsafe fn reuse(&self, slots: u64) {
        self.vacant.fetch_or(slots, Ordering::Release);
    }
}

const _: () = assert!(MAX_RANGES <= u64::BITS as usize);
