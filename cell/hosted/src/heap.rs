//! The memory of a process that is one cell: a pool of fixed size, from which the cell's cores allocate by the same
//! code as on bare hardware.
//!
//! A process has more threads than its cell has cores, and its C library and the standard library allocate on all of
//! them. So an object is in one of two places, and its address says in which:
//!
//! ```text
//! thread         allocates from      frees into
//! a core         the pool            either; of the pool, into its own cache
//! another        the C library       either; of the pool, through one cache for all, behind a lock
//! ```
//!
//! Objects in pieces are in the window of regions, and of the pool as well: their memory is taken out of it.
//!
//! What the cell uses is what of the pool is handed out. Where the pool has run out, the cell's allocations fail, though
//! the host may have memory.

use isola_abi::id::MAX_CORES;
use isola_abi::ledger::Ledger;
use isola_abi::report::{MemoryReport, Report};
use isola_memory::heap::LARGEST_OF_PAGES;
use isola_memory::mapped::is_mapped;
use isola_memory::pages::PageStatistics;
use isola_memory::{CoreSource, Heap};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

static HEAP: Heap<ThisThread> = Heap::new(ThisThread);

/// Where the pool is: its first address, and its length in bytes. No object of the pool exists before they are set.
static POOL_START: AtomicUsize = AtomicUsize::new(0);
static POOL_LEN: AtomicUsize = AtomicUsize::new(0);

/// The cache of all threads that are no cores, which use it in turn. A cell of so many cores that its last has this one
/// has a last core that allocates as other threads do.
const OTHERS: usize = MAX_CORES - 1;

/// Of a thread that has no cache.
const NONE: usize = usize::MAX;

thread_local! {
    static CACHE: Cell<usize> = const { Cell::new(NONE) };
}

/// The heap's cache of the thread that runs. Asked on threads alone that have one.
struct ThisThread;

// SAFETY: `enter_core` gives each core of the process's one cell its own index, below `OTHERS`; that one is set under a
// lock, for as long as its holder is in the heap. No thread is interrupted by another in the allocator.
unsafe impl CoreSource for ThisThread {
    #[inline(always)]
    fn current_core(&self) -> usize {
        CACHE.get()
    }
}

/// Makes the pool. Called once, before the cell has cores.
///
/// # Errors
/// What Linux says where it has not so much address space for the process.
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
    // SAFETY: `skipped` is less than `ALIGN`, and the memory has so much more.
    let start = unsafe { start.add(skipped) }.cast::<u8>();
    POOL_START.store(start.addr(), Ordering::Relaxed);
    POOL_LEN.store(len, Ordering::Release);
    let start = NonNull::new(start).expect("Linux maps nothing at zero");
    // SAFETY: just mapped, for good, and nobody else knows of it.
    unsafe { HEAP.pages().add_range(start, len) }.map_err(io::Error::other)
}

/// Gives the calling thread, that core of the process's one cell, a cache of its own. The first core has the pool say in
/// the cell's report how short memory is.
pub(crate) fn enter_core(core: usize, report: &'static Report, ledger: Ledger<'static>) {
    if core < OTHERS && POOL_LEN.load(Ordering::Acquire) > 0 {
        CACHE.set(core);
        if core == 0 {
            HEAP.report_to(report, ledger);
        }
    }
}

/// Gives back what this core keeps, if memory is short. A few loads.
pub(crate) fn relieve() {
    if CellHeap::is_core() {
        HEAP.relieve();
    }
}

/// Says what is used.
pub(crate) fn publish(report: &MemoryReport) {
    HEAP.pages().statistics().publish(report);
}

/// Bytes of the pool.
pub(crate) fn total_bytes() -> usize {
    HEAP.pages().statistics().total_bytes
}

/// Bytes of the pool that nobody has.
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
        // What is smaller is never in pieces.
        let is_large = layout.size().max(layout.align()) > LARGEST_OF_PAGES;
        offset < POOL_LEN.load(Ordering::Relaxed) || is_large && is_mapped(object.addr())
    }

    /// Frees an object of the pool on a thread that is no core.
    ///
    /// # Safety
    /// As of [`GlobalAlloc::dealloc`].
    #[cold]
    unsafe fn dealloc_elsewhere(object: *mut u8, layout: Layout) {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        CACHE.set(OTHERS);
        // SAFETY: the caller's promise.
        unsafe { HEAP.dealloc(object, layout) };
        CACHE.set(NONE);
        drop(turn);
    }
}

// SAFETY: each object is passed to the allocator that it is of, which keeps the contract.
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
        // SAFETY: the caller's promise; `len` is a size as `layout` has one.
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
