//! The page tables of a window: reserved by whoever built the cell, handed out and taken back.

use crate::paging::{ACCESSED, ADDRESS, LARGE, PRESENT, WRITABLE};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use isola_abi::id::PhysRange;
use isola_abi::layout::PAGE_SIZE;
use spin::Mutex;

/// Entries of a table.
const ENTRIES: usize = 512;

/// The tables. The first is the topmost; the others are handed out.
#[derive(Debug)]
pub(crate) struct Tables {
    base: NonNull<u8>,
    memory: PhysRange,
    pub(super) stock: Mutex<Stock>,
}

/// Which tables nobody uses, by number.
#[derive(Debug)]
pub(super) struct Stock {
    /// The first that was never used; all behind it were not either. All zero, as those on the list are.
    fresh: usize,
    /// The first of those that were given back; the number of the next is in a table's first entry. 0: none.
    free: usize,
}

/// A table: used as atomics by everybody but the processor.
pub(super) type Table<'a> = &'a [AtomicU64; ENTRIES];

/// What an entry leads to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Below<'a> {
    /// A table.
    Table(Table<'a>),
    /// A page, present or retired.
    Page,
    /// Nothing.
    Nothing,
}

// SAFETY: tables are reached by atomic entries alone, and are there for as long as the value.
unsafe impl Send for Tables {}
// SAFETY: as above.
unsafe impl Sync for Tables {}

impl Tables {
    /// The tables in `memory`, which the caller knows at `base`.
    ///
    /// # Safety
    /// The memory is whole pages, zero, for good, and nobody else uses it.
    pub(crate) unsafe fn new(base: NonNull<u8>, memory: PhysRange) -> Self {
        Self { base, memory, stock: Mutex::new(Stock { fresh: 1, free: 0 }) }
    }

    /// How many there are to be handed out.
    pub(super) fn count(&self) -> usize {
        ((self.memory.len_bytes / PAGE_SIZE) as usize).saturating_sub(1)
    }

    /// The topmost; `None` where there are no tables.
    pub(super) fn top(&self) -> Option<Table<'_>> {
        (self.memory.len_bytes >= PAGE_SIZE).then(|| self.numbered(0))
    }

    /// What an entry leads to.
    #[inline]
    pub(super) fn below(&self, entry: u64) -> Below<'_> {
        match entry {
            0 => Below::Nothing,
            _ if entry & PRESENT == 0 || entry & LARGE != 0 => Below::Page,
            _ => match (entry & ADDRESS).wrapping_sub(self.memory.start.0) {
                offset if offset < self.memory.len_bytes => Below::Table(self.at(offset as usize)),
                // Somebody has written to the tables who should not have: nothing is there that can be followed.
                _ => Below::Page,
            },
        }
    }

    /// The table that `place` leads to, made if need be; `None` where a page is there, or no table is left.
    #[inline]
    pub(super) fn below_or_new(&self, place: &AtomicU64) -> Option<Table<'_>> {
        match self.below(place.load(Ordering::Acquire)) {
            Below::Table(table) => Some(table),
            Below::Page => None,
            Below::Nothing => self.new_below(place),
        }
    }

    /// With the stock's lock held, so that of several cores who need a table there one takes it, and no more are out of
    /// stock than were counted.
    #[cold]
    fn new_below(&self, place: &AtomicU64) -> Option<Table<'_>> {
        let mut stock = self.stock.lock();
        match self.below(place.load(Ordering::Acquire)) {
            Below::Table(table) => return Some(table),
            Below::Page => return None,
            Below::Nothing => {}
        }
        let number = self.take(&mut stock)?;
        let table = self.memory.start.0 + number as u64 * PAGE_SIZE;
        let entry = table | PRESENT | WRITABLE | ACCESSED;
        match place.compare_exchange(0, entry, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Some(self.numbered(number)),
            // A page: who makes tables waits for the lock.
            Err(_) => {
                self.give(&mut stock, number);
                None
            }
        }
    }

    /// Takes the table that an entry leads to back. It is empty, and no core knows of it any more.
    pub(super) fn give_back(&self, entry: u64) {
        if let Some(number) = self.number(entry) {
            self.give(&mut self.stock.lock(), number);
        }
    }

    /// Takes a table, which is all zero.
    fn take(&self, stock: &mut Stock) -> Option<usize> {
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

    fn give(&self, stock: &mut Stock, number: usize) {
        self.numbered(number)[0].store(stock.free as u64, Ordering::Relaxed);
        stock.free = number;
    }

    /// The number of the table that an entry leads to.
    fn number(&self, entry: u64) -> Option<usize> {
        let offset = (entry & ADDRESS).checked_sub(self.memory.start.0)?;
        (1..=self.count() as u64).contains(&(offset / PAGE_SIZE)).then_some((offset / PAGE_SIZE) as usize)
    }

    fn numbered(&self, number: usize) -> Table<'_> {
        self.at(number * PAGE_SIZE as usize)
    }

    /// The table at an offset: a multiple of the page size within the memory.
    #[inline]
    fn at(&self, offset: usize) -> Table<'_> {
        // SAFETY: numbers are of tables within the memory, see `take` and `number`, and so are the addresses in
        // entries, see `below`; the memory is there for as long as the value, and consists of atomics.
        unsafe { self.base.add(offset).cast::<[AtomicU64; ENTRIES]>().as_ref() }
    }
}

/// An entry above the lowest level as it was before it was retired, where it led to a table.
pub(super) fn restored(entry: u64) -> u64 {
    if entry != 0 && entry & LARGE == 0 { entry | PRESENT } else { entry }
}

/// Whether a table leads nowhere.
pub(super) fn is_empty(table: Table<'_>) -> bool {
    table.iter().all(|entry| entry.load(Ordering::Relaxed) == 0)
}
