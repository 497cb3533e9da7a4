//! The page tables of the region area: reserved by the builder of the cell, allocated and freed here.

use crate::paging::{ACCESSED, ADDRESS, LARGE, PRESENT, WRITABLE};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use isola_abi::id::PhysRange;
use isola_abi::layout::PAGE_SIZE;
use spin::Mutex;

/// Entries of a table.
const ENTRIES: usize = 512;

/// The tables. The first is the top-level table; the others are allocated from the stock.
#[derive(Debug)]
pub(crate) struct Tables {
    base: NonNull<u8>,
    memory: PhysRange,
    pub(super) stock: Mutex<FreeTables>,
}

/// The free tables, by number.
#[derive(Debug)]
pub(super) struct FreeTables {
    /// The first table that was never used, as were all behind it. All of them are zero, as are those on the list.
    fresh: usize,
    /// The first freed table; a freed table's first entry has the number of the next. 0 ends the list.
    free: usize,
}

/// A table. All accesses but the processor's own are atomic.
pub(super) type Table<'a> = &'a [AtomicU64; ENTRIES];

/// The target of an entry.
#[derive(Clone, Copy, Debug)]
pub(super) enum EntryTarget<'a> {
    /// A table.
    Table(Table<'a>),
    /// A page, present or retired.
    Page,
    /// Nothing.
    Nothing,
}

// SAFETY: all accesses to the tables are atomic, and they exist as long as the value.
unsafe impl Send for Tables {}
// SAFETY: as above.
unsafe impl Sync for Tables {}

impl Tables {
    /// Manages the tables in `memory`, which is mapped at `base`.
    ///
    /// # Safety
    /// The memory must be whole pages, zeroed and permanent, and no other code may use it.
    pub(crate) unsafe fn new(base: NonNull<u8>, memory: PhysRange) -> Self {
        Self { base, memory, stock: Mutex::new(FreeTables { fresh: 1, free: 0 }) }
    }

    /// Returns the number of tables that can be allocated, used or not.
    pub(super) fn count(&self) -> usize {
        ((self.memory.len_bytes / PAGE_SIZE) as usize).saturating_sub(1)
    }

    /// Returns the top-level table; `None` if there are no tables.
    pub(super) fn top(&self) -> Option<Table<'_>> {
        (self.memory.len_bytes >= PAGE_SIZE).then(|| self.numbered(0))
    }

    /// Returns the target of an entry.
    #[inline]
    pub(super) fn target(&self, entry: u64) -> EntryTarget<'_> {
        match entry {
            0 => EntryTarget::Nothing,
            _ if entry & PRESENT == 0 || entry & LARGE != 0 => EntryTarget::Page,
            _ => match (entry & ADDRESS).wrapping_sub(self.memory.start.0) {
                offset if offset < self.memory.len_bytes => EntryTarget::Table(self.at(offset as usize)),
                // A stray write has changed the tables: the entry has no valid target.
                _ => EntryTarget::Page,
            },
        }
    }

    /// Returns the table to which `pte` leads, and allocates it if necessary; `None` if a page is there, or no table
    /// is left.
    #[inline]
    pub(super) fn table_or_new(&self, pte: &AtomicU64) -> Option<Table<'_>> {
        match self.target(pte.load(Ordering::Acquire)) {
            EntryTarget::Table(table) => Some(table),
            EntryTarget::Page => None,
            EntryTarget::Nothing => self.new_table(pte),
        }
    }

    /// Allocates a table with the stock's lock held: if several cores need a table for the same entry, only one takes
    /// one, so that no more tables leave the stock than are needed.
    #[cold]
    fn new_table(&self, pte: &AtomicU64) -> Option<Table<'_>> {
        let mut stock = self.stock.lock();
        match self.target(pte.load(Ordering::Acquire)) {
            EntryTarget::Table(table) => return Some(table),
            EntryTarget::Page => return None,
            EntryTarget::Nothing => {}
        }
        let number = self.take(&mut stock)?;
        let table = self.memory.start.0 + number as u64 * PAGE_SIZE;
        let entry = table | PRESENT | WRITABLE | ACCESSED;
        match pte.compare_exchange(0, entry, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Some(self.numbered(number)),
            // Another core mapped a page there: cores that allocate tables wait for the lock.
            Err(_) => {
                self.give(&mut stock, number);
                None
            }
        }
    }

    /// Frees the table to which an entry led. It must be empty, and no TLB may have its entries.
    pub(super) fn give_back(&self, entry: u64) {
        if let Some(number) = self.number(entry) {
            self.give(&mut self.stock.lock(), number);
        }
    }

    /// Allocates a table, which is zero.
    fn take(&self, stock: &mut FreeTables) -> Option<usize> {
        if stock.free != 0 {
            let number = stock.free;
            let link = &self.numbered(number)[0];
            stock.free = link.load(Ordering::Relaxed) as usize;
            link.store(0, Ordering::Relaxed);
            return Some(number);
        }
        let number = stock.fresh;
        (number <= self.count()).then(|| {
            stock.fresh += 1;
            number
        })
    }

    fn give(&self, stock: &mut FreeTables, number: usize) {
        self.numbered(number)[0].store(stock.free as u64, Ordering::Relaxed);
        stock.free = number;
    }

    /// Returns the number of the table to which an entry leads.
    fn number(&self, entry: u64) -> Option<usize> {
        let offset = (entry & ADDRESS).checked_sub(self.memory.start.0)?;
        (1..=self.count() as u64).contains(&(offset / PAGE_SIZE)).then_some((offset / PAGE_SIZE) as usize)
    }

    fn numbered(&self, number: usize) -> Table<'_> {
        self.at(number * PAGE_SIZE as usize)
    }

    /// Returns the table at an offset: a multiple of the page size within the memory.
    #[inline]
    fn at(&self, offset: usize) -> Table<'_> {
        // SAFETY: the offset is within the memory: numbers are those of tables there, see `take` and `number`, and so
        // are the addresses in entries, see `target`. The memory exists as long as the value, and is accessed only as
        // atomics.
        unsafe { self.base.add(offset).cast::<[AtomicU64; ENTRIES]>().as_ref() }
    }
}

/// Returns an entry above the lowest level as it was before it was retired, if it led to a table.
pub(super) fn restored(entry: u64) -> u64 {
    if entry != 0 && entry & LARGE == 0 { entry | PRESENT } else { entry }
}

/// Returns whether all entries of a table are zero.
pub(super) fn is_empty(table: Table<'_>) -> bool {
    table.iter().all(|entry| entry.load(Ordering::Relaxed) == 0)
}
