//! The region area on bare hardware: the cell's own page tables, filled with pages of its heap.
//!
//! A core's loop calls [`pass`] in each pass, and [`before_halt`] and [`after_halt`] around a halt: at these points it
//! flushes unmapped pages from its TLB.

use crate::AUTHORITY;
use crate::grow::{self, Need};
use crate::heap::{self, near, pages};
use crate::platform;
use crate::{crash, migration};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use isola_abi::id::MAX_CORES;
use isola_abi::layout::{PageSize, REGIONS, REGIONS_SIZE};
use isola_ebbs::current_core;
use isola_machine::dma::set_window;
use isola_machine::interrupts::{self, ExceptionFrame};
use isola_machine::window::{Window, WindowError, clear, flush};
use isola_memory::pages::{self, Frame};
use isola_memory::regions::{
    self, Contents, Extent, FillError, FillOutcome, FrameChoice, GracePeriods, MapContents, Retirement,
    collect,
};
use isola_platform::{CoreIndex, Platform};
use spin::Once;

static WINDOW: Once<BareWindow> = Once::new();
static GRACE: GracePeriods<MAX_CORES> = GracePeriods::new();

/// By core: whether it is handling a page fault.
static FAULTING: [AtomicBool; MAX_CORES] = [const { AtomicBool::new(false) }; MAX_CORES];

/// By core: pages that it has allocated in advance, at consecutive addresses. Only the owning core accesses them; the
/// fields are atomic so that they can be in a `static`.
static STOCKS: [Stock; MAX_CORES] = [const {
    Stock {
        next: AtomicPtr::new(core::ptr::null_mut()),
        left: AtomicUsize::new(0),
        is_zero: AtomicBool::new(false),
    }
}; MAX_CORES];

/// The number of times that cores were asked to return their caches.
static SQUEEZES: AtomicU32 = AtomicU32::new(0);

/// By core: the last of these requests that it has handled.
static SEEN: [AtomicU32; MAX_CORES] = [const { AtomicU32::new(0) }; MAX_CORES];

struct Stock {
    next: AtomicPtr<u8>,
    left: AtomicUsize,
    is_zero: AtomicBool,
}

/// Pages allocated at once, so that most faults need not call the page allocator.
const STOCK: usize = 16;

const FRAME: usize = PageSize::FourKib.bytes();

struct BareWindow {
    window: Window,
}

/// Initialises the region area, on the first core.
pub(crate) fn start(window: Window) {
    let window = WINDOW.call_once(|| BareWindow { window });
    set_window(AUTHORITY, &window.window);
    regions::install(window);
    interrupts::set_page_fault_handler(AUTHORITY, page_fault);
}

/// Returns the page tables, once they are initialised.
pub(crate) fn tables() -> Option<&'static Window> {
    WINDOW.get().map(|window| &window.window)
}

/// Flushes unmapped pages from this core's TLB, and returns its caches on request.
#[inline]
pub(crate) fn pass() {
    if GRACE.pass(current_core().0 as usize, flush) {
        give_back_if_asked();
        collect();
    }
}

/// Makes every core return its caches: this one now, the others, halted or not, in their next passes.
pub(crate) fn squeeze() {
    SQUEEZES.fetch_add(1, Ordering::Relaxed);
    heap::give_back();
    give_back_if_asked();
    // Makes each pass notice the request.
    GRACE.retire();
    let cores = platform::BARE.descriptor().core_places;
    for core in (0..cores).map(CoreIndex).filter(|core| *core != current_core()) {
        platform::BARE.wake(core);
    }
}

fn give_back_if_asked() {
    heap::relieve();
    let (asked, seen) = (SQUEEZES.load(Ordering::Relaxed), &SEEN[current_core().0 as usize]);
    if seen.load(Ordering::Relaxed) != asked {
        seen.store(asked, Ordering::Relaxed);
        empty_stock();
    }
}

/// Flushes the calling core's TLB.
pub(crate) fn forget() {
    flush();
}

/// Marks this core as halted.
pub(crate) fn before_halt() {
    GRACE.halt(current_core().0 as usize);
}

/// Marks this core as running. To be called before it does anything else, after a halt or at its start.
pub(crate) fn after_halt() {
    GRACE.wake(current_core().0 as usize);
    pass();
}

/// Handles a page fault at a non-present page of the region area.
fn page_fault(frame: &ExceptionFrame, address: u64) {
    if migration::stay(address) {
        return;
    }
    let faulting = &FAULTING[current_core().0 as usize];
    if faulting.swap(true, Ordering::Relaxed) {
        crash::fault_in_fault(frame, address);
    }
    if let Err(error) = regions::fault(address as usize) {
        crash::not_filled(frame, address, error);
    }
    faulting.store(false, Ordering::Relaxed);
}

// SAFETY: pages are filled with memory from the page allocator, which the region area maps at one address only until it
// is collected; retired memory is collected when every running core has flushed its TLB.
unsafe impl regions::AddressWindow for BareWindow {
    fn extent(&self) -> Extent {
        Extent { start: REGIONS as usize, len: REGIONS_SIZE as usize }
    }

    fn table_count(&self) -> usize {
        self.window.table_count()
    }

    fn largest_page(&self) -> PageSize {
        self.window.largest_page()
    }

    unsafe fn fill(
        &self,
        address: usize,
        size: PageSize,
        frame: FrameChoice,
        contents: Contents<'_>,
    ) -> Result<FillOutcome, FillError> {
        if matches!(frame, FrameChoice::Colored { .. }) && size != PageSize::FourKib {
            return Err(FillError::NoSuchSize(size));
        }
        let attempt = || match frame {
            FrameChoice::Any if size == PageSize::FourKib => from_stock(),
            FrameChoice::Any => pages().frame_near(near(), size.bytes() / FRAME, size.bytes() / FRAME),
            FrameChoice::Colored { color, colors } => colored(color, colors),
        };
        let memory = attempt().or_else(|| grow::retry(Need::Run(size.bytes()), attempt));
        let Frame { memory, contents: before } = memory.ok_or(FillError::OutOfMemory(size.bytes()))?;
        if before == pages::KnownContents::Unknown {
            // SAFETY: the memory was just allocated, has this length, and consists of whole pages.
            unsafe { clear(memory, size.bytes()) };
        }
        if let Contents::Written(write) = contents {
            // SAFETY: the memory was just allocated and written.
            write(unsafe { NonNull::slice_from_raw_parts(memory, size.bytes()).as_mut() });
        }
        // SAFETY: the memory has no other owner; the caller promises that the address is free to be filled.
        let mapped = unsafe { self.window.map(address as u64, memory, size) };
        if mapped.is_err() {
            // SAFETY: allocated above with this length, and mapped nowhere.
            unsafe { pages().free(memory, size.bytes() / FRAME) };
        }
        match mapped {
            Ok(()) => Ok(FillOutcome::Filled),
            Err(WindowError::Occupied(at)) => {
                migration::stay(at);
                if self.page_at(address) == Some(size) {
                    Ok(FillOutcome::AlreadyPresent)
                } else {
                    Err(FillError::Occupied)
                }
            }
            Err(error) => Err(refused(error, address)),
        }
    }

    fn page_at(&self, address: usize) -> Option<PageSize> {
        self.window.page_at(address as u64)
    }

    unsafe fn retire(&self, address: usize, len: usize) -> Retirement {
        // SAFETY: the caller's promise.
        unsafe { self.window.retire(address as u64, len as u64, &mut |_, _, _| ()) };
        retired()
    }

    fn is_over(&self, retired: Retirement) -> bool {
        GRACE.is_over(retired)
    }

    unsafe fn collect(&self, address: usize, len: usize) {
        let free = &mut |memory: NonNull<u8>, size: PageSize| {
            // SAFETY: mapped memory comes from `fill`, with that length; it has no users any more.
            unsafe { pages().free(memory, size.bytes() / FRAME) };
        };
        // SAFETY: the caller's promise; the retirement is over, so all cores have flushed.
        unsafe { self.window.collect(address as u64, len as u64, free) };
    }

    unsafe fn map(
        &self,
        address: usize,
        memory: NonNull<u8>,
        len: usize,
        _: MapContents,
    ) -> Result<(), FillError> {
        let two_mib = PageSize::TwoMib;
        let mut done = 0;
        while done < len {
            let (to, page) = (address + done, memory.map_addr(|start| start.saturating_add(done)));
            let starts = (to | page.addr().get()).is_multiple_of(two_mib.bytes());
            let size = if starts && len - done >= two_mib.bytes() { two_mib } else { PageSize::FourKib };
            // SAFETY: the memory and the addresses are the caller's.
            if let Err(error) = unsafe { self.window.map(to as u64, page, size) } {
                // SAFETY: the pages mapped here have not been used.
                unsafe { self.retire(address, done) };
                return Err(refused(error, to));
            }
            done += size.bytes();
        }
        Ok(())
    }

    unsafe fn unmap(
        &self,
        address: usize,
        len: usize,
        take: &mut dyn FnMut(NonNull<u8>, usize),
    ) -> Retirement {
        let see = &mut |_, memory, size: PageSize| take(memory, size.bytes());
        // SAFETY: the caller's promise.
        unsafe { self.window.retire(address as u64, len as u64, see) };
        retired()
    }

    unsafe fn move_pages(&self, from: usize, len: usize, to: usize) -> Retirement {
        let see = &mut |address: u64, memory: NonNull<u8>, size: PageSize| {
            let address = address - from as u64 + to as u64;
            // SAFETY: the page was just unmapped at its old address; the caller promises that its new address is free.
            let mapped = unsafe { self.window.map(address, memory, size) };
            assert_eq!(mapped, Ok(()), "pages of an object that moves have a place");
        };
        // SAFETY: the caller's promise.
        unsafe { self.window.retire(from as u64, len as u64, see) };
        retired()
    }

    unsafe fn free_tables(&self, address: usize, len: usize) {
        // SAFETY: the caller's promise; the retirement is over, so all cores have flushed. The memory was returned when
        // it was retired.
        unsafe { self.window.collect(address as u64, len as u64, &mut |_, _| ()) };
    }
}

/// Records that entries were made non-present; flushes this core's TLB at once.
fn retired() -> Retirement {
    let retired = GRACE.retire();
    GRACE.pass(current_core().0 as usize, flush);
    retired
}

/// Records that something was removed which cores may still be about to use.
pub(crate) fn retire() -> Retirement {
    GRACE.retire()
}

/// Returns whether every core has passed its loop since then.
pub(crate) fn is_over(retired: Retirement) -> bool {
    GRACE.is_over(retired)
}

/// Frees this core's unused stock of pages.
fn empty_stock() {
    let stock = &STOCKS[current_core().0 as usize];
    while stock.left.load(Ordering::Relaxed) > 0
        && let Some(frame) = from_stock()
    {
        // SAFETY: allocated page by page, and unused.
        unsafe { pages().free(frame.memory, 1) };
    }
}

/// Converts the reason why a page could not be mapped.
fn refused(error: WindowError, address: usize) -> FillError {
    match error {
        WindowError::Occupied(_) => FillError::Occupied,
        WindowError::OutOfTables => FillError::OutOfTables,
        WindowError::NoSuchSize(size) => FillError::NoSuchSize(size),
        WindowError::NoPage(_) | WindowError::NotOwned(_) => FillError::NoPage(address),
    }
}

/// Returns a page of 4 KiB, from this core's stock.
fn from_stock() -> Option<Frame> {
    let stock = &STOCKS[current_core().0 as usize];
    let left = stock.left.load(Ordering::Relaxed);
    if left == 0 {
        let Some(first) = pages().frames_near(near(), STOCK) else { return pages().frame_near(near(), 1, 1) };
        stock.next.store(first.memory.as_ptr().wrapping_add(FRAME), Ordering::Relaxed);
        stock.left.store(STOCK - 1, Ordering::Relaxed);
        stock.is_zero.store(first.contents == pages::KnownContents::Zero, Ordering::Relaxed);
        return Some(first);
    }
    let next = stock.next.load(Ordering::Relaxed);
    stock.next.store(next.wrapping_add(FRAME), Ordering::Relaxed);
    stock.left.store(left - 1, Ordering::Relaxed);
    let is_zero = stock.is_zero.load(Ordering::Relaxed);
    let contents = if is_zero { pages::KnownContents::Zero } else { pages::KnownContents::Unknown };
    Some(Frame { memory: NonNull::new(next)?, contents })
}

/// Returns a page of that colour.
fn colored(color: u32, colors: u32) -> Option<Frame> {
    // A list of pages of the image, whose addresses do not determine their colour; each holds the address of the next.
    let mut others: Option<NonNull<Option<NonNull<u8>>>> = None;
    let found = loop {
        let Some(page) = pages().frame_of_color(color, colors) else { break None };
        if (page.memory.addr().get() as u64) < REGIONS {
            break Some(page);
        }
        let link = page.memory.cast::<Option<NonNull<u8>>>();
        // SAFETY: just allocated, and without other users.
        unsafe { link.write(others.map(NonNull::cast)) };
        others = Some(link);
    };
    while let Some(link) = others {
        // SAFETY: written above, and still without other users.
        others = unsafe { link.read() }.map(NonNull::cast);
        // SAFETY: allocated above.
        unsafe { pages().free(link.cast(), 1) };
    }
    found
}
