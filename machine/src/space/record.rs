//! A cell's ownership record, updated as its resources change, and the recovery of a cell from it after a restart.

use super::hot_plug::HotPlug;
use super::layout::has_stacks;
use super::{Built, CellSpace, Share};
use crate::memory::{Contents, FreeRegions, Region, SharedRegion, direct};
use crate::paging::{AddressSpace, LargestPage};
use crate::restart::{CellResources, Claim, OwnershipRecord};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use isola_abi::descriptor::{BODY_OFFSET, Descriptor, LiveWords, MAX_BODY};
use isola_abi::id::{ApicId, CoreId, PhysAddr, PhysRange};
use isola_abi::layout::{DIRECT_MAP, LINKS, PAGE_SIZE};
use isola_abi::stage::Stage;

/// An ownership record, and its latest contents.
#[derive(Debug)]
pub(super) struct Record {
    ownership: OwnershipRecord,
    resources: CellResources,
    entered: Entered,
}

/// Whether the next incarnation would find the ownership record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entered {
    Yes,
    No,
}

impl Record {
    /// Creates a record that the next incarnation would not find yet.
    pub(super) fn new(ownership: OwnershipRecord, resources: CellResources) -> Self {
        Self { ownership, resources, entered: Entered::No }
    }

    /// Updates the memory in the record. Returns whether that succeeded; if not, the record is unchanged.
    pub(super) fn set_memory(&mut self, memory: impl Iterator<Item = PhysRange>) -> bool {
        let before = core::mem::replace(&mut self.resources.memory, memory.collect());
        // A record that is not entered yet is written when it is.
        let is_written = self.entered == Entered::No || self.write();
        if !is_written {
            self.resources.memory = before;
        }
        is_written
    }

    fn write(&mut self) -> bool {
        if !self.ownership.write(&self.resources) {
            return false;
        }
        if self.entered == Entered::No && self.ownership.enter() {
            self.entered = Entered::Yes;
        }
        self.entered == Entered::Yes
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.ownership.strike();
    }
}

impl CellSpace {
    /// Records the cell's stage, and the state that its supervisor wants to recover after a restart. Returns whether
    /// that succeeded.
    pub fn save_record(&mut self, stage: Stage, saved_state: Vec<u8>) -> bool {
        let Some(record) = &mut self.record else { return false };
        record.resources.stage = stage;
        record.resources.saved_state = saved_state;
        if stage == Stage::Quarantined {
            // Cores that came back may be in other cells by now; an incarnation that finds this record first reclaims
            // all of them.
            record.resources.cores.clear();
        }
        record.write()
    }

    /// Adopts a cell that a previous incarnation of the image built, which shares `text`.
    ///
    /// # Safety
    /// The contents of the claim must be true: the cell was built so, and no other code uses its memory; `text` is the
    /// memory that the claim names.
    pub(crate) unsafe fn adopt(claim: &Claim, text: Option<SharedRegion>, largest: LargestPage) -> Self {
        let Claim { location, number, resources, .. } = claim;
        // SAFETY: `resources` has the root of page tables from `build`, as the caller guarantees.
        let space = unsafe { AddressSpace::existing(resources.root, largest) };
        let pages = resources
            .tables
            .iter()
            .flat_map(|range| (range.start.0..range.end().0).step_by(PAGE_SIZE as usize).map(PhysAddr));
        // The link area has tables of the same stock, and one page of data.
        let scratch = space.translate(LINKS).map(|at| at.phys);
        let pages = space.unused(DIRECT_MAP, pages).into_iter().filter(|page| Some(*page) != scratch);
        let unused = space.unused(LINKS, pages).into_iter().map(|page| {
            // SAFETY: `build` reserved the page for tables, and it is not in use as one.
            unsafe { Region::new(PhysRange::new(page, PAGE_SIZE), Contents::Unknown) }
        });
        let tables = FreeRegions::new(unused.collect());
        // SAFETY: `build` made the words there, of atomic integers, for which any bytes are valid.
        let live = unsafe { &*direct(resources.descriptor).cast::<LiveWords>() };
        let chunks: Vec<PhysRange> = live.plugged_memory.iter().map(|(chunk, _)| chunk).collect();
        // SAFETY: as for the words; the body follows them in the same area.
        let body = unsafe {
            core::slice::from_raw_parts(
                direct(PhysAddr(resources.descriptor.0 + BODY_OFFSET as u64)),
                MAX_BODY + 4,
            )
        };
        let pool = Descriptor::decode(body).map(|descriptor| descriptor.pool).unwrap_or_default();
        let pool = pool.iter().map(|range| range.memory);
        let cores_inside = if resources.stage == Stage::Built { 0 } else { claim.cores().count() };
        let core_slots = resources.core_slots as usize;
        let share: Share = Arc::new(Built {
            root: resources.root,
            entry: resources.entry,
            core_slots,
            activity_slots: resources.activity_slots as usize,
            link_slots: resources.link_slots as usize,
            first_apic: claim.cores().next().map_or(ApicId(0), |core| core.apic),
            core_pages: resources.core_pages,
            descriptor: resources.descriptor,
            report: resources.report,
            text,
            cores_inside: AtomicUsize::new(cores_inside),
        });
        // SAFETY: the ownership record is at `location`, as the caller guarantees.
        let ownership = unsafe { OwnershipRecord::existing(*location, *number) };
        let entered = if ownership.enter() { Entered::Yes } else { Entered::No };
        let record = Record { ownership, resources: resources.clone(), entered };
        // The page tables show which core slots have stacks.
        let cores_with_stacks = (0..core_slots as u64).take_while(|slot| has_stacks(&space, *slot)).count();
        let hot_plug = HotPlug::new(space, tables, resources.memory.clone(), pool, cores_with_stacks)
            .with(chunks, live.unplug_request.unplugged_ranges());
        let cell = Self { share, hot_plug, record: Some(Box::new(record)) };
        cell.settle_what_is_open();
        cell
    }

    /// Settles an offer that the previous incarnation did not answer: blocks that it removed from the direct map are
    /// unplugged. They stay in the cell's memory until the cell ends, as the unplug was not completed.
    fn settle_what_is_open(&self) {
        let unplug_request = &self.live().unplug_request;
        if unplug_request.asked().0 != unplug_request.settlement().number {
            let (blocks, _) = self.report().offer.read();
            let taken = (0..u32::BITS).zip(blocks).filter(|(_, block)| unplug_request.is_unplugged(*block));
            unplug_request.settle(taken.fold(0, |taken, (bit, _)| taken | 1 << bit));
        }
    }

    /// Returns the number of the last settled reclaim request; 0 if there was none.
    pub fn settled(&self) -> u32 {
        self.live().unplug_request.settlement().number
    }

    /// Returns the number of the last answered memory request.
    pub fn answered(&self) -> u32 {
        self.live().plugged_memory.answered.load(Ordering::Relaxed)
    }

    /// Returns, by core slot, the core that is there or was there last, up to the first slot that never had one.
    pub fn core_ids(&self) -> Vec<CoreId> {
        // Slots are used in order.
        (0..self.share.core_slots).map_while(|slot| self.core_slots().last(slot)).collect()
    }

    /// Returns a share of the cell, for the cores and devices of an adopted one.
    pub(crate) fn share(&self) -> Share {
        self.share.clone()
    }
}
