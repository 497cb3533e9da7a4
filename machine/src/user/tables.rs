//! The page tables of a program: four levels, pages of 4 KiB in the lower half, and in the upper half the entries of the
//! cell's own topmost table.
//!
//! Beside each table is a second page, which only software reads: for a table above the lowest level the addresses of
//! the next tables, each with the number of its entries in the lowest bits and a map of the groups that may have entries in
//! the highest; for a table of the lowest level the *owner* of each page, an opaque pointer that the caller gives with the
//! page and gets back when the page is unmapped. So a walk looks at few entries of a table with few pages.
//!
//! The tables are ordinary memory of the cell. Only code of this file writes them; the processor sets the bits
//! "accessed" and "dirty" at any time, so entries change by atomic instructions.
//!
//! A table that becomes empty leaves the tree, but processors may use copies of the entry that led to it until they have
//! flushed their TLBs: it is returned as [`RemovedTables`].

use crate::paging::{ACCESSED, ADDRESS, DIRTY, NO_EXECUTE, PRESENT, USER, WRITABLE, index, leaf_bytes};
use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use alloc::vec::Vec;
use core::cell::Cell;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use isola_abi::id::PhysAddr;
use spin::Mutex;

/// Entries of a table.
const ENTRIES: usize = 512;

/// The entries of the lower half in the topmost table.
const LOWER_HALF: usize = ENTRIES / 2;

/// The level of the topmost table.
const TOP: u32 = 3;

/// The bits of a link to a table that count the table's entries.
const COUNT: usize = 0x3ff;

/// The lowest of the bits of a link that say which groups of the table may have entries. The bits of the address that are
/// there are equal to the one below, in the canonical addresses of both halves.
const GROUPS_SHIFT: u32 = 48;

/// The entries of such a group.
const GROUP: usize = ENTRIES / (usize::BITS - GROUPS_SHIFT) as usize;

/// The end of the lower half less one page: programs have no higher addresses.
pub const USER_END: u64 = (1 << 47) - 4096;

/// Returns the physical address of a page of the cell's own memory; `None` for other memory.
pub(super) type PhysOf<'a> = &'a dyn Fn(NonNull<u8>) -> Option<PhysAddr>;

/// The memory and the owner of pages that are mapped together; none for a page that stays as it is.
pub type PageGroup = [Option<(NonNull<u8>, NonNull<()>)>];

#[repr(C, align(4096))]
struct Table {
    /// What the processor reads.
    entries: [AtomicU64; ENTRIES],
    /// What software reads.
    links: [AtomicUsize; ENTRIES],
}

/// The permitted accesses to a page, and whether the program has written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageState {
    /// The program may write.
    pub is_writable: bool,
    /// The program may execute instructions.
    pub is_executable: bool,
    /// The program has written to the page since it was mapped.
    pub is_dirty: bool,
}

/// A failure to map a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableError {
    /// The address is not that of a page, or not a program's.
    NoPage,
    /// A page is mapped there.
    Occupied,
    /// There is no memory for tables.
    OutOfMemory,
    /// The page is not the cell's.
    NotOwned,
}

/// Tables that have left the tree. Their memory stays allocated until they are [freed](Self::free).
#[derive(Debug, Default)]
#[must_use = "without `free`, the memory of the tables leaks"]
pub struct RemovedTables(Vec<ManuallyDrop<OwnedTable>>);

/// Free tables, all of whose entries and links are zero: a process that follows needs no memory filled with zeros.
static EMPTY_TABLES: Mutex<Vec<OwnedTable>> = Mutex::new(Vec::new());

/// The most free tables that are kept: those of two small processes. The memory around a table cannot be given back.
const MAX_EMPTY_TABLES: usize = 16;

/// The number of tables that have memory.
static TABLES: AtomicUsize = AtomicUsize::new(0);

/// Returns the bytes of the page tables of all programs, unused ones that are kept included.
pub fn table_bytes() -> usize {
    TABLES.load(Ordering::Relaxed) * size_of::<Table>()
}

impl RemovedTables {
    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the tables of `other`.
    pub fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// Frees the tables, or keeps them for other spaces.
    ///
    /// # Safety
    /// No processor uses them: after they left the tree, the changes were
    /// [flushed](super::ProgramSpace::is_flushed), and each core of the cell has flushed its TLB, or called
    /// [`leave_program_space`](super::leave_program_space).
    pub unsafe fn free(self) {
        // A table leaves the tree when all of its entries and links are zero.
        self.0.into_iter().map(ManuallyDrop::into_inner).for_each(OwnedTable::keep);
    }
}

/// A table and its memory.
#[derive(Debug)]
struct OwnedTable(NonNull<Table>);

// SAFETY: the value owns its memory, which is accessed by atomic operations only.
unsafe impl Send for OwnedTable {}

impl OwnedTable {
    /// Returns an empty table: a former one, or new memory.
    fn new() -> Option<Self> {
        if let Some(table) = EMPTY_TABLES.lock().pop() {
            return Some(table);
        }
        // SAFETY: the size is not zero; zero bytes are a value of the type.
        let table = NonNull::new(unsafe { alloc_zeroed(Layout::new::<Table>()) }.cast())?;
        TABLES.fetch_add(1, Ordering::Relaxed);
        Some(Self(table))
    }

    /// Keeps an empty table for another use, or frees it.
    fn keep(self) {
        debug_assert!(self.get().links.iter().all(|link| link.load(Ordering::Relaxed) == 0));
        let mut tables = EMPTY_TABLES.lock();
        if tables.len() < MAX_EMPTY_TABLES {
            tables.push(self);
        }
    }

    fn get(&self) -> &Table {
        // SAFETY: the value owns the table.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for OwnedTable {
    fn drop(&mut self) {
        TABLES.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: allocated with this layout; no processor uses it: tables that were in a tree are freed by unsafe functions only.
        unsafe { dealloc(self.0.as_ptr().cast(), Layout::new::<Table>()) };
    }
}

/// The page tables of a program. Not synchronised: the caller has a lock. The root stays allocated until it is
/// [freed](Self::free).
#[derive(Debug)]
pub(super) struct Tables {
    root: ManuallyDrop<OwnedTable>,
    root_phys: PhysAddr,
    /// As a link to the root: the number of its entries, and their groups.
    top: AtomicUsize,
    /// The table of the lowest level that was used last: neighbouring pages are mapped after each other.
    recent: Cell<Recent>,
}

/// A table of the lowest level.
#[derive(Clone, Copy, Debug)]
struct Recent {
    /// The address of its first page, by its length; no address has this for no table.
    region: u64,
    /// The addresses of the table, and of the link to it.
    table: usize,
    link: usize,
}

impl Recent {
    const NONE: Self = Self { region: u64::MAX, table: 0, link: 0 };
}

/// The tables that have the pages of a range.
enum SingleTable<'a> {
    /// Perhaps more than one of the lowest level, or the range is empty.
    Several,
    /// One of the lowest level, and the link to it.
    Table(&'a Table, &'a AtomicUsize),
    /// No page is mapped.
    Absent,
}

/// A slot of a table.
struct Slot<'a> {
    entry: &'a AtomicU64,
    link: &'a AtomicUsize,
    /// The link to the table of this slot, which counts its entries.
    table: &'a AtomicUsize,
}

impl Tables {
    /// Creates tables without pages. `upper` returns entry n of the cell's topmost table.
    pub(super) fn new(upper: impl Fn(usize) -> u64, phys_of: PhysOf<'_>) -> Result<Self, TableError> {
        let root = OwnedTable::new().ok_or(TableError::OutOfMemory)?;
        let root_phys = phys_of(root.0.cast()).ok_or(TableError::NotOwned)?;
        for number in LOWER_HALF..ENTRIES {
            root.get().entries[number].store(upper(number), Ordering::Relaxed);
        }
        let root = ManuallyDrop::new(root);
        Ok(Self { root, root_phys, top: AtomicUsize::new(0), recent: Cell::new(Recent::NONE) })
    }

    /// Frees the root.
    ///
    /// # Safety
    /// No core has loaded it, and none loads it afterwards.
    pub(super) unsafe fn free(self) {
        debug_assert!(self.root.get().links.iter().all(|link| link.load(Ordering::Relaxed) == 0));
        drop(ManuallyDrop::into_inner(self.root));
    }

    /// Returns the value of CR3.
    pub(super) fn root(&self) -> PhysAddr {
        self.root_phys
    }

    /// Maps a page.
    pub(super) fn map(
        &mut self,
        address: u64,
        page: NonNull<u8>,
        owner: NonNull<()>,
        (is_writable, is_executable): (bool, bool),
        phys_of: PhysOf<'_>,
    ) -> Result<(), TableError> {
        if !address.is_multiple_of(leaf_bytes(0)) || address >= USER_END {
            return Err(TableError::NoPage);
        }
        let phys = phys_of(page).ok_or(TableError::NotOwned)?;
        let slot = self.slot_or_new(address, phys_of)?;
        if slot.entry.load(Ordering::Relaxed) != 0 {
            return Err(TableError::Occupied);
        }
        slot.link.store(owner.as_ptr().expose_provenance(), Ordering::Relaxed);
        count_entry(slot.table, index(address, 0));
        slot.entry.store(phys.0 | bits(is_writable, is_executable), Ordering::Release);
        Ok(())
    }

    /// Maps the pages of a group where nothing is mapped: `pages` has the memory and the owner of each, from `start` on.
    /// Returns those that are mapped now, a bit for each.
    pub(super) fn map_group(
        &mut self,
        start: u64,
        pages: &PageGroup,
        rights: (bool, bool),
        phys_of: PhysOf<'_>,
    ) -> u64 {
        let addresses = (start..).step_by(leaf_bytes(0) as usize);
        let mut mapped = 0;
        for ((number, address), page) in addresses.enumerate().zip(pages) {
            if let Some((page, owner)) = page
                && self.map(address, *page, *owner, rights, phys_of).is_ok()
            {
                mapped |= 1 << number;
            }
        }
        mapped
    }

    /// Replaces a page by another. Returns the old one's owner and state.
    pub(super) fn replace(
        &mut self,
        address: u64,
        page: NonNull<u8>,
        owner: NonNull<()>,
        (is_writable, is_executable): (bool, bool),
        phys_of: PhysOf<'_>,
    ) -> Result<(NonNull<()>, PageState), TableError> {
        let phys = phys_of(page).ok_or(TableError::NotOwned)?;
        let slot = self.slot(address).ok_or(TableError::NoPage)?;
        let former = owner_of(slot.link).ok_or(TableError::NoPage)?;
        slot.link.store(owner.as_ptr().expose_provenance(), Ordering::Relaxed);
        let entry = slot.entry.swap(phys.0 | bits(is_writable, is_executable), Ordering::AcqRel);
        Ok((former, state(entry)))
    }

    /// Returns the owner and the state of the page that contains `address`.
    pub(super) fn page_at(&self, address: u64) -> Option<(NonNull<()>, PageState)> {
        let slot = self.slot(address)?;
        Some((owner_of(slot.link)?, state(slot.entry.load(Ordering::Acquire))))
    }

    /// Removes the pages of a range, in ascending order.
    pub(super) fn unmap(
        &mut self,
        start: u64,
        end: u64,
        removed: &mut impl FnMut(u64, NonNull<()>, PageState),
    ) -> RemovedTables {
        let mut tables = RemovedTables::default();
        let visit = &mut |address, slot: &Slot<'_>| {
            let entry = slot.entry.swap(0, Ordering::AcqRel);
            if let Some(owner) = owner_of(slot.link) {
                slot.link.store(0, Ordering::Relaxed);
                slot.table.fetch_sub(1, Ordering::Relaxed);
                removed(address, owner, state(entry));
            }
        };
        match self.single_table(start, end) {
            SingleTable::Absent => return tables,
            SingleTable::Table(table, link) => {
                visit_leaves(table, link, (start, end), visit);
                if link.load(Ordering::Relaxed) & COUNT > 0 {
                    return tables;
                }
            }
            SingleTable::Several => {}
        }
        self.recent.set(Recent::NONE);
        walk(self.root.get(), &self.top, TOP, (start, end.min(USER_END)), Some(&mut tables), visit);
        tables
    }

    /// Calls `see` with each page of a range, in ascending order. If it returns rights, the page gets these.
    pub(super) fn for_each(
        &self,
        start: u64,
        end: u64,
        see: &mut impl FnMut(u64, NonNull<()>, PageState) -> Option<(bool, bool)>,
    ) {
        let visit = &mut |address, slot: &Slot<'_>| {
            let mut entry = slot.entry.load(Ordering::Acquire);
            let Some(owner) = owner_of(slot.link) else { return };
            let Some((is_writable, is_executable)) = see(address, owner, state(entry)) else { return };
            // The processor may set the bit "dirty" meanwhile.
            loop {
                let new = entry & (ADDRESS | DIRTY) | bits(is_writable, is_executable);
                match slot.entry.compare_exchange_weak(entry, new, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => break,
                    Err(changed) => entry = changed,
                }
            }
        };
        match self.single_table(start, end) {
            SingleTable::Absent => {}
            SingleTable::Table(table, link) => visit_leaves(table, link, (start, end), visit),
            SingleTable::Several => {
                walk(self.root.get(), &self.top, TOP, (start, end.min(USER_END)), None, visit);
            }
        }
    }

    /// Returns the table of the lowest level that alone has the pages of a range.
    fn single_table(&self, start: u64, end: u64) -> SingleTable<'_> {
        if start >= end || end > USER_END || start / leaf_bytes(1) != (end - 1) / leaf_bytes(1) {
            return SingleTable::Several;
        }
        let (mut table, mut link) = (self.root.get(), &self.top);
        for level in (1..=TOP).rev() {
            link = &table.links[index(start, level)];
            let Some(next) = table_of(link) else { return SingleTable::Absent };
            table = next;
        }
        SingleTable::Table(table, link)
    }

    /// Returns the slot of a page, if its table exists.
    fn slot(&self, address: u64) -> Option<Slot<'_>> {
        if address >= USER_END {
            return None;
        }
        if let Some(slot) = self.recent_slot(address) {
            return Some(slot);
        }
        let (mut table, mut link) = (self.root.get(), None);
        for level in (1..=TOP).rev() {
            let next = &table.links[index(address, level)];
            table = table_of(next)?;
            link = Some(next);
        }
        Some(self.leaf_slot(address, table, link?))
    }

    /// Returns the slot of a page in the table that was used last.
    #[inline]
    fn recent_slot(&self, address: u64) -> Option<Slot<'_>> {
        let Recent { region, table, link } = self.recent.get();
        if address / leaf_bytes(1) != region {
            return None;
        }
        let number = index(address, 0);
        // SAFETY: `leaf_slot` has stored the addresses of a table and of its link, which stay until a table is removed from
        // the tree: then `unmap` has forgotten them.
        let (table, link) = unsafe {
            let table = &*core::ptr::with_exposed_provenance::<Table>(table);
            (table, &*core::ptr::with_exposed_provenance::<AtomicUsize>(link))
        };
        Some(Slot { entry: &table.entries[number], link: &table.links[number], table: link })
    }

    /// Returns the slot of a page in its table of the lowest level, and remembers the table.
    fn leaf_slot<'a>(&self, address: u64, table: &'a Table, link: &'a AtomicUsize) -> Slot<'a> {
        self.recent.set(Recent {
            region: address / leaf_bytes(1),
            table: core::ptr::from_ref(table).expose_provenance(),
            link: core::ptr::from_ref(link).expose_provenance(),
        });
        let number = index(address, 0);
        Slot { entry: &table.entries[number], link: &table.links[number], table: link }
    }

    /// Returns the slot of a page, and creates its tables.
    fn slot_or_new(&self, address: u64, phys_of: PhysOf<'_>) -> Result<Slot<'_>, TableError> {
        if let Some(slot) = self.recent_slot(address) {
            return Ok(slot);
        }
        let (mut table, mut above) = (self.root.get(), &self.top);
        for level in (1..=TOP).rev() {
            let number = index(address, level);
            let link = &table.links[number];
            if link.load(Ordering::Relaxed) == 0 {
                let new = OwnedTable::new().ok_or(TableError::OutOfMemory)?;
                let phys = phys_of(new.0.cast()).ok_or(TableError::NotOwned)?;
                link.store(new.0.as_ptr().expose_provenance() & ((1 << GROUPS_SHIFT) - 1), Ordering::Relaxed);
                core::mem::forget(new);
                count_entry(above, number);
                // The entry of the page alone decides its rights.
                let entry = phys.0 | PRESENT | WRITABLE | USER | ACCESSED;
                table.entries[number].store(entry, Ordering::Release);
            }
            table = table_of(link).ok_or(TableError::OutOfMemory)?;
            above = link;
        }
        Ok(self.leaf_slot(address, table, above))
    }
}

/// Visits the pages of a range. With `removed`, tables without entries leave the tree. `link` counts the entries of
/// `table`.
fn walk(
    table: &Table,
    link: &AtomicUsize,
    level: u32,
    (start, end): (u64, u64),
    mut removed: Option<&mut RemovedTables>,
    visit: &mut impl FnMut(u64, &Slot<'_>),
) {
    if level == 0 {
        visit_leaves(table, link, (start, end), visit);
        return;
    }
    let step = leaf_bytes(level);
    let mut address = start;
    while address < end {
        let number = index(address, level);
        let skipped = match has_group(link, number) {
            false => GROUP,
            true if is_empty_octet(table, number) => OCTET,
            true => 0,
        };
        if skipped > 0 {
            let len = skipped as u64 * step;
            address = (address / len + 1) * len;
            continue;
        }
        let next = (address / step + 1) * step;
        let (first, stop) = (address, next.min(end));
        address = next;
        let (entry, below) = (&table.entries[number], &table.links[number]);
        let Some(next_table) = table_of(below) else { continue };
        walk(next_table, below, level - 1, (first, stop), removed.as_deref_mut(), visit);
        if let Some(removed) = removed.as_deref_mut()
            && below.load(Ordering::Relaxed) & COUNT == 0
            && let Some(empty) = NonNull::new(core::ptr::with_exposed_provenance_mut(address_of(below)))
        {
            entry.store(0, Ordering::Release);
            below.store(0, Ordering::Relaxed);
            link.fetch_sub(1, Ordering::Relaxed);
            removed.0.push(ManuallyDrop::new(OwnedTable(empty)));
        }
    }
}

/// Visits the pages of a range, which a table of the lowest level maps.
fn visit_leaves(
    table: &Table,
    link: &AtomicUsize,
    (start, end): (u64, u64),
    visit: &mut impl FnMut(u64, &Slot<'_>),
) {
    let first = index(start, 0);
    let count =
        ((end - (start & !(leaf_bytes(0) - 1))).div_ceil(leaf_bytes(0)) as usize).min(ENTRIES - first);
    let stop = first + count;
    let base = start & !(leaf_bytes(1) - 1);
    let mut number = first;
    while number < stop {
        if !has_group(link, number) {
            number = (number / GROUP + 1) * GROUP;
            continue;
        }
        if is_empty_octet(table, number) {
            number += OCTET;
            continue;
        }
        let group_end = (number - number % OCTET + OCTET).min(stop);
        for number in number..group_end {
            let (entry, below) = (&table.entries[number % ENTRIES], &table.links[number % ENTRIES]);
            if below.load(Ordering::Relaxed) != 0 {
                visit(base + number as u64 * leaf_bytes(0), &Slot { entry, link: below, table: link });
            }
        }
        number = group_end;
    }
}

/// Links that are looked at together, within a group that may have entries.
const OCTET: usize = 8;

/// Returns whether the link is the first of eight, and all of them are empty.
#[inline]
fn is_empty_octet(table: &Table, first: usize) -> bool {
    first.is_multiple_of(OCTET)
        && table.links[first % ENTRIES..][..OCTET]
            .iter()
            .fold(0, |links, link| links | link.load(Ordering::Relaxed))
            == 0
}

/// Counts an entry more of the table of a link. The caller has a lock.
#[inline]
fn count_entry(link: &AtomicUsize, number: usize) {
    let counted = link.load(Ordering::Relaxed) + 1;
    link.store(counted | 1 << (GROUPS_SHIFT as usize + number / GROUP), Ordering::Relaxed);
}

/// Returns whether the group of an entry may have entries.
#[inline]
fn has_group(link: &AtomicUsize, number: usize) -> bool {
    link.load(Ordering::Relaxed) >> (GROUPS_SHIFT as usize + number / GROUP) & 1 != 0
}

/// Returns the address of the table of a link; 0 for none.
#[inline]
fn address_of(link: &AtomicUsize) -> usize {
    let unused = usize::BITS - GROUPS_SHIFT;
    ((link.load(Ordering::Relaxed) & !COUNT) << unused).cast_signed().wrapping_shr(unused).cast_unsigned()
}

/// Returns the table of a link.
fn table_of(link: &AtomicUsize) -> Option<&Table> {
    let address = address_of(link);
    // SAFETY: the address is 0, or that of a table that `slot_or_new` has allocated, and that stays until it is removed
    // from its link. Callers hold the space's lock meanwhile.
    unsafe { core::ptr::with_exposed_provenance::<Table>(address).as_ref() }
}

fn owner_of(link: &AtomicUsize) -> Option<NonNull<()>> {
    NonNull::new(core::ptr::with_exposed_provenance_mut(link.load(Ordering::Relaxed)))
}

fn bits(is_writable: bool, is_executable: bool) -> u64 {
    let writable = if is_writable { WRITABLE } else { 0 };
    let executable = if is_executable { 0 } else { NO_EXECUTE };
    PRESENT | USER | ACCESSED | writable | executable
}

fn state(entry: u64) -> PageState {
    PageState {
        is_writable: entry & WRITABLE != 0,
        is_executable: entry & NO_EXECUTE == 0,
        is_dirty: entry & DIRTY != 0,
    }
}

const _: () = assert!(size_of::<Table>() == 8192 && ENTRIES <= COUNT);

#[cfg(test)]
mod tests;
