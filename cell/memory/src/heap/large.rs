//! Objects that are too large for a class: runs of pages, or in pieces where no run is long enough.
//!
//! An object that grows and cannot do so where it is goes to a longer run, and its bytes are copied. Two kinds take
//! their pages with them instead, without a copy: those that are in pieces, and those of 2 MiB and more, as then the
//! processor's large pages can be moved. So does any other for which there is no memory to be copied to.
//!
//! An object of a class that cannot get a span, which is a run, is in pieces as well.

use super::class::{Class, LARGEST_OF_PAGES};
use super::free_list::FreeList;
use super::{CoreSource, Heap};
use crate::mapped::{self, is_mapped};
use crate::pages::PAGE_SIZE;
use core::alloc::Layout;
use core::ptr::{self, NonNull};
use core::sync::atomic::Ordering;
use isola_abi::layout::PageSize;

/// Objects of a length and more take their pages with them, where these begin at a multiple of it.
const TAKES_PAGES: usize = PageSize::TwoMib.bytes();

/// How an object moves to where it has more room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// By its pages, if that is better than to copy it.
    WhereBetter,
    /// By its pages.
    Always,
}

impl<C: CoreSource> Heap<C> {
    /// An object that is aligned at more than 16 bytes or larger than the largest class.
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
        let memory = run.or_else(|| mapped::allocate(&self.pages, self.near(), pages, layout.align()))?;
        self.count_large(memory, pages);
        Some(memory)
    }

    /// Takes such an object back.
    ///
    /// # Safety
    /// It is of that layout and of this heap, and nobody uses it.
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn free_unusual(&self, object: NonNull<u8>, layout: Layout) {
        if let Some(class) = Class::of(layout) {
            // SAFETY: the caller's promise.
            return unsafe { self.free_cached(object, class) };
        }
        let pages = pages_of(layout);
        if is_mapped(object.addr().get()) {
            // SAFETY: the caller's promise; it came from there with that many pages.
            unsafe { mapped::free(&self.pages, object, pages) };
        } else {
            // SAFETY: as above.
            unsafe { self.pages.free(object, pages) };
        }
        self.count_large(object, pages.wrapping_neg());
    }

    /// Makes an object one of another size where it is; true when it is done.
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
                    // SAFETY: the caller's promise; it came from there with that many pages.
                    wanted if is_mapped(object.addr().get()) => unsafe {
                        mapped::resize(&self.pages, self.near(), object, had, wanted)
                    },
                    // SAFETY: as above.
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

    /// Moves an object to where it is larger, by its pages; `None` where that is not done: then nothing has changed.
    ///
    /// # Safety
    /// It is of that layout and of this heap, and counts as given back if it was moved.
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn relocate(
        &self,
        object: NonNull<u8>,
        layout: Layout,
        wanted: Layout,
        way: Move,
    ) -> Option<NonNull<u8>> {
        if Class::of(layout).is_some() || wanted.size() <= layout.size() {
            return None;
        }
        let (from, had, pages) = (object.addr().get(), pages_of(layout), pages_of(wanted));
        let is_better = is_mapped(from) || from.is_multiple_of(TAKES_PAGES) && layout.size() >= TAKES_PAGES;
        if way == Move::WhereBetter && !is_better {
            return None;
        }
        // SAFETY: the caller's promise; it came from there with that many pages.
        let moved =
            unsafe { mapped::relocate(&self.pages, self.near(), object, had, (pages, layout.align())) }?;
        self.count_large(object, had.wrapping_neg());
        self.count_large(moved, pages);
        Some(moved)
    }

    /// An object of a class for which there is no span, but memory.
    pub(super) fn take_piece(&self, class: Class) -> Option<NonNull<u8>> {
        let size = class.shape().size as usize;
        if size <= LARGEST_OF_PAGES {
            return None;
        }
        let (pages, align) = (size.div_ceil(PAGE_SIZE), PAGE_SIZE.max(1 << size.trailing_zeros()));
        let object = mapped::allocate(&self.pages, self.near(), pages, align)?;
        self.pieces.fetch_add(1, Ordering::Relaxed);
        self.mapped_pages.fetch_add(pages, Ordering::Relaxed);
        self.ledger.add(self.cores.current_core(), size);
        Some(object)
    }

    /// Takes those objects of a class back that are in pieces; returns the others.
    ///
    /// # Safety
    /// They are of that class and of this heap, and nobody uses them.
    #[cold]
    pub(super) unsafe fn give_pieces(&self, class: Class, mut objects: FreeList) -> FreeList {
        let pages = (class.shape().size as usize).div_ceil(PAGE_SIZE);
        let mut others = FreeList::new();
        while let Some(object) = objects.pop() {
            if is_mapped(object.addr().get()) {
                self.pieces.fetch_sub(1, Ordering::Relaxed);
                self.mapped_pages.fetch_sub(pages, Ordering::Relaxed);
                // SAFETY: the caller's promise; it came from `take_piece`.
                unsafe { mapped::free(&self.pages, object, pages) };
            } else {
                // SAFETY: the caller's promise.
                unsafe { others.push(object) };
            }
        }
        others
    }

    /// Counts `more` pages of an object, modulo 2^64.
    fn count_large(&self, object: NonNull<u8>, more: usize) {
        self.large_pages.fetch_add(more, Ordering::Relaxed);
        if is_mapped(object.addr().get()) {
            self.mapped_pages.fetch_add(more, Ordering::Relaxed);
        }
        self.ledger.add(self.cores.current_core(), more.wrapping_mul(PAGE_SIZE));
    }
}

/// How many pages an object without a class has.
fn pages_of(layout: Layout) -> usize {
    layout.size().div_ceil(PAGE_SIZE)
}
