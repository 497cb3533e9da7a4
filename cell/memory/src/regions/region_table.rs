//! The region table, and the handling of page faults.
//!
//! Regions have three areas of the region area (the rest is for [virtually contiguous objects](crate::virtual_alloc)),
//! so that only regions of the same kind share page tables:
//!
//! | area | regions | their page tables |
//! |---|---|---|
//! | small | of less than 2 MiB: stacks | stay: many regions share one |
//! | large | of 2 MiB and more, at multiples of 2 MiB | last level: freed with the region |
//! | huge | of pages of 1 GiB | none |
//!
//! Page tables are reserved when a region is created, so that no fault lacks one: those of the last level with the
//! region, the upper ones (and those of the small area) as the used part of the area grows.
//!
//! The lock is held for lookups and changes of the table, for tens of instructions, without any allocation, fill or
//! free meanwhile. The fault handler takes it; the head of [`regions`](super) explains why that is safe.

use super::address_window::{Extent, FillError, Retirement, window};
use super::addresses::AddressRanges;
use super::pager::Filler;
use super::region_record::{RegionError, RegionRecord};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};
use isola_abi::layout::PageSize;
use spin::Mutex;

static REGION_TABLE: Mutex<Option<RegionTable>> = Mutex::new(None);

/// The number of retired regions that are not collected yet.
static RETIRED: AtomicUsize = AtomicUsize::new(0);

struct RegionTable {
    /// The small, large and huge area.
    areas: [AddressRanges<Entry>; 3],
    /// Page tables that are not reserved.
    tables: usize,
}

struct Entry {
    state: State,
    /// Page tables that are freed with the region.
    tables: usize,
}

enum State {
    /// A region.
    Live(Arc<RegionRecord>),
    /// A dropped region that waits for the TLB flush of all cores.
    Retired(Retirement),
    /// A dropped region whose memory is being freed.
    Collected,
}

/// The reason why an accessed page cannot be filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultError {
    /// There is no region at the address.
    NoRegion,
    /// The pager of the named region failed.
    Pager(&'static str, FillError),
    /// The pager of the named region filled other pages.
    NotFilled(&'static str),
}

impl fmt::Display for FaultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRegion => f.write_str("no region is there"),
            Self::Pager(name, error) => write!(f, "region {name:?}: {error}"),
            Self::NotFilled(name) => {
                write!(
                    f,
                    "region {name:?}: its pager has not filled the page: it fills the one at the offset it is given"
                )
            }
        }
    }
}

impl core::error::Error for FaultError {}

/// Fills the page at `address`. The platform calls it on the faulting core when the page was accessed and not present;
/// the page is present when it returns `Ok`.
///
/// # Errors
/// A [`FaultError`].
#[inline]
pub fn fault(address: usize) -> Result<(), FaultError> {
    let record = REGION_TABLE
        .lock()
        .as_mut()
        .and_then(|region_table| region_table.live(address))
        .ok_or(FaultError::NoRegion)?;
    let offset = address - record.start();
    record.count_fault();
    let filler = Filler::new(&record, Some(offset));
    record.pager.fault(offset, &filler).map_err(|error| FaultError::Pager(record.name, error))?;
    if filler.is_satisfied() { Ok(()) } else { Err(FaultError::NotFilled(record.name)) }
}

/// Returns the name of the region at `address`. It does not wait if the region table is locked, so a crash handler can
/// call it.
pub fn region_at(address: usize) -> Option<&'static str> {
    REGION_TABLE.try_lock()?.as_mut()?.live(address).map(|record| record.name)
}

/// Returns the first region of movable pages that ends behind `address`.
pub fn movable_from(address: usize) -> Option<Extent> {
    let can_move = |entry: &Entry| match &entry.state {
        State::Live(record) => record.page == PageSize::FourKib && record.pager.can_move(),
        State::Retired(_) | State::Collected => false,
    };
    let region_table = REGION_TABLE.lock();
    let mut taken = region_table.as_ref()?.areas.iter().flat_map(|area| area.from(address));
    taken.find(|(_, entry)| can_move(entry)).map(|(range, _)| *range)
}

/// Frees the memory of dropped regions for which every core has flushed its TLB. It costs one load if there are none.
pub fn collect() {
    if RETIRED.load(Ordering::Relaxed) == 0 {
        return;
    }
    let Some(window) = window() else { return };
    loop {
        let over = |state: &State| matches!(state, State::Retired(retired) if window.is_over(*retired));
        let found = REGION_TABLE.lock().as_mut().and_then(|region_table| {
            let mut entries = region_table.areas.iter_mut().flat_map(AddressRanges::iter_mut);
            let (range, entry) = entries.find(|(_, entry)| over(&entry.state))?;
            entry.state = State::Collected;
            Some(range)
        });
        let Some(range) = found else { return };
        // SAFETY: `retire` retired the region's addresses, and that is over. The state `Collected` keeps other callers
        // away.
        unsafe { window.collect(range.start, range.len) };
        RETIRED.fetch_sub(1, Ordering::Relaxed);
        if let Some(region_table) = REGION_TABLE.lock().as_mut() {
            let entry = region_table.areas.iter_mut().find_map(|area| area.free(range.start));
            region_table.tables += entry.map_or(0, |entry| entry.tables);
        }
    }
}

/// Allocates addresses for a region and enters it in the table.
pub(super) fn enter(record: &Arc<RegionRecord>) -> Result<(), RegionError> {
    let window = window().ok_or(RegionError::NoRegionArea)?;
    loop {
        let mut guard = REGION_TABLE.lock();
        let region_table =
            guard.get_or_insert_with(|| RegionTable::new(window.extent(), window.table_count()));
        let area = region_table.area(record);
        if area.room() > 0 {
            return region_table.enter(record);
        }
        let wanted = 2 * area.len() + 16;
        drop(guard);
        let mut larger = Vec::new();
        larger.try_reserve(wanted).map_err(|_| RegionError::Fill(FillError::OutOfMemory(wanted)))?;
        // The smaller vector is dropped after the lock is released, as the heap must not be called with it held.
        let smaller =
            REGION_TABLE.lock().as_mut().map(|region_table| region_table.area(record).make_room(larger));
        drop(smaller);
    }
}

/// Reserves page tables for virtually contiguous objects; false if there are too few.
pub(crate) fn take_tables(count: usize) -> bool {
    let Some(window) = window() else { return false };
    let mut guard = REGION_TABLE.lock();
    let region_table = guard.get_or_insert_with(|| RegionTable::new(window.extent(), window.table_count()));
    let left = region_table.tables.checked_sub(count);
    region_table.tables = left.unwrap_or(region_table.tables);
    left.is_some()
}

/// Returns reserved page tables.
pub(crate) fn give_tables(count: usize) {
    if let Some(region_table) = REGION_TABLE.lock().as_mut() {
        region_table.tables += count;
    }
}

/// Retires a region that is being dropped.
pub(super) fn retire(record: &RegionRecord) {
    let Some(window) = window() else { return };
    let start = record.start();
    // SAFETY: the region's owner is dropping it; its addresses stay taken in the region table.
    let retired = unsafe { window.retire(start, record.span_bytes()) };
    record.charges.give_back(window);
    RETIRED.fetch_add(1, Ordering::Relaxed);
    let live = REGION_TABLE.lock().as_mut().and_then(|region_table| {
        let (_, entry) = region_table.area(record).at(start)?;
        Some(core::mem::replace(&mut entry.state, State::Retired(retired)))
    });
    drop(live);
    collect();
}

impl RegionTable {
    fn new(extent: Extent, tables: usize) -> Self {
        let part = |first: usize, count: usize| AddressRanges::new(extent.eighths(first, count));
        Self { areas: [part(0, 1), part(1, 3), part(4, 2)], tables }
    }

    /// Returns the area to which a region belongs.
    fn area(&mut self, record: &RegionRecord) -> &mut AddressRanges<Entry> {
        let [small, large, huge] = &mut self.areas;
        match (record.page, record.span_bytes()) {
            (PageSize::OneGib, _) => huge,
            (_, bytes) if bytes >= PageSize::TwoMib.bytes() => large,
            _ => small,
        }
    }

    fn enter(&mut self, record: &Arc<RegionRecord>) -> Result<(), RegionError> {
        let bytes = record.span_bytes();
        let is_small = bytes < PageSize::TwoMib.bytes();
        let align = if is_small { PageSize::FourKib } else { record.page.max(PageSize::TwoMib) };
        let area = self.area(record);
        let range = area.find_free(bytes, align.bytes()).ok_or(RegionError::OutOfAddresses(bytes))?;
        let used_end = area.used_end();
        let grown = |size: PageSize| {
            let whole = |end: usize| end.div_ceil(size.bytes());
            whole(range.end()).saturating_sub(whole(used_end))
        };
        let of_region = match record.page {
            PageSize::FourKib if !is_small => bytes / PageSize::TwoMib.bytes(),
            _ => 0,
        };
        let for_good = match record.page {
            PageSize::OneGib => 0,
            _ if is_small => grown(PageSize::OneGib) + grown(PageSize::TwoMib),
            _ => grown(PageSize::OneGib),
        };
        let left = self.tables.checked_sub(of_region + for_good);
        self.tables = left.ok_or(RegionError::Fill(FillError::OutOfTables))?;
        record.set_start(range.start);
        self.area(record).take(range, Entry { state: State::Live(record.clone()), tables: of_region });
        Ok(())
    }

    /// Returns the live region at an address.
    #[inline]
    fn live(&mut self, address: usize) -> Option<Arc<RegionRecord>> {
        let area = self.areas.iter_mut().find(|area| address < area.end())?;
        match area.at(address)?.1.state {
            State::Live(ref record) => Some(record.clone()),
            State::Retired(_) | State::Collected => None,
        }
    }
}
