//! Memory hot-plug and hot-unplug, while cores run in the cell.
//!
//! **Plug.** A block enters the direct map by entries that were not present before. Non-present entries are not cached
//! in any TLB, so no shootdown is needed. The tables were reserved when the space was built, so it is known beforehand
//! whether all of a block can be mapped.
//!
//! **Unplug** takes two steps, as TLBs of the cell's cores may still have translations: [`CellSpace::unplug`] removes a
//! block from the direct map; [`CellSpace::take_unplugged`] has every core flush its TLB, by code of the supervisor
//! ([`super::shootdown`]), and returns the memory, which is free then. Only memory of the cell's pool can be unplugged,
//! never its image, tables, descriptor or report.

use super::CellSpace;
use super::layout::{STACKS_BYTES, map_stacks};
use super::ranges::RangeSet;
use crate::memory::{Contents, FreeRegions, Region};
use crate::paging::{AddressSpace, Caching, Rights};
use crate::smp::AwayCore;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::Ordering;
use isola_abi::descriptor::REQUEST_VECTOR;
use isola_abi::growth::{Answer, LARGEST_BLOCK, MAX_PLUGGED_BLOCKS, SMALLEST_BLOCK};
use isola_abi::id::{NodeId, PhysRange};
use isola_abi::layout::{DIRECT_MAP, PAGE_SIZE, STACK_SIZE};
use isola_abi::unplug::{CHUNK, MAX_UNPLUGGED, UnplugRequest};

/// The most tables that a block needs: one of 2 MiB leaves, and one directory above it.
const TABLES: u64 = 2;

/// The most directories that all blocks together need: one for each 512 GiB of the machine's memory that has some.
const SPANS: u64 = 8;

/// The most tables that an unplugged block needs: one for each of two leaves of 1 GiB that it covers only in part.
const CUT_TABLES: u64 = 2;

/// Returns the number of tables to reserve for a cell with `memory_bytes` that may request `growth_bytes` more. The
/// operator can also plug memory into any cell, and unplug it; hence a table for each 256 KiB of the initial memory,
/// but no more than all blocks can need, and one for each GiB.
pub(super) fn growth_tables(memory_bytes: u64, growth_bytes: u64) -> u64 {
    let all = MAX_PLUGGED_BLOCKS as u64 + SPANS;
    let unasked = (memory_bytes >> 18).min(all);
    let asked = match (growth_bytes / SMALLEST_BLOCK).min(MAX_PLUGGED_BLOCKS as u64) {
        0 => 0,
        chunks => chunks + SPANS,
    };
    unasked.max(asked) + (memory_bytes >> 30)
}

/// The time limit for a core to handle a non-maskable interrupt, in us. Generous, as an emulated core may have to wait
/// for a core of its host.
const FLUSH_LIMIT_US: u64 = 2_000_000;

/// The interrupt that a core was sent for its TLB flush.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FlushInterrupt {
    None,
    /// An ordinary one, as the core is still entering the cell.
    Ordinary,
    /// A non-maskable one.
    NonMaskable,
}

/// The memory that a space has gained and lost since it was built, and the reserves for further changes.
#[derive(Debug)]
pub(super) struct HotPlug {
    pub(super) space: AddressSpace,
    /// Tables, from the memory that the space was built from.
    pub(super) tables: FreeRegions,
    /// All memory of the space, which [`CellSpace::dissolve`] returns.
    owned: RangeSet,
    /// The part of it in the direct map, which the cell uses freely.
    pub(super) pool: RangeSet,
    /// The pool when the space was built.
    first_pool: RangeSet,
    /// The plugged blocks that the cell's live words list.
    plugged: Vec<PhysRange>,
    /// Blocks that were removed from the direct map, but whose translations may still be in TLBs.
    unplugged: Vec<PhysRange>,
    /// The number of core slots with stacks: the first ones, as slots are given stacks in order.
    cores_with_stacks: usize,
    /// Memory for the stacks of further core slots.
    stack_pages: FreeRegions,
}

impl HotPlug {
    /// Creates the state of a space that was built of `owned`, whose pool is `pool`.
    pub(super) fn new(
        space: AddressSpace,
        tables: FreeRegions,
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
            plugged: Vec::new(),
            unplugged: Vec::new(),
            cores_with_stacks,
            stack_pages: FreeRegions::default(),
        }
    }

    /// Returns whether the core slot has stacks, so that a core can enter it.
    pub(super) fn has_stacks(&self, slot: usize) -> bool {
        slot < self.cores_with_stacks
    }

    /// Returns the memory of the space.
    pub(super) fn owned(&self) -> impl Iterator<Item = PhysRange> {
        self.owned.iter()
    }

    fn table_count(&self) -> u64 {
        self.tables.len_bytes() / PAGE_SIZE
    }

    /// Returns how many blocks can certainly be mapped.
    fn pluggable_blocks(&self) -> usize {
        let tables = usize::try_from(self.table_count() / TABLES).unwrap_or(usize::MAX);
        MAX_PLUGGED_BLOCKS.saturating_sub(self.plugged.len()).min(tables)
    }

    /// Adds the plugged blocks and removes the unplugged ranges of an adopted cell.
    pub(super) fn with(
        mut self,
        chunks: Vec<PhysRange>,
        unplugged_ranges: impl IntoIterator<Item = PhysRange>,
    ) -> Self {
        chunks.iter().for_each(|chunk| self.pool.insert(*chunk));
        unplugged_ranges.into_iter().for_each(|unplugged_range| self.pool.remove(unplugged_range));
        self.plugged = chunks;
        self
    }

    /// Returns whether `chunk` is a valid block that can be mapped.
    fn can_map(&self, chunk: PhysRange) -> bool {
        let len = chunk.len_bytes;
        let is_block = len.is_power_of_two() && (SMALLEST_BLOCK..=LARGEST_BLOCK).contains(&len);
        is_block
            && chunk.start.0.is_multiple_of(len)
            && self.pluggable_blocks() > 0
            && !self.owned.meets(chunk)
    }

    /// Returns the unplugged ranges for this pool and these plugged blocks: the parts of the original pool and of the
    /// blocks that are not in `pool`.
    fn unplugged_ranges(&self, pool: &RangeSet, chunks: &[PhysRange]) -> Vec<PhysRange> {
        let mut listed = self.first_pool.clone();
        chunks.iter().for_each(|chunk| listed.insert(*chunk));
        listed.without(pool).iter().collect()
    }

    /// Removes a block from the direct map and from the memory that the live words list, if it can be unplugged.
    fn unplug(
        &mut self,
        block: PhysRange,
        unplug_request: &UnplugRequest,
        vacate: impl Fn(PhysRange),
        is_lent: impl Fn(PhysRange) -> bool,
    ) -> bool {
        let is_block = block.start.0.is_multiple_of(CHUNK)
            && block.len_bytes.is_multiple_of(CHUNK)
            && block.len_bytes > 0;
        if !is_block || !self.pool.contains(block) || is_lent(block) || self.table_count() < CUT_TABLES {
            return false;
        }
        let mut pool = self.pool.clone();
        pool.remove(block);
        let (stay, gone): (Vec<_>, Vec<_>) = self.plugged.iter().partition(|chunk| pool.meets(**chunk));
        let unplugged_ranges = self.unplugged_ranges(&pool, &stay);
        if unplugged_ranges.len() > MAX_UNPLUGGED {
            return false;
        }
        unplug_request.set_unplugged(&unplugged_ranges);
        gone.into_iter().for_each(vacate);
        (self.pool, self.plugged) = (pool, stay);
        // The checks above exclude both errors: there are tables for it, and it is whole chunks.
        let _ = self.space.unmap(DIRECT_MAP + block.start.0, block.len_bytes, &mut self.tables);
        self.unplugged.push(block);
        true
    }
}

/// There is no memory for the stacks of a core slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfStackMemory;

impl fmt::Display for OutOfStackMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the cell has no memory for another core's stacks: give it some")
    }
}

impl core::error::Error for OutOfStackMemory {}

impl CellSpace {
    /// Plugs a block, see [`isola_abi::growth`], while the cell runs: maps it, zeroed, in the direct map, and lists it
    /// in the live words.
    ///
    /// # Errors
    /// The memory as it was, if it is no valid block, or there is no room for it.
    pub fn plug(&mut self, mut memory: Region, node: NodeId) -> Result<(), Region> {
        let chunk = memory.range();
        if !self.hot_plug.can_map(chunk) {
            return Err(memory);
        }
        // Recorded first, so that the memory has a recorded owner at every moment.
        let mut owned = self.hot_plug.owned.clone();
        owned.insert(chunk);
        if self.record.as_mut().is_some_and(|record| !record.set_memory(owned.iter())) {
            return Err(memory);
        }
        memory.scrub();
        self.hot_plug.owned.insert(memory.into_range());
        let virt = DIRECT_MAP + chunk.start.0;
        // There are tables, and nothing is mapped there; if mapping failed nevertheless, the block would stay unused
        // until the cell ends.
        let HotPlug { space, tables, .. } = &mut self.hot_plug;
        let is_mapped = space.map(virt, chunk, Rights::ReadWrite, Caching::Cached, tables).is_ok();
        if is_mapped {
            self.hot_plug.pool.insert(chunk);
            self.hot_plug.plugged.push(chunk);
            self.live()
                .unplug_request
                .set_unplugged(&self.hot_plug.unplugged_ranges(&self.hot_plug.pool, &self.hot_plug.plugged));
            let _ = self.live().plugged_memory.push(chunk, node);
        }
        Ok(())
    }

    /// Returns how many blocks the cell can certainly be given.
    pub fn pluggable_blocks(&self) -> usize {
        self.hot_plug.pluggable_blocks()
    }

    /// Allocates the stacks of a core slot and of all earlier ones that have none.
    ///
    /// # Errors
    /// [`OutOfStackMemory`] if memory is missing; [`Self::allocate_stacks_from`] adds some.
    pub fn allocate_stacks(&mut self, slot: usize) -> Result<(), OutOfStackMemory> {
        let HotPlug { space, cores_with_stacks, stack_pages, .. } = &mut self.hot_plug;
        while *cores_with_stacks <= slot {
            let is_enough = stack_pages.len_bytes() >= STACKS_BYTES;
            if !is_enough || map_stacks(space, *cores_with_stacks as u64, STACK_SIZE, stack_pages).is_err() {
                return Err(OutOfStackMemory);
            }
            *cores_with_stacks += 1;
        }
        Ok(())
    }

    /// Adds memory from which [`Self::allocate_stacks`] takes stacks. It belongs to the cell until the space is
    /// dissolved.
    ///
    /// # Errors
    /// The memory, if the ownership record cannot list it.
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

    /// Answers the cell's memory request `number`.
    pub fn answer(&self, number: u32, answer: Answer) {
        self.live().plugged_memory.reply(number, answer);
    }

    /// Announces to the cell the most memory that it may have from now on, in bytes.
    pub fn set_limit(&self, limit_bytes: u64) {
        self.live().plugged_memory.limit_bytes.store(limit_bytes, Ordering::Release);
    }

    /// Sends the cell a reclaim request for so many bytes. Returns the request's number.
    pub fn request_unplug(&self, len_bytes: u64) -> u32 {
        let number = self.live().unplug_request.ask(len_bytes);
        self.interrupt();
        number
    }

    /// Reports the settlement of the offer to the last reclaim request: bit n of `taken` is set if block n was
    /// unplugged.
    pub fn settle(&self, taken: u32) {
        self.live().unplug_request.settle(taken);
        self.interrupt();
    }

    /// Unplugs those of these blocks that are whole chunks of the pool, of which no part is given to another cell. Returns a word whose bit n is set if block n
    /// was unplugged. The memory must not be used for anything else before every core has flushed its TLB.
    pub fn unplug(&mut self, blocks: &[PhysRange]) -> u32 {
        let Self { share, hot_plug, .. } = self;
        let (live, links) = (share.live(), share.links());
        let is_lent = |block: PhysRange| links.lends(block);
        let vacate = |chunk: PhysRange| live.plugged_memory.vacate(chunk.start);
        let blocks = (0..u32::BITS).zip(blocks);
        blocks.fold(0, |taken, (bit, block)| {
            taken | u32::from(hot_plug.unplug(*block, &live.unplug_request, vacate, is_lent)) << bit
        })
    }

    /// Returns the unplugged memory, with the contents that the cell left. Before that, every core in the cell flushes
    /// its TLB, whatever it executes, at a non-maskable interrupt. `cores` are all cores in the cell, each with its
    /// core slot.
    ///
    /// # Errors
    /// The slot of a core that does not flush. The memory then stays with the space until it is dissolved.
    pub fn take_unplugged(&mut self, cores: &[(usize, &AwayCore)]) -> Result<Vec<Region>, usize> {
        self.flush_all_tlbs(cores)?;
        let mut owned = self.hot_plug.owned.clone();
        self.hot_plug.unplugged.iter().for_each(|block| owned.remove(*block));
        if self.record.as_mut().is_some_and(|record| !record.set_memory(owned.iter())) {
            return Err(cores.first().map_or(0, |(slot, _)| *slot));
        }
        let blocks = core::mem::take(&mut self.hot_plug.unplugged);
        let take = |block: PhysRange| {
            self.hot_plug.owned.remove(block);
            // SAFETY: the memory was part of the regions from which the space was made; no table of the space maps it,
            // and no core has a translation of it in its TLB. A device of the cell may still write there, as to any
            // memory: the addresses that it gets are the cell's responsibility, and only an IOMMU or a guard could
            // check them (docs/isolation.md, "Devices").
            unsafe { Region::new(block, Contents::Unknown) }
        };
        Ok(blocks.into_iter().map(take).collect())
    }

    /// Makes every core in the cell flush its TLB. `cores` are all cores in the cell, each with its core slot.
    ///
    /// # Errors
    /// The slot of a core that does not flush.
    pub fn flush_all_tlbs(&self, cores: &[(usize, &AwayCore)]) -> Result<(), usize> {
        let is_in = |(_, core): &&(usize, &AwayCore)| core.is_in(&self.share);
        if cores.iter().filter(is_in).count() != self.share.cores_inside.load(Ordering::Acquire) {
            return Err(cores.first().map_or(0, |(slot, _)| *slot));
        }
        let generation = self.live().unplug_request.next_generation();
        let mut waiting: Vec<(usize, &AwayCore, FlushInterrupt)> =
            cores.iter().map(|(slot, core)| (*slot, *core, FlushInterrupt::None)).collect();
        let Some((_, first)) = cores.first() else { return Ok(()) };
        let deadline = first.deadline_after_us(FLUSH_LIMIT_US);
        loop {
            waiting.retain_mut(|(slot, core, sent)| !self.request_flush(*slot, core, sent, generation));
            match waiting.first() {
                None => return Ok(()),
                Some((slot, ..)) if deadline.has_come() => return Err(*slot),
                Some(_) => core::hint::spin_loop(),
            }
        }
    }

    /// Returns whether the core at slot `slot` has flushed its TLB, by the supervisor's code ([`super::shootdown`]).
    /// If not, sends it the interrupt that it still needs.
    fn request_flush(
        &self,
        slot: usize,
        core: &AwayCore,
        sent: &mut FlushInterrupt,
        generation: u32,
    ) -> bool {
        let has_flushed = self.share.generation_at(slot) == Some(generation);
        match *sent {
            _ if has_flushed => {}
            FlushInterrupt::None | FlushInterrupt::Ordinary if self.is_inside(slot) => {
                *sent = FlushInterrupt::NonMaskable;
                core.interrupt_by_force();
            }
            FlushInterrupt::None => {
                // The core is still entering the cell, where it must not get a non-maskable interrupt.
                *sent = FlushInterrupt::Ordinary;
                core.interrupt(REQUEST_VECTOR);
            }
            FlushInterrupt::Ordinary | FlushInterrupt::NonMaskable => {}
        }
        has_flushed
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
    use isola_abi::layout::DESCRIPTOR_SIZE;
    use isola_abi::links::LEAST_LINKS;

    const CHUNK_PAGES: u64 = SMALLEST_BLOCK / PAGE_SIZE;

    /// Creates a space that consists only of tables and a descriptor.
    fn space(tables: u64) -> CellSpace {
        let area = DESCRIPTOR_SIZE / PAGE_SIZE;
        let mut memory = FreeRegions::new(alloc::vec![test_region(tables + 1 + area)]);
        let descriptor = memory.take(DESCRIPTOR_SIZE).unwrap().into_range().start;
        let space = AddressSpace::new(&mut memory, LargestPage::TwoMib).unwrap();
        let built = Built {
            root: space.root(),
            entry: 0,
            core_slots: 0,
            activity_slots: 0,
            link_slots: LEAST_LINKS,
            first_apic: ApicId(0),
            core_pages: PhysAddr(0),
            descriptor,
            report: PhysAddr(0),
            text: None,
            cores_inside: AtomicUsize::new(0),
        };
        CellSpace { share: Arc::new(built), hot_plug: HotPlug::new(space, memory, [], [], 0), record: None }
    }

    fn listed(space: &CellSpace) -> Vec<(PhysRange, NodeId)> {
        // SAFETY: `space` made the page, of zeros, which are valid values of these words.
        unsafe { &*direct(space.share.descriptor).cast::<LiveWords>() }.plugged_memory.iter().collect()
    }

    #[test]
    fn a_plugged_block_is_zeroed_mapped_listed_and_returned_with_the_rest() {
        let mut space = space(growth_tables(0, 4 * SMALLEST_BLOCK));
        let chunk = test_region(CHUNK_PAGES);
        let range = chunk.range();
        assert!(chunk.bytes().iter().any(|byte| *byte != 0));
        space.plug(chunk, NodeId(3)).unwrap();
        assert_eq!(listed(&space), [(range, NodeId(3))]);
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
    fn an_invalid_block_or_one_without_tables_is_returned() {
        let mut full = space(1);
        let len = |result: Result<(), Region>| result.unwrap_err().len_bytes();
        assert_eq!(len(full.plug(test_region(CHUNK_PAGES), NodeId(0))), SMALLEST_BLOCK);
        let mut other = space(20);
        assert_eq!(len(other.plug(test_region(1), NodeId(0))), PAGE_SIZE);
        assert_eq!(len(other.plug(test_region(3 * CHUNK_PAGES), NodeId(0))), 3 * SMALLEST_BLOCK);
        let (_, crooked) = test_region(CHUNK_PAGES + 1).split(PAGE_SIZE).unwrap();
        assert_eq!(len(other.plug(crooked, NodeId(0))), SMALLEST_BLOCK);
        assert!(listed(&full).is_empty() && listed(&other).is_empty());
    }

    #[test]
    fn tables_suffice_for_the_maximum_number_of_blocks() {
        let mut space = space(growth_tables(0, u64::MAX));
        // Far from each other: only the addresses count, as no code accesses this memory.
        for number in 0..MAX_PLUGGED_BLOCKS as u64 {
            let range = PhysRange::new(PhysAddr((number + 1) * LARGEST_BLOCK * 16), LARGEST_BLOCK / 2);
            // SAFETY: no code accesses the memory: it counts as zero.
            let chunk = unsafe { Region::new(range, Contents::Zero) };
            space.plug(chunk, NodeId(0)).unwrap();
        }
        assert_eq!(listed(&space).len(), MAX_PLUGGED_BLOCKS);
        assert!(space.plug(test_region(CHUNK_PAGES), NodeId(0)).is_err());
    }

    fn gone(space: &mut CellSpace) -> Vec<PhysRange> {
        space.take_unplugged(&[]).unwrap().iter().map(Region::range).collect()
    }

    fn part(of: PhysRange, from: u64, chunks: u64) -> PhysRange {
        PhysRange::new(PhysAddr(of.start.0 + from * CHUNK), chunks * CHUNK)
    }

    #[test]
    fn an_unplugged_block_is_unmapped_and_returned_once() {
        let mut space = space(growth_tables(0, u64::MAX));
        let (first, second) = (test_region(4 * CHUNK_PAGES), test_region(CHUNK_PAGES));
        let ranges = [first.range(), second.range()];
        // The test's regions are aligned only at multiples of 2 MiB.
        let (chunks, len) = ([part(ranges[0], 0, 1), part(ranges[0], 1, 1), ranges[1]], 3);
        let (a, rest) = first.split(CHUNK).unwrap();
        let (b, _) = rest.split(CHUNK).unwrap();
        for chunk in [a, b, second] {
            space.plug(chunk, NodeId(1)).unwrap();
        }
        assert_eq!(listed(&space).len(), len);
        let foreign = PhysRange::new(space.share.descriptor, CHUNK);
        let crooked = PhysRange::new(PhysAddr(ranges[1].start.0 + PAGE_SIZE), CHUNK);
        let beyond = part(ranges[0], 1, 2);
        let offered = [foreign, chunks[1], crooked, beyond, PhysRange::new(PhysAddr(u64::MAX - 1), u64::MAX)];
        assert_eq!(space.unplug(&offered), 0b10);
        assert_eq!(listed(&space), [(chunks[0], NodeId(1)), (chunks[2], NodeId(1))]);
        let translate =
            |space: &CellSpace, at: PhysRange| space.hot_plug.space.translate(DIRECT_MAP + at.start.0);
        assert_eq!(translate(&space, chunks[1]), None);
        assert!(translate(&space, chunks[0]).is_some());
        assert_eq!(space.unplug(&[chunks[1]]), 0, "unplugged already");
        assert_eq!(gone(&mut space), [chunks[1]]);
        assert_eq!(gone(&mut space), []);
        // SAFETY: the space has just returned it, and no other code owns it.
        let back = unsafe { Region::new(chunks[1], Contents::Unknown) };
        space.plug(back, NodeId(1)).unwrap();
        assert_eq!(translate(&space, chunks[1]).map(|at| at.phys), Some(chunks[1].start));
        assert_eq!(space.unplug(&[chunks[2]]), 1);
        let owned: Vec<PhysRange> = space.dissolve().unwrap().iter().map(Region::range).collect();
        let expected = RangeSet::of(chunks);
        assert!(owned.iter().copied().eq(expected.iter()), "an untaken block is returned with the rest");
    }

    #[test]
    fn unplugged_ranges_are_listed_and_their_number_is_bounded() {
        let len = 4 * MAX_UNPLUGGED as u64 * CHUNK;
        let pool = PhysRange::new(PhysAddr(64 * LARGEST_BLOCK), len);
        let mut memory = FreeRegions::new(alloc::vec![test_region(400)]);
        let descriptor = memory.take(DESCRIPTOR_SIZE).unwrap().into_range().start;
        let mut tables = AddressSpace::new(&mut memory, LargestPage::TwoMib).unwrap();
        tables.map(DIRECT_MAP + pool.start.0, pool, Rights::ReadWrite, Caching::Cached, &mut memory).unwrap();
        let built = Built {
            root: tables.root(),
            entry: 0,
            core_slots: 0,
            activity_slots: 0,
            link_slots: LEAST_LINKS,
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
        for some in every_second[..MAX_UNPLUGGED].chunks(16) {
            assert_eq!(space.unplug(some), (1 << 16) - 1);
        }
        assert_eq!(
            space.unplug(&every_second[MAX_UNPLUGGED..]),
            0,
            "more than the limit of unplugged ranges"
        );
        let is_unplugged = |space: &CellSpace, at: PhysRange| space.live().unplug_request.is_unplugged(at);
        assert!(is_unplugged(&space, every_second[3]) && !is_unplugged(&space, part(pool, 7, 1)));
        // Unplugging a block between two unplugged ranges merges them.
        assert_eq!(space.unplug(&[part(pool, 7, 1), every_second[MAX_UNPLUGGED]]), 0b11);
        assert!(is_unplugged(&space, part(pool, 7, 1)));
        gone(&mut space);
        // A block that is plugged again is no unplugged range.
        // SAFETY: the space has just returned it; no code accesses it: it counts as zero.
        let back = unsafe { Region::new(part(pool, 6, 1), Contents::Zero) };
        space.plug(back, NodeId(0)).unwrap();
        assert!(!is_unplugged(&space, part(pool, 6, 1)) && is_unplugged(&space, part(pool, 7, 1)));
    }
}
