//! Objects beyond the size classes: runs of pages, or virtually contiguous allocations if no run is long enough.
//!
//! An object that must move to grow is copied to a longer run. Two kinds of objects move by remapping their pages
//! instead: virtually contiguous ones, and those of 2 MiB and more at a multiple of 2 MiB, whose large pages can be
//! remapped. Any other object does so as well if there is no memory for a copy.
//!
//! If a size class cannot get a span, which is a run, its objects become virtually contiguous too, one by one.

use super::class::{Class, LARGEST_OF_PAGES};
use super::free_list::FreeList;
use super::{CoreSource, Heap};
use crate::pages::PAGE_SIZE;
use crate::virtual_alloc::{self, is_virtually_contiguous};
use core::alloc::Layout;
use core::ptr::{self, NonNull};
use core::sync::atomic::Ordering;
use isola_abi::layout::PageSize;

// The heap allocates it while it makes an object virtually contiguous: that must not need a virtually contiguous one.
const _: () = assert!(virtual_alloc::BLOCK_BYTES <= LARGEST_OF_PAGES);

/// Objects of this length and more, at a multiple of it, move by remapping.
const REMAPPED_FROM: usize = PageSize::TwoMib.bytes();

/// When [`Heap::relocate`] remaps an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RemapRule {
    /// If remapping is better than a copy.
    WhereBetter,
    /// Even if a copy would be better.
    Always,
}

impl<C: CoreSource> Heap<C> {
    /// Allocates an object that is aligned at more than 16 bytes or larger than the largest class.
    #[cold]
    #[inline(never)]
    pub(super) fn allocate_unusual(&self, layout: Layout) -> *mut u8 {
        if let Some(class) = Class::of(layout) {
            return match self.take_cached(class) {
                Some(object) => object.as_ptr(),
                None => self.refill(class),
            };
        }
        let memory = self.allocate_large(layout).or_else(|| {
            self.report_shortage();
            self.allocate_large(layout)
        });
        memory.map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    fn allocate_large(&self, layout: Layout) -> Option<NonNull<u8>> {
        let pages = pages_of(layout);
        let run = self.pages.allocate_near(self.near(), pages, layout.align().div_ceil(PAGE_SIZE));
        let memory =
            run.or_else(|| virtual_alloc::allocate(&self.pages, self.near(), pages, layout.align()))?;
        self.count_large(memory, pages);
        Some(memory)
    }

    /// Frees such an object.
    ///
    /// # Safety
    /// It is of that layout and of this heap, and unused.
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn free_unusual(&self, object: NonNull<u8>, layout: Layout) {
        if let Some(class) = Class::of(layout) {
            // SAFETY: the caller guarantees that the object is of the class of `layout`, of this heap, and unused.
            return unsafe { self.free_cached(object, class) };
        }
        let pages = pages_of(layout);
        if is_virtually_contiguous(object.addr().get()) {
            // SAFETY: as above; `virtual_alloc::allocate` or `virtual_alloc::relocate` returned it, with that many
            // pages.
            unsafe { virtual_alloc::free(&self.pages, object, pages) };
        } else {
            // SAFETY: as above; it is a run of that many pages.
            unsafe { self.pages.free(object, pages) };
        }
        self.count_large(object, pages.wrapping_neg());
    }

    /// Changes an object's layout in place; true on success.
    ///
    /// # Safety
    /// It is of that layout and of this heap.
    pub(super) unsafe fn resize(&self, object: NonNull<u8>, layout: Layout, wanted: Layout) -> bool {
        match (Class::of(layout), Class::of(wanted)) {
            (Some(class), Some(wanted)) => class == wanted,
            (None, None) => {
                let (had, wanted) = (pages_of(layout), pages_of(wanted));
                let done = match wanted {
                    0 => false,
                    wanted if wanted == had => true,
                    // SAFETY: the caller guarantees that the object is of `layout`, thus from `virtual_alloc` with
                    // `had` pages.
                    wanted if is_virtually_contiguous(object.addr().get()) => unsafe {
                        virtual_alloc::resize(&self.pages, self.near(), object, had, wanted)
                    },
                    // SAFETY: the caller guarantees that the object is of `layout`, thus a run of `had` pages.
                    wanted => unsafe { self.pages.resize(object, had, wanted) },
                };
                if done {
                    self.count_large(object, wanted.wrapping_sub(had));
                }
                done
            }
            _ => false,
        }
    }

    /// Moves an object to a place with more room by remapping its pages. Returns `None` without any change if remapping
    /// is impossible, or `rule` does not ask for it.
    ///
    /// # Safety
    /// It is of that layout and of this heap. If it was moved, its old address is freed.
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn relocate(
        &self,
        object: NonNull<u8>,
        layout: Layout,
        wanted: Layout,
        rule: RemapRule,
    ) -> Option<NonNull<u8>> {
        if Class::of(layout).is_some() || wanted.size() <= layout.size() {
            return None;
        }
        let (from, had, pages) = (object.addr().get(), pages_of(layout), pages_of(wanted));
        let is_better = is_virtually_contiguous(from)
            || from.is_multiple_of(REMAPPED_FROM) && layout.size() >= REMAPPED_FROM;
        if rule == RemapRule::WhereBetter && !is_better {
            return None;
        }
        // SAFETY: the caller guarantees that the object is of `layout`, thus has `had` pages.
        let moved = unsafe {
            virtual_alloc::relocate(&self.pages, self.near(), object, had, (pages, layout.align()))
        }?;
        self.count_large(object, had.wrapping_neg());
        self.count_large(moved, pages);
        Some(moved)
    }

    /// Allocates an object of a class without a span, from single pages.
    pub(super) fn allocate_virtual(&self, class: Class) -> Option<NonNull<u8>> {
        let size = class.shape().size as usize;
        if size <= LARGEST_OF_PAGES {
            return None;
        }
        let (pages, align) = (size.div_ceil(PAGE_SIZE), PAGE_SIZE.max(1 << size.trailing_zeros()));
        let object = virtual_alloc::allocate(&self.pages, self.near(), pages, align)?;
        self.virtual_objects.fetch_add(1, Ordering::Relaxed);
        self.virtual_pages.fetch_add(pages, Ordering::Relaxed);
        self.ledger.add(self.cores.current_core(), size);
        Some(object)
    }

    /// Frees the virtually contiguous ones of a class's objects; returns the others.
    ///
    /// # Safety
    /// They are of that class and of this heap, and unused.
    #[cold]
    pub(super) unsafe fn free_virtual(&self, class: Class, mut objects: FreeList) -> FreeList {
        let pages = (class.shape().size as usize).div_ceil(PAGE_SIZE);
        let mut others = FreeList::new();
        while let Some(object) = objects.pop() {
            if is_virtually_contiguous(object.addr().get()) {
                self.virtual_objects.fetch_sub(1, Ordering::Relaxed);
                self.virtual_pages.fetch_sub(pages, Ordering::Relaxed);
                // SAFETY: the caller guarantees that the object is unused; `allocate_virtual` allocated it with that
                // many pages.
                unsafe { virtual_alloc::free(&self.pages, object, pages) };
            } else {
                // SAFETY: the caller guarantees that the object is of the class and unused.
                unsafe { others.push(object) };
            }
        }
        others
    }

    /// Adds `more` pages, modulo 2^64, to the counters of the object's kind.
    fn count_large(&self, object: NonNull<u8>, more: usize) {
        self.large_pages.fetch_add(more, Ordering::Relaxed);
        if is_virtually_contiguous(object.addr().get()) {
            self.virtual_pages.fetch_add(more, Ordering::Relaxed);
        }
        self.ledger.add(self.cores.current_core(), more.wrapping_mul(PAGE_SIZE));
    }
}

/// Returns the number of pages of an object without a class.
fn pages_of(layout: Layout) -> usize {
    layout.size().div_ceil(PAGE_SIZE)
}
