//! Pages: the memory of a cell, handed out as runs of 4 KiB pages.
//!
//! A buddy system a NUMA node (`buddy`) over several ranges (`ranges`), with a record a page (`info`), and the sum of what
//! is used (`usage`). A lock a node; none is on the heap's fast path.

mod buddy;
mod frames;
mod hold;
mod info;
mod list;
mod node;
mod ranges;
mod statistics;
mod usage;
mod withdraw;

use self::buddy::Buddy;
use self::ranges::Range;
use self::usage::Usage;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use isola_abi::id::NodeId;
use isola_abi::report::{MemoryPressure, MemoryReport};
use spin::Mutex;

pub use self::frames::Frame;
pub(crate) use self::hold::Granule;
pub use self::info::Contents;
pub(crate) use self::info::PageNumber;
pub(crate) use self::list::BlockList;
pub(crate) use self::node::NodeIndex;
pub use self::ranges::MAX_RANGES;
pub(crate) use self::ranges::Ranges;
pub use self::statistics::PageStatistics;
pub use self::withdraw::Withdrawn;

/// Size of a page, in bytes.
pub const PAGE_SIZE: usize = isola_abi::layout::PAGE_SIZE as usize;

/// Binary logarithm of the pages of the largest block: 4 GiB. No run is longer.
pub const MAX_ORDER: u32 = 20;

const _: () = assert!(PAGE_SIZE == 1 << info::PAGE_SHIFT);

/// Most nodes that are told apart; a node of a larger number counts as the one of that number modulo this.
pub const MAX_NODES: usize = 8;

/// The page allocator.
pub struct Pages {
    ranges: Ranges,
    /// Held while a range is added.
    adding: Mutex<()>,
    nodes: [Mutex<Buddy>; MAX_NODES],
    /// One more than the number of the last node that has memory.
    node_count: AtomicUsize,
    /// Whether there may be free pages that are not known to be zero: whoever frees some says so afterwards.
    may_have_unclear: AtomicBool,
    usage: Usage,
}

/// Why a range of memory cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddRangeError {
    /// Less than two whole pages: one for records, one to hand out.
    TooSmall,
    /// [`MAX_RANGES`] ranges are there already.
    TooManyRanges,
    /// It overlaps a range that is there, or does so modulo 16 TiB, or reaches across a multiple of that.
    Collides,
}

impl fmt::Display for AddRangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooSmall => f.write_str("the range has less than two whole pages: leave it out"),
            Self::TooManyRanges => write!(f, "there are {MAX_RANGES} ranges already: merge neighbours"),
            Self::Collides => {
                f.write_str("the range collides with another: add each once, all within 16 TiB")
            }
        }
    }
}

impl core::error::Error for AddRangeError {}

impl Pages {
    /// An allocator without memory.
    pub const fn new() -> Self {
        Self {
            ranges: Ranges::new(),
            adding: Mutex::new(()),
            nodes: [const { Mutex::new(Buddy::new()) }; MAX_NODES],
            node_count: AtomicUsize::new(0),
            may_have_unclear: AtomicBool::new(true),
            usage: Usage::new(),
        }
    }

    /// Adds `len_bytes` bytes from `start` on, memory of node 0, at start-up or later.
    ///
    /// # Errors
    /// As [`Self::add_range_of`].
    ///
    /// # Safety
    /// As [`Self::add_range_of`].
    pub unsafe fn add_range(&self, start: NonNull<u8>, len_bytes: usize) -> Result<(), AddRangeError> {
        // SAFETY: the caller's promise.
        unsafe { self.add_range_of(NodeId(0), start, len_bytes) }
    }

    /// Adds `len_bytes` bytes from `start` on, memory of `node`, at start-up or later.
    ///
    /// Only whole pages are used, and one in 256 of them for the records, which count as used. The other
    /// pages are not touched. Runs do not cross from one range into another, so neighbours are better added
    /// as one; an alignment is one of addresses.
    ///
    /// # Errors
    /// [`AddRangeError`]; then nothing was added.
    ///
    /// # Safety
    /// The memory may be read and written, and from now on nobody else does so, for as long as the allocator
    /// or anything that comes from it exists.
    pub unsafe fn add_range_of(
        &self,
        node: NodeId,
        start: NonNull<u8>,
        len_bytes: usize,
    ) -> Result<(), AddRangeError> {
        // SAFETY: the caller's promise.
        unsafe { self.add(node, start, len_bytes, Contents::Unknown) }
    }

    /// As [`Self::add_range_of`], memory that is all zero: who wants zeroed pages gets them without clearing.
    ///
    /// # Errors
    /// As [`Self::add_range_of`].
    ///
    /// # Safety
    /// As [`Self::add_range_of`], and all bytes are zero.
    pub unsafe fn add_zero_range_of(
        &self,
        node: NodeId,
        start: NonNull<u8>,
        len_bytes: usize,
    ) -> Result<(), AddRangeError> {
        // SAFETY: the caller's promise.
        unsafe { self.add(node, start, len_bytes, Contents::Zero) }
    }

    /// # Safety
    /// As [`Self::add_range_of`], and the contents are as is said.
    unsafe fn add(
        &self,
        node: NodeId,
        start: NonNull<u8>,
        len_bytes: usize,
        contents: Contents,
    ) -> Result<(), AddRangeError> {
        let skipped_bytes = start.addr().get().wrapping_neg() % PAGE_SIZE;
        let whole_pages = len_bytes.saturating_sub(skipped_bytes) / PAGE_SIZE;
        let record_pages = (whole_pages * size_of::<info::PageInfo>()).div_ceil(PAGE_SIZE);
        if whole_pages <= record_pages {
            return Err(AddRangeError::TooSmall);
        }
        // The heap gets at its pages from the addresses that are given back to it.
        start.as_ptr().expose_provenance();
        // SAFETY: both offsets are within the memory that the caller passes.
        let records = unsafe { start.add(skipped_bytes) };
        // SAFETY: as above.
        let base = unsafe { records.add(record_pages * PAGE_SIZE) };
        let pages = whole_pages - record_pages;
        if PageNumber::of(records.addr().get()).0 as usize + whole_pages > u32::MAX as usize {
            return Err(AddRangeError::Collides);
        }
        let node = NodeIndex::of(node);
        let range = Range::new(base, records.cast(), pages as u32, node);

        let adding = self.adding.lock();
        if self.ranges.iter().any(|other| other.collides(&range)) {
            return Err(AddRangeError::Collides);
        }
        let first = range.first();
        // SAFETY: the lock is held.
        unsafe { self.ranges.push(range) }.map_err(|_| AddRangeError::TooManyRanges)?;
        self.usage.add(whole_pages, record_pages);
        if let Some(range) = self.ranges.find(first) {
            self.buddy(node).lock().adopt(&self.ranges, range, contents);
        }
        self.node_count.fetch_max(node.index() + 1, Ordering::Relaxed);
        self.has_unclear();
        drop(adding);
        Ok(())
    }

    /// Hands out `pages` pages in a row, the first at an address that is a multiple of `align_pages` pages
    /// (a power of two), of whichever node has them; `None` where there are not that many, or `pages` is 0.
    pub fn allocate(&self, pages: usize, align_pages: usize) -> Option<NonNull<u8>> {
        self.allocate_near(NodeId(0), pages, align_pages)
    }

    /// The same, from `node` if that has them.
    pub fn allocate_near(&self, node: NodeId, pages: usize, align_pages: usize) -> Option<NonNull<u8>> {
        self.nodes_from(NodeIndex::of(node)).find_map(|node| self.allocate_on(node, pages, align_pages))
    }

    /// The same, from that node alone.
    pub(crate) fn allocate_on(
        &self,
        node: NodeIndex,
        pages: usize,
        align_pages: usize,
    ) -> Option<NonNull<u8>> {
        let pages = u32::try_from(pages).ok().filter(|&pages| pages > 0)?;
        let align_order = align_pages.max(1).ilog2();
        let (range, first, _) =
            self.buddy(node).lock().take(&self.ranges, pages, align_order, Contents::Unknown)?;
        self.usage.take(pages as usize);
        Some(range.memory(first))
    }

    /// Takes pages back.
    ///
    /// # Panics
    /// Where it finds that they were not handed out, or are more or less than were; no promise is made to
    /// find that.
    ///
    /// # Safety
    /// `start` came from [`Self::allocate`] of this allocator, `pages` is what the run has, and nobody uses
    /// it any more.
    pub unsafe fn free(&self, start: NonNull<u8>, pages: usize) {
        let first = PageNumber::of(start.addr().get());
        let range = self.range_of(first, pages);
        self.buddy(range.node()).lock().give(&self.ranges, range, first, pages as u32);
        self.has_unclear();
        self.usage.give(pages);
    }

    /// Makes a run of `pages` pages one of `wanted` (at least one) pages where it is; true when it is done.
    /// It always is when `wanted` is less. What is in the pages that remain is kept.
    ///
    /// # Panics
    /// As [`Self::free`].
    ///
    /// # Safety
    /// As [`Self::free`], where pages from `wanted` on count as given back and those before do not.
    pub unsafe fn resize(&self, start: NonNull<u8>, pages: usize, wanted: usize) -> bool {
        let first = PageNumber::of(start.addr().get());
        let Ok(wanted) = u32::try_from(wanted) else { return false };
        let range = self.range_of(first, pages);
        let mut buddy = self.buddy(range.node()).lock();
        let had = pages as u32;
        if wanted <= had {
            buddy.shrink(&self.ranges, range, first, had, wanted);
            self.has_unclear();
            self.usage.give(pages - wanted as usize);
            return true;
        }
        let done = buddy.grow(&self.ranges, range, first, had, wanted);
        if done {
            self.usage.take(wanted as usize - pages);
        }
        done
    }

    /// How much there is, and how much of it is in use.
    pub fn statistics(&self) -> PageStatistics {
        self.usage.statistics()
    }

    /// Says how much may still be added, in bytes: as long as that is so, memory is not short.
    pub fn set_room(&self, len_bytes: usize) {
        self.usage.set_room(len_bytes / PAGE_SIZE);
    }

    /// How short memory is.
    pub fn pressure(&self) -> MemoryPressure {
        self.usage.pressure()
    }

    /// Has the report say from now on how short memory is.
    pub fn report_to(&self, report: &'static MemoryReport) {
        self.usage.report_to(report);
    }

    /// Bytes of `node` that nobody has.
    pub fn free_bytes_of(&self, node: NodeId) -> usize {
        self.buddy(NodeIndex::of(node)).lock().free_pages() * PAGE_SIZE
    }

    /// All nodes that may have memory, `node` first.
    pub(crate) fn nodes_from(&self, node: NodeIndex) -> impl Iterator<Item = NodeIndex> {
        let count = self.node_count.load(Ordering::Relaxed);
        let others = NodeIndex::all().take(count).filter(move |other| *other != node);
        core::iter::once(node).chain(others)
    }

    /// Whether all memory is of one node, the first.
    pub(crate) fn is_uniform(&self) -> bool {
        self.node_count.load(Ordering::Relaxed) <= 1
    }

    /// Says that there may be free pages that are not known to be zero.
    pub(crate) fn has_unclear(&self) {
        self.may_have_unclear.store(true, Ordering::Release);
    }

    fn buddy(&self, node: NodeIndex) -> &Mutex<Buddy> {
        node.entry(&self.nodes)
    }

    /// The ranges, for who keeps spans.
    pub(crate) fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    /// The range that those pages are in.
    fn range_of(&self, first: PageNumber, pages: usize) -> &Range {
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        match self.ranges.find(first) {
            Some(range) if range.contains(first, pages) => range,
            _ => panic!("memory freed that the page allocator does not have"),
        }
    }
}

impl Default for Pages {
    fn default() -> Self {
        Self::new()
    }
}
