//! What a cell holds, written down as it changes, for a supervisor that restarts; and the cell as that finds it.

use super::hot_plug::HotPlug;
use super::layout::has_stacks;
use super::{Built, CellSpace, Share};
use crate::memory::{Contents, Region, SharedRegion, Stock, direct};
use crate::paging::{AddressSpace, LargestPage};
use crate::restart::{Claim, Holding, OwnershipRecord};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use isola_abi::descriptor::{BODY_OFFSET, Descriptor, LiveWords, MAX_BODY};
use isola_abi::id::{ApicId, CoreId, PhysAddr, PhysRange};
use isola_abi::layout::{DIRECT_MAP, PAGE_SIZE};
use isola_abi::stage::Stage;

/// An ownership record, and what it says.
#[derive(Debug)]
pub(super) struct Record {
    ownership: OwnershipRecord,
    holding: Holding,
    entered: Entered,
}

/// Whether the next incarnation would find the ownership record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entered {
    Yes,
    No,
}

impl Record {
    /// What nobody would find yet.
    pub(super) fn new(ownership: OwnershipRecord, holding: Holding) -> Self {
        Self { ownership, holding, entered: Entered::No }
    }

    /// Says which memory it has now. Returns whether it could be written down; if not, all is as before.
    pub(super) fn set_memory(&mut self, memory: impl Iterator<Item = PhysRange>) -> bool {
        let before = core::mem::replace(&mut self.holding.memory, memory.collect());
        // What is not to be found again yet is written down when it is.
        let is_written = self.entered == Entered::No || self.write();
        if !is_written {
            self.holding.memory = before;
        }
        is_written
    }

    fn write(&mut self) -> bool {
        if !self.ownership.write(&self.holding) {
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
    /// Writes down how far the cell is, and what its supervisor wants to know again of it: a supervisor that restarts
    /// finds that. Returns whether it could be written down.
    pub fn keep(&mut self, stage: Stage, saved_state: Vec<u8>) -> bool {
        let Some(record) = &mut self.record else { return false };
        record.holding.stage = stage;
        record.holding.saved_state = saved_state;
        if stage == Stage::Quarantined {
            // Those that came back are others' by now; who finds this begins by calling all of them back.
            record.holding.cores.clear();
        }
        record.write()
    }

    /// The cell that a previous incarnation of the image has built, which stands on `text`.
    ///
    /// # Safety
    /// What the claim says must be true: the cell must have been built so, and nobody else uses its memory; the text is what
    /// the claim names.
    pub(crate) unsafe fn adopt(claim: &Claim, text: Option<SharedRegion>, largest: LargestPage) -> Self {
        let Claim { place, number, holding, .. } = claim;
        // SAFETY: `Holding` has them from `build`, as the caller vouches for.
        let space = unsafe { AddressSpace::existing(holding.root, largest) };
        let pages = holding
            .tables
            .iter()
            .flat_map(|range| (range.start.0..range.end().0).step_by(PAGE_SIZE as usize).map(PhysAddr));
        let unused = space.unused(DIRECT_MAP, pages).into_iter().map(|page| {
            // SAFETY: `build` has set the page aside for tables, and it is none yet.
            unsafe { Region::new(PhysRange::new(page, PAGE_SIZE), Contents::Unknown) }
        });
        let tables = Stock::new(unused.collect());
        // SAFETY: `build` has made the words there, of atomic integers, for which anything is a value.
        let live = unsafe { &*direct(holding.descriptor).cast::<LiveWords>() };
        let chunks: Vec<PhysRange> = live.grown.iter().map(|(chunk, _)| chunk).collect();
        // SAFETY: as for the words, behind which it stands.
        let body = unsafe {
            core::slice::from_raw_parts(
                direct(PhysAddr(holding.descriptor.0 + BODY_OFFSET as u64)),
                MAX_BODY + 4,
            )
        };
        let pool = Descriptor::decode(body).map(|descriptor| descriptor.pool).unwrap_or_default();
        let pool = pool.iter().map(|range| range.memory);
        let cores_inside = if holding.stage == Stage::Built { 0 } else { claim.cores().count() };
        let places = holding.places as usize;
        let share: Share = Arc::new(Built {
            root: holding.root,
            entry: holding.entry,
            places,
            slots: holding.slots as usize,
            first_apic: claim.cores().next().map_or(ApicId(0), |core| core.apic),
            core_pages: holding.core_pages,
            descriptor: holding.descriptor,
            report: holding.report,
            text,
            cores_inside: AtomicUsize::new(cores_inside),
        });
        // SAFETY: the ownership record is there, as the caller vouches for.
        let ownership = unsafe { OwnershipRecord::existing(*place, *number) };
        let entered = if ownership.enter() { Entered::Yes } else { Entered::No };
        let record = Record { ownership, holding: holding.clone(), entered };
        // Tables say which places have stacks.
        let cores_with_stacks = (0..places as u64).take_while(|place| has_stacks(&space, *place)).count();
        let hot_plug = HotPlug::new(space, tables, holding.memory.clone(), pool, cores_with_stacks)
            .with(chunks, live.unplug_request.unplugged_ranges());
        let cell = Self { share, hot_plug, record: Some(Box::new(record)) };
        cell.settle_what_is_open();
        cell
    }

    /// Tells the cell what became of an offer that it has not been answered: what has gone from its address space has gone.
    /// It stays among what the cell has until the cell ends, as it was not taken any further.
    fn settle_what_is_open(&self) {
        let unplug_request = &self.live().unplug_request;
        if unplug_request.asked().0 != unplug_request.settlement().number {
            let (blocks, _) = self.report().offer.read();
            let taken = (0..u32::BITS).zip(blocks).filter(|(_, block)| unplug_request.is_unplugged(*block));
            unplug_request.settle(taken.fold(0, |taken, (bit, _)| taken | 1 << bit));
        }
    }

    /// The number of the last request for memory that is done with; 0: there was none.
    pub fn settled(&self) -> u32 {
        self.live().unplug_request.settlement().number
    }

    /// The number of the last request that the cell was answered.
    pub fn answered(&self) -> u32 {
        self.live().grown.answered.load(Ordering::Relaxed)
    }

    /// By place that ever had one: the core that is there, or was there last.
    pub fn core_ids(&self) -> Vec<CoreId> {
        // Places are used in order.
        (0..self.share.places).map_while(|place| self.places().last(place)).collect()
    }

    /// What the cores and devices of an adopted cell hold of it.
    pub(crate) fn share(&self) -> Share {
        self.share.clone()
    }
}
