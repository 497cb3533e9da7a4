//! The cell's memory as the global allocator.
//!
//! The descriptor says what memory the cell has, and reading it takes memory: a small first range stands in the image
//! itself, and the pool is added once it is known.

use crate::grow::{self, Need};
use alloc::vec::Vec;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use isola_abi::descriptor::Core;
use isola_abi::id::NodeId;
use isola_machine::cell;
use isola_machine::window::clear;
use isola_memory::{Heap, Pages, ThisCore};

static HEAP: Heap = Heap::new(ThisCore);

/// Length of the last object that there was no memory for, in bytes; 0: there was for all.
static REFUSED_LEN: AtomicUsize = AtomicUsize::new(0);

/// Size of the first range, in bytes: enough for the descriptor and what decoding it takes.
const FIRST_LEN: usize = 128 << 10;

static FIRST: First = First(UnsafeCell::new([0; FIRST_LEN]));

#[repr(align(4096))]
struct First(UnsafeCell<[u8; FIRST_LEN]>);

// SAFETY: given to the heap by `start`, once, and used by nobody else.
unsafe impl Sync for First {}

/// Gives the heap its first range, on the first core, before anything is allocated. Later calls do nothing.
pub(crate) fn start() {
    static STARTED: AtomicBool = AtomicBool::new(false);
    if !STARTED.swap(true, Ordering::Relaxed) {
        // SAFETY: the range is a static that nobody else uses.
        unsafe { add(NodeId(0), FIRST.0.get().cast::<u8>(), FIRST_LEN) };
    }
}

/// Gives the heap the cell's pool, and tells it whose memory is near to which core. On the first core, before the others
/// run.
pub(crate) fn add_pool(pool: Vec<(NodeId, &'static mut [u8])>, cores: &[Core]) {
    for (node, range) in pool {
        // SAFETY: the memory is owned, for good, and given away here.
        let Some(start) = NonNull::new(range.as_mut_ptr()) else { continue };
        // SAFETY: as above; a cell's pool is zero at first. A range too small to be of use is left alone.
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
        // SAFETY: the caller's promise. A range too small to be of use is left alone.
        let _ = unsafe { HEAP.pages().add_range_of(node, start, len) };
    }
}

/// Gives back what this core keeps, if another has run short since it last did. A few loads; called where a core has
/// time.
pub(crate) fn relieve() {
    HEAP.relieve();
}

/// Has cores give back what they keep: this one at once.
pub(crate) fn give_back() {
    HEAP.give_back();
}

/// Has pages free again of what cores have given back.
pub(crate) fn trim() {
    HEAP.trim();
}

/// Makes a few free pages zero; false where all are known to be. For a core that has nothing else to do.
pub(crate) fn clear_some() -> bool {
    // SAFETY: the memory is free, whole pages, and passed to be cleared.
    HEAP.pages().clear_some(HEAP.near(), |memory, len| unsafe { clear(memory, len) })
}

/// Returns whether [`clear_some`] may have something to do. A load.
#[inline]
pub(crate) fn has_unclear() -> bool {
    HEAP.pages().may_have_unclear()
}

/// Says in the report what is used. A few loads and stores; called where a core has time, or was interrupted anyway.
pub(crate) fn publish() {
    HEAP.pages().statistics().publish(&cell::report().memory);
}

/// The pages, for who fills regions with them.
pub(crate) fn pages() -> &'static Pages {
    HEAP.pages()
}

/// The node whose memory is near to the core that runs.
pub(crate) fn near() -> NodeId {
    HEAP.near()
}

/// Bytes of all pages.
pub(crate) fn total_bytes() -> usize {
    HEAP.pages().statistics().total_bytes
}

/// Bytes of pages that nobody has, those that may still be added included.
pub(crate) fn free_bytes() -> usize {
    let pages = HEAP.pages().statistics();
    (pages.total_bytes + pages.room_bytes).saturating_sub(pages.used_bytes)
}

/// Bytes of pages that nobody has now.
pub(crate) fn present_bytes() -> usize {
    let pages = HEAP.pages().statistics();
    pages.total_bytes.saturating_sub(pages.used_bytes)
}

/// Whether less than a quarter of the pages that there are is free. A few loads.
pub(crate) fn is_filling() -> bool {
    present_bytes() < total_bytes() / 4
}

/// Length of the last object that there was no memory for, in bytes.
pub(crate) fn refused_len() -> usize {
    REFUSED_LEN.load(Ordering::Relaxed)
}

/// The global allocator of a cell image. Where memory has run out it returns null: who can go on without does, and for
/// everybody else `alloc` panics.
pub struct CellHeap;

impl CellHeap {
    /// Gets an object that `attempt` has just found no memory for, of so many bytes, if the cell can get more.
    #[cold]
    fn again(len: usize, attempt: impl Fn() -> *mut u8) -> *mut u8 {
        let found = grow::retry(Need::Pieces(len), || NonNull::new(attempt()));
        found.map_or_else(
            || {
                REFUSED_LEN.store(len, Ordering::Relaxed);
                core::ptr::null_mut()
            },
            NonNull::as_ptr,
        )
    }
}

// SAFETY: passes everything on to `HEAP`, which keeps the contract.
unsafe impl GlobalAlloc for CellHeap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let attempt = || unsafe { HEAP.alloc(layout) };
        let object = attempt();
        if object.is_null() { Self::again(layout.size(), attempt) } else { object }
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { HEAP.dealloc(pointer, layout) };
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        // SAFETY: the caller's promise; what finds no memory leaves the object as it was.
        let attempt = || unsafe { HEAP.realloc(pointer, layout, len) };
        let object = attempt();
        if object.is_null() { Self::again(len, attempt) } else { object }
    }
}
