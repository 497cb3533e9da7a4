//! The cell's memory as the global allocator.
//!
//! The descriptor says what memory the cell has, and reading it takes memory: a small first range stands in the image
//! itself, and the pool is added once it is known.

use crate::crash;
use alloc::vec::Vec;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use isola_ebbs::current_core;
use isola_machine::cell;
use isola_memory::{CoreSource, Heap};

static HEAP: Heap<Cores> = Heap::new(Cores);

/// Size of the first range, in bytes: enough for the descriptor and what decoding it takes.
const FIRST_LEN: usize = 128 << 10;

static FIRST: First = First(UnsafeCell::new([0; FIRST_LEN]));

#[repr(align(4096))]
struct First(UnsafeCell<[u8; FIRST_LEN]>);

// SAFETY: given to the heap by `start`, once, and used by nobody else.
unsafe impl Sync for First {}

struct Cores;

// SAFETY: the index is the core's own, below `MAX_CORES` by its block; a core runs one thing at a time, and takes
// interrupts between events alone.
unsafe impl CoreSource for Cores {
    #[inline(always)]
    fn current_core(&self) -> usize {
        current_core().0 as usize
    }
}

/// Gives the heap its first range, on the first core, before anything is allocated. Later calls do nothing.
pub(crate) fn start() {
    static STARTED: AtomicBool = AtomicBool::new(false);
    if !STARTED.swap(true, Ordering::Relaxed) {
        // SAFETY: the range is a static that nobody else uses.
        unsafe { add(FIRST.0.get().cast::<u8>(), FIRST_LEN) };
    }
}

/// Gives the heap the cell's pool.
pub(crate) fn add_pool(pool: Vec<&'static mut [u8]>) {
    for range in pool {
        // SAFETY: the memory is owned, for good, and given away here.
        unsafe { add(range.as_mut_ptr(), range.len()) };
    }
    publish();
}

/// # Safety
/// As [`isola_memory::Pages::add_range`].
unsafe fn add(start: *mut u8, len: usize) {
    if let Some(start) = NonNull::new(start) {
        // SAFETY: the caller's promise. A range too small to be of use is left alone.
        let _ = unsafe { HEAP.pages().add_range(start, len) };
    }
}

/// Says in the report what is used. A few loads and stores; called where a core has time, or was interrupted anyway.
pub(crate) fn publish() {
    HEAP.pages().statistics().publish(&cell::report().memory);
}

/// The global allocator of a cell image.
pub struct CellHeap;

// SAFETY: passes everything on to `HEAP`, which keeps the contract. It never returns null for want of memory, as the
// cell is over then.
unsafe impl GlobalAlloc for CellHeap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let pointer = unsafe { HEAP.alloc(layout) };
        if pointer.is_null() {
            crash::out_of_memory(layout.size());
        }
        pointer
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { HEAP.dealloc(pointer, layout) };
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        let pointer = unsafe { HEAP.realloc(pointer, layout, len) };
        if pointer.is_null() {
            crash::out_of_memory(len);
        }
        pointer
    }
}
