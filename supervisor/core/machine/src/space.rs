//! A cell's address space: [`CellSpace`] with `isola-machine`.

use crate::hardware::Core;
use crate::memory::Piece;
use alloc::vec::Vec;
use isola_abi::core_slots::{Order, OrderKind};
use isola_abi::descriptor::Request;
use isola_abi::growth::Answer;
use isola_abi::id::{ApicId, CoreId, NodeId, PhysRange};
use isola_abi::ledger::Ledger;
use isola_abi::links::{LinkAccess, LinkTable, LinkWindow};
use isola_abi::query::Line;
use isola_abi::report::Report;
use isola_abi::stage::Stage;
use isola_machine::authority::Authority;
use isola_machine::smp::AwayCore;
use isola_machine::space::{self, EnterError};
use isola_supervisor_core::CellSpace;
use isola_supervisor_core::space::{Admission, OutOfStackMemory, Unplugged};

/// A cell's address space, and the authority of the pieces of its memory.
#[derive(Debug)]
pub struct Space(space::CellSpace, Authority);

impl Space {
    /// Returns the space, whose memory has the authority of the machine.
    pub(crate) fn new(space: space::CellSpace, authority: Authority) -> Self {
        Self(space, authority)
    }

    /// Returns the memory of a cell in which nothing is active.
    pub(crate) fn dismantle(self) -> Result<Vec<Piece>, Self> {
        let Self(space, authority) = self;
        let dissolved = space.dissolve();
        dissolved.map(|memory| Piece::of_all(memory, authority)).map_err(|space| Self(space, authority))
    }

    /// Returns, by core slot as far as slots were ever occupied, its core, or the last one.
    pub(crate) fn core_ids(&self) -> Vec<CoreId> {
        self.0.core_ids()
    }

    /// Returns the numbers of the last memory request that was answered, and of the last complete reclaim request.
    pub(crate) fn answered_and_settled(&self) -> (u32, u32) {
        (self.0.answered(), self.0.settled())
    }

    /// Interrupts a core of the cell by NMI, unless the core is still entering: an NMI must not arrive in the entry
    /// code.
    fn interrupt_by_force(&self, core: &Core, slot: usize) {
        if let Core::Away(core) = core
            && self.0.is_inside(slot)
        {
            core.interrupt_by_force();
        }
    }
}

/// Returns the cores that execute the cell, with their slots.
fn inside(cores: &[Option<Core>]) -> Vec<(usize, &AwayCore)> {
    let inside = cores.iter().enumerate().filter_map(|(slot, core)| match core {
        Some(Core::Away(core)) => Some((slot, core)),
        Some(Core::Parked(_)) | None => None,
    });
    inside.collect()
}

impl CellSpace for Space {
    type Memory = Piece;
    type Core = Core;

    fn save(&mut self, stage: Stage, saved_state: Vec<u8>) {
        if !self.0.save_record(stage, saved_state) {
            log::error!(
                "the ownership record of a cell cannot be saved: the cell would end with this supervisor"
            );
        }
    }

    fn text(&self) -> Option<PhysRange> {
        self.0.text()
    }

    fn report(&self) -> &Report {
        self.0.report()
    }

    fn ledger(&self) -> Ledger<'_> {
        self.0.ledger()
    }

    fn allocate_stacks(&mut self, slot: usize) -> Result<(), OutOfStackMemory> {
        self.0.allocate_stacks(slot).map_err(|_| OutOfStackMemory)
    }

    fn allocate_stacks_from(&mut self, memory: Piece) -> Result<(), Piece> {
        self.0.allocate_stacks_from(memory.0).map_err(|region| Piece(region, self.1))
    }

    fn admit(&mut self, core: Core, slot: usize) -> (Core, Admission) {
        let Core::Parked(parked) = core else { return (core, Admission::Refused) };
        match self.0.enter(parked, slot) {
            Ok(away) => (Core::Away(away), Admission::Entered),
            Err(EnterError::NoPlace(parked) | EnterError::Busy(parked)) => {
                log::error!("core {} cannot enter its cell", parked.core().id);
                (Core::Parked(parked), Admission::Refused)
            }
        }
    }

    fn order(&self, slot: usize, kind: OrderKind) -> Order {
        self.0.order(slot, kind)
    }

    fn last_order(&self, slot: usize) -> Order {
        self.0.last_order(slot)
    }

    fn vacate(&self, slot: usize) {
        self.0.vacate(slot);
    }

    fn empty(&self, slot: usize) {
        self.0.empty(slot);
    }

    fn force(&self, core: &Core, slot: usize) {
        self.interrupt_by_force(core, slot);
    }

    fn rotate(&self, cores: &[Option<Core>]) {
        self.0.rotate();
        let there = cores.iter().enumerate().filter_map(|(slot, core)| Some((slot, core.as_ref()?)));
        there.for_each(|(slot, core)| self.interrupt_by_force(core, slot));
    }

    fn examine(&self, cores: &[Option<Core>], slot: usize) {
        let slots = core::iter::once(slot).chain((0..cores.len()).filter(|other| *other != slot));
        let mut there = slots.filter_map(|slot| Some((slot, cores.get(slot)?.as_ref()?)));
        if let Some((slot, core)) = there.find(|(slot, _)| self.0.is_inside(*slot)) {
            self.0.examine(slot);
            self.interrupt_by_force(core, slot);
        }
    }

    fn sample(&self, cores: &[Option<Core>]) {
        self.0.sample();
        let there = cores.iter().enumerate().filter_map(|(slot, core)| Some((slot, core.as_ref()?)));
        there.for_each(|(slot, core)| self.interrupt_by_force(core, slot));
    }

    fn extend(&mut self, memory: Piece, node: NodeId) -> Result<(), Piece> {
        self.0.plug(memory.0, node).map_err(|region| Piece(region, self.1))
    }

    fn block_room(&self) -> usize {
        self.0.pluggable_blocks()
    }

    fn set_limit(&self, limit_bytes: u64) {
        self.0.set_limit(limit_bytes);
        // The interrupt also makes the cell look for plugged memory.
        self.0.interrupt();
    }

    fn request_unplug(&self, len_bytes: u64) -> u32 {
        self.0.request_unplug(len_bytes)
    }

    fn unplug(&mut self, cores: &[Option<Core>], blocks: &[PhysRange]) -> Unplugged<Piece> {
        let taken = self.0.unplug(blocks);
        if taken == 0 {
            return Unplugged { taken, memory: Vec::new(), stuck: None };
        }
        let (memory, stuck) = match self.0.take_unplugged(&inside(cores)) {
            Ok(memory) => (memory, None),
            Err(slot) => {
                log::error!("core {slot} of a cell does not answer a non-maskable interrupt");
                (Vec::new(), Some(slot))
            }
        };
        Unplugged { taken, memory: Piece::of_all(memory, self.1), stuck }
    }

    fn settle(&self, taken: u32) {
        self.0.settle(taken);
    }

    fn answer(&self, number: u32, answer: Answer) {
        self.0.answer(number, answer);
    }

    fn request_stop(&self) {
        self.0.request(Request::Stop);
    }

    fn send_query(&self, line: Line, query: &[u8]) -> Option<u32> {
        self.0.ask(line, query)
    }

    fn last_query(&self, line: Line) -> u32 {
        self.0.asked(line)
    }

    fn links(&self) -> &LinkTable {
        self.0.links()
    }

    fn can_lend(&self, memory: PhysRange) -> bool {
        self.0.can_lend(memory)
    }

    fn find_window(&self, len_bytes: u64, access: LinkAccess) -> Option<LinkWindow> {
        self.0.find_window(len_bytes, access)
    }

    fn map_peer(&mut self, window: LinkWindow, memory: PhysRange) -> Option<bool> {
        self.0.map_peer(self.1, window, memory)
    }

    fn unmap_peer(&mut self, window: LinkWindow) {
        self.0.unmap_peer(window);
    }

    fn copy_window(&mut self, window: LinkWindow, to: PhysRange) {
        self.0.copy_window(window, to);
    }

    fn peer_memory_in(&self, window: LinkWindow) -> Vec<PhysRange> {
        self.0.peer_memory_in(window)
    }

    fn flush(&self, cores: &[Option<Core>]) -> bool {
        let flushed = self.0.flush_all_tlbs(&inside(cores));
        flushed.inspect_err(|slot| log::error!("core {slot} of a cell does not flush its TLB")).is_ok()
    }

    fn doorbell_target(&self) -> ApicId {
        self.0.doorbell_target()
    }

    fn ring_doorbell(&self) {
        self.0.ring_doorbell();
    }
}
