//! Page tables: four levels, leaves of 4 KiB, 2 MiB and 1 GiB (Intel SDM 3, 4.5).
//!
//! Only a cell's pool is ever unmapped from an [`AddressSpace`], in multiples of 2 MiB; only pages of the link area are
//! replaced. A page is readable, and may be
//! writable or executable, but never both: [`Rights`] cannot express that. All pages are supervisor pages and none is
//! global, so loading CR3 flushes all translations of the previous space.

use crate::memory::{FreeRegions, Region, direct};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::fmt;
use isola_abi::id::{PhysAddr, PhysRange};
use isola_abi::layout::PAGE_SIZE;

pub(crate) const PRESENT: u64 = 1;
pub(crate) const WRITABLE: u64 = 1 << 1;
/// Accessible in user mode; only in the tables of programs.
pub(crate) const USER: u64 = 1 << 2;
/// Write-through and cache-disable: entry 3 of the page attribute table, which is "uncached" after reset.
const UNCACHED: u64 = 1 << 3 | 1 << 4;
/// Set beforehand, so that the processor has no reason to write to tables.
pub(crate) const ACCESSED: u64 = 1 << 5;
pub(crate) const DIRTY: u64 = 1 << 6;
pub(crate) const LARGE: u64 = 1 << 7;
pub(crate) const NO_EXECUTE: u64 = 1 << 63;
pub(crate) const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Entries of a table.
const ENTRIES: usize = 512;

/// The permitted accesses to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rights {
    /// Reading.
    Read,
    /// Reading and writing.
    ReadWrite,
    /// Reading and executing.
    Execute,
}

/// The caching of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Caching {
    /// Memory.
    Cached,
    /// Device registers.
    Uncached,
}

/// The largest leaf to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LargestPage {
    /// 2 MiB, which every processor has.
    TwoMib,
    /// 1 GiB.
    OneGib,
}

/// A failure to map memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// No memory for tables is left.
    OutOfMemory,
    /// The address is already mapped.
    AlreadyMapped(u64),
    /// An address or length is not a whole number of pages, or outside of the address space.
    Misaligned(u64),
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory => f.write_str("no memory is left for page tables: give the space more"),
            Self::AlreadyMapped(address) => write!(f, "something is mapped at {address:#x} already"),
            Self::Misaligned(address) => write!(f, "{address:#x} is no address or length of whole pages"),
        }
    }
}

impl core::error::Error for MapError {}

/// The translation of a virtual address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Translation {
    /// The physical address.
    pub phys: PhysAddr,
    /// The permitted accesses.
    pub rights: Rights,
    /// Whether it is cached.
    pub caching: Caching,
    /// Size of the leaf that maps the address, in bytes.
    pub page_bytes: u64,
}

/// An address space, by the root of its page tables.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    root: PhysAddr,
    largest: LargestPage,
}

impl AddressSpace {
    /// Creates an empty space.
    ///
    /// # Errors
    /// [`MapError::OutOfMemory`] if `stock` is empty.
    pub fn new(stock: &mut FreeRegions, largest: LargestPage) -> Result<Self, MapError> {
        Ok(Self { root: new_table(stock)?, largest })
    }

    /// Returns the space with that root, which another incarnation has built.
    ///
    /// # Safety
    /// `root` must be the root of page tables in the direct map that no other code changes.
    pub(crate) unsafe fn existing(root: PhysAddr, largest: LargestPage) -> Self {
        Self { root, largest }
    }

    /// Returns those of `pages` that are not page tables of the range from `virt` to the next entry of the top-level
    /// table.
    pub(crate) fn unused(&self, virt: u64, pages: impl Iterator<Item = PhysAddr>) -> Vec<PhysAddr> {
        let mut used = BTreeSet::new();
        let mut tables = alloc::vec![(self.root, 3, index(virt, 3)..index(virt, 3) + 1)];
        while let Some((table, level, entries)) = tables.pop() {
            for entry in entries.map(|index| read_entry(table, index)) {
                if entry & PRESENT != 0 && entry & LARGE == 0 {
                    let next = PhysAddr(entry & ADDRESS);
                    used.insert(next);
                    if level > 1 {
                        tables.push((next, level - 1, 0..ENTRIES));
                    }
                }
            }
        }
        pages.filter(|page| !used.contains(page)).collect()
    }

    /// Returns the value of CR3 for this space.
    pub fn root(&self) -> PhysAddr {
        self.root
    }

    /// Maps `memory` at `virt`, with the largest pages that alignment allows. Takes tables from `stock`.
    ///
    /// # Errors
    /// A [`MapError`]; pages mapped before the error stay mapped.
    pub fn map(
        &mut self,
        virt: u64,
        memory: PhysRange,
        rights: Rights,
        caching: Caching,
        stock: &mut FreeRegions,
    ) -> Result<(), MapError> {
        for number in [virt, memory.start.0, memory.len_bytes] {
            if !number.is_multiple_of(PAGE_SIZE) {
                return Err(MapError::Misaligned(number));
            }
        }
        let end = virt.checked_add(memory.len_bytes).ok_or(MapError::Misaligned(virt))?;
        if memory.start.0.checked_add(memory.len_bytes).is_none_or(|end| end > ADDRESS) {
            return Err(MapError::Misaligned(memory.start.0));
        }
        let mut bits = PRESENT | ACCESSED;
        bits |= match rights {
            Rights::Read => NO_EXECUTE,
            Rights::ReadWrite => NO_EXECUTE | WRITABLE | DIRTY,
            Rights::Execute => 0,
        };
        if caching == Caching::Uncached {
            bits |= UNCACHED;
        }
        let (mut virt, mut phys) = (virt, memory.start.0);
        while virt < end {
            let level = self.level_below_tables(virt, self.leaf_level(virt | phys, end - virt));
            // Larger leaves begin only at the end of a table: up to there all leaves are alike, and one walk serves all
            // of them.
            let left = (ENTRIES - index(virt, level)) as u64;
            let most = ((end - virt) / leaf_bytes(level)).min(left) as usize;
            let mapped = self.map_leaves(virt, phys, level, most, bits, stock)? as u64 * leaf_bytes(level);
            virt += mapped;
            phys += mapped;
        }
        Ok(())
    }

    /// Unmaps the multiples of 2 MiB from `virt` on: whole leaves of 2 MiB or more, and tables of 4 KiB leaves. Splits
    /// a leaf of 1 GiB that is unmapped only in part into leaves of 2 MiB, in a table from `stock`. Cores that used the
    /// space may keep translations until they flush their TLBs.
    ///
    /// # Errors
    /// [`MapError::Misaligned`] if these are no multiples of 2 MiB; [`MapError::OutOfMemory`] if `stock` is empty:
    /// pages unmapped before the error stay unmapped.
    pub fn unmap(&mut self, virt: u64, len_bytes: u64, stock: &mut FreeRegions) -> Result<(), MapError> {
        let (step, large) = (leaf_bytes(1), leaf_bytes(2));
        let end = virt.checked_add(len_bytes).ok_or(MapError::Misaligned(virt))?;
        if !virt.is_multiple_of(step) || !len_bytes.is_multiple_of(step) {
            return Err(MapError::Misaligned(virt | len_bytes));
        }
        let mut at = virt;
        while at < end {
            let upper = read_entry(self.root, index(at, 3));
            let middle = PhysAddr(upper & ADDRESS);
            let entry = if upper & PRESENT == 0 { 0 } else { read_entry(middle, index(at, 2)) };
            if entry & PRESENT == 0 {
                at = (at / large + 1) * large;
                continue;
            }
            if entry & LARGE != 0 && at.is_multiple_of(large) && end - at >= large {
                write_entry(middle, index(at, 2), 0);
                at += large;
                continue;
            }
            let table = if entry & LARGE != 0 {
                let table = new_table(stock)?;
                let leaf = |number: u64| entry + number * step;
                (0..ENTRIES).for_each(|number| write_entry(table, number, leaf(number as u64)));
                write_entry(middle, index(at, 2), table.0 | PRESENT | WRITABLE | ACCESSED);
                table
            } else {
                PhysAddr(entry & ADDRESS)
            };
            write_entry(table, index(at, 1), 0);
            at += step;
        }
        Ok(())
    }

    /// Maps `memory` at `virt` in pages of 4 KiB, also where other pages of 4 KiB are mapped already; only for reading
    /// and writing data. Returns whether some were: cores that used them may keep translations until they flush their
    /// TLBs. Takes tables from `stock`.
    ///
    /// # Errors
    /// A [`MapError`]; pages mapped before the error stay mapped.
    pub fn replace(
        &mut self,
        virt: u64,
        memory: impl Iterator<Item = PhysAddr>,
        rights: Rights,
        stock: &mut FreeRegions,
    ) -> Result<bool, MapError> {
        let bits = match rights {
            Rights::ReadWrite => PRESENT | ACCESSED | NO_EXECUTE | WRITABLE | DIRTY,
            Rights::Read | Rights::Execute => PRESENT | ACCESSED | NO_EXECUTE,
        };
        let mut had_some = false;
        for (virt, page) in (virt..).step_by(PAGE_SIZE as usize).zip(memory) {
            if !virt.is_multiple_of(PAGE_SIZE) || !page.0.is_multiple_of(PAGE_SIZE) || page.0 >= ADDRESS {
                return Err(MapError::Misaligned(virt | page.0));
            }
            let table = self.table_of(virt, 0, stock)?;
            had_some |= read_entry(table, index(virt, 0)) != 0;
            write_entry(table, index(virt, 0), page.0 | bits);
        }
        Ok(had_some)
    }

    /// Ensures that the top-level table has an entry for `virt`: if not, one with an empty table.
    ///
    /// # Errors
    /// [`MapError::OutOfMemory`].
    pub fn add_top_entry(&mut self, virt: u64, stock: &mut FreeRegions) -> Result<(), MapError> {
        if read_entry(self.root, index(virt, 3)) == 0 {
            let table = new_table(stock)?;
            write_entry(self.root, index(virt, 3), table.0 | PRESENT | WRITABLE | ACCESSED);
        }
        Ok(())
    }

    /// Links a table of 512 entries of 1 GiB, which other code fills, at `virt`. No page below it is executable,
    /// whatever its entries say.
    ///
    /// # Errors
    /// [`MapError::Misaligned`], [`MapError::AlreadyMapped`].
    pub fn link(&mut self, virt: u64, table: PhysAddr) -> Result<(), MapError> {
        if !virt.is_multiple_of(leaf_bytes(3)) || !table.0.is_multiple_of(PAGE_SIZE) {
            return Err(MapError::Misaligned(virt | table.0));
        }
        if read_entry(self.root, index(virt, 3)) != 0 {
            return Err(MapError::AlreadyMapped(virt));
        }
        write_entry(self.root, index(virt, 3), table.0 | PRESENT | WRITABLE | ACCESSED | NO_EXECUTE);
        Ok(())
    }

    /// Returns the translation of `virt`; `None` if it is not mapped.
    pub fn translate(&self, virt: u64) -> Option<Translation> {
        let (entry, level) = self.leaf(virt)?;
        let rights = match (entry & WRITABLE, entry & NO_EXECUTE) {
            (0, 0) => Rights::Execute,
            (0, _) => Rights::Read,
            _ => Rights::ReadWrite,
        };
        let caching = if entry & UNCACHED == 0 { Caching::Cached } else { Caching::Uncached };
        let page_bytes = leaf_bytes(level);
        let phys = PhysAddr((entry & ADDRESS & !(page_bytes - 1)) + virt % page_bytes);
        Some(Translation { phys, rights, caching, page_bytes })
    }

    /// Returns the leaf entry that maps `virt`, and its level.
    fn leaf(&self, virt: u64) -> Option<(u64, u32)> {
        let mut table = self.root;
        for level in (0..4).rev() {
            let entry = read_entry(table, index(virt, level));
            if entry & PRESENT == 0 {
                return None;
            }
            if level == 0 || entry & LARGE != 0 {
                return Some((entry, level));
            }
            table = PhysAddr(entry & ADDRESS);
        }
        None
    }

    /// Returns the level of the largest leaf for an address with these low bits and this remaining length.
    fn leaf_level(&self, address: u64, len_bytes: u64) -> u32 {
        let largest = if self.largest == LargestPage::OneGib { 2 } else { 1 };
        let fits =
            |level: &u32| address.is_multiple_of(leaf_bytes(*level)) && len_bytes >= leaf_bytes(*level);
        (1..=largest).rev().find(fits).unwrap_or(0)
    }

    /// Returns `level`, or a lower one if a table exists for the range of such a leaf, from leaves that were unmapped.
    fn level_below_tables(&self, virt: u64, level: u32) -> u32 {
        let mut table = self.root;
        for above in (level..4).rev() {
            let entry = read_entry(table, index(virt, above));
            if entry & PRESENT == 0 || entry & LARGE != 0 || above == 0 {
                return level;
            }
            table = PhysAddr(entry & ADDRESS);
        }
        if level > 1 { self.level_below_tables(virt, level - 1) } else { level }
    }

    /// Maps leaves of a level, all in one table: `most` of them, or as many as precede the first occupied entry.
    /// Returns their number, at least one.
    fn map_leaves(
        &mut self,
        virt: u64,
        phys: u64,
        leaf: u32,
        most: usize,
        bits: u64,
        stock: &mut FreeRegions,
    ) -> Result<usize, MapError> {
        let table = self.table_of(virt, leaf, stock)?;
        let large = if leaf > 0 { LARGE } else { 0 };
        let (first, step) = (index(virt, leaf), leaf_bytes(leaf));
        for number in 0..most {
            if read_entry(table, first + number) != 0 {
                return if number > 0 { Ok(number) } else { Err(MapError::AlreadyMapped(virt)) };
            }
            write_entry(table, first + number, (phys + number as u64 * step) | bits | large);
        }
        Ok(most)
    }

    /// Returns the table with the leaf of that level for `virt`, with the tables above it.
    fn table_of(&mut self, virt: u64, leaf: u32, stock: &mut FreeRegions) -> Result<PhysAddr, MapError> {
        let mut table = self.root;
        for level in (leaf + 1..4).rev() {
            let entry = read_entry(table, index(virt, level));
            table = if entry & PRESENT == 0 {
                let next = new_table(stock)?;
                // The leaf alone decides the rights of a page; the levels above allow everything.
                write_entry(table, index(virt, level), next.0 | PRESENT | WRITABLE | ACCESSED);
                next
            } else if entry & LARGE != 0 {
                return Err(MapError::AlreadyMapped(virt));
            } else {
                PhysAddr(entry & ADDRESS)
            };
        }
        Ok(table)
    }
}

/// Returns the bytes of a leaf at a level; 0 is the lowest level.
pub(crate) const fn leaf_bytes(level: u32) -> u64 {
    PAGE_SIZE << (9 * level)
}

pub(crate) const fn index(virt: u64, level: u32) -> usize {
    (virt >> (12 + 9 * level) & 511) as usize
}

fn new_table(stock: &mut FreeRegions) -> Result<PhysAddr, MapError> {
    let page = stock.take(PAGE_SIZE).ok_or(MapError::OutOfMemory)?;
    Ok(Region::into_range(page).start)
}

fn read_entry(table: PhysAddr, index: usize) -> u64 {
    // SAFETY: `table` is a page from `new_table`, which the space owns; `index` is below `ENTRIES`.
    unsafe { direct(table).cast::<u64>().add(index).read_volatile() }
}

fn write_entry(table: PhysAddr, index: usize, entry: u64) {
    // SAFETY: as above. The callers of `map` choose the mapped memory: the pages of a space in use belong to regions
    // that their owner gave up for it.
    unsafe { direct(table).cast::<u64>().add(index).write_volatile(entry) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::test_region;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn space(largest: LargestPage) -> (AddressSpace, FreeRegions) {
        let mut stock = FreeRegions::new(alloc::vec![test_region(64)]);
        (AddressSpace::new(&mut stock, largest).unwrap(), stock)
    }

    fn range(start: u64, len_bytes: u64) -> PhysRange {
        PhysRange::new(PhysAddr(start), len_bytes)
    }

    #[test]
    fn pages_translate_with_their_rights() {
        let (mut space, mut stock) = space(LargestPage::TwoMib);
        let base = isola_abi::layout::IMAGE;
        let kinds = [
            (Rights::Execute, Caching::Cached),
            (Rights::Read, Caching::Cached),
            (Rights::ReadWrite, Caching::Uncached),
        ];
        for (page, (rights, caching)) in kinds.into_iter().enumerate() {
            let page = page as u64 * PAGE_SIZE;
            space
                .map(base + page, range(0x7000_0000 + 2 * page, PAGE_SIZE), rights, caching, &mut stock)
                .unwrap();
        }
        for (page, (rights, caching)) in kinds.into_iter().enumerate() {
            let page = page as u64 * PAGE_SIZE;
            let phys = PhysAddr(0x7000_0000 + 2 * page + 5);
            let expected = Translation { phys, rights, caching, page_bytes: PAGE_SIZE };
            assert_eq!(space.translate(base + page + 5), Some(expected));
            let (entry, _) = space.leaf(base + page).unwrap();
            assert_ne!(entry & (WRITABLE | NO_EXECUTE), WRITABLE, "writable, and executable too");
        }
        assert_eq!(space.translate(base + 3 * PAGE_SIZE), None);
        assert_eq!(space.translate(0), None);
    }

    #[test]
    fn leaves_are_as_large_as_alignment_allows() {
        let (mut space, mut stock) = space(LargestPage::OneGib);
        let virt = isola_abi::layout::DIRECT_MAP;
        let memory = range(GIB - 3 * MIB, GIB + 6 * MIB + PAGE_SIZE);
        space.map(virt + memory.start.0, memory, Rights::ReadWrite, Caching::Cached, &mut stock).unwrap();
        let size = |phys: u64| space.translate(virt + phys).map(|found| (found.phys.0, found.page_bytes));
        assert_eq!(size(GIB - 3 * MIB - 1), None);
        assert_eq!(size(GIB - 3 * MIB), Some((GIB - 3 * MIB, PAGE_SIZE)));
        assert_eq!(size(GIB - MIB), Some((GIB - MIB, 2 * MIB)));
        assert_eq!(size(GIB + 7), Some((GIB + 7, GIB)));
        assert_eq!(size(2 * GIB + MIB), Some((2 * GIB + MIB, 2 * MIB)));
        assert_eq!(size(2 * GIB + 3 * MIB), Some((2 * GIB + 3 * MIB, PAGE_SIZE)));
        assert_eq!(size(2 * GIB + 3 * MIB + PAGE_SIZE), None);
    }

    #[test]
    fn processors_without_gib_pages_get_2_mib_leaves() {
        let (mut space, mut stock) = space(LargestPage::TwoMib);
        space.map(0, range(0, GIB), Rights::Read, Caching::Cached, &mut stock).unwrap();
        assert_eq!(space.translate(0).unwrap().page_bytes, 2 * MIB);
    }

    #[test]
    fn mapping_an_occupied_range_fails() {
        let (mut space, mut stock) = space(LargestPage::TwoMib);
        let mut map = |virt, len| space.map(virt, range(0, len), Rights::Read, Caching::Cached, &mut stock);
        assert_eq!(map(2 * MIB, 2 * MIB), Ok(()));
        assert_eq!(map(2 * MIB, 2 * MIB), Err(MapError::AlreadyMapped(2 * MIB)));
        assert_eq!(map(3 * MIB, PAGE_SIZE), Err(MapError::AlreadyMapped(3 * MIB)));
        assert_eq!(map(5 * MIB, PAGE_SIZE), Ok(()));
        assert_eq!(map(4 * MIB, 2 * MIB), Err(MapError::AlreadyMapped(4 * MIB)));
    }

    #[test]
    fn unmap_removes_the_range_and_nothing_beside_it() {
        for largest in [LargestPage::TwoMib, LargestPage::OneGib] {
            let (mut space, mut stock) = space(largest);
            let virt = isola_abi::layout::DIRECT_MAP;
            // From the middle of a 2 MiB page, over three whole GiB, to the middle of another.
            let memory = range(GIB - 3 * MIB, 3 * GIB + 6 * MIB);
            space.map(virt + memory.start.0, memory, Rights::ReadWrite, Caching::Cached, &mut stock).unwrap();
            let gone = [
                (GIB - 2 * MIB, 2 * MIB),
                (GIB + 4 * MIB, 2 * MIB),
                (GIB + 510 * MIB, 2 * GIB - 500 * MIB),
                (4 * GIB, 2 * MIB),
            ];
            for (start, len) in gone {
                assert_eq!(space.unmap(virt + start, len, &mut stock), Ok(()));
            }
            for phys in (memory.start.0..memory.end().0).step_by(MIB as usize) {
                let is_unmapped = gone.iter().any(|(start, len)| (*start..start + len).contains(&phys));
                let expected = (!is_unmapped).then_some((PhysAddr(phys), Rights::ReadWrite));
                let found = space.translate(virt + phys).map(|found| (found.phys, found.rights));
                assert_eq!(found, expected, "{phys:#x}");
            }
            // An unmapped range can be mapped again, also a whole GiB.
            let back = range(GIB + 4 * MIB, 2 * MIB);
            space.map(virt + back.start.0, back, Rights::ReadWrite, Caching::Cached, &mut stock).unwrap();
            assert_eq!(space.translate(virt + back.start.0).map(|at| at.phys), Some(back.start));
            let whole = range(2 * GIB, GIB);
            assert_eq!(space.unmap(virt + whole.start.0, GIB, &mut stock), Ok(()));
            space.map(virt + whole.start.0, whole, Rights::ReadWrite, Caching::Cached, &mut stock).unwrap();
            let last = PhysAddr(whole.end().0 - 1);
            assert_eq!(space.translate(virt + last.0).map(|at| at.phys), Some(last));
            // All at once, with tables where a leaf could be as large as possible.
            let all = range(GIB, 3 * GIB);
            assert_eq!(space.unmap(virt + all.start.0, all.len_bytes, &mut stock), Ok(()));
            space.map(virt + all.start.0, all, Rights::ReadWrite, Caching::Cached, &mut stock).unwrap();
            for phys in (all.start.0..all.end().0).step_by(MIB as usize).map(PhysAddr) {
                assert_eq!(space.translate(virt + phys.0).map(|found| found.phys), Some(phys));
            }
            assert_eq!(space.unmap(virt + (5 * GIB), 7 * GIB, &mut stock), Ok(()));
            assert_eq!(space.unmap(1, 2 * MIB, &mut stock), Err(MapError::Misaligned(1 | (2 * MIB))));
        }
    }

    #[test]
    fn a_linked_table_translates_its_part_of_the_space() {
        let (mut space, mut stock) = space(LargestPage::TwoMib);
        let virt = isola_abi::layout::REGIONS;
        let table = PhysAddr(Region::into_range(stock.take(PAGE_SIZE).unwrap()).start.0);
        assert_eq!(space.link(virt, table), Ok(()));
        assert_eq!(space.link(virt, table), Err(MapError::AlreadyMapped(virt)));
        assert_eq!(space.link(virt + GIB, table), Err(MapError::Misaligned((virt + GIB) | table.0)));
        assert_eq!(space.translate(virt), None);
        write_entry(table, 3, (7 * GIB) | PRESENT | WRITABLE | LARGE | NO_EXECUTE);
        assert_eq!(space.translate(virt + 3 * GIB + 5).map(|found| found.phys), Some(PhysAddr(7 * GIB + 5)));
        assert_ne!(read_entry(space.root, index(virt, 3)) & NO_EXECUTE, 0);
    }

    #[test]
    fn invalid_ranges_and_missing_memory_are_errors() {
        let (mut space, mut stock) = space(LargestPage::TwoMib);
        let mut map = |virt, memory| space.map(virt, memory, Rights::Read, Caching::Cached, &mut stock);
        assert_eq!(map(1, range(0, PAGE_SIZE)), Err(MapError::Misaligned(1)));
        assert_eq!(map(0, range(0, 7)), Err(MapError::Misaligned(7)));
        assert_eq!(map(0, range(1 << 52, PAGE_SIZE)), Err(MapError::Misaligned(1 << 52)));
        assert_eq!(map(u64::MAX - 4095, range(0, 2 * PAGE_SIZE)), Err(MapError::Misaligned(u64::MAX - 4095)));
        let mut empty = FreeRegions::default();
        assert_eq!(
            space.map(0, range(0, PAGE_SIZE), Rights::Read, Caching::Cached, &mut empty),
            Err(MapError::OutOfMemory)
        );
    }
}
