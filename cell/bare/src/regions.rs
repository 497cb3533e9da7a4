//! The region area on bare hardware: fills the cell's own page tables with pages of its memory, in page faults too.
//!
//! A core's loop calls [`pass`] in each pass, and [`before_halt`] and [`after_halt`] around a halt: at these points it
//! flushes unmapped pages from its TLB.

use crate::core_caches::{page_from_stock, return_if_requested};
use crate::hot_plug::{self, Need};
use crate::page_tables::{self, BareRegionArea};
use crate::pool::{near, pages};
use crate::state::AUTHORITY;
use crate::{crash, migration, pool, programs};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use isola_abi::id::MAX_CORES;
use isola_abi::layout::{PageSize, REGIONS, REGIONS_SIZE};
use isola_ebbs::current_core;
use isola_machine::interrupts::{self, ExceptionFrame};
use isola_machine::region_area::{RegionArea, RegionAreaError, clear};
use isola_machine::user::leave_program_space;
use isola_memory::pages::{self, Frame};
use isola_memory::regions::{
    self, Account, Contents, Extent, FillError, FillOutcome, FrameChoice, MapContents, Retirement,
};

/// By core: whether it is handling a page fault.
static FAULTING: [AtomicBool; MAX_CORES] = [const { AtomicBool::new(false) }; MAX_CORES];

const FRAME: usize = PageSize::FourKib.bytes();

/// Initialises the region area, on the first core.
pub(crate) fn start(tables: RegionArea) {
    regions::install(page_tables::start(tables));
    interrupts::set_page_fault_handler(AUTHORITY, page_fault);
}

/// Flushes unmapped pages from this core's TLB, and returns its caches on request.
#[inline]
pub(crate) fn pass() {
    if page_tables::flush_if_retired() {
        return_if_requested();
        isola_memory::collect();
        programs::collect();
    }
}

/// Marks this core as halted. A halted core uses no program's page tables, so they can be freed.
pub(crate) fn before_halt() {
    leave_program_space();
    page_tables::leave_grace_periods();
}

/// Marks this core as running. To be called before it does anything else, after a halt or at its start.
pub(crate) fn after_halt() {
    page_tables::join_grace_periods();
    pass();
}

/// Handles a page fault at a non-present page of the region area.
fn page_fault(frame: &ExceptionFrame, address: u64) {
    if migration::cancel(address) {
        return;
    }
    let faulting = &FAULTING[current_core().0 as usize];
    if faulting.swap(true, Ordering::Relaxed) {
        crash::fault_in_pager(frame, address);
    }
    if let Err(error) = regions::fault(address as usize) {
        crash::fill_failed(frame, address, error);
    }
    faulting.store(false, Ordering::Relaxed);
}

// SAFETY: pages are filled with memory from the page allocator, which the region area maps at one address only until it
// is collected; retired memory is collected when every running core has flushed its TLB.
unsafe impl regions::AddressWindow for BareRegionArea {
    fn extent(&self) -> Extent {
        Extent { start: REGIONS as usize, len: REGIONS_SIZE as usize }
    }

    fn table_count(&self) -> usize {
        self.tables.table_count()
    }

    fn largest_page(&self) -> PageSize {
        self.tables.largest_page()
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
            FrameChoice::Any if size == PageSize::FourKib => page_from_stock(),
            FrameChoice::Any => pages().frame_near(near(), size.bytes() / FRAME, size.bytes() / FRAME),
            FrameChoice::Colored { color, colors } => colored(color, colors),
        };
        let memory = attempt().or_else(|| hot_plug::retry(Need::Run(size.bytes()), attempt));
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
        let mapped = unsafe { self.tables.map(address as u64, memory, size) };
        if mapped.is_err() {
            // SAFETY: allocated above with this length, and mapped nowhere.
            unsafe { pages().free(memory, size.bytes() / FRAME) };
        }
        match mapped {
            Ok(()) => Ok(FillOutcome::Filled),
            Err(RegionAreaError::Occupied(at)) => {
                migration::cancel(at);
                if self.page_at(address) == Some(size) {
                    Ok(FillOutcome::AlreadyPresent)
                } else {
                    Err(FillError::Occupied)
                }
            }
            Err(error) => Err(fill_error(error, address)),
        }
    }

    fn page_at(&self, address: usize) -> Option<PageSize> {
        self.tables.page_at(address as u64)
    }

    unsafe fn retire(&self, address: usize, len: usize) -> Retirement {
        // SAFETY: the caller's promise.
        unsafe { self.tables.retire(address as u64, len as u64, &mut |_, _, _| ()) };
        page_tables::retire_entries()
    }

    fn is_over(&self, retired: Retirement) -> bool {
        page_tables::is_over(retired)
    }

    unsafe fn collect(&self, address: usize, len: usize) {
        let free = &mut |memory: NonNull<u8>, size: PageSize| {
            // SAFETY: mapped memory comes from `fill`, with that length; it has no users any more.
            unsafe { pages().free(memory, size.bytes() / FRAME) };
        };
        // SAFETY: the caller's promise; the retirement is over, so all cores have flushed.
        unsafe { self.tables.collect(address as u64, len as u64, free) };
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
            if let Err(error) = unsafe { self.tables.map(to as u64, page, size) } {
                // SAFETY: the pages mapped here have not been used.
                unsafe { self.retire(address, done) };
                return Err(fill_error(error, to));
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
        unsafe { self.tables.retire(address as u64, len as u64, see) };
        page_tables::retire_entries()
    }

    unsafe fn move_pages(&self, from: usize, len: usize, to: usize) -> Retirement {
        let see = &mut |address: u64, memory: NonNull<u8>, size: PageSize| {
            let address = address - from as u64 + to as u64;
            // SAFETY: the page was just unmapped at its old address; the caller promises that its new address is free.
            let mapped = unsafe { self.tables.map(address, memory, size) };
            assert_eq!(mapped, Ok(()), "pages of an object that moves have a place");
        };
        // SAFETY: the caller's promise.
        unsafe { self.tables.retire(from as u64, len as u64, see) };
        page_tables::retire_entries()
    }

    unsafe fn free_tables(&self, address: usize, len: usize) {
        // SAFETY: the caller's promise; the retirement is over, so all cores have flushed. The memory was returned when
        // it was retired.
        unsafe { self.tables.collect(address as u64, len as u64, &mut |_, _| ()) };
    }

    fn account(&self) -> Option<Account> {
        pool::account()
    }

    fn charge(&self, account: Account, len: usize) {
        pool::charge(account, len);
    }

    fn discharge(&self, account: Account, len: usize) {
        pool::discharge(account, len);
    }
}

/// Converts the reason why a page could not be mapped.
fn fill_error(error: RegionAreaError, address: usize) -> FillError {
    match error {
        RegionAreaError::Occupied(_) => FillError::Occupied,
        RegionAreaError::OutOfTables => FillError::OutOfTables,
        RegionAreaError::NoSuchSize(size) => FillError::NoSuchSize(size),
        RegionAreaError::NoPage(_) | RegionAreaError::NotOwned(_) => FillError::NoPage(address),
    }
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
