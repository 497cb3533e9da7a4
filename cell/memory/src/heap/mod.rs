//! The heap: the general allocator of a cell.
//!
//! An object of up to 32 KiB is taken from the list of its size class ([`class`]) in the cache of the core
//! that asks ([`cache`]), and freed into the cache of the core that frees it. Caches get objects from, and
//! give objects to, the central lists of classes and nodes ([`central`]) in batches; those make them of pages.
//!
//! A core gets objects of its own node as long as there are such. An object that is freed on another core stays there
//! until that core has too many: then it goes back, with a batch, to the list of the node that it is of. Nothing is sorted,
//! locked or counted before (decision 0014).
//!
//! What is larger is a run of pages, or in pieces ([`mapped`](crate::mapped)) where no run is long enough.
//!
//! When the pages have run out, the core that notices gives back everything in its cache and all empty
//! spans, tries again, and makes the others empty their caches when they next get to it.

mod cache;
mod central;
mod class;
mod core_source;
mod free_list;
mod global;
mod large;
mod ledger;
mod statistics;

use self::cache::{CoreCache, NO_CACHE, bump};
use self::central::Central;
use self::class::{CLASSES, Class, entry};
use self::free_list::FreeList;
use self::ledger::Ledger;
use crate::pages::{MAX_NODES, NodeIndex, PageNumber, Pages};
use crate::regions::collect;
use core::alloc::Layout;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use isola_abi::id::{MAX_CORES, NodeId};
use isola_abi::report::{MemoryPressure, Report};

pub use self::class::{LARGEST, LARGEST_OF_PAGES};
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
    /// The node that each core belongs to.
    nodes: [AtomicU8; MAX_CORES],
    central: [[Central; CLASSES]; MAX_NODES],
    pages: Pages,
    ledger: Ledger,
    /// Pages that are handed out as objects of their own.
    large_pages: AtomicUsize,
    /// Those of objects in pieces.
    mapped_pages: AtomicUsize,
    /// How many objects of classes are in pieces.
    pieces: AtomicUsize,
    /// How often the pages have run out.
    shortages: AtomicU32,
}

impl<C: CoreSource> Heap<C> {
    /// A heap without memory: every request fails until [`Pages::add_range`] was called.
    pub const fn new(cores: C) -> Self {
        Self {
            cores,
            caches: [const { AtomicPtr::new((&raw const NO_CACHE).cast_mut()) }; MAX_CORES],
            nodes: [const { AtomicU8::new(0) }; MAX_CORES],
            central: [const { [const { Central::new() }; CLASSES] }; MAX_NODES],
            pages: Pages::new(),
            ledger: Ledger::new(),
            large_pages: AtomicUsize::new(0),
            mapped_pages: AtomicUsize::new(0),
            pieces: AtomicUsize::new(0),
            shortages: AtomicU32::new(0),
        }
    }

    /// The pages below: to add memory, and for who wants pages.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Says which node a core belongs to: where it gets its memory from, as long as there is some. Until
    /// then it is node 0.
    pub fn set_node(&self, core: usize, node: NodeId) {
        if let Some(place) = self.nodes.get(core) {
            place.store(NodeIndex::of(node).index() as u8, Ordering::Relaxed);
        }
    }

    /// The node of the core that runs, for who wants pages.
    pub fn near(&self) -> NodeId {
        NodeId(self.node().index() as u32)
    }

    /// Has the report say from now on how short memory is, and what each activity uses. To be called once, on the one core
    /// that has used memory: what that is counts as the activity's that runs.
    pub fn report_to(&self, report: &'static Report, ledger: isola_abi::ledger::Ledger<'static>) {
        self.pages.report_to(&report.memory);
        self.ledger.report_to(report, ledger);
        let HeapStatistics { object_bytes, cached_bytes, large_bytes, .. } = self.statistics();
        self.ledger.add(self.cores.current_core(), object_bytes + cached_bytes + large_bytes);
    }

    /// Empties the cache of the core that runs: before it goes away, or when memory is short.
    pub fn empty_cache(&self) {
        let cache = self.cache();
        if !ptr::eq(cache, &NO_CACHE) {
            self.empty(cache);
        }
    }

    /// Empties the cache of the core that runs if memory is short, or has run out since it last did. Costs a few
    /// instructions when it has not; the platform calls it when the core has nothing better to do.
    pub fn relieve(&self) {
        let cache = self.cache();
        if ptr::eq(cache, &NO_CACHE) {
            return;
        }
        match self.pages.pressure() {
            MemoryPressure::None => self.relieve_shortage(cache),
            MemoryPressure::Low | MemoryPressure::Critical => self.empty(cache),
        }
    }

    /// Has pages free again of what nobody uses, as if memory had run out: the core that runs gives back what it keeps, the
    /// others do when they come to it.
    pub fn give_back(&self) {
        self.report_shortage();
    }

    /// Has pages free again of objects that cores have given back.
    pub fn trim(&self) {
        for node in self.pages.nodes_from(self.node()) {
            Class::all().for_each(|class| self.central(node, class).trim(&self.pages, class));
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

    /// The node of the core that runs.
    fn node(&self) -> NodeIndex {
        let node = self.nodes.get(self.cores.current_core()).map_or(0, |node| node.load(Ordering::Relaxed));
        NodeIndex::of(NodeId(node.into()))
    }

    /// The central list of a node's objects of a class.
    fn central(&self, node: NodeIndex, class: Class) -> &Central {
        entry(node.entry(&self.central), class)
    }

    /// Hands up to `wanted` objects from a central list to `to`: of the core's node, or else of one that has some.
    /// Returns how many.
    fn take(&self, class: Class, wanted: usize, mut to: impl FnMut(NonNull<u8>)) -> usize {
        let nodes = self.pages.nodes_from(self.node());
        let taken = nodes
            .map(|node| self.central(node, class).take(&self.pages, node, class, wanted, &mut to))
            .find(|&taken| taken > 0);
        let taken = taken.unwrap_or(0);
        self.ledger.add(self.cores.current_core(), taken * class.shape().size as usize);
        taken
    }

    /// One of them.
    fn take_one(&self, class: Class) -> Option<NonNull<u8>> {
        let mut object = None;
        self.take(class, 1, |taken| object = Some(taken));
        object
    }

    /// Gives objects back to the central lists of the nodes that they are of.
    ///
    /// # Safety
    /// The objects are of that class and of this heap.
    unsafe fn give(&self, class: Class, mut objects: FreeList) {
        self.ledger.subtract(self.cores.current_core(), objects.len() * class.shape().size as usize);
        if self.pieces.load(Ordering::Relaxed) > 0 {
            // SAFETY: the caller's promise.
            objects = unsafe { self.give_pieces(class, objects) };
        }
        let mut by_node = [const { FreeList::new() }; MAX_NODES];
        let [first, ..] = &mut by_node;
        if self.pages.is_uniform() {
            core::mem::swap(first, &mut objects);
        }
        while let Some(object) = objects.pop() {
            let page = PageNumber::of(object.addr().get());
            let node = self.pages.ranges().find(page).map_or(0, |range| range.node().index());
            if let Some(list) = by_node.get_mut(node) {
                // SAFETY: the caller's promise.
                unsafe { list.push(object) };
            }
        }
        for (node, list) in NodeIndex::all().zip(by_node) {
            if list.len() > 0 {
                // SAFETY: the caller's promise.
                unsafe { self.central(node, class).give(&self.pages, class, list) };
            }
        }
    }

    /// An object when the cache has none.
    #[cold]
    #[inline(never)]
    fn refill(&self, class: Class) -> *mut u8 {
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
        if self.take(class, bin.limit() / 2, put) == 0 {
            let object = self.take_piece(class).or_else(|| {
                self.report_shortage();
                // Which has taken the bin's right to hold anything.
                self.take_one(class).or_else(|| self.take_piece(class))
            });
            return object.map_or(ptr::null_mut(), NonNull::as_ptr);
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
            unsafe { self.give(class, surplus) };
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
                unsafe { self.give(class, list) };
            }
        }
    }

    /// Gives back what this core can, and asks the others to.
    fn report_shortage(&self) {
        self.shortages.fetch_add(1, Ordering::Relaxed);
        self.relieve();
        self.trim();
        collect();
    }

    /// Empties this core's cache if there was a shortage since it last did.
    fn relieve_shortage(&self, cache: &CoreCache) {
        let shortages = self.shortages.load(Ordering::Relaxed);
        if cache.shortages_seen.load(Ordering::Relaxed) != shortages {
            cache.shortages_seen.store(shortages, Ordering::Relaxed);
            self.empty(cache);
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
