//! The virtual memory that a cell maps itself: [`REGIONS`], whose page tables the cell has, and no others.
//!
//! Whoever built the cell has set the tables aside; none is ever added. They are no part of the direct map, so
//! that a stray write to the cell's ordinary memory does not reach them. Every page that is mapped here is
//! checked to be the cell's: of its pool, or of its image's own data.
//!
//! **Pages come and go in three steps**, because other cores' translation caches are emptied by these cores alone,
//! when they get to it ([`flush`]):
//!
//! ```text
//!   empty ──map──► present ──retire──► retired ──(every core flushes)──collect──► empty
//! ```
//!
//! A *retired* page faults when it is touched by a core that has flushed. Its entry remembers the frame, so that
//! no memory is needed to take it out of use. Entries change by compare-and-swap: several cores map pages at the
//! same time, also the same page, of which one wins.

mod frames;
mod tables;

pub(crate) use frames::OwnMemory;
pub(crate) use tables::Tables;

use crate::paging::{ACCESSED, ADDRESS, DIRTY, LARGE, NO_EXECUTE, PRESENT, WRITABLE, index, leaf_bytes};
use core::arch::asm;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use isola_abi::id::PhysAddr;
use isola_abi::layout::{PageSize, REGIONS, REGIONS_SIZE};
use tables::{Below, Table};

/// The level of the topmost table, whose entries are of 1 GiB.
const TOP: u32 = 2;

/// The window of a cell.
#[derive(Debug)]
pub struct Window {
    tables: Tables,
    memory: OwnMemory,
    largest: PageSize,
}

/// Why a page cannot be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowError {
    /// The address is not in the window, or no multiple of the page's size.
    NoPage(u64),
    /// The memory is not the cell's, or does not begin at a multiple of the page's size.
    NotOwned(u64),
    /// Something is mapped there, or was, and may still be in other cores' translation caches.
    Occupied(u64),
    /// No table is left.
    OutOfTables,
    /// The processor has no pages of this size.
    NoSuchSize(PageSize),
}

impl fmt::Display for WindowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPage(address) => write!(f, "no page of this size begins at {address:#x} in the window"),
            Self::NotOwned(address) => write!(f, "the memory at {address:#x} is no page of the cell's"),
            Self::Occupied(address) => write!(f, "something is mapped at {address:#x} already"),
            Self::OutOfTables => f.write_str("no page table is left: map larger pages, or fewer regions"),
            Self::NoSuchSize(size) => {
                write!(f, "the processor has no pages of {} bytes: use smaller ones", size.bytes())
            }
        }
    }
}

impl core::error::Error for WindowError {}

impl Window {
    /// The window of a cell that has these tables and this memory, and a processor with these pages.
    pub(crate) fn new(tables: Tables, memory: OwnMemory, largest: PageSize) -> Self {
        Self { tables, memory, largest }
    }

    /// The largest pages that can be mapped.
    pub fn largest_page(&self) -> PageSize {
        self.largest
    }

    /// How many tables there are, those in use included; the topmost is not counted.
    pub fn table_count(&self) -> usize {
        self.tables.count()
    }

    /// Maps the page of memory at `frame`, by which the cell knows it, at `address` too: readable and writable.
    ///
    /// # Errors
    /// A [`WindowError`].
    ///
    /// # Safety
    /// The memory is the caller's, who does not use it by its other name until it is collected; and that it
    /// appears at `address` breaks nobody's promise.
    pub unsafe fn map(&self, address: u64, frame: NonNull<u8>, size: PageSize) -> Result<(), WindowError> {
        let bytes = size.bytes() as u64;
        if !in_window(address) || !address.is_multiple_of(bytes) {
            return Err(WindowError::NoPage(address));
        }
        if size > self.largest {
            return Err(WindowError::NoSuchSize(size));
        }
        let phys = self.memory.phys(frame, bytes).ok_or(WindowError::NotOwned(frame.addr().get() as u64))?;
        let leaf = level(size);
        let mut table = self.tables.top().ok_or(WindowError::OutOfTables)?;
        for level in (leaf + 1..=TOP).rev() {
            let place = &table[index(address, level)];
            table = match self.tables.below_or_new(place) {
                Some(table) => table,
                None if place.load(Ordering::Relaxed) == 0 => return Err(WindowError::OutOfTables),
                None => return Err(WindowError::Occupied(address)),
            };
        }
        let large = if leaf > 0 { LARGE } else { 0 };
        let entry = phys.0 | PRESENT | WRITABLE | ACCESSED | DIRTY | NO_EXECUTE | large;
        match table[index(address, leaf)].compare_exchange(0, entry, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(_) => Err(WindowError::Occupied(address)),
        }
    }

    /// The size of the page that is present at `address`.
    pub fn page_at(&self, address: u64) -> Option<PageSize> {
        let mut table = in_window(address).then(|| self.tables.top())??;
        for (level, size) in [(2, PageSize::OneGib), (1, PageSize::TwoMib), (0, PageSize::FourKib)] {
            let entry = table[index(address, level)].load(Ordering::Acquire);
            match self.tables.below(entry) {
                Below::Table(next) if level > 0 => table = next,
                _ => return (entry & PRESENT != 0).then_some(size),
            }
        }
        None
    }

    /// Retires all pages from `address` on, within `len` bytes. Each page has to be in that range as a whole.
    ///
    /// # Safety
    /// Nobody uses the memory by these addresses any more, or maps pages there.
    pub unsafe fn retire(&self, address: u64, len: u64) {
        let Some(top) = self.tables.top() else { return };
        let retire = &mut |place: &AtomicU64, entry: u64, _: PageSize| {
            place.store(entry & !PRESENT, Ordering::Release);
        };
        self.walk(top, TOP, (address, address.saturating_add(len)), Walk::Keep, retire);
    }

    /// Takes the retired pages from `address` on, within `len` bytes, out, and passes each to `take`: the address
    /// of its page of memory, and its size. Tables that only this range needs are free again.
    ///
    /// # Safety
    /// All pages there were retired, and since then each core that uses the window has called [`flush`].
    pub unsafe fn collect(&self, address: u64, len: u64, take: &mut dyn FnMut(NonNull<u8>, PageSize)) {
        let Some(top) = self.tables.top() else { return };
        let collect = &mut |place: &AtomicU64, entry: u64, size: PageSize| {
            place.store(0, Ordering::Release);
            let phys = entry & ADDRESS & !(size.bytes() as u64 - 1);
            self.memory.frame(PhysAddr(phys)).into_iter().for_each(|frame| take(frame, size));
        };
        self.walk(top, TOP, (address, address.saturating_add(len)), Walk::FreeTables, collect);
    }

    /// Visits the entries of pages in a range of addresses.
    fn walk(
        &self,
        table: Table<'_>,
        level: u32,
        (start, end): (u64, u64),
        tables: Walk,
        visit: &mut dyn FnMut(&AtomicU64, u64, PageSize),
    ) {
        let step = leaf_bytes(level);
        let mut address = start;
        while address < end && in_window(address) {
            let next = (address / step + 1).saturating_mul(step);
            let (first, stop) = (address, next.min(end));
            address = next;
            let place = &table[index(first, level)];
            let entry = place.load(Ordering::Acquire);
            match self.tables.below(entry) {
                Below::Nothing => {}
                Below::Table(below) if level > 0 => {
                    self.walk(below, level - 1, (first, stop), tables, visit);
                    if tables == Walk::FreeTables && stop - first == step && tables::is_empty(below) {
                        place.store(0, Ordering::Release);
                        self.tables.give_back(entry);
                    }
                }
                _ => visit(place, entry, size_of_level(level)),
            }
        }
    }
}

/// What becomes of tables that a walk finds empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walk {
    Keep,
    FreeTables,
}

fn in_window(address: u64) -> bool {
    (REGIONS..REGIONS + REGIONS_SIZE).contains(&address)
}

fn level(size: PageSize) -> u32 {
    match size {
        PageSize::FourKib => 0,
        PageSize::TwoMib => 1,
        PageSize::OneGib => 2,
    }
}

fn size_of_level(level: u32) -> PageSize {
    match level {
        0 => PageSize::FourKib,
        1 => PageSize::TwoMib,
        _ => PageSize::OneGib,
    }
}

/// Makes a page of memory zero.
///
/// By moves of 16 bytes, and not by the image's `memset`, which moves eight: a page has to be cleared in many faults.
///
/// # Safety
/// It is at `page`, aligned at 16 bytes, and the caller's.
pub unsafe fn clear(page: NonNull<u8>, size: PageSize) {
    // SAFETY: the caller's promise; sizes are multiples of 128.
    unsafe {
        asm!(
            "xorps {zero}, {zero}",
            "2:",
            "movaps [{place}], {zero}",
            "movaps [{place} + 16], {zero}",
            "movaps [{place} + 32], {zero}",
            "movaps [{place} + 48], {zero}",
            "movaps [{place} + 64], {zero}",
            "movaps [{place} + 80], {zero}",
            "movaps [{place} + 96], {zero}",
            "movaps [{place} + 112], {zero}",
            "add {place}, 128",
            "cmp {place}, {end}",
            "jne 2b",
            place = inout(reg) page.as_ptr() => _,
            end = in(reg) page.as_ptr().wrapping_add(size.bytes()),
            zero = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// Has this core forget all translations that it remembers.
pub fn flush() {
    // SAFETY: the register keeps its value. No page is global, so that loading it empties the translation cache.
    unsafe {
        asm!("mov {root}, cr3", "mov cr3, {root}", root = out(reg) _, options(nostack, preserves_flags))
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Region, test_region};
    use alloc::vec::Vec;
    use isola_abi::id::PhysRange;
    use isola_abi::layout::PAGE_SIZE;

    const MIB: u64 = 1 << 20;

    /// A window with so many tables, and its pool, of 4 MiB from a multiple of 2 MiB on.
    fn window(tables: u64) -> (Window, PhysRange) {
        let mut tables = test_region(tables + 1);
        tables.scrub();
        let pool = test_region(4 * MIB / PAGE_SIZE).range();
        let base = NonNull::new(crate::memory::direct(tables.range().start)).unwrap();
        // SAFETY: the region is given up for it.
        let tables = unsafe { Tables::new(base, Region::into_range(tables)) };
        (Window::new(tables, OwnMemory::new(alloc::vec![pool], None), PageSize::TwoMib), pool)
    }

    fn frame(pool: PhysRange, offset: u64) -> NonNull<u8> {
        NonNull::new((pool.start.0 + offset) as *mut u8).unwrap()
    }

    fn map(window: &Window, offset: u64, frame: NonNull<u8>, size: PageSize) -> Result<(), WindowError> {
        // SAFETY: tables of a test, which no processor uses.
        unsafe { window.map(REGIONS + offset, frame, size) }
    }

    fn retire_and_collect(window: &Window, offset: u64, len: u64) -> Vec<(u64, PageSize)> {
        let mut taken = Vec::new();
        // SAFETY: tables of a test, which no processor uses.
        unsafe {
            window.retire(REGIONS + offset, len);
            assert_eq!(window.page_at(REGIONS + offset), None);
            window.collect(REGIONS + offset, len, &mut |frame, size| {
                taken.push((frame.addr().get() as u64, size))
            });
        }
        taken
    }

    #[test]
    fn pages_are_where_they_were_mapped_until_they_are_collected() {
        let (window, pool) = window(8);
        assert_eq!(map(&window, 0, frame(pool, 2 * MIB), PageSize::TwoMib), Ok(()));
        assert_eq!(map(&window, 2 * MIB, frame(pool, 0x5000), PageSize::FourKib), Ok(()));
        assert_eq!(map(&window, 2 * MIB + 0x3000, frame(pool, 0), PageSize::FourKib), Ok(()));
        let at = |offset| window.page_at(REGIONS + offset);
        assert_eq!([at(0), at(2 * MIB - 1)], [Some(PageSize::TwoMib); 2]);
        assert_eq!([at(2 * MIB), at(2 * MIB + 0x3fff)], [Some(PageSize::FourKib); 2]);
        assert_eq!([at(2 * MIB + 0x1000), at(4 * MIB), at(1 << 30)], [None; 3]);
        let expected = [(2 * MIB, PageSize::TwoMib), (0x5000, PageSize::FourKib), (0, PageSize::FourKib)];
        let taken = retire_and_collect(&window, 0, 4 * MIB);
        assert_eq!(taken, expected.map(|(offset, size)| (pool.start.0 + offset, size)));
        assert_eq!(retire_and_collect(&window, 0, 4 * MIB), []);
    }

    #[test]
    fn a_page_is_mapped_once_and_not_over_retired_ones() {
        let (window, pool) = window(8);
        let page = frame(pool, 0);
        assert_eq!(map(&window, 0, page, PageSize::FourKib), Ok(()));
        let occupied = |offset| Err(WindowError::Occupied(REGIONS + offset));
        assert_eq!(map(&window, 0, page, PageSize::FourKib), occupied(0));
        assert_eq!(map(&window, 0, page, PageSize::TwoMib), occupied(0));
        // SAFETY: tables of a test, which no processor uses.
        unsafe { window.retire(REGIONS, PAGE_SIZE) };
        assert_eq!(map(&window, 0, page, PageSize::FourKib), occupied(0));
        assert_eq!(map(&window, 2 * MIB, page, PageSize::TwoMib), Ok(()));
        assert_eq!(map(&window, 3 * MIB, page, PageSize::FourKib), occupied(3 * MIB));
    }

    #[test]
    fn nothing_but_the_cell_s_own_memory_is_mapped() {
        let (window, pool) = window(8);
        let refused = |address: u64, size| {
            let result = map(&window, 0, NonNull::new(address as *mut u8).unwrap(), size);
            assert_eq!(result, Err(WindowError::NotOwned(address)), "{address:#x}");
        };
        let (start, end) = (pool.start.0, pool.end().0);
        refused(start - PAGE_SIZE, PageSize::FourKib);
        refused(end, PageSize::FourKib);
        refused(end - PAGE_SIZE, PageSize::TwoMib);
        refused(start + 8, PageSize::FourKib);
        refused(start + MIB, PageSize::TwoMib);
        refused(!0xfff, PageSize::FourKib);
        let whole = frame(pool, 0);
        assert_eq!(map(&window, 5, whole, PageSize::FourKib), Err(WindowError::NoPage(REGIONS + 5)));
        assert_eq!(map(&window, MIB, whole, PageSize::TwoMib), Err(WindowError::NoPage(REGIONS + MIB)));
        let outside = map(&window, REGIONS_SIZE, whole, PageSize::FourKib);
        assert_eq!(outside, Err(WindowError::NoPage(REGIONS + REGIONS_SIZE)));
        let one_gib = map(&window, 0, whole, PageSize::OneGib);
        assert_eq!(one_gib, Err(WindowError::NoSuchSize(PageSize::OneGib)));
    }

    #[test]
    fn tables_come_back_when_their_whole_range_is_collected() {
        let (window, pool) = window(3);
        for round in 0..10 {
            let offset = round * 2 * MIB;
            assert_eq!(map(&window, offset, frame(pool, 0), PageSize::FourKib), Ok(()));
            assert_eq!(map(&window, offset + 2 * MIB, frame(pool, 0x1000), PageSize::FourKib), Ok(()));
            assert_eq!(
                map(&window, offset + 4 * MIB, frame(pool, 0x2000), PageSize::FourKib),
                Err(WindowError::OutOfTables)
            );
            assert_eq!(retire_and_collect(&window, offset, 4 * MIB).len(), 2);
        }
        // Half a table's range: the table stays, and serves again.
        assert_eq!(map(&window, 0, frame(pool, 0), PageSize::FourKib), Ok(()));
        assert_eq!(retire_and_collect(&window, 0, MIB).len(), 1);
        assert_eq!(map(&window, 0, frame(pool, 0), PageSize::TwoMib), Err(WindowError::Occupied(REGIONS)));
        assert_eq!(map(&window, MIB, frame(pool, 0), PageSize::FourKib), Ok(()));
    }
}
