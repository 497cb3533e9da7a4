//! The heap: the general allocator of a cell.
//!
//! An object of up to 32 KiB is taken from the list of its size class ([`class`]) in the cache of the core
//! that asks ([`cache`]), and freed into the cache of the core that frees it. Caches get objects from, and
//! give objects to, the classes' central lists ([`central`]) in batches; those make them of pages.
//!
//! When the pages have run out, the core that notices gives back everything in its cache and all empty
//! spans, tries again, and makes the others empty their caches when they next get to it.

mod cache;
mod central;
mod class;
mod core_source;
mod free_list;
mod statistics;

use self::cache::{CoreCache, NO_CACHE, bump};
use self::central::Central;
use self::class::{CLASSES, Class, GRAIN, entry};
use self::free_list::FreeList;
use crate::pages::{PAGE_SIZE, Pages};
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use isola_abi::id::MAX_CORES;

pub use self::class::LARGEST;
pub use self::core_source::{CoreSource, ThisCore};
pub use self::statistics::{ClassStatistics, HeapStatistics};

/// The heap of a cell.
///
/// ```no_run
/// use isola_memory::{Heap, ThisCore};
///
/// #[global_allocator]
/// static HEAP: Heap = Heap::new(ThisCore);
/// # fn main() {}
/// ```
pub struct Heap<C = ThisCore> {
    cores: C,
    /// Of each core; `NO_CACHE` until it has one. A core writes its own alone.
    caches: [AtomicPtr<CoreCache>; MAX_CORES],
    central: [Central; CLASSES],
    pages: Pages,
    /// Pages that are handed out as objects of their own.
    large_pages: AtomicUsize,
    /// How often the pages have run out.
    shortages: AtomicU32,
}

impl<C: CoreSource> Heap<C> {
    /// A heap without memory: every request fails until [`Pages::add_range`] was called.
    pub const fn new(cores: C) -> Self {
        Self {
            cores,
            caches: [const { AtomicPtr::new((&raw const NO_CACHE).cast_mut()) }; MAX_CORES],
            central: [const { Central::new() }; CLASSES],
            pages: Pages::new(),
            large_pages: AtomicUsize::new(0),
            shortages: AtomicU32::new(0),
        }
    }

    /// The pages below: to add memory, and for who wants pages.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Empties the cache of the core that runs: before it goes away, or when memory is short.
    pub fn empty_cache(&self) {
        let cache = self.cache();
        if !ptr::eq(cache, &NO_CACHE) {
            self.empty(cache);
        }
    }

    /// Empties the cache of the core that runs if memory has run short since it last did. Costs a few
    /// instructions when it has not; the event loop calls it when it has nothing better to do.
    pub fn relieve(&self) {
        let cache = self.cache();
        if !ptr::eq(cache, &NO_CACHE) {
            self.relieve_shortage(cache);
        }
    }

    /// The cache of the core that runs.
    #[inline(always)]
    fn cache(&self) -> &CoreCache {
        let core = self.cores.current_core();
        debug_assert!(core < MAX_CORES);
        // SAFETY: `CoreSource` promises an index below `MAX_CORES`.
        let cache = unsafe { self.caches.get_unchecked(core) }.load(Ordering::Relaxed);
        // SAFETY: it points to `NO_CACHE`, or to a cache that this core has made in `cache_or_new`; neither
        // ever goes away.
        unsafe { &*cache }
    }

    /// The cache of the core that runs, made if need be; `None` where there is no memory for one.
    fn cache_or_new(&self) -> Option<&CoreCache> {
        let cache = self.cache();
        if !ptr::eq(cache, &NO_CACHE) {
            return Some(cache);
        }
        let class = const { Class::of(Layout::new::<CoreCache>()) }?;
        let cache = self.take_one(class)?.cast::<CoreCache>();
        // SAFETY: an object of the class of that layout, which nobody else has.
        unsafe { CoreCache::make(cache) };
        self.caches.get(self.cores.current_core())?.store(cache.as_ptr(), Ordering::Release);
        Some(self.cache())
    }

    /// An object from the central list.
    fn take_one(&self, class: Class) -> Option<NonNull<u8>> {
        let mut object = None;
        entry(&self.central, class).take(&self.pages, class, 1, |taken| object = Some(taken));
        object
    }

    /// An object when the cache has none.
    #[cold]
    #[inline(never)]
    fn refill(&self, class: Class) -> *mut u8 {
        let central = entry(&self.central, class);
        let Some(cache) = self.cache_or_new() else {
            let object = self.take_one(class).or_else(|| {
                self.report_shortage();
                self.take_one(class)
            });
            return object.map_or(ptr::null_mut(), NonNull::as_ptr);
        };
        self.relieve_shortage(cache);
        bump(&cache.refills);
        let bin = cache.bin(class);
        bin.raise_limit(class.raised(bin.limit()));
        // SAFETY: an object from the central list is nobody's. There is room: the bin is empty.
        let put = |object| assert!(unsafe { bin.push(object) }.is_ok());
        if central.take(&self.pages, class, bin.limit() / 2, put) == 0 {
            self.report_shortage();
            // Which has taken the bin's right to hold anything.
            return self.take_one(class).map_or(ptr::null_mut(), NonNull::as_ptr);
        }
        let object = bin.pop();
        cache.note(class);
        object.map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    /// Takes an object back when the cache has no room.
    ///
    /// # Safety
    /// The object is of that class and of this heap, and nobody uses it.
    #[cold]
    #[inline(never)]
    unsafe fn spill(&self, object: NonNull<u8>, class: Class) {
        let central = entry(&self.central, class);
        let mut surplus = FreeList::new();
        match self.cache_or_new() {
            None => {
                // SAFETY: the caller's promise.
                unsafe { surplus.push(object) };
            }
            Some(cache) => {
                self.relieve_shortage(cache);
                let bin = cache.bin(class);
                match class.raised(bin.limit()) {
                    raised if raised > bin.limit() => bin.raise_limit(raised),
                    limit => {
                        bump(&cache.spills);
                        surplus = bin.take_below(limit / 2);
                    }
                }
                // SAFETY: the caller's promise. There is room: the limit was raised, or half of it is free.
                assert!(unsafe { bin.push(object) }.is_ok());
                cache.note(class);
            }
        }
        if surplus.len() > 0 {
            // SAFETY: the objects are of the class.
            unsafe { central.give(&self.pages, class, surplus) };
        }
    }

    /// Gives everything in a cache, which is this core's, back.
    fn empty(&self, cache: &CoreCache) {
        for class in Class::all() {
            let list = cache.bin(class).empty();
            cache.note(class);
            if list.len() > 0 {
                bump(&cache.spills);
                // SAFETY: the bin's objects are of its class.
                unsafe { entry(&self.central, class).give(&self.pages, class, list) };
            }
        }
    }

    /// Gives back what this core can, and asks the others to.
    fn report_shortage(&self) {
        self.shortages.fetch_add(1, Ordering::Relaxed);
        self.relieve();
        for class in Class::all() {
            entry(&self.central, class).trim(&self.pages, class);
        }
    }

    /// Empties this core's cache if there was a shortage since it last did.
    fn relieve_shortage(&self, cache: &CoreCache) {
        let shortages = self.shortages.load(Ordering::Relaxed);
        if cache.shortages_seen.load(Ordering::Relaxed) != shortages {
            cache.shortages_seen.store(shortages, Ordering::Relaxed);
            self.empty(cache);
        }
    }

    /// An object that is aligned at more than 16 bytes or larger than the largest class.
    #[cold]
    #[inline(never)]
    fn allocate_unusual(&self, layout: Layout) -> *mut u8 {
        if let Some(class) = Class::of(layout) {
            return match self.take_cached(class) {
                Some(object) => object.as_ptr(),
                None => self.refill(class),
            };
        }
        let pages = layout.size().div_ceil(PAGE_SIZE);
        let align_pages = layout.align().div_ceil(PAGE_SIZE);
        let memory = self.pages.allocate(pages, align_pages).or_else(|| {
            self.report_shortage();
            self.pages.allocate(pages, align_pages)
        });
        if memory.is_some() {
            self.large_pages.fetch_add(pages, Ordering::Relaxed);
        }
        memory.map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    /// Takes such an object back.
    ///
    /// # Safety
    /// It is of that layout and of this heap, and nobody uses it.
    #[cold]
    #[inline(never)]
    unsafe fn free_unusual(&self, object: NonNull<u8>, layout: Layout) {
        if let Some(class) = Class::of(layout) {
            // SAFETY: the caller's promise.
            return unsafe { self.free_cached(object, class) };
        }
        let pages = layout.size().div_ceil(PAGE_SIZE);
        // SAFETY: the caller's promise; it came from there in `allocate_unusual`, with that many pages.
        unsafe { self.pages.free(object, pages) };
        self.large_pages.fetch_sub(pages, Ordering::Relaxed);
    }

    /// Makes an object one of another size where it is; true when it is done.
    ///
    /// # Safety
    /// It is of that layout and of this heap.
    unsafe fn resize(&self, object: NonNull<u8>, layout: Layout, wanted: Layout) -> bool {
        match (Class::of(layout), Class::of(wanted)) {
            (Some(class), Some(wanted)) => class == wanted,
            (None, None) => {
                let pages = layout.size().div_ceil(PAGE_SIZE);
                let wanted = wanted.size().div_ceil(PAGE_SIZE);
                // SAFETY: the caller's promise; it came from there with that many pages.
                let done =
                    wanted > 0 && (pages == wanted || unsafe { self.pages.resize(object, pages, wanted) });
                if done {
                    self.large_pages.fetch_add(wanted.wrapping_sub(pages), Ordering::Relaxed);
                }
                done
            }
            _ => false,
        }
    }

    #[inline(always)]
    fn take_cached(&self, class: Class) -> Option<NonNull<u8>> {
        self.cache().bin(class).pop()
    }

    /// # Safety
    /// The object is of that class and of this heap, and nobody uses it.
    #[inline(always)]
    unsafe fn free_cached(&self, object: NonNull<u8>, class: Class) {
        // SAFETY: the caller's promise.
        if let Err(object) = unsafe { self.cache().bin(class).push(object) } {
            // SAFETY: the caller's promise.
            unsafe { self.spill(object, class) };
        }
    }
}

// SAFETY: objects are handed out once until they are freed, are at least as large as asked for and aligned
// as asked for: a class's size is a multiple of the alignment and spans begin at multiples of their size
// (`class`), and runs of pages are aligned by the page allocator. `alloc` and `dealloc` derive the same
// class from the same layout, and `resize` lets an object change its layout within its class or as a run
// only. Panics mean that memory is corrupt, and end a cell.
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
        // SAFETY: the caller's promise: `new_size` is not 0.
        let moved = unsafe { self.alloc(wanted) };
        if !moved.is_null() {
            // SAFETY: both are at least that large, and the new one is nobody else's.
            unsafe { ptr::copy_nonoverlapping(object, moved, layout.size().min(new_size)) };
            // SAFETY: the caller's promise; what was in it has moved.
            unsafe { self.dealloc(object, layout) };
        }
        moved
    }
}
