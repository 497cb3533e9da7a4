//! The page allocator: a cell's memory, allocated as runs of 4 KiB pages.
//!
//! It has a buddy system per NUMA node (`buddy`) over several ranges (`ranges`), a record per page (`info`), and the
//! total of used pages (`usage`). Each node has a lock; the heap's fast path takes none.

mod buddy;
mod frames;
mod hold;
mod info;
mod list;
mod node;
mod ranges;
mod statistics;
mod usage;
mod window;
mod withdraw;

use self::buddy::Buddy;
use self::ranges::Range;
use self::usage::Usage;
use self::window::OpenWindow;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use isola_abi::id::NodeId;
use isola_abi::report::{MemoryPressure, MemoryReport};
use spin::Mutex;

pub use self::frames::Frame;
pub(crate) use self::hold::ChunkNumber;
pub use self::info::KnownContents;
pub(crate) use self::info::{PageNumber, SpanPlace};
pub(crate) use self::list::BlockList;
pub(crate) use self::node::NodeIndex;
pub use self::ranges::MAX_RANGES;
pub(crate) use self::ranges::Ranges;
pub use self::statistics::PageStatistics;
pub use self::window::{CompactionWindow, WindowUse};
pub use self::withdraw::WithdrawnMemory;

/// The size of a page, in bytes.
pub const PAGE_SIZE: usize = isola_abi::layout::PAGE_SIZE as usize;

/// The binary logarithm of the pages of the largest block: 4 GiB. No run is longer.
pub const MAX_ORDER: u32 = 20;

const _: () = assert!(PAGE_SIZE == 1 << info::PAGE_SHIFT);

/// The maximum number of nodes; a larger node number counts modulo this.
pub const MAX_NODES: usize = 8;

/// The page allocator.
pub struct Pages {
    ranges: Ranges,
    /// Locked while a range is added or removed.
    adding: Mutex<()>,
    nodes: [Mutex<Buddy>; MAX_NODES],
    /// The number of the last node with memory, plus one.
    node_count: AtomicUsize,
    /// Whether there may be free pages that are not known to be zero. Set after each free.
    may_have_unclear: AtomicBool,
    usage: Usage,
    /// The memory that is to become free, if any. Changed by one caller at a time.
    window: OpenWindow,
}

/// The reason why a range of memory cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddRangeError {
    /// It has less than two whole pages: one for records, one to allocate.
    TooSmall,
    /// There are already [`MAX_RANGES`] ranges.
    TooManyRanges,
    /// It overlaps an existing range, modulo 16 TiB, or crosses a multiple of 16 TiB.
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
    /// Returns an allocator without memory.
    pub const fn new() -> Self {
        Self {
            ranges: Ranges::new(),
            adding: Mutex::new(()),
            nodes: [const { Mutex::new(Buddy::new()) }; MAX_NODES],
            node_count: AtomicUsize::new(0),
            may_have_unclear: AtomicBool::new(true),
            usage: Usage::new(),
            window: OpenWindow::new(),
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
        // SAFETY: the caller's guarantee is that of `add_range_of`.
        unsafe { self.add_range_of(NodeId(0), start, len_bytes) }
    }

    /// Adds `len_bytes` bytes from `start` on, memory of `node`, at start-up or later.
    ///
    /// The allocator uses only whole pages, and one in 256 of them for records, which count as used. It does not touch
    /// the other pages. Runs do not cross range boundaries, so neighbouring ranges should be added as one. Alignments
    /// are those of addresses.
    ///
    /// # Errors
    /// [`AddRangeError`]; then nothing was added.
    ///
    /// # Safety
    /// The memory may be read and written, and only by this allocator and the owners of its allocations, as long as any
    /// of these exist.
    pub unsafe fn add_range_of(
        &self,
        node: NodeId,
        start: NonNull<u8>,
        len_bytes: usize,
    ) -> Result<(), AddRangeError> {
        // SAFETY: the caller's guarantee; any contents are "unknown".
        unsafe { self.add(node, start, len_bytes, KnownContents::Unknown) }
    }

    /// Adds memory that is zero, as [`Self::add_range_of`]; it provides zeroed pages without clearing.
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
        // SAFETY: the caller's guarantee, also that all bytes are zero.
        unsafe { self.add(node, start, len_bytes, KnownContents::Zero) }
    }

    /// # Safety
    /// As [`Self::add_range_of`], and the bytes are as `contents` says.
    unsafe fn add(
        &self,
        node: NodeId,
        start: NonNull<u8>,
        len_bytes: usize,
        contents: KnownContents,
    ) -> Result<(), AddRangeError> {
        let skipped_bytes = start.addr().get().wrapping_neg() % PAGE_SIZE;
        let whole_pages = len_bytes.saturating_sub(skipped_bytes) / PAGE_SIZE;
        let record_pages = (whole_pages * size_of::<info::PageInfo>()).div_ceil(PAGE_SIZE);
        if whole_pages <= record_pages {
            return Err(AddRangeError::TooSmall);
        }
        // The heap derives pointers to its pages from freed addresses.
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
        self.mark_unclear();
        drop(adding);
        Ok(())
    }

    /// Allocates `pages` consecutive pages of any node, the first at a multiple of `align_pages` pages (a power of
    /// two); `None` if no node has such a run, or `pages` is 0.
    pub fn allocate(&self, pages: usize, align_pages: usize) -> Option<NonNull<u8>> {
        self.allocate_near(NodeId(0), pages, align_pages)
    }

    /// Allocates as [`Self::allocate`] does, from `node` if possible.
    pub fn allocate_near(&self, node: NodeId, pages: usize, align_pages: usize) -> Option<NonNull<u8>> {
        self.nodes_from(NodeIndex::of(node)).find_map(|node| self.allocate_on(node, pages, align_pages))
    }

    /// Allocates as [`Self::allocate`] does, from that node only.
    pub(crate) fn allocate_on(
        &self,
        node: NodeIndex,
        pages: usize,
        align_pages: usize,
    ) -> Option<NonNull<u8>> {
        let pages = u32::try_from(pages).ok().filter(|&pages| pages > 0)?;
        let align_order = align_pages.max(1).ilog2();
        let (range, first, _) =
            self.buddy(node).lock().take(&self.ranges, pages, align_order, KnownContents::Unknown)?;
        self.usage.take(pages as usize);
        Some(range.memory(first))
    }

    /// Frees a run.
    ///
    /// # Panics
    /// If the pages were not allocated, or not as a run of this length. Detection is not guaranteed.
    ///
    /// # Safety
    /// `start` came from this allocator, as a run of `pages` pages, and the run is unused.
    pub unsafe fn free(&self, start: NonNull<u8>, pages: usize) {
        let first = PageNumber::of(start.addr().get());
        let range = self.range_of(first, pages);
        self.buddy(range.node()).lock().give(&self.ranges, range, first, pages as u32);
        self.mark_unclear();
        self.usage.give(pages);
    }

    /// Changes the length of a run of `pages` pages in place to `wanted` (at least one) pages; true on success.
    /// Shrinking always succeeds. The remaining pages keep their contents.
    ///
    /// # Panics
    /// As [`Self::free`].
    ///
    /// # Safety
    /// As [`Self::free`], for the pages behind the first `wanted`; the others remain the caller's.
    pub unsafe fn resize(&self, start: NonNull<u8>, pages: usize, wanted: usize) -> bool {
        let first = PageNumber::of(start.addr().get());
        let Ok(wanted) = u32::try_from(wanted) else { return false };
        let range = self.range_of(first, pages);
        let mut buddy = self.buddy(range.node()).lock();
        let had = pages as u32;
        if wanted <= had {
            buddy.shrink(&self.ranges, range, first, had, wanted);
            self.mark_unclear();
            self.usage.give(pages - wanted as usize);
            return true;
        }
        let done = buddy.grow(&self.ranges, range, first, had, wanted);
        if done {
            self.usage.take(wanted as usize - pages);
        }
        done
    }

    /// Returns the total memory and the memory in use.
    pub fn statistics(&self) -> PageStatistics {
        self.usage.statistics()
    }

    /// Returns the bytes of the records of all pages, which are part of the memory in use.
    pub fn record_bytes(&self) -> usize {
        self.ranges
            .iter()
            .filter(|range| range.pages() > 0)
            .map(|range| range.record_pages() as usize * PAGE_SIZE)
            .sum()
    }

    /// Sets the obtainable memory, in bytes. It counts as free for the memory pressure.
    pub fn set_obtainable(&self, len_bytes: usize) {
        self.usage.set_obtainable(len_bytes / PAGE_SIZE);
    }

    /// Returns the memory pressure.
    pub fn pressure(&self) -> MemoryPressure {
        self.usage.pressure()
    }

    /// Sets the report to which the memory pressure is written from now on.
    pub fn report_to(&self, report: &'static MemoryReport) {
        self.usage.report_to(report);
    }

    /// Returns the free bytes of `node`.
    pub fn free_bytes_of(&self, node: NodeId) -> usize {
        self.buddy(NodeIndex::of(node)).lock().free_pages() * PAGE_SIZE
    }

    /// Returns all nodes that may have memory, `node` first.
    pub(crate) fn nodes_from(&self, node: NodeIndex) -> impl Iterator<Item = NodeIndex> {
        let count = self.node_count.load(Ordering::Relaxed);
        let others = NodeIndex::all().take(count).filter(move |other| *other != node);
        core::iter::once(node).chain(others)
    }

    /// Returns whether all memory is of node 0.
    pub(crate) fn is_uniform(&self) -> bool {
        self.node_count.load(Ordering::Relaxed) <= 1
    }

    /// Records that there may be free pages that are not known to be zero.
    pub(crate) fn mark_unclear(&self) {
        self.may_have_unclear.store(true, Ordering::Release);
    }

    fn buddy(&self, node: NodeIndex) -> &Mutex<Buddy> {
        node.entry(&self.nodes)
    }

    /// Returns the ranges, for the central lists' spans.
    pub(crate) fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    /// Returns the range that contains these pages.
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
