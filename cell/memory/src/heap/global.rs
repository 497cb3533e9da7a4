//! The heap as Rust's global allocator.

use super::class::{Class, GRAIN, LARGEST};
use super::large::Move;
use super::{CoreSource, Heap};
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};

// SAFETY: objects are handed out once until they are freed, are at least as large as asked for and aligned
// as asked for: a class's size is a multiple of the alignment and spans begin at multiples of their size
// (`class`), and runs of pages are aligned by the page allocator, as are addresses of objects in pieces. `alloc`
// and `dealloc` derive the same class from the same layout, and `resize` lets an object change its layout within
// its class or as a run only. Panics mean that memory is corrupt, and end a cell.
unsafe impl<C: CoreSource> GlobalAlloc for Heap<C> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Two tests, as the processor predicts both; not one of a combination.
        if layout.align() > GRAIN {
            return self.allocate_unusual(layout);
        }
        if layout.size() > LARGEST {
            return self.allocate_unusual(layout);
        }
        let class = Class::of_size(layout.size());
        match self.take_cached(class) {
            Some(object) => object.as_ptr(),
            None => self.refill(class),
        }
    }

    #[inline]
    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        // What the program was given may have been narrowed to what it asked for; the heap wants the whole
        // object, by the right that `Pages::add_range` has exposed.
        // SAFETY: `alloc` has returned it as an object, which is not null.
        let object = unsafe { NonNull::new_unchecked(ptr::with_exposed_provenance_mut(object.addr())) };
        if layout.align() > GRAIN {
            // SAFETY: the caller's promise.
            return unsafe { self.free_unusual(object, layout) };
        }
        if layout.size() > LARGEST {
            // SAFETY: the caller's promise.
            return unsafe { self.free_unusual(object, layout) };
        }
        // SAFETY: the caller's promise, and the same class as in `alloc`.
        unsafe { self.free_cached(object, Class::of_size(layout.size())) }
    }

    unsafe fn realloc(&self, object: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the size, rounded up to the alignment, does not overflow.
        let wanted = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        // SAFETY: as in `dealloc`.
        let whole = unsafe { NonNull::new_unchecked(ptr::with_exposed_provenance_mut(object.addr())) };
        // SAFETY: the caller's promise.
        if unsafe { self.resize(whole, layout, wanted) } {
            return whole.as_ptr();
        }
        // SAFETY: the caller's promise.
        if let Some(moved) = unsafe { self.relocate(whole, layout, wanted, Move::WhereBetter) } {
            return moved.as_ptr();
        }
        // SAFETY: the caller's promise: `new_size` is not 0.
        let moved = unsafe { self.alloc(wanted) };
        if moved.is_null() {
            // SAFETY: the caller's promise.
            let moved = unsafe { self.relocate(whole, layout, wanted, Move::Always) };
            return moved.map_or(ptr::null_mut(), NonNull::as_ptr);
        }
        // SAFETY: both are at least that large, and the new one is nobody else's.
        unsafe { ptr::copy_nonoverlapping(object, moved, layout.size().min(new_size)) };
        // SAFETY: the caller's promise; what was in it has moved.
        unsafe { self.dealloc(object, layout) };
        moved
    }
}
