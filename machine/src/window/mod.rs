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
//! no memory is needed to take it out of use. A table whose whole range is retired is so too: processors remember
//! the entries that lead to tables as well, and may read what is present at any time, by mere speculation. The
//! table will serve other addresses, and by then no core may remember it. Entries change by compare-and-swap:
//! several cores map pages at the same time, also the same page, of which one wins.
//!
//! A page that is in use can move to other memory (`migration`).

mod frames;
mod migration;
mod tables;
#[cfg(test)]
mod tests;

pub(crate) use frames::OwnMemory;
pub(crate) use tables::Tables;

use crate::paging::{ACCESSED, ADDRESS, DIRTY, LARGE, NO_EXECUTE, PRESENT, WRITABLE, index, leaf_bytes};
use core::arch::asm;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use isola_abi::id::{PhysAddr, PhysRange};
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
        let (place, size) = self.place_of(address)?;
        (place.load(Ordering::Acquire) & PRESENT != 0).then_some(size)
    }

    /// Where the memory is that is present at `address`, and how many bytes from there on are, for devices: it stays there.
    pub fn memory_at(&self, address: u64) -> Option<PhysRange> {
        let (place, size) = self.place_of(address)?;
        let entry =
            if size == PageSize::FourKib { migration::pin(place) } else { place.load(Ordering::Acquire) };
        if entry & PRESENT == 0 {
            return None;
        }
        let offset = address % size.bytes() as u64;
        let start = PhysAddr(frame_of(entry, size).0 + offset);
        Some(PhysRange { start, len_bytes: size.bytes() as u64 - offset })
    }

    /// Where the entry of the page at `address` is, which may be present or not.
    fn place_of(&self, address: u64) -> Option<(&AtomicU64, PageSize)> {
        let mut table = in_window(address).then(|| self.tables.top())??;
        for (level, size) in [(2, PageSize::OneGib), (1, PageSize::TwoMib), (0, PageSize::FourKib)] {
            let place = &table[index(address, level)];
            match self.tables.below(place.load(Ordering::Acquire)) {
                Below::Table(next) if level > 0 => table = next,
                _ => return Some((place, size)),
            }
        }
        None
    }

    /// Retires all pages from `address` on, within `len` bytes, and passes each that was present to `see`: its address,
    /// that of its page of memory, and its size. Each page has to be in that range as a whole.
    ///
    /// # Safety
    /// Nobody uses the memory by these addresses any more, or maps pages there.
    pub unsafe fn retire(&self, address: u64, len: u64, see: &mut dyn FnMut(u64, NonNull<u8>, PageSize)) {
        let Some(top) = self.tables.top() else { return };
        let retire = &mut |place: &AtomicU64, _: u64, size: PageSize, address: u64| {
            // By one instruction: another core may be moving the page.
            let entry = place.fetch_and(!(PRESENT | migration::MIGRATING), Ordering::AcqRel);
            if entry & PRESENT != 0 {
                self.memory
                    .frame(frame_of(entry, size))
                    .into_iter()
                    .for_each(|page| see(address, page, size));
            }
        };
        self.walk(top, TOP, (address, address.saturating_add(len)), Walk::RetireTables, retire);
    }

    /// Takes the retired pages from `address` on, within `len` bytes, out, and passes each to `take`: the address
    /// of its page of memory, and its size. Tables that only this range needs are free again.
    ///
    /// # Safety
    /// All pages there were retired, and since then each core that uses the window has called [`flush`].
    pub unsafe fn collect(&self, address: u64, len: u64, take: &mut dyn FnMut(NonNull<u8>, PageSize)) {
        let Some(top) = self.tables.top() else { return };
        let collect = &mut |place: &AtomicU64, entry: u64, size: PageSize, _: u64| {
            place.store(0, Ordering::Release);
            self.memory.frame(frame_of(entry, size)).into_iter().for_each(|frame| take(frame, size));
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
        visit: &mut dyn FnMut(&AtomicU64, u64, PageSize, u64),
    ) {
        let step = leaf_bytes(level);
        let mut address = start;
        while address < end && in_window(address) {
            let next = (address / step + 1).saturating_mul(step);
            let (first, stop) = (address, next.min(end));
            address = next;
            let place = &table[index(first, level)];
            let entry = place.load(Ordering::Acquire);
            let is_whole = stop - first == step;
            match self.tables.below(if level > 0 { tables::restored(entry) } else { entry }) {
                Below::Nothing => {}
                Below::Table(below) if level > 0 => {
                    self.walk(below, level - 1, (first, stop), tables, visit);
                    match tables {
                        Walk::RetireTables if is_whole => place.store(entry & !PRESENT, Ordering::Release),
                        Walk::FreeTables if is_whole && tables::is_empty(below) => {
                            place.store(0, Ordering::Release);
                            self.tables.give_back(entry);
                        }
                        _ => {}
                    }
                }
                _ => visit(place, entry, size_of_level(level), first - first % step),
            }
        }
    }
}

/// What becomes of tables whose whole range is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walk {
    /// They are retired as pages are.
    RetireTables,
    /// They are free again, if they are empty.
    FreeTables,
}

/// The page of memory that an entry names.
fn frame_of(entry: u64, size: PageSize) -> PhysAddr {
    PhysAddr(entry & ADDRESS & !(size.bytes() as u64 - 1))
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

/// Makes `len` bytes of memory zero.
///
/// By moves of 16 bytes, and not by the image's `memset`, which moves eight: a page has to be cleared in many faults.
///
/// # Safety
/// They are whole pages, at least one, from `page` on, and the caller's.
pub unsafe fn clear(page: NonNull<u8>, len: usize) {
    // SAFETY: the caller's promise; the length of a page is a multiple of 128.
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
            end = in(reg) page.as_ptr().wrapping_add(len),
            zero = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// Has this core forget all translations that it remembers. Safe at any time: the processor reads them again from the same
/// page tables.
pub fn flush() {
    // SAFETY: the register keeps its value. No page is global, so that loading it empties the translation cache.
    unsafe {
        asm!("mov {root}, cr3", "mov cr3, {root}", root = out(reg) _, options(nostack, preserves_flags))
    };
}
