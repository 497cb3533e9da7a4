//! Who has which addresses: two areas, and the page tables that are counted for them.
//!
//! ```text
//!   the last quarter of the window
//!   ├── small: objects of up to 1 MiB, in units of 16 KiB     their page tables stay
//!   └── large: in units of 2 MiB                              a page table each, free with them
//! ```
//!
//! Lock order: `AREAS`, then the region table, for page tables. Nothing is allocated, mapped or touched with it held.

use super::places::{BLOCK_WORDS, Block, Found, Places, Units, Word};
use crate::pages::PAGE_SIZE;
use crate::regions::{Extent, PageSize, Retired, Window, give_tables, take_tables, window};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use spin::Mutex;

/// Units of small objects, in bytes.
const SMALL_UNIT: usize = 16 << 10;

/// Longest small object: no range of small ones, with what is behind it in its unit, is all that a page table is of.
const SMALL_MAX: usize = 1 << 20;

/// Units of large objects, in bytes: a page table each.
const LARGE_UNIT: usize = PageSize::TwoMib.bytes();

/// So many units are made free at once, and so many bytes are taken out of use: less than a table of the second level
/// is of. Of small units, less than a table of the last one is of.
const UNITS_AT_ONCE: usize = 64;
pub(super) const BYTES_AT_ONCE: usize = UNITS_AT_ONCE * LARGE_UNIT;

const _: () = assert!(UNITS_AT_ONCE * SMALL_UNIT <= SMALL_MAX && SMALL_MAX < LARGE_UNIT);

static AREAS: Mutex<Option<Areas>> = Mutex::new(None);

/// How many units wait.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// What an area is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Small,
    Large,
}

struct Areas {
    small: Places,
    large: Places,
}

impl Areas {
    fn new(window: Extent) -> Self {
        let Extent { start, len } = mapped_part(window);
        let small = Extent { start, len: len / 4 };
        let large = Extent { start: small.end(), len: len - small.len };
        Self { small: Places::new(small, SMALL_UNIT), large: Places::new(large, LARGE_UNIT) }
    }

    fn of(&mut self, kind: Kind) -> &mut Places {
        match kind {
            Kind::Small => &mut self.small,
            Kind::Large => &mut self.large,
        }
    }

    fn at(&mut self, address: usize) -> &mut Places {
        if address < self.small.area().end() { &mut self.small } else { &mut self.large }
    }
}

/// Which part of the window is for objects; regions have the other.
pub(super) fn mapped_part(window: Extent) -> Extent {
    window.eighths(6, 2)
}

/// Makes addresses that wait free, as far as every core has forgotten them. A load where there are none.
pub(crate) fn collect() {
    if WAITING.load(Ordering::Relaxed) == 0 {
        return;
    }
    let Some(window) = window() else { return };
    loop {
        let over = AREAS.lock().as_mut().and_then(|areas| {
            let Areas { small, large } = areas;
            [small, large].into_iter().find_map(|places| {
                let units = places.next_over(UNITS_AT_ONCE, |retired| window.is_over(retired))?;
                Some((units, places.extent(units)))
            })
        });
        let Some((units, extent)) = over else { return };
        // SAFETY: they were retired when they were given back, and that is over; they are taken until they are freed below.
        unsafe { window.forget(extent.start, extent.len) };
        WAITING.fetch_sub(units.count, Ordering::Relaxed);
        if let Some(areas) = AREAS.lock().as_mut() {
            let places = areas.at(extent.start);
            places.free(units);
            give_tables(tables_with(places, units));
        }
    }
}

/// Takes addresses for `count` pages. Returns the first.
pub(super) fn take_place(window: &dyn Window, count: usize, align: usize) -> Option<usize> {
    let bytes = count.checked_mul(PAGE_SIZE)?;
    collect();
    let mut kind = if bytes <= SMALL_MAX && align <= SMALL_MAX { Kind::Small } else { Kind::Large };
    loop {
        let mut guard = AREAS.lock();
        let places = guard.get_or_insert_with(|| Areas::new(window.extent())).of(kind);
        match places.find(bytes, align) {
            Found::At(units) => return take_units(places, units).then(|| places.extent(units).start),
            Found::Nowhere if kind == Kind::Small => {
                kind = Kind::Large;
                continue;
            }
            Found::Nowhere => return None,
            Found::NoBlock => {}
        }
        drop(guard);
        let block = new_block()?;
        let unused = AREAS.lock().as_mut().and_then(|areas| areas.of(kind).add_block(block));
        // The heap is not called with the lock held.
        drop(unused);
    }
}

/// Bits for further units.
fn new_block() -> Option<Box<Block>> {
    let mut words: Vec<Word> = Vec::new();
    words.try_reserve_exact(BLOCK_WORDS).ok()?;
    words.resize(BLOCK_WORDS, Word::default());
    words.into_boxed_slice().try_into().ok()
}

/// Takes the addresses behind an object of `had` pages for one of `wanted`; false where it cannot have them.
pub(super) fn lengthen_place(start: usize, had: usize, wanted: usize) -> bool {
    let mut guard = AREAS.lock();
    let Some(areas) = guard.as_mut() else { return false };
    if start < areas.small.area().end() && wanted * PAGE_SIZE > SMALL_MAX {
        return false;
    }
    let places = areas.at(start);
    let (old, new) = (places.units(start, had * PAGE_SIZE), places.units(start, wanted * PAGE_SIZE));
    let more = Units { first: old.first + old.count, count: new.count - old.count };
    more.count == 0 || (places.are_free(more) && take_units(places, more))
}

/// Takes units, which are free, and counts the page tables that they can need; false where these are not to be had.
fn take_units(places: &mut Places, units: Units) -> bool {
    let extent = places.extent(units);
    let grown = |bytes: usize| extent.end().div_ceil(bytes).saturating_sub(places.used_end().div_ceil(bytes));
    let with = tables_with(places, units);
    let for_good = grown(PageSize::OneGib.bytes()) + if with == 0 { grown(LARGE_UNIT) } else { 0 };
    let has_tables = take_tables(with + for_good);
    if has_tables {
        places.take(units);
    }
    has_tables
}

/// How many page tables are of these units alone: free with them. Those of small units stay.
fn tables_with(places: &Places, units: Units) -> usize {
    if places.unit_bytes() == LARGE_UNIT { units.count } else { 0 }
}

/// Has the units of an object of `had` pages wait that one of `kept` does not need.
pub(super) fn give_units(start: usize, kept: usize, had: usize, retired: Retired) {
    if let Some(areas) = AREAS.lock().as_mut() {
        let places = areas.at(start);
        let (kept, had) = (places.units(start, kept * PAGE_SIZE), places.units(start, had * PAGE_SIZE));
        let units = Units { first: kept.first + kept.count, count: had.count - kept.count };
        if units.count > 0 {
            WAITING.fetch_add(units.count, Ordering::Relaxed);
            places.give(units, retired);
        }
    }
}

/// The end of the last unit of an object.
pub(super) fn end_of(start: usize, count: usize) -> usize {
    AREAS.lock().as_mut().map_or(start, |areas| {
        let places = areas.at(start);
        places.extent(places.units(start, count * PAGE_SIZE)).end()
    })
}
