//! Memory that a cell gets, and gives back, while cores run in it.
//!
//! **What comes** gets into the direct map by entries that were not present before, which no processor remembers: nobody
//! has to forget anything. The tables for that were set aside when the space was built, so that it can be told beforehand
//! whether a chunk can be mapped: all of it, or none.
//!
//! **What goes** passes three steps, as the cell's cores remember where it was: it is taken out of the direct map
//! ([`CellSpace::retract`]); every core forgets, by code of the supervisor ([`super::shootdown`]), and then it is anybody's
//! ([`CellSpace::take_retracted`]). Only the cell's pool can go: never its image, its tables, its descriptor or its report.

use super::CellSpace;
use super::layout::{STACKS_BYTES, map_stacks};
use super::ranges::RangeSet;
use crate::memory::{Contents, Region, Stock};
use crate::paging::{AddressSpace, Caching, Rights};
use crate::smp::AwayCore;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::Ordering;
use isola_abi::descriptor::REQUEST_VECTOR;
use isola_abi::growth::{Answer, LARGEST_CHUNK, MAX_CHUNKS, SMALLEST_CHUNK};
use isola_abi::id::{NodeId, PhysRange};
use isola_abi::layout::{DIRECT_MAP, PAGE_SIZE, STACK_SIZE};
use isola_abi::recall::{GRANULE, MAX_HOLES, Recall};

/// The most tables that a chunk takes: one of 2 MiB pages, and one of those.
const TABLES: u64 = 2;

/// Tables of tables that all chunks together may take: one for each 512 GiB of the machine's memory that has some.
const SPANS: u64 = 8;

/// The most tables that a block takes that goes: one for each of two pages of 1 GiB that it only is a part of.
const CUT_TABLES: u64 = 2;

/// How many tables to set aside for a cell that begins with so much memory and may ask for so many bytes more. Any cell
/// can be given more unasked, and have memory taken away: it has a table for each 256 KiB that it begins with, but no
/// more than all chunks can take, and one for each GiB.
pub(super) fn growth_tables(memory_bytes: u64, growth_bytes: u64) -> u64 {
    let all = MAX_CHUNKS as u64 + SPANS;
    let unasked = (memory_bytes >> 18).min(all);
    let asked = match (growth_bytes / SMALLEST_CHUNK).min(MAX_CHUNKS as u64) {
        0 => 0,
        chunks => chunks + SPANS,
    };
    unasked.max(asked) + (memory_bytes >> 30)
}

/// How long a core may take for a non-maskable interrupt, in us. Generous, as emulated cores may have to wait for a host's.
const FORGET_LIMIT_US: u64 = 2_000_000;

/// What a core was told that is to forget.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    /// To come to where it forgets.
    ToCome,
    /// To forget.
    ByForce,
}

/// What a space has got and given back since it was built, and what it takes to do so.
#[derive(Debug)]
pub(super) struct Annex {
    space: AddressSpace,
    /// Of the memory that the space was built from.
    tables: Stock,
    /// All that comes back when the space is taken apart.
    owned: RangeSet,
    /// What of it the cell uses as it likes, in its direct map.
    pool: RangeSet,
    /// That as it was when the space was built.
    first_pool: RangeSet,
    /// The chunks that the cell is told of.
    chunks: Vec<PhysRange>,
    /// What has gone from the direct map, and is still remembered.
    retracted: Vec<PhysRange>,
    /// The places that have stacks: the first so many, as places are furnished in order.
    furnished: usize,
    /// Memory for the stacks of others.
    furniture: Stock,
}

impl Annex {
    /// Of a space that was built of `owned`, whose pool is `pool`.
    pub(super) fn new(
        space: AddressSpace,
        tables: Stock,
        owned: impl IntoIterator<Item = PhysRange>,
        pool: impl IntoIterator<Item = PhysRange>,
        furnished: usize,
    ) -> Self {
        let pool = RangeSet::of(pool);
        Self {
            space,
            tables,
            owned: RangeSet::of(owned),
            first_pool: pool.clone(),
            pool,
            chunks: Vec::new(),
            retracted: Vec::new(),
            furnished,
            furniture: Stock::default(),
        }
    }

    /// Whether a core can come to that place.
    pub(super) fn is_furnished(&self, place: usize) -> bool {
        place < self.furnished
    }

    /// What the space has.
    pub(super) fn owned(&self) -> impl Iterator<Item = PhysRange> {
        self.owned.iter()
    }

    fn table_count(&self) -> u64 {
        self.tables.len_bytes() / PAGE_SIZE
    }

    /// How many chunks surely can be mapped.
    fn places(&self) -> usize {
        let tables = usize::try_from(self.table_count() / TABLES).unwrap_or(usize::MAX);
        MAX_CHUNKS.saturating_sub(self.chunks.len()).min(tables)
    }

    /// As it is by now: told of those chunks, without those holes.
    pub(super) fn with(mut self, chunks: Vec<PhysRange>, holes: impl IntoIterator<Item = PhysRange>) -> Self {
        chunks.iter().for_each(|chunk| self.pool.insert(*chunk));
        holes.into_iter().for_each(|hole| self.pool.remove(hole));
        self.chunks = chunks;
        self
    }

    /// Whether a chunk is one, and can be mapped.
    fn has_place_for(&self, chunk: PhysRange) -> bool {
        let len = chunk.len_bytes;
        let is_chunk = len.is_power_of_two() && (SMALLEST_CHUNK..=LARGEST_CHUNK).contains(&len);
        is_chunk && chunk.start.0.is_multiple_of(len) && self.places() > 0 && !self.owned.meets(chunk)
    }

    /// What is not the cell's of what it began with and of the chunks that it is told of, if these are its pool and those
    /// its chunks.
    fn holes(&self, pool: &RangeSet, chunks: &[PhysRange]) -> Vec<PhysRange> {
        let mut told = self.first_pool.clone();
        chunks.iter().for_each(|chunk| told.insert(*chunk));
        told.without(pool).iter().collect()
    }

    /// Takes a block out of the direct map, and out of what the cell is told to own, if it is one that can go.
    fn retract(&mut self, block: PhysRange, recall: &Recall, vacate: impl Fn(PhysRange)) -> bool {
        let is_block = block.start.0.is_multiple_of(GRANULE)
            && block.len_bytes.is_multiple_of(GRANULE)
            && block.len_bytes > 0;
        if !is_block || !self.pool.contains(block) || self.table_count() < CUT_TABLES {
            return false;
        }
        let mut pool = self.pool.clone();
        pool.remove(block);
        let (stay, gone): (Vec<_>, Vec<_>) = self.chunks.iter().partition(|chunk| pool.meets(**chunk));
        let holes = self.holes(&pool, &stay);
        if holes.len() > MAX_HOLES {
            return false;
        }
        recall.set_holes(&holes);
        gone.into_iter().for_each(vacate);
        (self.pool, self.chunks) = (pool, stay);
        // There are tables for it, and it is whole granules: what could fail was looked at.
        let _ = self.space.unmap(DIRECT_MAP + block.start.0, block.len_bytes, &mut self.tables);
        self.retracted.push(block);
        true
    }
}

/// There is no memory for a place's stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoFurniture;

impl fmt::Display for NoFurniture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the cell has no memory for another core's stacks: give it some")
    }
}

impl core::error::Error for NoFurniture {}

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
        // Written down first: it is somebody's at every moment.
        let mut owned = self.annex.owned.clone();
        owned.insert(chunk);
        if self.record.as_mut().is_some_and(|record| !record.set_memory(owned.iter())) {
            return Err(memory);
        }
        memory.scrub();
        self.annex.owned.insert(memory.into_range());
        let virt = DIRECT_MAP + chunk.start.0;
        // There are tables, and nothing else can be there: should it be so all the same, the chunk stays unused until the
        // cell ends.
        let Annex { space, tables, .. } = &mut self.annex;
        let is_mapped = space.map(virt, chunk, Rights::ReadWrite, Caching::Cached, tables).is_ok();
        if is_mapped {
            self.annex.pool.insert(chunk);
            self.annex.chunks.push(chunk);
            self.live().recall.set_holes(&self.annex.holes(&self.annex.pool, &self.annex.chunks));
            let _ = self.live().grown.push(chunk, node);
        }
        Ok(())
    }

    /// How many chunks the cell surely can be given.
    pub fn chunk_places(&self) -> usize {
        self.annex.places()
    }

    /// Makes the next place that has no stacks ready for a core, and all before that one.
    ///
    /// # Errors
    /// [`NoFurniture`], where that takes memory, which [`Self::furnish_from`] gives.
    pub fn furnish(&mut self, place: usize) -> Result<(), NoFurniture> {
        let Annex { space, furnished, furniture, .. } = &mut self.annex;
        while *furnished <= place {
            let is_enough = furniture.len_bytes() >= STACKS_BYTES;
            if !is_enough || map_stacks(space, *furnished as u64, STACK_SIZE, furniture).is_err() {
                return Err(NoFurniture);
            }
            *furnished += 1;
        }
        Ok(())
    }

    /// Gives the cell memory that [`Self::furnish`] takes stacks from. It is the cell's until the space is dissolved.
    ///
    /// # Errors
    /// The memory, where it cannot be written down whose it is.
    pub fn furnish_from(&mut self, mut memory: Region) -> Result<(), Region> {
        let mut owned = self.annex.owned.clone();
        owned.insert(memory.range());
        if self.record.as_mut().is_some_and(|record| !record.set_memory(owned.iter())) {
            return Err(memory);
        }
        memory.scrub();
        self.annex.furniture.put(memory);
        self.annex.owned = owned;
        Ok(())
    }

    /// Tells the cell what came of its wish of that number.
    pub fn answer(&self, number: u32, answer: Answer) {
        self.live().grown.reply(number, answer);
    }

    /// Tells the cell the most memory that it may have from now on, in bytes.
    pub fn set_limit(&self, limit_bytes: u64) {
        self.live().grown.limit_bytes.store(limit_bytes, Ordering::Release);
    }

    /// Asks the cell to offer so many bytes that it can do without. Returns the request's number.
    pub fn recall(&self, len_bytes: u64) -> u32 {
        let number = self.live().recall.ask(len_bytes);
        self.interrupt();
        number
    }

    /// Tells the cell what became of the offer to the last request: bit n of `taken` stands for its block n.
    pub fn settle(&self, taken: u32) {
        self.live().recall.settle(taken);
        self.interrupt();
    }

    /// Takes those of these blocks out of the cell that can go: whole granules of its pool. Bit n of what is returned says
    /// that block n has gone, which is not anybody else's before every core has forgotten it.
    pub fn retract(&mut self, blocks: &[PhysRange]) -> u32 {
        let Self { share, annex, .. } = self;
        let live = share.live();
        let vacate = |chunk: PhysRange| live.grown.vacate(chunk.start);
        let blocks = (0..u32::BITS).zip(blocks);
        blocks.fold(0, |taken, (bit, block)| {
            taken | u32::from(annex.retract(*block, &live.recall, vacate)) << bit
        })
    }

    /// The memory that was retracted, with whatever the cell left in it. Before that, every core in the cell is made to
    /// forget what it knew of the cell's page tables, whatever it does: by a non-maskable interrupt. `cores` are all that are
    /// in the cell, each with its place.
    ///
    /// # Errors
    /// The place of a core that does not forget. The memory stays the space's then, until it is taken apart.
    pub fn take_retracted(&mut self, cores: &[(usize, &AwayCore)]) -> Result<Vec<Region>, usize> {
        self.have_forgotten(cores)?;
        let mut owned = self.annex.owned.clone();
        self.annex.retracted.iter().for_each(|block| owned.remove(*block));
        if self.record.as_mut().is_some_and(|record| !record.set_memory(owned.iter())) {
            return Err(cores.first().map_or(0, |(place, _)| *place));
        }
        let blocks = core::mem::take(&mut self.annex.retracted);
        let take = |block: PhysRange| {
            self.annex.owned.remove(block);
            // SAFETY: it was a part of the regions that the space was made of; no table of the space names it, and no core
            // remembers one that did. A device that the cell has told to write there is the guard's to prevent, as
            // everywhere: what it names to devices is the cell's own.
            unsafe { Region::new(block, Contents::Unknown) }
        };
        Ok(blocks.into_iter().map(take).collect())
    }

    fn have_forgotten(&self, cores: &[(usize, &AwayCore)]) -> Result<(), usize> {
        let is_in = |(_, core): &&(usize, &AwayCore)| core.is_in(&self.share);
        if cores.iter().filter(is_in).count() != self.share.cores_inside.load(Ordering::Acquire) {
            return Err(cores.first().map_or(0, |(place, _)| *place));
        }
        let generation = self.live().recall.next_generation();
        let mut waiting: Vec<(usize, &AwayCore, Told)> =
            cores.iter().map(|(place, core)| (*place, *core, Told::Nothing)).collect();
        let Some((_, first)) = cores.first() else { return Ok(()) };
        let deadline = first.deadline_after_us(FORGET_LIMIT_US);
        loop {
            waiting.retain_mut(|(place, core, told)| !self.tell(*place, core, told, generation));
            match waiting.first() {
                None => return Ok(()),
                Some((place, ..)) if deadline.has_come() => return Err(*place),
                Some(_) => core::hint::spin_loop(),
            }
        }
    }

    /// Whether the core at that place has forgotten, by the supervisor's own code ([`super::shootdown`]); where it has not,
    /// and was not told, it is.
    fn tell(&self, place: usize, core: &AwayCore, told: &mut Told, generation: u32) -> bool {
        let has_forgotten = self.share.generation_at(place) == Some(generation);
        match *told {
            _ if has_forgotten => {}
            Told::Nothing | Told::ToCome if self.is_inside(place) => {
                *told = Told::ByForce;
                core.interrupt_by_force();
            }
            Told::Nothing => {
                // It is on its way in, where no interrupt must come by force.
                *told = Told::ToCome;
                core.interrupt(REQUEST_VECTOR);
            }
            Told::ToCome | Told::ByForce => {}
        }
        has_forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{direct, test_region};
    use crate::paging::LargestPage;
    use crate::space::Built;
    use alloc::sync::Arc;
    use core::sync::atomic::AtomicUsize;
    use isola_abi::descriptor::LiveWords;
    use isola_abi::id::{ApicId, PhysAddr};

    const CHUNK_PAGES: u64 = SMALLEST_CHUNK / PAGE_SIZE;

    /// A space that is nothing but tables and a descriptor.
    fn space(tables: u64) -> CellSpace {
        let mut memory = Stock::new(alloc::vec![test_region(tables + 2)]);
        let descriptor = memory.take(PAGE_SIZE).unwrap().into_range().start;
        let space = AddressSpace::new(&mut memory, LargestPage::TwoMib).unwrap();
        let built = Built {
            root: space.root(),
            entry: 0,
            places: 0,
            first_apic: ApicId(0),
            core_pages: PhysAddr(0),
            descriptor,
            report: PhysAddr(0),
            text: None,
            cores_inside: AtomicUsize::new(0),
        };
        CellSpace { share: Arc::new(built), annex: Annex::new(space, memory, [], [], 0), record: None }
    }

    fn told(space: &CellSpace) -> Vec<(PhysRange, NodeId)> {
        // SAFETY: the page that `space` has made, zero, which are values of these words.
        unsafe { &*direct(space.share.descriptor).cast::<LiveWords>() }.grown.iter().collect()
    }

    #[test]
    fn a_chunk_is_zeroed_mapped_told_and_comes_back_with_the_rest() {
        let mut space = space(growth_tables(0, 4 * SMALLEST_CHUNK));
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
        let mut space = space(growth_tables(0, u64::MAX));
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

    fn gone(space: &mut CellSpace) -> Vec<PhysRange> {
        space.take_retracted(&[]).unwrap().iter().map(Region::range).collect()
    }

    fn part(of: PhysRange, from: u64, granules: u64) -> PhysRange {
        PhysRange::new(PhysAddr(of.start.0 + from * GRANULE), granules * GRANULE)
    }

    #[test]
    fn what_goes_is_mapped_no_more_and_comes_back_once() {
        let mut space = space(growth_tables(0, u64::MAX));
        let (first, second) = (test_region(4 * CHUNK_PAGES), test_region(CHUNK_PAGES));
        let ranges = [first.range(), second.range()];
        // The test's regions are at multiples of 2 MiB alone.
        let (chunks, len) = ([part(ranges[0], 0, 1), part(ranges[0], 1, 1), ranges[1]], 3);
        let (a, rest) = first.split(GRANULE).unwrap();
        let (b, _) = rest.split(GRANULE).unwrap();
        for chunk in [a, b, second] {
            space.extend(chunk, NodeId(1)).unwrap();
        }
        assert_eq!(told(&space).len(), len);
        let foreign = PhysRange::new(space.share.descriptor, GRANULE);
        let crooked = PhysRange::new(PhysAddr(ranges[1].start.0 + PAGE_SIZE), GRANULE);
        let beyond = part(ranges[0], 1, 2);
        let offered = [foreign, chunks[1], crooked, beyond, PhysRange::new(PhysAddr(u64::MAX - 1), u64::MAX)];
        assert_eq!(space.retract(&offered), 0b10);
        assert_eq!(told(&space), [(chunks[0], NodeId(1)), (chunks[2], NodeId(1))]);
        let translate =
            |space: &CellSpace, at: PhysRange| space.annex.space.translate(DIRECT_MAP + at.start.0);
        assert_eq!(translate(&space, chunks[1]), None);
        assert!(translate(&space, chunks[0]).is_some());
        assert_eq!(space.retract(&[chunks[1]]), 0, "it has gone");
        assert_eq!(gone(&mut space), [chunks[1]]);
        assert_eq!(gone(&mut space), []);
        // SAFETY: it was just taken, and belongs to nobody.
        let back = unsafe { Region::new(chunks[1], Contents::Unknown) };
        space.extend(back, NodeId(1)).unwrap();
        assert_eq!(translate(&space, chunks[1]).map(|at| at.phys), Some(chunks[1].start));
        assert_eq!(space.retract(&[chunks[2]]), 1);
        let owned: Vec<PhysRange> = space.dissolve().unwrap().iter().map(Region::range).collect();
        let expected = RangeSet::of(chunks);
        assert!(owned.iter().copied().eq(expected.iter()), "what nobody took comes back with the rest");
    }

    #[test]
    fn holes_are_told_and_no_more_of_them_are_made_than_can_be_told() {
        let len = 4 * MAX_HOLES as u64 * GRANULE;
        let pool = PhysRange::new(PhysAddr(64 * LARGEST_CHUNK), len);
        let mut memory = Stock::new(alloc::vec![test_region(400)]);
        let descriptor = memory.take(PAGE_SIZE).unwrap().into_range().start;
        let mut tables = AddressSpace::new(&mut memory, LargestPage::TwoMib).unwrap();
        tables.map(DIRECT_MAP + pool.start.0, pool, Rights::ReadWrite, Caching::Cached, &mut memory).unwrap();
        let built = Built {
            root: tables.root(),
            entry: 0,
            places: 0,
            first_apic: ApicId(0),
            core_pages: PhysAddr(0),
            descriptor,
            report: PhysAddr(0),
            text: None,
            cores_inside: AtomicUsize::new(0),
        };
        let annex = Annex::new(tables, memory, [pool], [pool], 0);
        let mut space = CellSpace { share: Arc::new(built), annex, record: None };
        let every_second: Vec<PhysRange> =
            (0..MAX_HOLES as u64 + 1).map(|number| part(pool, 2 * number, 1)).collect();
        let (some, rest) = every_second.split_at(20);
        assert_eq!(space.retract(some), (1 << 20) - 1);
        assert_eq!(space.retract(rest), (1 << (MAX_HOLES - 20)) - 1, "the last would be one hole too many");
        let is_hole = |space: &CellSpace, at: PhysRange| space.live().recall.is_hole(at);
        assert!(is_hole(&space, every_second[3]) && !is_hole(&space, part(pool, 7, 1)));
        // What is between two holes makes them one.
        assert_eq!(space.retract(&[part(pool, 7, 1), every_second[MAX_HOLES]]), 0b11);
        assert!(is_hole(&space, part(pool, 7, 1)));
        gone(&mut space);
        // What is given again is no hole.
        // SAFETY: it was just taken; never looked into: it counts as zero.
        let back = unsafe { Region::new(part(pool, 6, 1), Contents::Zero) };
        space.extend(back, NodeId(0)).unwrap();
        assert!(!is_hole(&space, part(pool, 6, 1)) && is_hole(&space, part(pool, 7, 1)));
    }
}
