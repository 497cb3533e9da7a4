//! The heap as Rust's global allocator.

use super::class::{Class, GRAIN, LARGEST};
use super::large::RemapRule;
use super::{CoreSource, Heap};
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};

// SAFETY: an object is returned to one caller until its free, with at least the requested size and alignment: a class's
// size is a multiple of the alignment and spans begin at multiples of their size (`class`); the page allocator aligns
// runs of pages, and `virtual_alloc` the addresses of virtually contiguous objects. `alloc` and `dealloc` derive the
// same class from the same layout, and `resize` changes an object's layout only within its class, or if it has none. A
// panic means that memory is corrupt, and ends a cell.
unsafe impl<C: CoreSource> GlobalAlloc for Heap<C> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Two tests, each predictable, instead of one of a combination.
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
        // The caller's pointer may have the provenance of the requested size only. The heap needs that of the whole
        // object, which `Pages::add_range` exposed. SAFETY: `alloc` returned `object`, which is not null.
        let object = unsafe { NonNull::new_unchecked(ptr::with_exposed_provenance_mut(object.addr())) };
        if layout.align() > GRAIN {
            // SAFETY: the caller guarantees that the object is allocated with `layout`.
            return unsafe { self.free_unusual(object, layout) };
        }
        if layout.size() > LARGEST {
            // SAFETY: as above.
            return unsafe { self.free_unusual(object, layout) };
        }
        // SAFETY: as above, and `alloc` used the same class.
        unsafe { self.free_cached(object, Class::of_size(layout.size())) }
    }

    unsafe fn realloc(&self, object: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees that the size, rounded up to the alignment, does not overflow.
        let wanted = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        // SAFETY: as in `dealloc`.
        let whole = unsafe { NonNull::new_unchecked(ptr::with_exposed_provenance_mut(object.addr())) };
        // SAFETY: the caller guarantees that the object is allocated with `layout`.
        if unsafe { self.resize(whole, layout, wanted) } {
            return whole.as_ptr();
        }
        // SAFETY: as above; if the object moves, the caller no longer uses the old address.
        if let Some(moved) = unsafe { self.relocate(whole, layout, wanted, RemapRule::WhereBetter) } {
            return moved.as_ptr();
        }
        // SAFETY: the caller guarantees that `new_size` is not 0.
        let moved = unsafe { self.alloc(wanted) };
        if moved.is_null() {
            // SAFETY: as at the first `relocate`.
            let moved = unsafe { self.relocate(whole, layout, wanted, RemapRule::Always) };
            return moved.map_or(ptr::null_mut(), NonNull::as_ptr);
        }
        // SAFETY: both objects have at least that many bytes, and no other pointer to the new one exists.
        unsafe { ptr::copy_nonoverlapping(object, moved, layout.size().min(new_size)) };
        // SAFETY: the caller guarantees that the object is allocated with `layout`; its contents have been copied.
        unsafe { self.dealloc(object, layout) };
        moved
    }
}
