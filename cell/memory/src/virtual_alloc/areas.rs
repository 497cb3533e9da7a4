//! The allocation of virtual addresses and page tables for virtually contiguous objects.
//!
//! ```text
//!   the last quarter of the region area
//!   ├── small: objects of up to 1 MiB, in units of 16 KiB     their page tables stay
//!   └── large: in units of 2 MiB                              one page table per unit, freed with it
//! ```
//!
//! Lock order: `AREAS`, then the region table, for page tables. No allocation, mapping or access to an object takes
//! place with `AREAS` held.

use super::address_bitmap::{AddressBitmap, BLOCK_WORDS, BitmapBlock, FindOutcome, UnitWord, Units};
use crate::pages::PAGE_SIZE;
use crate::regions::{AddressWindow, Extent, PageSize, Retirement, give_tables, take_tables, window};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use spin::Mutex;

/// The unit of the small area, in bytes.
const SMALL_UNIT: usize = 16 << 10;

/// The maximum length of a small object. Rounded up to units it is less than the 2 MiB of a page table, so no small
/// object occupies a whole table.
const SMALL_MAX: usize = 1 << 20;

/// The unit of the large area, in bytes: the memory that one page table maps.
const LARGE_UNIT: usize = PageSize::TwoMib.bytes();

/// The maximum units that are freed at once, and the bytes that are unmapped at once: less than a second-level table
/// maps (1 GiB), and in the small area less than a last-level table maps (2 MiB).
const UNITS_AT_ONCE: usize = 64;
pub(super) const BYTES_AT_ONCE: usize = UNITS_AT_ONCE * LARGE_UNIT;

const _: () = assert!(UNITS_AT_ONCE * SMALL_UNIT <= SMALL_MAX && SMALL_MAX < LARGE_UNIT);

static AREAS: Mutex<Option<Areas>> = Mutex::new(None);

/// The number of units that wait for a TLB flush.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// The kinds of area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AreaKind {
    Small,
    Large,
}

struct Areas {
    small: AddressBitmap,
    large: AddressBitmap,
}

impl Areas {
    fn new(window: Extent) -> Self {
        let Extent { start, len } = virtual_alloc_part(window);
        let small = Extent { start, len: len / 4 };
        let large = Extent { start: small.end(), len: len - small.len };
        Self { small: AddressBitmap::new(small, SMALL_UNIT), large: AddressBitmap::new(large, LARGE_UNIT) }
    }

    fn of(&mut self, kind: AreaKind) -> &mut AddressBitmap {
        match kind {
            AreaKind::Small => &mut self.small,
            AreaKind::Large => &mut self.large,
        }
    }

    fn at(&mut self, address: usize) -> &mut AddressBitmap {
        if address < self.small.area().end() { &mut self.small } else { &mut self.large }
    }
}

/// Returns the part of the region area for virtually contiguous objects; the rest is for regions.
pub(super) fn virtual_alloc_part(window: Extent) -> Extent {
    window.eighths(6, 2)
}

/// Frees the waiting addresses for which all cores have flushed their TLBs. If none are waiting, it costs one load.
pub(crate) fn collect() {
    if WAITING.load(Ordering::Relaxed) == 0 {
        return;
    }
    let Some(window) = window() else { return };
    loop {
        let over = AREAS.lock().as_mut().and_then(|areas| {
            let Areas { small, large } = areas;
            [small, large].into_iter().find_map(|bitmap| {
                let units = bitmap.next_over(UNITS_AT_ONCE, |retired| window.is_over(retired))?;
                Some((units, bitmap.extent(units)))
            })
        });
        let Some((units, extent)) = over else { return };
        // SAFETY: the addresses were retired when their units began to wait, and `is_over` holds. The units stay taken
        // until `free` below.
        unsafe { window.free_tables(extent.start, extent.len) };
        WAITING.fetch_sub(units.count, Ordering::Relaxed);
        if let Some(areas) = AREAS.lock().as_mut() {
            let bitmap = areas.at(extent.start);
            bitmap.free(units);
            give_tables(tables_with(bitmap, units));
        }
    }
}

/// Allocates addresses for `count` pages at a multiple of `align`; returns the first.
pub(super) fn take_addresses(window: &dyn AddressWindow, count: usize, align: usize) -> Option<usize> {
    let bytes = count.checked_mul(PAGE_SIZE)?;
    collect();
    let mut kind = if bytes <= SMALL_MAX && align <= SMALL_MAX { AreaKind::Small } else { AreaKind::Large };
    loop {
        let mut guard = AREAS.lock();
        let bitmap = guard.get_or_insert_with(|| Areas::new(window.extent())).of(kind);
        match bitmap.find(bytes, align) {
            FindOutcome::At(units) => return take_units(bitmap, units).then(|| bitmap.extent(units).start),
            FindOutcome::Nowhere if kind == AreaKind::Small => {
                kind = AreaKind::Large;
                continue;
            }
            FindOutcome::Nowhere => return None,
            FindOutcome::NoBlock => {}
        }
        drop(guard);
        let block = new_block()?;
        let unused = AREAS.lock().as_mut().and_then(|areas| areas.of(kind).add_block(block));
        // Dropped after the lock is released, as the heap must not be called with it held.
        drop(unused);
    }
}

/// Allocates a block of the bitmap, for further units.
fn new_block() -> Option<Box<BitmapBlock>> {
    let mut words: Vec<UnitWord> = Vec::new();
    words.try_reserve_exact(BLOCK_WORDS).ok()?;
    words.resize(BLOCK_WORDS, UnitWord::default());
    words.into_boxed_slice().try_into().ok()
}

/// Allocates the addresses behind an object of `had` pages so that it has room for `wanted`; false if they are taken.
pub(super) fn extend_addresses(start: usize, had: usize, wanted: usize) -> bool {
    let mut guard = AREAS.lock();
    let Some(areas) = guard.as_mut() else { return false };
    if start < areas.small.area().end() && wanted * PAGE_SIZE > SMALL_MAX {
        return false;
    }
    let bitmap = areas.at(start);
    let (old, new) = (bitmap.units(start, had * PAGE_SIZE), bitmap.units(start, wanted * PAGE_SIZE));
    let more = Units { first: old.first + old.count, count: new.count - old.count };
    more.count == 0 || (bitmap.are_free(more) && take_units(bitmap, more))
}

/// Marks free units as taken and reserves the page tables that they may need; false if there are too few tables.
fn take_units(bitmap: &mut AddressBitmap, units: Units) -> bool {
    let extent = bitmap.extent(units);
    let grown = |bytes: usize| extent.end().div_ceil(bytes).saturating_sub(bitmap.used_end().div_ceil(bytes));
    let with = tables_with(bitmap, units);
    let for_good = grown(PageSize::OneGib.bytes()) + if with == 0 { grown(LARGE_UNIT) } else { 0 };
    let has_tables = take_tables(with + for_good);
    if has_tables {
        bitmap.take(units);
    }
    has_tables
}

/// Returns the number of page tables that only these units use and that are freed with them. Those of small units stay.
fn tables_with(bitmap: &AddressBitmap, units: Units) -> usize {
    if bitmap.unit_bytes() == LARGE_UNIT { units.count } else { 0 }
}

/// Frees the units of an object of `had` pages that one of `kept` pages does not need, once all cores have flushed
/// their TLBs.
pub(super) fn free_units(start: usize, kept: usize, had: usize, retired: Retirement) {
    if let Some(areas) = AREAS.lock().as_mut() {
        let bitmap = areas.at(start);
        let (kept, had) = (bitmap.units(start, kept * PAGE_SIZE), bitmap.units(start, had * PAGE_SIZE));
        let units = Units { first: kept.first + kept.count, count: had.count - kept.count };
        if units.count > 0 {
            WAITING.fetch_add(units.count, Ordering::Relaxed);
            bitmap.give(units, retired);
        }
    }
}

/// Returns the end of an object's last unit.
pub(super) fn end_of(start: usize, count: usize) -> usize {
    AREAS.lock().as_mut().map_or(start, |areas| {
        let bitmap = areas.at(start);
        bitmap.extent(bitmap.units(start, count * PAGE_SIZE)).end()
    })
}
