//! The region area: virtual memory that a cell maps itself. It is the range [`REGIONS`], the only one whose page tables
//! the cell can write.
//!
//! The builder of the cell reserved the tables; their number never grows. They are not in the direct map, so stray
//! writes to the cell's ordinary memory do not reach them. Every page that is mapped here is checked to belong to the
//! cell: to its pool, or to its image's own data.
//!
//! **Pages are mapped and unmapped in three steps**, because each core flushes its own TLB between two events
//! ([`flush`]):
//!
//! ```text
//!   empty ──map──► present ──retire──► retired ──(every core flushes)──collect──► empty
//! ```
//!
//! An access to a *retired* page faults on a core that has flushed. Its entry keeps the frame's address, so that
//! unmapping needs no memory. A table whose whole range is retired becomes retired as well: processors also cache the
//! entries that lead to tables, and may read present entries at any time by speculation. The table will serve other
//! addresses, and no core may have a stale translation by then. Entries change by compare-and-swap: several cores can
//! map pages at the same time, also the same page, of which one succeeds.
//!
//! A page in use can migrate to other memory (`migration`).

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
use tables::{EntryTarget, Table};

/// The level of the top-level table, whose entries cover 1 GiB.
const TOP: u32 = 2;

/// The region area of a cell.
#[derive(Debug)]
pub struct RegionArea {
    tables: Tables,
    memory: OwnMemory,
    largest: PageSize,
}

/// A failure to map a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionAreaError {
    /// The address is outside of the region area, or no multiple of the page's size.
    NoPage(u64),
    /// The memory is not the cell's, or does not begin at a multiple of the page's size.
    NotOwned(u64),
    /// A page is mapped there, or is retired and may still be in TLBs of other cores.
    Occupied(u64),
    /// All tables are in use.
    OutOfTables,
    /// The processor has no pages of this size.
    NoSuchSize(PageSize),
}

impl fmt::Display for RegionAreaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPage(address) => {
                write!(f, "no page of this size begins at {address:#x} in the region area")
            }
            Self::NotOwned(address) => write!(f, "the memory at {address:#x} is no page of the cell's"),
            Self::Occupied(address) => write!(f, "something is mapped at {address:#x} already"),
            Self::OutOfTables => f.write_str("no page table is left: map larger pages, or fewer regions"),
            Self::NoSuchSize(size) => {
                write!(f, "the processor has no pages of {} bytes: use smaller ones", size.bytes())
            }
        }
    }
}

impl core::error::Error for RegionAreaError {}

impl RegionArea {
    /// Creates the region area of a cell with these tables, this memory, and this largest page size of the processor.
    pub(crate) fn new(tables: Tables, memory: OwnMemory, largest: PageSize) -> Self {
        Self { tables, memory, largest }
    }

    /// Returns the size of the largest pages that can be mapped.
    pub fn largest_page(&self) -> PageSize {
        self.largest
    }

    /// Returns the number of tables, including those in use, without the top-level table.
    pub fn table_count(&self) -> usize {
        self.tables.count()
    }

    /// Returns the physical address of the page of 4 KiB at `page`, if it is the cell's.
    pub(crate) fn own_page(&self, page: NonNull<u8>) -> Option<PhysAddr> {
        self.memory.phys(page, PageSize::FourKib.bytes() as u64)
    }

    /// Maps the page of memory at `frame`, an address by which the cell already accesses it, at `address` as well:
    /// readable and writable.
    ///
    /// # Errors
    /// A [`RegionAreaError`].
    ///
    /// # Safety
    /// The caller must own the memory and not use it by `frame` until the page is collected; and the appearance of the
    /// memory at `address` must break no other code's invariants.
    pub unsafe fn map(
        &self,
        address: u64,
        frame: NonNull<u8>,
        size: PageSize,
    ) -> Result<(), RegionAreaError> {
        let bytes = size.bytes() as u64;
        if !in_region_area(address) || !address.is_multiple_of(bytes) {
            return Err(RegionAreaError::NoPage(address));
        }
        if size > self.largest {
            return Err(RegionAreaError::NoSuchSize(size));
        }
        let phys =
            self.memory.phys(frame, bytes).ok_or(RegionAreaError::NotOwned(frame.addr().get() as u64))?;
        let leaf = level(size);
        let mut table = self.tables.top().ok_or(RegionAreaError::OutOfTables)?;
        for level in (leaf + 1..=TOP).rev() {
            let pte = &table[index(address, level)];
            table = match self.tables.table_or_new(pte) {
                Some(table) => table,
                None if pte.load(Ordering::Relaxed) == 0 => return Err(RegionAreaError::OutOfTables),
                None => return Err(RegionAreaError::Occupied(address)),
            };
        }
        let large = if leaf > 0 { LARGE } else { 0 };
        let entry = phys.0 | PRESENT | WRITABLE | ACCESSED | DIRTY | NO_EXECUTE | large;
        match table[index(address, leaf)].compare_exchange(0, entry, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(_) => Err(RegionAreaError::Occupied(address)),
        }
    }

    /// Returns the size of the page that is present at `address`.
    pub fn page_at(&self, address: u64) -> Option<PageSize> {
        let (pte, size) = self.entry_of(address)?;
        (pte.load(Ordering::Acquire) & PRESENT != 0).then_some(size)
    }

    /// Returns the memory at `address` up to the end of its page, for devices, if the page is present. Pins a page of 4
    /// KiB, so that it never migrates.
    pub fn memory_at(&self, address: u64) -> Option<PhysRange> {
        let (pte, size) = self.entry_of(address)?;
        let entry = if size == PageSize::FourKib { migration::pin(pte) } else { pte.load(Ordering::Acquire) };
        if entry & PRESENT == 0 {
            return None;
        }
        let offset = address % size.bytes() as u64;
        let start = PhysAddr(frame_of(entry, size).0 + offset);
        Some(PhysRange { start, len_bytes: size.bytes() as u64 - offset })
    }

    /// Returns the word at `address`, a multiple of 8, if its page is present. Reads the page's memory by its other address,
    /// so this never faults, and neither locks nor allocates: it may be called in the handler of a non-maskable
    /// interrupt.
    ///
    /// Another core may migrate or retire the page meanwhile. Its memory stays the cell's until all cores have flushed
    /// their TLBs, which the caller's core does not do meanwhile; the word may be an old one.
    pub fn word_at(&self, address: u64) -> Option<u64> {
        let (pte, size) = self.entry_of(address).filter(|_| address.is_multiple_of(8))?;
        let entry = pte.load(Ordering::Acquire);
        let offset = address % size.bytes() as u64;
        let frame = (entry & PRESENT != 0).then(|| PhysAddr(frame_of(entry, size).0 + offset))?;
        // SAFETY: it is memory of the cell, mapped there, see above. The read is volatile, as other code may write to
        // the word at the same time: on this core it is interrupted.
        Some(unsafe { self.memory.frame(frame)?.cast::<u64>().read_volatile() })
    }

    /// Returns the entry of the page at `address`, present or not.
    fn entry_of(&self, address: u64) -> Option<(&AtomicU64, PageSize)> {
        let mut table = in_region_area(address).then(|| self.tables.top())??;
        for (level, size) in [(2, PageSize::OneGib), (1, PageSize::TwoMib), (0, PageSize::FourKib)] {
            let pte = &table[index(address, level)];
            match self.tables.target(pte.load(Ordering::Acquire)) {
                EntryTarget::Table(next) if level > 0 => table = next,
                _ => return Some((pte, size)),
            }
        }
        None
    }

    /// Retires all pages from `address` on, within `len` bytes, and passes each that was present to `see`: its address,
    /// that of its page of memory, and its size. The range must contain each page completely.
    ///
    /// # Safety
    /// No code uses the memory by these addresses any more, or maps pages there.
    pub unsafe fn retire(&self, address: u64, len: u64, see: &mut dyn FnMut(u64, NonNull<u8>, PageSize)) {
        let Some(top) = self.tables.top() else { return };
        let retire = &mut |pte: &AtomicU64, _: u64, size: PageSize, address: u64| {
            // By one atomic operation, as another core may be migrating the page.
            let entry = pte.fetch_and(!(PRESENT | migration::MIGRATING), Ordering::AcqRel);
            if entry & PRESENT != 0 {
                self.memory
                    .frame(frame_of(entry, size))
                    .into_iter()
                    .for_each(|page| see(address, page, size));
            }
        };
        self.walk(top, TOP, (address, address.saturating_add(len)), Walk::RetireTables, retire);
    }

    /// Removes the retired pages from `address` on, within `len` bytes, and passes each to `take`: the address of its
    /// page of memory, and its size. Frees the tables that only this range needs.
    ///
    /// # Safety
    /// All pages there must be retired, and each core that uses the region area must have called [`flush`] since then.
    pub unsafe fn collect(&self, address: u64, len: u64, take: &mut dyn FnMut(NonNull<u8>, PageSize)) {
        let Some(top) = self.tables.top() else { return };
        let collect = &mut |pte: &AtomicU64, entry: u64, size: PageSize, _: u64| {
            pte.store(0, Ordering::Release);
            self.memory.frame(frame_of(entry, size)).into_iter().for_each(|frame| take(frame, size));
        };
        self.walk(top, TOP, (address, address.saturating_add(len)), Walk::FreeTables, collect);
    }

    /// Visits the page entries of a range of addresses.
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
        while address < end && in_region_area(address) {
            let next = (address / step + 1).saturating_mul(step);
            let (first, stop) = (address, next.min(end));
            address = next;
            let pte = &table[index(first, level)];
            let entry = pte.load(Ordering::Acquire);
            let is_whole = stop - first == step;
            match self.tables.target(if level > 0 { tables::restored(entry) } else { entry }) {
                EntryTarget::Nothing => {}
                EntryTarget::Table(below) if level > 0 => {
                    self.walk(below, level - 1, (first, stop), tables, visit);
                    match tables {
                        Walk::RetireTables if is_whole => pte.store(entry & !PRESENT, Ordering::Release),
                        Walk::FreeTables if is_whole && tables::is_empty(below) => {
                            pte.store(0, Ordering::Release);
                            self.tables.give_back(entry);
                        }
                        _ => {}
                    }
                }
                _ => visit(pte, entry, size_of_level(level), first - first % step),
            }
        }
    }
}

/// The treatment of tables whose whole range is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walk {
    /// Retire them, as pages are.
    RetireTables,
    /// Free them, if they are empty.
    FreeTables,
}

/// Returns the page of memory that an entry names.
fn frame_of(entry: u64, size: PageSize) -> PhysAddr {
    PhysAddr(entry & ADDRESS & !(size.bytes() as u64 - 1))
}

fn in_region_area(address: u64) -> bool {
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

/// Zeroes `len` bytes of memory.
///
/// By aligned moves of 16 bytes, eight in a row, without the checks of length and alignment that a call of `memset`
/// needs: many page faults clear a page.
///
/// # Safety
/// They must be whole pages, at least one, from `page` on, and belong to the caller.
pub unsafe fn clear(page: NonNull<u8>, len: usize) {
    // SAFETY: the caller guarantees memory of its own; the length of a page is a multiple of 128.
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

/// Flushes this core's TLB. Safe at any time: the processor walks the same page tables again.
pub fn flush() {
    // SAFETY: the register keeps its value. No page is global, so the write flushes all translations.
    unsafe {
        asm!("mov {root}, cr3", "mov cr3, {root}", root = out(reg) _, options(nostack, preserves_flags))
    };
}
