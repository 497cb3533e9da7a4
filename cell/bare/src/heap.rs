//! The cell's memory as the global allocator. If it runs out, the allocator obtains more from the supervisor
//! ([`hot_plug`]), if the cell may have it.

use crate::hot_plug::{self, Need};
use crate::pool::HEAP;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Length in bytes of the last object for which there was no memory; 0 if there was always enough.
static REFUSED_LEN: AtomicUsize = AtomicUsize::new(0);

/// Returns the length in bytes of the last object for which there was no memory.
pub(crate) fn refused_len() -> usize {
    REFUSED_LEN.load(Ordering::Relaxed)
}

/// The global allocator of a cell image. If memory has run out it returns null: a caller may handle that; for all
/// others `alloc` panics.
pub struct CellHeap;

impl CellHeap {
    /// Retries an allocation of `len` bytes that has just failed, if the cell can get more memory.
    #[cold]
    fn retry(len: usize, attempt: impl Fn() -> *mut u8) -> *mut u8 {
        let found = hot_plug::retry(Need::Scattered(len), || NonNull::new(attempt()));
        found.map_or_else(
            || {
                REFUSED_LEN.store(len, Ordering::Relaxed);
                core::ptr::null_mut()
            },
            NonNull::as_ptr,
        )
    }
}

// SAFETY: forwards to the pool, which keeps the contract.
unsafe impl GlobalAlloc for CellHeap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let attempt = || unsafe { HEAP.alloc(layout) };
        let object = attempt();
        if object.is_null() { Self::retry(layout.size(), attempt) } else { object }
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { HEAP.dealloc(pointer, layout) };
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        // SAFETY: the caller's promise; a failed call leaves the object unchanged.
        let attempt = || unsafe { HEAP.realloc(pointer, layout, len) };
        let object = attempt();
        if object.is_null() { Self::retry(len, attempt) } else { object }
    }
}
