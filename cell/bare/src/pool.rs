//! The cell's memory: the heap, and the page allocator below it, for the other modules. The global allocator above it
//! is [`heap`](crate::heap).
//!
//! The descriptor lists the cell's memory, but decoding it takes memory. Therefore the image contains a small first
//! range, and the pool is added once it is known.

use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use isola_abi::descriptor::Core;
use isola_abi::id::NodeId;
use isola_machine::cell;
use isola_machine::region_area::clear;
use isola_memory::pages::{CompactionWindow, WindowUse};
use isola_memory::regions::Account;
use isola_memory::{Heap, Pages, ThisCore};
use isola_platform::PlatformMemory;

pub(crate) static HEAP: Heap = Heap::new(ThisCore);

/// Size of the first range, in bytes: enough to decode the descriptor. A small image has 1 MiB in all (decision 0095).
const FIRST_LEN: usize = 120 << 10;

static FIRST: Range<FIRST_LEN> = Range(UnsafeCell::new([0; FIRST_LEN]));

/// Size of the second range of an image that boots alone, in bytes: for copies of a machine's ACPI tables. Those of more than
/// 4 KiB come from spans of 64 KiB at multiples of their length, and a range's first page is that of its page records.
const SECOND_LEN: usize = 128 << 10;

/// No part of an image that starts in cells only, as nothing there names it.
static SECOND: SpanRange = SpanRange(Range(UnsafeCell::new([0; SECOND_LEN])));

/// The second range, at a multiple of 64 KiB: how many spans fit does not depend on its place in the image.
#[repr(align(65536))]
struct SpanRange(Range<SECOND_LEN>);

#[repr(align(4096))]
struct Range<const LEN: usize>(UnsafeCell<[u8; LEN]>);

// SAFETY: `start` or `start_alone` passes it to the heap, once; it has no other users.
unsafe impl<const LEN: usize> Sync for Range<LEN> {}

/// Adds the first range to the heap, on the first core, before the first allocation. Later calls do nothing. Returns whether
/// it was the first call.
pub(crate) fn start() -> bool {
    static STARTED: AtomicBool = AtomicBool::new(false);
    let is_first = !STARTED.swap(true, Ordering::Relaxed);
    if is_first {
        // SAFETY: the range is a static without other users.
        unsafe { add(NodeId(0), FIRST.0.get().cast::<u8>(), FIRST_LEN) };
    }
    is_first
}

/// As [`start`], for the loader's entry: with the second range.
pub(crate) fn start_alone() {
    if start() {
        // SAFETY: as in `start`.
        unsafe { add(NodeId(0), SECOND.0.0.get().cast::<u8>(), SECOND_LEN) };
    }
}

/// Adds the cell's pool to the heap, and each core's node. To be called on the first core, before the others run.
pub(crate) fn add_pool(pool: Vec<(NodeId, &'static mut [u8])>, cores: &[Core]) {
    for (node, range) in pool {
        // SAFETY: the memory is owned until the cell ends, and given to the heap here.
        let Some(start) = NonNull::new(range.as_mut_ptr()) else { continue };
        // SAFETY: as above; a cell's pool is zero at first. A range too small to be useful is left out.
        let _ = unsafe { HEAP.pages().add_zero_range_of(node, start, range.len()) };
    }
    cores.iter().enumerate().for_each(|(index, core)| HEAP.set_node(index, core.node));
    HEAP.report_to(cell::report(), cell::ledger());
    publish();
}

/// # Safety
/// As [`isola_memory::Pages::add_range_of`].
unsafe fn add(node: NodeId, start: *mut u8, len: usize) {
    if let Some(start) = NonNull::new(start) {
        // SAFETY: the caller's promise. A range too small to be useful is left out.
        let _ = unsafe { HEAP.pages().add_range_of(node, start, len) };
    }
}

/// Empties this core's cache if another core has run short since the last call. Costs a few loads; called when a core
/// has time.
pub(crate) fn relieve() {
    HEAP.relieve();
}

/// Makes cores return their caches: this one at once.
pub(crate) fn release_unused() {
    HEAP.release_unused();
}

/// Frees the pages of objects that cores have returned.
pub(crate) fn trim() {
    HEAP.trim();
}

/// Zeroes a few free pages; false if all are known to be zero. For an idle core.
pub(crate) fn clear_some() -> bool {
    // SAFETY: the page allocator passes memory that is free and consists of whole pages.
    HEAP.pages().clear_some(HEAP.near(), |memory, len| unsafe { clear(memory, len) })
}

/// Returns whether [`clear_some`] may have something to do. Costs a load.
#[inline]
pub(crate) fn has_unclear() -> bool {
    HEAP.pages().may_have_unclear()
}

/// Publishes the memory in use in the report. Costs a few loads and stores; called when a core has time or was
/// interrupted anyway.
pub(crate) fn publish() {
    HEAP.pages().statistics().publish(&cell::report().memory);
}

/// Opens a window: see [`Heap::open_window`].
pub(crate) fn open_window(
    chunks_order: u32,
    is_excluded: impl Fn(usize) -> bool,
) -> Option<CompactionWindow> {
    HEAP.open_window(chunks_order, is_excluded)
}

/// Returns the use of the open window.
pub(crate) fn window_use() -> WindowUse {
    HEAP.pages().window_use()
}

/// Closes the window, if one is open.
pub(crate) fn close_window() {
    HEAP.close_window();
}

/// Watches the memory of activities: see [`Heap::watch_activities`].
pub(crate) fn watch_memory(limits: &'static [AtomicU64]) {
    HEAP.watch_activities(limits);
}

/// Returns the account of the activity that runs on this core.
#[inline]
pub(crate) fn account() -> Option<Account> {
    HEAP.account()
}

/// Charges memory that is not the heap's to an account.
pub(crate) fn charge(account: Account, len_bytes: usize) {
    HEAP.charge(account, len_bytes);
}

/// Takes memory that is not the heap's from an account.
pub(crate) fn discharge(account: Account, len_bytes: usize) {
    HEAP.discharge(account, len_bytes);
}

/// Returns the free objects of this core's cache to the heap.
pub(crate) fn empty_cache() {
    HEAP.empty_cache();
}

/// Returns the bytes of pages in use, less those of free objects in them. Takes the lock of each central list in turn.
pub(crate) fn live_bytes() -> usize {
    let heap = HEAP.statistics();
    heap.pages.used_bytes.saturating_sub(heap.span_bytes.saturating_sub(heap.object_bytes))
}

/// Returns the memory by the uses that the heap knows. Takes the lock of each central list in turn.
pub(crate) fn by_use() -> PlatformMemory {
    let heap = HEAP.statistics();
    let (total, used) = (heap.pages.total_bytes, heap.pages.used_bytes);
    let records = HEAP.pages().record_bytes();
    let of_heap = heap.span_bytes + heap.large_bytes + heap.virtual_bytes;
    PlatformMemory {
        total,
        free: total.saturating_sub(used),
        records,
        unused_objects: heap.span_bytes.saturating_sub(heap.object_bytes),
        regions: used.saturating_sub(records + of_heap),
        ..PlatformMemory::default()
    }
}

/// Returns the page allocator, from which regions are filled.
pub(crate) fn pages() -> &'static Pages {
    HEAP.pages()
}

/// Returns the node that is nearest to the calling core.
pub(crate) fn near() -> NodeId {
    HEAP.near()
}

/// Returns the bytes of all pages.
pub(crate) fn total_bytes() -> usize {
    HEAP.pages().statistics().total_bytes
}

/// Returns the bytes of free pages, including obtainable memory.
pub(crate) fn free_bytes() -> usize {
    let pages = HEAP.pages().statistics();
    (pages.total_bytes + pages.obtainable_bytes).saturating_sub(pages.used_bytes)
}

/// Returns the bytes of free pages, without obtainable memory.
pub(crate) fn present_bytes() -> usize {
    let pages = HEAP.pages().statistics();
    pages.total_bytes.saturating_sub(pages.used_bytes)
}

/// Returns whether less than a quarter of the present pages is free. Costs a few loads.
pub(crate) fn is_filling() -> bool {
    present_bytes() < total_bytes() / 4
}
