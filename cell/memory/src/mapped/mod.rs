//! Large objects in pieces: memory that is not contiguous, at addresses that are.
//!
//! Where memory is so cut up that no run of pages is long enough for an object of the heap, the object is made of the
//! largest blocks there are, one after the other in the window of [`regions`](crate::regions): all of it there from the
//! beginning, never paged. An object of several MiB that does not fit any more where it is moves in the same way: its
//! pages come to stand in front of further ones, and its bytes stay where they are (decision 0019).
//!
//! ```text
//!   the last quarter of the window
//!   ├── small: objects of up to 1 MiB, in units of 16 KiB     their page tables stay
//!   └── large: in units of 2 MiB                              a page table each, free with them
//! ```
//!
//! No record says what is where. That an address is of such an object is told by the window it is in, how long the
//! object is by who frees it, and which pages it has by the page tables.
//!
//! **What waits.** Pages of an object that is gone are free at once: a core may remember that they were at its
//! addresses, but nobody uses these any more. The addresses and the page tables must wait until all cores have
//! forgotten: [`collect`].
//!
//! Lock order: [`AREAS`], then the book of regions, for page tables. Nothing is allocated, mapped or touched with it held.

mod places;

use self::places::{BLOCK_WORDS, Found, Places, Units, Word};
use crate::pages::{PAGE_SIZE, Pages};
use crate::regions::{Carry, Extent, PageSize, Retired, Window, give_tables, take_tables, window};
use alloc::vec::Vec;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicUsize, Ordering};
use isola_abi::id::NodeId;
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
const BYTES_AT_ONCE: usize = UNITS_AT_ONCE * LARGE_UNIT;

const _: () = assert!(UNITS_AT_ONCE * SMALL_UNIT <= SMALL_MAX && SMALL_MAX < LARGE_UNIT);

static AREAS: Mutex<Option<Areas>> = Mutex::new(None);

/// How many units wait.
static WAITING: AtomicUsize = AtomicUsize::new(0);

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

    fn at(&mut self, address: usize) -> &mut Places {
        if address < self.small.area().end() { &mut self.small } else { &mut self.large }
    }
}

/// Which part of the window is for objects; regions have the other.
fn mapped_part(window: Extent) -> Extent {
    window.eighths(6, 2)
}

/// Whether the object at `address` is in pieces.
pub fn is_mapped(address: usize) -> bool {
    window().is_some_and(|window| {
        let part = mapped_part(window.extent());
        address.wrapping_sub(part.start) < part.len
    })
}

/// Makes an object of `count` pages at a multiple of `align`; `None` where there is no memory, or no place.
pub(crate) fn allocate(pages: &Pages, node: NodeId, count: usize, align: usize) -> Option<NonNull<u8>> {
    let window = window()?;
    if !has_room(pages, count) {
        return None;
    }
    let start = take_place(window, count, align)?;
    if fill(window, pages, node, start, 0..count) {
        return NonNull::new(ptr::with_exposed_provenance_mut(start));
    }
    // SAFETY: nobody knows of the object.
    unsafe { give_place(window, pages, start, count) };
    None
}

/// Takes an object back.
///
/// # Safety
/// It is from here, of that allocator and of so many pages, and nobody uses it any more.
pub(crate) unsafe fn free(pages: &Pages, object: NonNull<u8>, count: usize) {
    let Some(window) = window() else { return };
    // SAFETY: the caller's promise.
    unsafe { give_place(window, pages, object.addr().get(), count) };
    collect();
}

/// Makes an object of `had` pages one of `wanted` (at least one) where it is; true when it is done. It always is when
/// `wanted` is less: then of a large page all that is behind what is wanted stays.
///
/// # Safety
/// As [`free`], where pages from `wanted` on count as given back and those before do not.
pub(crate) unsafe fn resize(
    pages: &Pages,
    node: NodeId,
    object: NonNull<u8>,
    had: usize,
    wanted: usize,
) -> bool {
    let Some(window) = window() else { return false };
    let start = object.addr().get();
    if wanted <= had {
        // SAFETY: the caller's promise.
        unsafe { shorten(window, pages, start, had, wanted) };
        return true;
    }
    let there = pages_there(window, start, had);
    if wanted <= there {
        return true;
    }
    if !has_room(pages, wanted - there) || !lengthen_place(start, had, wanted) {
        return false;
    }
    let filled = fill(window, pages, node, start, there..wanted);
    if !filled {
        // SAFETY: nobody knows that there was to be more.
        unsafe { shorten(window, pages, start, wanted, had) };
    }
    filled
}

/// Moves an object of `had` pages, of here or a run of the page allocator, to where it has `wanted`, more than before:
/// the same pages, and further ones behind them. `None` where that cannot be; then nothing has changed.
///
/// # Safety
/// As [`free`] or [`Pages::free`], where the object counts as given back, if it was moved.
pub(crate) unsafe fn relocate(
    pages: &Pages,
    node: NodeId,
    object: NonNull<u8>,
    had: usize,
    (wanted, align): (usize, usize),
) -> Option<NonNull<u8>> {
    let window = window()?;
    let from = object.addr().get();
    let there = if is_mapped(from) { pages_there(window, from, had) } else { had };
    let start = take_place(window, wanted.max(there), align)?;
    if there < wanted && !(has_room(pages, wanted - there) && fill(window, pages, node, start, there..wanted))
    {
        // SAFETY: nobody knows of the place.
        unsafe { give_place(window, pages, start, wanted) };
        return None;
    }
    if is_mapped(from) {
        let mut retired = Retired(0);
        for (offset, len) in parts(from, end_of(from, had) - from) {
            // SAFETY: the object is the caller's, and so is the place, where these pages are not yet.
            retired = unsafe { window.shift(from + offset, len, start + offset) };
        }
        give_units(from, 0, had, retired);
        collect();
    } else {
        // SAFETY: the caller's promise.
        unsafe { pages.take_apart(object, had) };
        // SAFETY: the run is the caller's, who gives it up for its new place.
        let mapped = unsafe { window.map(start, object, had * PAGE_SIZE, Carry::Contents) };
        if mapped.is_err() {
            // SAFETY: nobody knows of the place; the run is not there.
            unsafe { give_place(window, pages, start, wanted) };
            return None;
        }
    }
    NonNull::new(ptr::with_exposed_provenance_mut(start))
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

/// Whether so many pages are free, as far as that can be known.
fn has_room(pages: &Pages, count: usize) -> bool {
    let figures = pages.statistics();
    count <= figures.total_bytes.saturating_sub(figures.used_bytes) / PAGE_SIZE
}

/// Takes addresses for `count` pages. Returns the first.
fn take_place(window: &dyn Window, count: usize, align: usize) -> Option<usize> {
    let bytes = count.checked_mul(PAGE_SIZE)?;
    collect();
    loop {
        let mut guard = AREAS.lock();
        let areas = guard.get_or_insert_with(|| Areas::new(window.extent()));
        let is_small = bytes <= SMALL_MAX && align <= SMALL_MAX;
        let places = if is_small { &mut areas.small } else { &mut areas.large };
        match places.find(bytes, align) {
            Found::At(units) => return take_units(places, units).then(|| places.extent(units).start),
            Found::Nowhere => return None,
            Found::NoBlock => {}
        }
        drop(guard);
        let mut words: Vec<Word> = Vec::new();
        words.try_reserve_exact(BLOCK_WORDS).ok()?;
        words.resize(BLOCK_WORDS, Word::default());
        let mut guard = AREAS.lock();
        let unused = guard.as_mut().and_then(|areas| {
            let places = if is_small { &mut areas.small } else { &mut areas.large };
            places.add_block(words)
        });
        // The heap is not called with the lock held.
        drop(guard);
        drop(unused);
    }
}

/// Takes the addresses behind an object of `had` pages for one of `wanted`; false where it cannot have them.
fn lengthen_place(start: usize, had: usize, wanted: usize) -> bool {
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

/// Has memory come to an object's pages: the largest blocks there are. False where it has run out; then nothing is there.
fn fill(
    window: &dyn Window,
    pages: &Pages,
    node: NodeId,
    start: usize,
    wanted: core::ops::Range<usize>,
) -> bool {
    let mut done = wanted.start;
    while done < wanted.end {
        let Some((frame, count)) = pages.largest_near(node, wanted.end - done) else { break };
        let (address, len) = (start + done * PAGE_SIZE, count * PAGE_SIZE);
        // SAFETY: the memory was just handed out, and the addresses are the object's, which has no pages there.
        if unsafe { window.map(address, frame.memory, len, Carry::Nothing) }.is_err() {
            // SAFETY: just handed out, page by page.
            unsafe { pages.free_apart(frame.memory, count) };
            break;
        }
        done += count;
    }
    let is_full = done == wanted.end;
    if !is_full {
        let (address, len) = (start + wanted.start * PAGE_SIZE, (done - wanted.start) * PAGE_SIZE);
        // SAFETY: nobody knows of these pages yet.
        unsafe { unmap(window, pages, address, len) };
    }
    is_full
}

/// Gives an object's pages and addresses back from `wanted` pages on. What of a large page is behind stays.
///
/// # Safety
/// The object has `had` pages, and nobody uses those any more.
unsafe fn shorten(window: &dyn Window, pages: &Pages, start: usize, had: usize, wanted: usize) {
    let page = window.page_at(start + wanted * PAGE_SIZE).unwrap_or(PageSize::FourKib);
    let cut = (start + wanted * PAGE_SIZE).next_multiple_of(page.bytes());
    let end = end_of(start, had);
    // SAFETY: the caller's promise.
    let retired = unsafe { unmap(window, pages, cut, end.saturating_sub(cut)) };
    give_units(start, wanted, had, retired);
    collect();
}

/// Gives an object's pages and addresses back.
///
/// # Safety
/// The object has `count` pages, and nobody uses it any more.
unsafe fn give_place(window: &dyn Window, pages: &Pages, start: usize, count: usize) {
    // SAFETY: the caller's promise.
    let retired = unsafe { unmap(window, pages, start, end_of(start, count) - start) };
    give_units(start, 0, count, retired);
}

/// Takes pages out of use and makes their memory free.
///
/// # Safety
/// Nobody uses them any more.
unsafe fn unmap(window: &dyn Window, pages: &Pages, start: usize, len: usize) -> Retired {
    let mut run: Option<(NonNull<u8>, usize)> = None;
    // SAFETY: what is mapped was handed out page by page, and nobody uses it.
    let free = |(memory, len): (NonNull<u8>, usize)| unsafe { pages.free_apart(memory, len / PAGE_SIZE) };
    let mut retired = Retired(0);
    for (offset, len) in parts(start, len) {
        let take = &mut |memory: NonNull<u8>, len: usize| match &mut run {
            Some((first, so_far)) if first.addr().get() + *so_far == memory.addr().get() => *so_far += len,
            _ => run.replace((memory, len)).into_iter().for_each(free),
        };
        // SAFETY: the caller's promise.
        retired = unsafe { window.unmap(start + offset, len, take) };
    }
    run.into_iter().for_each(free);
    retired
}

/// What is taken out of use at once of `len` bytes from `start` on: offsets and lengths.
fn parts(start: usize, len: usize) -> impl Iterator<Item = (usize, usize)> {
    let part = move |offset: usize| (len - offset).min(BYTES_AT_ONCE - (start + offset) % BYTES_AT_ONCE);
    let first = (len > 0).then(|| (0, part(0)));
    core::iter::successors(first, move |(offset, before)| {
        let offset = offset + before;
        (offset < len).then(|| (offset, part(offset)))
    })
}

/// Has the units of an object of `had` pages wait that one of `kept` does not need.
fn give_units(start: usize, kept: usize, had: usize, retired: Retired) {
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
fn end_of(start: usize, count: usize) -> usize {
    AREAS.lock().as_mut().map_or(start, |areas| {
        let places = areas.at(start);
        places.extent(places.units(start, count * PAGE_SIZE)).end()
    })
}

/// How many pages an object of `count` has: more, where it was made smaller within a large page.
fn pages_there(window: &dyn Window, start: usize, count: usize) -> usize {
    let last = start + (count - 1) * PAGE_SIZE;
    let page = window.page_at(last).unwrap_or(PageSize::FourKib);
    (last + 1).next_multiple_of(page.bytes()).saturating_sub(start) / PAGE_SIZE
}
