//! Memory that a cell gets, and gives back, while cores run in it.
//!
//! **What comes** gets into the direct map by entries that were not present before, which no processor remembers: nobody
//! has to forget anything. The tables for that were reserved when the space was built, so that it can be told beforehand
//! whether a chunk can be mapped: all of it, or none.
//!
//! **What goes** passes three steps, as the cell's cores remember where it was: it is taken out of the direct map
//! ([`CellSpace::unplug`]); every core forgets, by code of the supervisor ([`super::shootdown`]), and then it is anybody's
//! ([`CellSpace::take_unplugged`]). Only the cell's pool can go: never its image, its tables, its descriptor or its report.

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
use isola_abi::unplug::{GRANULE, MAX_UNPLUGGED, UnplugRequest};

/// The most tables that a chunk takes: one of 2 MiB pages, and one of those.
const TABLES: u64 = 2;

/// Tables of tables that all chunks together may take: one for each 512 GiB of the machine's memory that has some.
const SPANS: u64 = 8;

/// The most tables that a block takes that goes: one for each of two pages of 1 GiB that it only is a part of.
const CUT_TABLES: u64 = 2;

/// How many tables to reserve for a cell that begins with so much memory and may ask for so many bytes more. Any cell
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
pub(super) struct HotPlug {
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
    unplugged: Vec<PhysRange>,
    /// The places that have stacks: the first so many, as places are given stacks in order.
    cores_with_stacks: usize,
    /// Memory for the stacks of others.
    stack_pages: Stock,
}

impl HotPlug {
    /// Of a space that was built of `owned`, whose pool is `pool`.
    pub(super) fn new(
        space: AddressSpace,
        tables: Stock,
        owned: impl IntoIterator<Item = PhysRange>,
        pool: impl IntoIterator<Item = PhysRange>,
        cores_with_stacks: usize,
    ) -> Self {
        let pool = RangeSet::of(pool);
        Self {
            space,
            tables,
            owned: RangeSet::of(owned),
            first_pool: pool.clone(),
            pool,
            chunks: Vec::new(),
            unplugged: Vec::new(),
            cores_with_stacks,
            stack_pages: Stock::default(),
        }
    }

    /// Whether a core can come to that place.
    pub(super) fn has_stacks(&self, place: usize) -> bool {
        place < self.cores_with_stacks
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

    /// As it is by now: told of those chunks, without those unplugged ranges.
    pub(super) fn with(
        mut self,
        chunks: Vec<PhysRange>,
        unplugged_ranges: impl IntoIterator<Item = PhysRange>,
    ) -> Self {
        chunks.iter().for_each(|chunk| self.pool.insert(*chunk));
        unplugged_ranges.into_iter().for_each(|unplugged_range| self.pool.remove(unplugged_range));
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
    fn unplugged_ranges(&self, pool: &RangeSet, chunks: &[PhysRange]) -> Vec<PhysRange> {
        let mut told = self.first_pool.clone();
        chunks.iter().for_each(|chunk| told.insert(*chunk));
        told.without(pool).iter().collect()
    }

    /// Takes a block out of the direct map, and out of what the cell is told to own, if it is one that can go.
    fn unplug(
        &mut self,
        block: PhysRange,
        unplug_request: &UnplugRequest,
        vacate: impl Fn(PhysRange),
    ) -> bool {
        let is_block = block.start.0.is_multiple_of(GRANULE)
            && block.len_bytes.is_multiple_of(GRANULE)
            && block.len_bytes > 0;
        if !is_block || !self.pool.contains(block) || self.table_count() < CUT_TABLES {
            return false;
        }
        let mut pool = self.pool.clone();
        pool.remove(block);
        let (stay, gone): (Vec<_>, Vec<_>) = self.chunks.iter().partition(|chunk| pool.meets(**chunk));
        let unplugged_ranges = self.unplugged_ranges(&pool, &stay);
        if unplugged_ranges.len() > MAX_UNPLUGGED {
            return false;
        }
        unplug_request.set_unplugged(&unplugged_ranges);
        gone.into_iter().for_each(vacate);
        (self.pool, self.chunks) = (pool, stay);
        // There are tables for it, and it is whole granules: what could fail was looked at.
        let _ = self.space.unmap(DIRECT_MAP + block.start.0, block.len_bytes, &mut self.tables);
        self.unplugged.push(block);
        true
    }
}

/// There is no memory for a place's stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoStacks;

impl fmt::Display for NoStacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the cell has no memory for another core's stacks: give it some")
    }
}

impl core::error::Error for NoStacks {}

impl CellSpace {
    /// Gives the cell a chunk, see [`isola_abi::growth`], while it runs: maps it, zeroed, in its direct map, and enters
    /// it in what the cell is told to own.
    ///
    /// # Errors
    /// The memory as it was, where it is no chunk, or there is no place for it.
    pub fn extend(&mut self, mut memory: Region, node: NodeId) -> Result<(), Region> {
        let chunk = memory.range();
        if !self.hot_plug.has_place_for(chunk) {
            return Err(memory);
        }
        // Written down first: it is somebody's at every moment.
        let mut owned = self.hot_plug.owned.clone();
        owned.insert(chunk);
        if self.record.as_mut().is_some_and(|record| !record.set_memory(owned.iter())) {
            return Err(memory);
        }
        memory.scrub();
        self.hot_plug.owned.insert(memory.into_range());
        let virt = DIRECT_MAP + chunk.start.0;
        // There are tables, and nothing else can be there: should it be so all the same, the chunk stays unused until the
        // cell ends.
        let HotPlug { space, tables, .. } = &mut self.hot_plug;
        let is_mapped = space.map(virt, chunk, Rights::ReadWrite, Caching::Cached, tables).is_ok();
        if is_mapped {
            self.hot_plug.pool.insert(chunk);
            self.hot_plug.chunks.push(chunk);
            self.live()
                .unplug_request
                .set_unplugged(&self.hot_plug.unplugged_ranges(&self.hot_plug.pool, &self.hot_plug.chunks));
            let _ = self.live().grown.push(chunk, node);
        }
        Ok(())
    }

    /// How many chunks the cell surely can be given.
    pub fn chunk_places(&self) -> usize {
        self.hot_plug.places()
    }

    /// Makes the next place that has no stacks ready for a core, and all before that one.
    ///
    /// # Errors
    /// [`NoStacks`], where that takes memory, which [`Self::allocate_stacks_from`] gives.
    pub fn allocate_stacks(&mut self, place: usize) -> Result<(), NoStacks> {
        let HotPlug { space, cores_with_stacks, stack_pages, .. } = &mut self.hot_plug;
        while *cores_with_stacks <= place {
            let is_enough = stack_pages.len_bytes() >= STACKS_BYTES;
            if !is_enough || map_stacks(space, *cores_with_stacks as u64, STACK_SIZE, stack_pages).is_err() {
                return Err(NoStacks);
            }
            *cores_with_stacks += 1;
        }
        Ok(())
    }

    /// Gives the cell memory that [`Self::allocate_stacks`] takes stacks from. It is the cell's until the space is dissolved.
    ///
    /// # Errors
    /// The memory, where it cannot be written down whose it is.
    pub fn allocate_stacks_from(&mut self, mut memory: Region) -> Result<(), Region> {
        let mut owned = self.hot_plug.owned.clone();
        owned.insert(memory.range());
        if self.record.as_mut().is_some_and(|record| !record.set_memory(owned.iter())) {
            return Err(memory);
        }
        memory.scrub();
        self.hot_plug.stack_pages.put(memory);
        self.hot_plug.owned = owned;
        Ok(())
    }

    /// Tells the cell what came of its request of that number.
    pub fn answer(&self, number: u32, answer: Answer) {
        self.live().grown.reply(number, answer);
    }

    /// Tells the cell the most memory that it may have from now on, in bytes.
    pub fn set_limit(&self, limit_bytes: u64) {
        self.live().grown.limit_bytes.store(limit_bytes, Ordering::Release);
    }

    /// Asks the cell to offer so many bytes that it can do without. Returns the request's number.
    pub fn request_unplug(&self, len_bytes: u64) -> u32 {
        let number = self.live().unplug_request.ask(len_bytes);
        self.interrupt();
        number
    }

    /// Tells the cell what became of the offer to the last request: bit n of `taken` stands for its block n.
    pub fn settle(&self, taken: u32) {
        self.live().unplug_request.settle(taken);
        self.interrupt();
    }

    /// Takes those of these blocks out of the cell that can go: whole granules of its pool. Bit n of what is returned says
    /// that block n has gone, which is not anybody else's before every core has forgotten it.
    pub fn unplug(&mut self, blocks: &[PhysRange]) -> u32 {
        let Self { share, hot_plug, .. } = self;
        let live = share.live();
        let vacate = |chunk: PhysRange| live.grown.vacate(chunk.start);
        let blocks = (0..u32::BITS).zip(blocks);
        blocks.fold(0, |taken, (bit, block)| {
            taken | u32::from(hot_plug.unplug(*block, &live.unplug_request, vacate)) << bit
        })
    }

    /// The memory that was unplugged, with whatever the cell left in it. Before that, every core in the cell is made to
    /// forget what it knew of the cell's page tables, whatever it does: by a non-maskable interrupt. `cores` are all that are
    /// in the cell, each with its place.
    ///
    /// # Errors
    /// The place of a core that does not forget. The memory stays the space's then, until it is taken apart.
    pub fn take_unplugged(&mut self, cores: &[(usize, &AwayCore)]) -> Result<Vec<Region>, usize> {
        self.have_forgotten(cores)?;
        let mut owned = self.hot_plug.owned.clone();
        self.hot_plug.unplugged.iter().for_each(|block| owned.remove(*block));
        if self.record.as_mut().is_some_and(|record| !record.set_memory(owned.iter())) {
            return Err(cores.first().map_or(0, |(place, _)| *place));
        }
        let blocks = core::mem::take(&mut self.hot_plug.unplugged);
        let take = |block: PhysRange| {
            self.hot_plug.owned.remove(block);
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
        let generation = self.live().unplug_request.next_generation();
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
            slots: 0,
            first_apic: ApicId(0),
            core_pages: PhysAddr(0),
            descriptor,
            report: PhysAddr(0),
            text: None,
            cores_inside: AtomicUsize::new(0),
        };
        CellSpace { share: Arc::new(built), hot_plug: HotPlug::new(space, memory, [], [], 0), record: None }
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
        let found = space.hot_plug.space.translate(DIRECT_MAP + last).unwrap();
        assert_eq!((found.phys.0, found.rights), (last, Rights::ReadWrite));
        assert_eq!(space.hot_plug.space.translate(DIRECT_MAP + last + 1), None);
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
        space.take_unplugged(&[]).unwrap().iter().map(Region::range).collect()
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
        assert_eq!(space.unplug(&offered), 0b10);
        assert_eq!(told(&space), [(chunks[0], NodeId(1)), (chunks[2], NodeId(1))]);
        let translate =
            |space: &CellSpace, at: PhysRange| space.hot_plug.space.translate(DIRECT_MAP + at.start.0);
        assert_eq!(translate(&space, chunks[1]), None);
        assert!(translate(&space, chunks[0]).is_some());
        assert_eq!(space.unplug(&[chunks[1]]), 0, "it has gone");
        assert_eq!(gone(&mut space), [chunks[1]]);
        assert_eq!(gone(&mut space), []);
        // SAFETY: it was just taken, and belongs to nobody.
        let back = unsafe { Region::new(chunks[1], Contents::Unknown) };
        space.extend(back, NodeId(1)).unwrap();
        assert_eq!(translate(&space, chunks[1]).map(|at| at.phys), Some(chunks[1].start));
        assert_eq!(space.unplug(&[chunks[2]]), 1);
        let owned: Vec<PhysRange> = space.dissolve().unwrap().iter().map(Region::range).collect();
        let expected = RangeSet::of(chunks);
        assert!(owned.iter().copied().eq(expected.iter()), "what nobody took comes back with the rest");
    }

    #[test]
    fn holes_are_told_and_no_more_of_them_are_made_than_can_be_told() {
        let len = 4 * MAX_UNPLUGGED as u64 * GRANULE;
        let pool = PhysRange::new(PhysAddr(64 * LARGEST_CHUNK), len);
        let mut memory = Stock::new(alloc::vec![test_region(400)]);
        let descriptor = memory.take(PAGE_SIZE).unwrap().into_range().start;
        let mut tables = AddressSpace::new(&mut memory, LargestPage::TwoMib).unwrap();
        tables.map(DIRECT_MAP + pool.start.0, pool, Rights::ReadWrite, Caching::Cached, &mut memory).unwrap();
        let built = Built {
            root: tables.root(),
            entry: 0,
            places: 0,
            slots: 0,
            first_apic: ApicId(0),
            core_pages: PhysAddr(0),
            descriptor,
            report: PhysAddr(0),
            text: None,
            cores_inside: AtomicUsize::new(0),
        };
        let hot_plug = HotPlug::new(tables, memory, [pool], [pool], 0);
        let mut space = CellSpace { share: Arc::new(built), hot_plug, record: None };
        let every_second: Vec<PhysRange> =
            (0..MAX_UNPLUGGED as u64 + 1).map(|number| part(pool, 2 * number, 1)).collect();
        let (some, rest) = every_second.split_at(20);
        assert_eq!(space.unplug(some), (1 << 20) - 1);
        assert_eq!(
            space.unplug(rest),
            (1 << (MAX_UNPLUGGED - 20)) - 1,
            "the last would be one unplugged_range too many"
        );
        let is_unplugged = |space: &CellSpace, at: PhysRange| space.live().unplug_request.is_unplugged(at);
        assert!(is_unplugged(&space, every_second[3]) && !is_unplugged(&space, part(pool, 7, 1)));
        // What is between two unplugged ranges makes them one.
        assert_eq!(space.unplug(&[part(pool, 7, 1), every_second[MAX_UNPLUGGED]]), 0b11);
        assert!(is_unplugged(&space, part(pool, 7, 1)));
        gone(&mut space);
        // What is given again is no unplugged range.
        // SAFETY: it was just taken; never looked into: it counts as zero.
        let back = unsafe { Region::new(part(pool, 6, 1), Contents::Zero) };
        space.extend(back, NodeId(0)).unwrap();
        assert!(!is_unplugged(&space, part(pool, 6, 1)) && is_unplugged(&space, part(pool, 7, 1)));
    }
}
