//! The memory of a process that is one cell: a pool of fixed size, from which the cell's cores allocate by the same
//! code as on bare hardware.
//!
//! A process has more threads than its cell has cores, and the C library and the standard library allocate on all of
//! them. So an object belongs to one of two allocators, which its address determines:
//!
//! ```text
//! thread         allocates from      frees into
//! a core         the pool            either; objects of the pool into its own cache
//! another        the C library       either; objects of the pool through one shared cache, under a lock
//! ```
//!
//! Virtually contiguous allocations are mapped in the region area, and their memory comes from the pool.
//!
//! The cell's memory use is the allocated part of the pool. If the pool is exhausted, the cell's allocations fail, even
//! if the host has memory.

use isola_abi::id::MAX_CORES;
use isola_abi::ledger::Ledger;
use isola_abi::report::{MemoryReport, Report};
use isola_memory::heap::LARGEST_OF_PAGES;
use isola_memory::pages::PageStatistics;
use isola_memory::regions::Account;
use isola_memory::virtual_alloc::is_virtually_contiguous;
use isola_memory::{CoreSource, Heap};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

static HEAP: Heap<ThisThread> = Heap::new(ThisThread);

/// The pool's first address, and its length in bytes. No object of the pool exists before they are set.
static POOL_START: AtomicUsize = AtomicUsize::new(0);
static POOL_LEN: AtomicUsize = AtomicUsize::new(0);

/// The cache that all threads other than cores use in turn. If a cell has so many cores that this index is its last
/// core's, that core allocates as other threads do.
const SHARED_CACHE: usize = MAX_CORES - 1;

/// The index of a thread without a cache.
const NONE: usize = usize::MAX;

thread_local! {
    static CACHE: Cell<usize> = const { Cell::new(NONE) };
}

/// Returns the heap's cache of the current thread. Only called on threads that have one.
struct ThisThread;

// SAFETY: `enter_core` gives each core of the process's one cell its own index, below `SHARED_CACHE`; that one is set
// under a lock, for as long as the lock's holder is in the heap. No thread interrupts another in the allocator.
unsafe impl CoreSource for ThisThread {
    #[inline(always)]
    fn current_core(&self) -> usize {
        CACHE.get()
    }
}

/// Creates the pool. Called once, before the cell has cores.
///
/// # Errors
/// The error of Linux if the process cannot have that much address space.
pub(crate) fn start(len: usize) -> io::Result<()> {
    const ALIGN: usize = 2 << 20;
    // SAFETY: new memory at an address of Linux's choice changes nothing that exists.
    let start = unsafe {
        mmap_anonymous(
            ptr::null_mut(),
            len + ALIGN,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    }?;
    let skipped = start.align_offset(ALIGN);
    // SAFETY: `skipped` is less than `ALIGN`, and the mapping is longer than the pool by that much.
    let start = unsafe { start.add(skipped) }.cast::<u8>();
    POOL_START.store(start.addr(), Ordering::Relaxed);
    POOL_LEN.store(len, Ordering::Release);
    let start = NonNull::new(start).expect("Linux maps nothing at zero");
    // SAFETY: just mapped, never unmapped, and without other users.
    unsafe { HEAP.pages().add_range(start, len) }.map_err(io::Error::other)
}

/// Gives the calling thread, a core of the process's one cell, its own cache. The first core connects the heap to the
/// cell's report and ledger, where the heap publishes memory pressure.
pub(crate) fn enter_core(core: usize, report: &'static Report, ledger: Ledger<'static>) {
    if core < SHARED_CACHE && POOL_LEN.load(Ordering::Acquire) > 0 {
        CACHE.set(core);
        if core == 0 {
            HEAP.report_to(report, ledger);
        }
    }
}

/// Returns this core's cache if memory is short. Costs a few loads.
pub(crate) fn relieve() {
    if CellHeap::is_core() {
        HEAP.relieve();
    }
}

/// Watches the memory of activities, if the cell has a pool.
pub(crate) fn watch(limits: &'static [AtomicU64]) {
    HEAP.watch_activities(limits);
}

/// Returns the account of the activity that runs on this core; `None` without a pool.
pub(crate) fn account() -> Option<Account> {
    if CellHeap::is_core() { HEAP.account() } else { None }
}

/// Charges memory that is not the heap's to an account.
pub(crate) fn charge(account: Account, len_bytes: usize) {
    HEAP.charge(account, len_bytes);
}

/// Takes memory that is not the heap's from an account, on a core.
pub(crate) fn discharge(account: Account, len_bytes: usize) {
    if CellHeap::is_core() {
        HEAP.discharge(account, len_bytes);
    }
}

/// Returns the free objects in this core's cache to the heap.
pub(crate) fn empty_cache() {
    if CellHeap::is_core() {
        HEAP.empty_cache();
    }
}

/// Publishes the memory in use.
pub(crate) fn publish(report: &MemoryReport) {
    HEAP.pages().statistics().publish(report);
}

/// Returns the bytes of the pool.
pub(crate) fn total_bytes() -> usize {
    HEAP.pages().statistics().total_bytes
}

/// Returns the free bytes of the pool.
pub(crate) fn free_bytes() -> usize {
    let PageStatistics { total_bytes, used_bytes, .. } = HEAP.pages().statistics();
    total_bytes.saturating_sub(used_bytes)
}

/// The global allocator of a process that is one cell.
pub struct CellHeap;

impl CellHeap {
    fn is_core() -> bool {
        CACHE.get() != NONE
    }

    #[inline]
    fn is_of_pool(object: *mut u8, layout: Layout) -> bool {
        let offset = object.addr().wrapping_sub(POOL_START.load(Ordering::Relaxed));
        // Smaller objects are never virtually contiguous allocations.
        let is_large = layout.size().max(layout.align()) > LARGEST_OF_PAGES;
        offset < POOL_LEN.load(Ordering::Relaxed) || is_large && is_virtually_contiguous(object.addr())
    }

    /// Frees an object of the pool on a thread that is not a core.
    ///
    /// # Safety
    /// The same as for [`GlobalAlloc::dealloc`].
    #[cold]
    unsafe fn dealloc_elsewhere(object: *mut u8, layout: Layout) {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        CACHE.set(SHARED_CACHE);
        // SAFETY: the caller's promise.
        unsafe { HEAP.dealloc(object, layout) };
        CACHE.set(NONE);
        drop(turn);
    }
}

// SAFETY: each object is passed to the allocator from which it comes, which keeps the contract.
unsafe impl GlobalAlloc for CellHeap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { if Self::is_core() { HEAP.alloc(layout) } else { System.alloc(layout) } }
    }

    #[inline]
    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe {
            match (Self::is_of_pool(object, layout), Self::is_core()) {
                (true, true) => HEAP.dealloc(object, layout),
                (true, false) => Self::dealloc_elsewhere(object, layout),
                (false, _) => System.dealloc(object, layout),
            }
        }
    }

    #[inline]
    unsafe fn realloc(&self, object: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        // SAFETY: the caller's promise; `len` satisfies the rules of a layout's size.
        unsafe {
            match (Self::is_of_pool(object, layout), Self::is_core()) {
                (true, true) => return HEAP.realloc(object, layout, len),
                (false, _) => return System.realloc(object, layout, len),
                (true, false) => {}
            }
            let moved = self.alloc(Layout::from_size_align_unchecked(len, layout.align()));
            if !moved.is_null() {
                ptr::copy_nonoverlapping(object, moved, layout.size().min(len));
                self.dealloc(object, layout);
            }
            moved
        }
    }
}
