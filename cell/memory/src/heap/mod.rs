//! The heap: the general allocator of a cell.
//!
//! An object of up to 32 KiB comes from the bin of its size class ([`class`]) in the current core's cache ([`cache`]).
//! A free returns it to the cache of the freeing core. Batches of objects move between the caches and the central list
//! of each class and node ([`central`]), which cuts pages into objects.
//!
//! A core gets objects of its own node while that has any. A freed object stays in the freeing core's cache until the
//! cache is full; then it moves, with a batch, to the central list of its node. Only then does the heap look up the
//! node and take a lock (decision 0014).
//!
//! A larger object is a run of pages, or virtually contiguous ([`virtual_alloc`]) if no run is
//! long enough.
//!
//! If the pages run out, the core that notices it empties its cache, frees all empty spans and tries again. The other
//! cores empty their caches when they next refill, spill or are idle.

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
use self::central::CentralList;
use self::class::{CLASSES, Class, entry};
use self::free_list::FreeList;
use self::ledger::Ledger;
use crate::pages::{CompactionWindow, MAX_NODES, NodeIndex, PageNumber, Pages};
use crate::regions::{self, Account};
use crate::virtual_alloc;
use core::alloc::Layout;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
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
    /// The cache of each core, `NO_CACHE` until it has one. Each core writes only its own entry.
    caches: [AtomicPtr<CoreCache>; MAX_CORES],
    /// The node of each core.
    nodes: [AtomicU8; MAX_CORES],
    central: [[CentralList; CLASSES]; MAX_NODES],
    pages: Pages,
    ledger: Ledger,
    /// Pages of objects beyond the size classes.
    large_pages: AtomicUsize,
    /// Pages of virtually contiguous objects.
    virtual_pages: AtomicUsize,
    /// The number of objects of size classes that are virtually contiguous.
    virtual_objects: AtomicUsize,
    /// How often the pages have run out.
    shortages: AtomicU32,
}

impl<C: CoreSource> Heap<C> {
    /// Returns a heap without memory: every allocation fails until [`Pages::add_range`] adds some.
    pub const fn new(cores: C) -> Self {
        Self {
            cores,
            caches: [const { AtomicPtr::new((&raw const NO_CACHE).cast_mut()) }; MAX_CORES],
            nodes: [const { AtomicU8::new(0) }; MAX_CORES],
            central: [const { [const { CentralList::new() }; CLASSES] }; MAX_NODES],
            pages: Pages::new(),
            ledger: Ledger::new(),
            large_pages: AtomicUsize::new(0),
            virtual_pages: AtomicUsize::new(0),
            virtual_objects: AtomicUsize::new(0),
            shortages: AtomicU32::new(0),
        }
    }

    /// Returns the page allocator of the heap, to add memory or to allocate pages.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Sets the node of a core, from which it gets its memory while there is any. The default is node 0.
    pub fn set_node(&self, core: usize, node: NodeId) {
        if let Some(entry) = self.nodes.get(core) {
            entry.store(NodeIndex::of(node).index() as u8, Ordering::Relaxed);
        }
    }

    /// Returns the node of the current core, for the page allocator.
    pub fn near(&self) -> NodeId {
        NodeId(self.node().index() as u32)
    }

    /// Sets the report that receives the memory pressure, and the ledger that receives the memory of each activity. To
    /// be called once, while only the calling core has used memory; all memory in use is charged to its current
    /// activity.
    pub fn report_to(&self, report: &'static Report, ledger: isola_abi::ledger::Ledger<'static>) {
        self.pages.report_to(&report.memory);
        self.ledger.report_to(report, ledger);
        let HeapStatistics { object_bytes, cached_bytes, large_bytes, .. } = self.statistics();
        self.ledger.add(self.cores.current_core(), object_bytes + cached_bytes + large_bytes);
    }

    /// Watches the memory of activities: `limits` has the most bytes of each activity slot of the ledger. An activity whose
    /// memory grows beyond it sets [`RECLAIM`](isola_abi::report::RECLAIM) in the report, and its limit to the largest
    /// number. The heap looks only when it counts anyway. To be called after [`Self::report_to`].
    pub fn watch_activities(&self, limits: &'static [AtomicU64]) {
        self.ledger.watch(limits);
    }

    /// Returns the account of the activity that runs on the calling core; `None` without a ledger.
    #[inline]
    pub fn account(&self) -> Option<Account> {
        self.ledger.current_slot(self.cores.current_core()).map(Account)
    }

    /// Charges memory that is not the heap's to an account.
    pub fn charge(&self, account: Account, len_bytes: usize) {
        self.ledger.add_to(self.cores.current_core(), account.0, len_bytes);
    }

    /// Takes memory that is not the heap's from an account.
    pub fn discharge(&self, account: Account, len_bytes: usize) {
        self.ledger.add_to(self.cores.current_core(), account.0, len_bytes.wrapping_neg());
    }

    /// Empties the current core's cache, before the core leaves or if memory is short.
    pub fn empty_cache(&self) {
        let cache = self.cache();
        if !ptr::eq(cache, &NO_CACHE) {
            self.empty(cache);
        }
    }

    /// Empties the current core's cache if memory is short, or if the pages have run out since the last call. Otherwise
    /// it costs a few instructions. The platform calls it when the core is idle.
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

    /// Frees unused pages as if memory had run out: the current core empties its cache now, the others when they next
    /// refill, spill or are idle.
    pub fn release_unused(&self) {
        self.report_shortage();
    }

    /// Opens the window of `1 << chunks_order` chunks of which the smallest part is in use: from now on, no memory of it
    /// is allocated. Objects of it that are in cores' caches still are, so the cores should empty these. `None` if there
    /// is no window with memory in use for whose address `is_excluded` returns false.
    pub fn open_window(
        &self,
        chunks_order: u32,
        is_excluded: impl Fn(usize) -> bool,
    ) -> Option<CompactionWindow> {
        self.pages.open_window(chunks_order, is_excluded)
    }

    /// Closes the window. Its memory is available again.
    pub fn close_window(&self) {
        self.pages.close_window();
        for node in self.pages.nodes_from(self.node()) {
            Class::all().for_each(|class| self.central(node, class).restore(&self.pages, class));
        }
    }

    /// Returns empty spans to the page allocator.
    pub fn trim(&self) {
        for node in self.pages.nodes_from(self.node()) {
            Class::all().for_each(|class| self.central(node, class).trim(&self.pages, class));
        }
    }

    /// Returns the current core's cache.
    #[inline(always)]
    fn cache(&self) -> &CoreCache {
        let core = self.cores.current_core();
        debug_assert!(core < MAX_CORES);
        // SAFETY: `CoreSource` guarantees an index below `MAX_CORES`.
        let cache = unsafe { self.caches.get_unchecked(core) }.load(Ordering::Relaxed);
        // SAFETY: the pointer is to `NO_CACHE`, or to a cache that this core created in `cache_or_new`; neither is ever
        // freed.
        unsafe { &*cache }
    }

    /// Returns the current core's cache, created if need be; `None` if there is no memory for one.
    fn cache_or_new(&self) -> Option<&CoreCache> {
        let cache = self.cache();
        if !ptr::eq(cache, &NO_CACHE) {
            return Some(cache);
        }
        let class = const { Class::of(Layout::new::<CoreCache>()) }?;
        let cache = self.take_one(class)?.cast::<CoreCache>();
        // SAFETY: an object of the class of that layout, to which no other pointer exists.
        unsafe { CoreCache::make(cache) };
        self.caches.get(self.cores.current_core())?.store(cache.as_ptr(), Ordering::Release);
        Some(self.cache())
    }

    /// Returns the node of the current core.
    fn node(&self) -> NodeIndex {
        let node = self.nodes.get(self.cores.current_core()).map_or(0, |node| node.load(Ordering::Relaxed));
        NodeIndex::of(NodeId(node.into()))
    }

    /// Returns the central list of a node and a class.
    fn central(&self, node: NodeIndex, class: Class) -> &CentralList {
        entry(node.entry(&self.central), class)
    }

    /// Passes up to `wanted` objects from a central list to `to`: of the core's node, or else of another node that has
    /// any. Returns their number.
    fn take(&self, class: Class, wanted: usize, mut to: impl FnMut(NonNull<u8>)) -> usize {
        let nodes = self.pages.nodes_from(self.node());
        let taken = nodes
            .map(|node| self.central(node, class).take(&self.pages, node, class, wanted, &mut to))
            .find(|&taken| taken > 0);
        let taken = taken.unwrap_or(0);
        self.ledger.add(self.cores.current_core(), taken * class.shape().size as usize);
        taken
    }

    /// Takes one object from a central list.
    fn take_one(&self, class: Class) -> Option<NonNull<u8>> {
        let mut object = None;
        self.take(class, 1, |taken| object = Some(taken));
        object
    }

    /// Returns objects to the central lists of their nodes.
    ///
    /// # Safety
    /// The objects are of that class and of this heap, and unused.
    unsafe fn give(&self, class: Class, mut objects: FreeList) {
        self.ledger.subtract(self.cores.current_core(), objects.len() * class.shape().size as usize);
        if self.virtual_objects.load(Ordering::Relaxed) > 0 {
            // SAFETY: the caller's guarantee is that of `free_virtual`.
            objects = unsafe { self.free_virtual(class, objects) };
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
                // SAFETY: the caller guarantees that the object is of the class and unused.
                unsafe { list.push(object) };
            }
        }
        for (node, list) in NodeIndex::all().zip(by_node) {
            if list.len() > 0 {
                // SAFETY: as above.
                unsafe { self.central(node, class).give(&self.pages, class, list) };
            }
        }
    }

    /// Allocates an object when the cache has none of its class.
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
        // SAFETY: an object from the central list is unused. There is room, as the bin is empty.
        let put = |object| assert!(unsafe { bin.push(object) }.is_ok());
        if self.take(class, bin.limit() / 2, put) == 0 {
            let object = self.allocate_virtual(class).or_else(|| {
                self.report_shortage();
                // `report_shortage` has set the bin's limit to 0.
                self.take_one(class).or_else(|| self.allocate_virtual(class))
            });
            return object.map_or(ptr::null_mut(), NonNull::as_ptr);
        }
        let object = bin.pop();
        cache.note(class);
        object.map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    /// Frees an object when the cache has no room for it.
    ///
    /// # Safety
    /// The object is of that class and of this heap, and unused.
    #[cold]
    #[inline(never)]
    unsafe fn spill(&self, object: NonNull<u8>, class: Class) {
        let mut surplus = FreeList::new();
        match self.cache_or_new() {
            None => {
                // SAFETY: the caller guarantees that the object is of the class and unused.
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
                // SAFETY: as above. There is room: the limit was raised, or half of the bin is empty.
                assert!(unsafe { bin.push(object) }.is_ok());
                cache.note(class);
            }
        }
        if surplus.len() > 0 {
            // SAFETY: all objects of `surplus` are of the class, and unused.
            unsafe { self.give(class, surplus) };
        }
    }

    /// Empties the current core's cache.
    fn empty(&self, cache: &CoreCache) {
        for class in Class::all() {
            let list = cache.bin(class).empty();
            cache.note(class);
            if list.len() > 0 {
                bump(&cache.spills);
                // SAFETY: the bin's objects are of its class, and unused.
                unsafe { self.give(class, list) };
            }
        }
    }

    /// Frees the unused memory of this core and the central lists, and makes the other cores empty their caches later.
    fn report_shortage(&self) {
        self.shortages.fetch_add(1, Ordering::Relaxed);
        self.relieve();
        self.trim();
        virtual_alloc::collect();
        regions::collect();
    }

    /// Empties this core's cache if there was a shortage since it last did so.
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
    /// The object is of that class and of this heap, and unused.
    #[inline(always)]
    unsafe fn free_cached(&self, object: NonNull<u8>, class: Class) {
        // SAFETY: the caller guarantees that the object is of the class and unused.
        if let Err(object) = unsafe { self.cache().bin(class).push(object) } {
            // SAFETY: as above.
            unsafe { self.spill(object, class) };
        }
    }
}
