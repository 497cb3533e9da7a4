//! Pages that each core has allocated in advance, and requests that all cores return their caches.

use crate::cores;
use crate::page_tables;
use crate::pool::{self, near, pages};
use crate::state::descriptor;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use isola_abi::id::MAX_CORES;
use isola_abi::layout::PageSize;
use isola_ebbs::current_core;
use isola_memory::pages::{Frame, KnownContents};
use isola_platform::CoreIndex;

/// By core: pages that it has allocated in advance, at consecutive addresses. Only the owning core accesses them; the
/// fields are atomic so that they can be in a `static`.
static STOCKS: [PageStock; MAX_CORES] = [const {
    PageStock {
        next: AtomicPtr::new(core::ptr::null_mut()),
        left: AtomicUsize::new(0),
        is_zero: AtomicBool::new(false),
    }
}; MAX_CORES];

/// The number of times that cores were asked to return their caches.
static RETURN_REQUESTS: AtomicU32 = AtomicU32::new(0);

/// By core: the last of these requests that it has handled.
static HANDLED: [AtomicU32; MAX_CORES] = [const { AtomicU32::new(0) }; MAX_CORES];

/// A core's pages.
struct PageStock {
    next: AtomicPtr<u8>,
    left: AtomicUsize,
    is_zero: AtomicBool,
}

/// Pages allocated at once, so that most faults need not call the page allocator.
const STOCK_PAGES: usize = 16;

/// Length of a page, in bytes.
const FRAME: usize = PageSize::FourKib.bytes();

/// Returns a page of 4 KiB, from this core's stock.
pub(crate) fn page_from_stock() -> Option<Frame> {
    let stock = &STOCKS[current_core().0 as usize];
    let left = stock.left.load(Ordering::Relaxed);
    if left == 0 {
        let Some(first) = pages().frames_near(near(), STOCK_PAGES) else {
            return pages().frame_near(near(), 1, 1);
        };
        stock.next.store(first.memory.as_ptr().wrapping_add(FRAME), Ordering::Relaxed);
        stock.left.store(STOCK_PAGES - 1, Ordering::Relaxed);
        stock.is_zero.store(first.contents == KnownContents::Zero, Ordering::Relaxed);
        return Some(first);
    }
    let next = stock.next.load(Ordering::Relaxed);
    stock.next.store(next.wrapping_add(FRAME), Ordering::Relaxed);
    stock.left.store(left - 1, Ordering::Relaxed);
    let is_zero = stock.is_zero.load(Ordering::Relaxed);
    let contents = if is_zero { KnownContents::Zero } else { KnownContents::Unknown };
    Some(Frame { memory: NonNull::new(next)?, contents })
}

/// Frees this core's unused stock of pages.
fn empty_stock() {
    let stock = &STOCKS[current_core().0 as usize];
    while stock.left.load(Ordering::Relaxed) > 0
        && let Some(frame) = page_from_stock()
    {
        // SAFETY: allocated page by page, and unused.
        unsafe { pages().free(frame.memory, 1) };
    }
}

/// Makes every core return its caches: this one now, the others, halted or not, in their next passes.
pub(crate) fn return_all_caches() {
    RETURN_REQUESTS.fetch_add(1, Ordering::Relaxed);
    pool::release_unused();
    return_if_requested();
    // Makes each pass notice the request.
    page_tables::retire();
    let cores = descriptor().core_slot_count;
    for core in (0..cores).map(CoreIndex).filter(|core| *core != current_core()) {
        cores::wake(core);
    }
}

/// Returns this core's caches, if a request for that is new.
pub(crate) fn return_if_requested() {
    pool::relieve();
    let (requested, handled) = (RETURN_REQUESTS.load(Ordering::Relaxed), &HANDLED[current_core().0 as usize]);
    if handled.load(Ordering::Relaxed) != requested {
        handled.store(requested, Ordering::Relaxed);
        empty_stock();
    }
}
