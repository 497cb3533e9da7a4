//! Memory that a cell gets while cores run in it.
//!
//! It comes into the direct map by entries that were not present before, which no processor remembers: nobody has to
//! forget anything. The tables for that were set aside when the space was built, so that it can be told beforehand
//! whether a chunk can be mapped: all of it, or none.

use super::CellSpace;
use crate::memory::{Region, Stock};
use crate::paging::{AddressSpace, Caching, Rights};
use alloc::vec::Vec;
use isola_abi::growth::{Answer, LARGEST_CHUNK, MAX_CHUNKS, SMALLEST_CHUNK};
use isola_abi::id::{NodeId, PhysRange};
use isola_abi::layout::{DIRECT_MAP, PAGE_SIZE};

/// The most tables that a chunk takes: one of 2 MiB pages, and one of those.
const TABLES: u64 = 2;

/// Tables of tables that all chunks together may take: one for each 512 GiB of the machine's memory that has some.
const SPANS: u64 = 8;

/// How many tables to set aside for a cell that may get so many bytes more.
pub(super) fn growth_tables(growth_bytes: u64) -> u64 {
    match (growth_bytes / SMALLEST_CHUNK).min(MAX_CHUNKS as u64) {
        0 => 0,
        chunks => chunks + SPANS,
    }
}

/// What a space has got since it was built, and what it takes to get more.
#[derive(Debug)]
pub(super) struct Annex {
    space: AddressSpace,
    /// Of the memory that the space was built from.
    tables: Stock,
    grown: Vec<PhysRange>,
}

impl Annex {
    pub(super) fn new(space: AddressSpace, tables: Stock) -> Self {
        Self { space, tables, grown: Vec::new() }
    }

    /// What the space has got.
    pub(super) fn into_grown(self) -> Vec<PhysRange> {
        self.grown
    }

    /// Whether a chunk is one, and can be mapped.
    fn has_place_for(&self, chunk: PhysRange) -> bool {
        let len = chunk.len_bytes;
        let is_chunk = len.is_power_of_two() && (SMALLEST_CHUNK..=LARGEST_CHUNK).contains(&len);
        is_chunk
            && chunk.start.0.is_multiple_of(len)
            && self.grown.len() < MAX_CHUNKS
            && self.tables.len_bytes() >= TABLES * PAGE_SIZE
    }
}

impl CellSpace {
    /// Gives the cell a chunk, see [`isola_abi::growth`], while it runs: maps it, zeroed, in its direct map, and enters
    /// it in what the cell is told to own.
    ///
    /// # Errors
    /// The memory as it was, where it is no chunk, or there is no place for it.
    pub fn extend(&mut self, mut memory: Region, node: NodeId) -> Result<(), Region> {
        let chunk = memory.range();
        if !self.annex.has_place_for(chunk) {
            return Err(memory);
        }
        memory.scrub();
        let Annex { space, tables, grown } = &mut self.annex;
        grown.push(memory.into_range());
        let virt = DIRECT_MAP + chunk.start.0;
        // There are tables, and nothing else can be there: should it be so all the same, the chunk stays unused until the
        // cell ends.
        let is_mapped = space.map(virt, chunk, Rights::ReadWrite, Caching::Cached, tables).is_ok();
        if is_mapped {
            let _ = self.live().grown.push(chunk, node);
        }
        Ok(())
    }

    /// Tells the cell what came of its wish of that number.
    pub fn answer(&self, number: u32, answer: Answer) {
        self.live().grown.reply(number, answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Contents, direct, test_region};
    use crate::paging::LargestPage;
    use crate::space::Built;
    use alloc::sync::Arc;
    use isola_abi::descriptor::LiveWords;
    use isola_abi::id::PhysAddr;

    const CHUNK_PAGES: u64 = SMALLEST_CHUNK / PAGE_SIZE;

    /// A space that is nothing but tables and a descriptor.
    fn space(tables: u64) -> CellSpace {
        let mut memory = Stock::new(alloc::vec![test_region(tables + 2)]);
        let descriptor = memory.take(PAGE_SIZE).unwrap().into_range().start;
        let space = AddressSpace::new(&mut memory, LargestPage::TwoMib).unwrap();
        let built = Built {
            grant: Vec::new(),
            root: space.root(),
            entry: 0,
            cores: Vec::new(),
            core_pages: PhysAddr(0),
            descriptor,
            report: PhysAddr(0),
        };
        CellSpace { share: Arc::new(built), annex: Annex::new(space, memory) }
    }

    fn told(space: &CellSpace) -> Vec<(PhysRange, NodeId)> {
        // SAFETY: the page that `space` has made, zero, which are values of these words.
        unsafe { &*direct(space.share.descriptor).cast::<LiveWords>() }.grown.iter().collect()
    }

    #[test]
    fn a_chunk_is_zeroed_mapped_told_and_comes_back_with_the_rest() {
        let mut space = space(growth_tables(4 * SMALLEST_CHUNK));
        let chunk = test_region(CHUNK_PAGES);
        let range = chunk.range();
        assert!(chunk.bytes().iter().any(|byte| *byte != 0));
        space.extend(chunk, NodeId(3)).unwrap();
        assert_eq!(told(&space), [(range, NodeId(3))]);
        let last = range.end().0 - 1;
        let found = space.annex.space.translate(DIRECT_MAP + last).unwrap();
        assert_eq!((found.phys.0, found.rights), (last, Rights::ReadWrite));
        assert_eq!(space.annex.space.translate(DIRECT_MAP + last + 1), None);
        let back = space.dissolve().unwrap();
        assert_eq!(back.iter().map(Region::range).collect::<Vec<_>>(), [range]);
        assert_eq!(back[0].contents(), Contents::Unknown);
        assert!(back[0].bytes().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn what_is_no_chunk_or_has_no_place_comes_back() {
        let mut full = space(1);
        let len = |result: Result<(), Region>| result.unwrap_err().len_bytes();
        assert_eq!(len(full.extend(test_region(CHUNK_PAGES), NodeId(0))), SMALLEST_CHUNK);
        let mut other = space(20);
        assert_eq!(len(other.extend(test_region(1), NodeId(0))), PAGE_SIZE);
        assert_eq!(len(other.extend(test_region(3 * CHUNK_PAGES), NodeId(0))), 3 * SMALLEST_CHUNK);
        let (_, crooked) = test_region(CHUNK_PAGES + 1).split(PAGE_SIZE).unwrap();
        assert_eq!(len(other.extend(crooked, NodeId(0))), SMALLEST_CHUNK);
        assert!(told(&full).is_empty() && told(&other).is_empty());
    }

    #[test]
    fn there_are_tables_for_as_many_chunks_as_there_are_places() {
        let mut space = space(growth_tables(u64::MAX));
        // Each far from the others: only the numbers count, as no such memory is ever looked at.
        for number in 0..MAX_CHUNKS as u64 {
            let range = PhysRange::new(PhysAddr((number + 1) * LARGEST_CHUNK * 16), LARGEST_CHUNK / 2);
            // SAFETY: never looked into: it counts as zero.
            let chunk = unsafe { Region::new(range, Contents::Zero) };
            space.extend(chunk, NodeId(0)).unwrap();
        }
        assert_eq!(told(&space).len(), MAX_CHUNKS);
        assert!(space.extend(test_region(CHUNK_PAGES), NodeId(0)).is_err());
    }
}
