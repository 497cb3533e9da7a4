//! A cell's resources.

use super::cores::Moves;
use crate::hardware::{CellDevices, Hardware};
use crate::inventory::CoreToken;
use crate::report::{self, MemoryRequest};
use crate::space::CellSpace;
use alloc::vec::Vec;
use isola_abi::core_slots::{Order, OrderKind};
use isola_abi::id::{CoreId, PhysRange};
use isola_abi::ledger::Ledger;
use isola_abi::management::DeviceLocation;
use isola_abi::query::Line;
use isola_abi::report::Report;
use isola_abi::stage::Stage;

/// A cell with resources.
pub struct OwnedCell<H: Hardware> {
    pub(super) space: H::Space,
    /// By core slot: its core.
    pub(super) cores: Vec<Option<H::Core>>,
    /// By core slot, as far as slots were ever occupied: its core, or the last one.
    pub(super) core_ids: Vec<CoreId>,
    pub(super) devices: CellDevices<H::Device>,
    /// Bytes of the memory that the cell has received, minus the unplugged memory.
    pub(super) memory_bytes: u64,
    pub(super) stage: Stage,
    /// The core slots before this one have stacks.
    pub(super) slots_with_stacks: usize,
    /// The cores that are joining or leaving.
    pub(super) moves: Moves,
    /// The number of the last memory request that was answered.
    pub(super) answered: u32,
    pub(super) reclaim: Reclaim,
    /// After the end: the cores that did not come back, and whether all devices were reset.
    pub(super) lost: Vec<CoreId>,
    pub(super) devices_are_back: bool,
}

/// The state of a cell's reclaim requests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reclaim {
    /// The number of the request to which the cell may make an offer.
    pub(super) open: Option<u32>,
    /// The number of the last request that is complete; 0: there was none.
    pub(super) settled: u32,
}

impl<H: Hardware> OwnedCell<H> {
    /// Returns whether the cell's cores execute it.
    pub fn is_entered(&self) -> bool {
        matches!(self.stage, Stage::Entering | Stage::Entered)
    }

    /// Returns the cell's report.
    pub fn report(&self) -> &Report {
        self.space.report()
    }

    /// Returns the ledger: the usage of the cell's activities, as the cell counts it.
    pub fn ledger(&self) -> Ledger<'_> {
        self.space.ledger()
    }

    /// Returns the range of the shared text that the cell maps, or `None` if it has its own copy.
    pub fn text(&self) -> Option<PhysRange> {
        self.space.text()
    }

    /// Returns the location of the cell's network device, if it has one.
    pub fn device(&self) -> Option<DeviceLocation> {
        self.devices.network.as_ref().map(H::location)
    }

    /// Returns the bytes of the memory that the cell has received, minus the unplugged memory.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Returns, by core slot as far as slots were ever occupied, its core, or the last one.
    pub fn core_ids(&self) -> &[CoreId] {
        &self.core_ids
    }

    /// Returns, by core slot, its core.
    pub fn cores(&self) -> impl DoubleEndedIterator<Item = Option<CoreId>> {
        self.cores.iter().map(|core| core.as_ref().map(CoreToken::id))
    }

    /// Returns the cores that may leave: all but the one at the first slot.
    pub fn movable_cores(&self) -> impl DoubleEndedIterator<Item = CoreId> {
        self.cores.iter().skip(1).flatten().map(CoreToken::id)
    }

    /// Returns the core at the first slot, which never leaves.
    pub fn first_core(&self) -> Option<CoreId> {
        self.cores.first()?.as_ref().map(CoreToken::id)
    }

    /// Returns the number of the cell's cores.
    pub fn core_count(&self) -> usize {
        self.cores.iter().flatten().count()
    }

    /// Returns the first vacant core slot from `from` on, before `end`. A slot whose core was lost is not vacant.
    pub fn vacant_slot(&self, from: usize, end: usize) -> Option<usize> {
        (from..end).find(|slot| self.is_vacant(*slot))
    }

    pub(super) fn is_vacant(&self, slot: usize) -> bool {
        let is_empty = self.cores.get(slot).is_none_or(Option::is_none);
        is_empty && self.space.last_order(slot).kind == OrderKind::Vacant
    }

    /// Returns whether a core did not come back, and may still write to the cell's memory.
    pub fn has_lost_core(&self) -> bool {
        self.moves.has_lost
    }

    /// Returns whether the core is to leave, and has not left yet.
    pub fn is_leaving(&self, core: CoreId) -> bool {
        self.moves.is_leaving(core)
    }

    /// Returns the next deadline of a core move or a rotation.
    pub fn move_deadline_ns(&self) -> Option<u64> {
        self.moves.deadline_ns()
    }

    /// Returns whether all moves are complete, except those of cores that did not leave.
    pub fn has_moved(&self) -> bool {
        self.moves.awaited_ns().is_none()
    }

    /// Returns the factor by which the cell's work may be slower, as suspended contexts take turns with the rest.
    pub fn slowdown(&self) -> u64 {
        self.moves.suspended.slowdown()
    }

    /// Returns how many more blocks of memory can be plugged into the cell.
    pub fn block_room(&self) -> usize {
        self.space.block_room()
    }

    /// Returns whether the cell has acknowledged the answer to its last offer. If not, no memory can be plugged.
    pub fn is_settled(&self) -> bool {
        let settled = self.reclaim.settled;
        settled == 0 || self.report().offer.acknowledged() == settled
    }

    /// Returns the cell's memory request, if it is not answered.
    pub fn memory_request(&self) -> Option<MemoryRequest> {
        let request = report::memory_request(self.report());
        (request.number != self.answered).then_some(request)
    }

    /// Writes the most memory that the cell may have from now on, in bytes, to its live words.
    pub fn set_limit(&self, limit_bytes: u64) {
        self.space.set_limit(limit_bytes);
    }

    /// Sends a stop request to the cell.
    pub fn request_stop(&self) {
        self.space.request_stop();
    }

    /// Sends a query to the cell, see [`isola_abi::query`]. Returns its number, or `None` if it is too long.
    pub fn send_query(&self, line: Line, query: &[u8]) -> Option<u32> {
        self.space.send_query(line, query)
    }

    /// Returns the number of the last query to the cell.
    pub fn last_query(&self, line: Line) -> u32 {
        self.space.last_query(line)
    }

    /// Interrupts by NMI the core at a core slot, or another of the cell's cores if that one is not inside the cell, so
    /// that the cell stops and records the interrupted instruction.
    pub fn examine(&self, slot: usize) {
        self.space.examine(&self.cores, slot);
    }

    /// Interrupts all the cell's cores by NMI, so that each stores a sample of its call stack.
    pub fn sample(&self) {
        self.space.sample(&self.cores);
    }

    /// Returns the order to yield of a core slot. Gives that order, if the last one is another.
    pub(super) fn order_yield(&self, slot: usize) -> Order {
        order_yield(&self.space, slot)
    }
}

/// Returns the order to yield of a core slot. Gives that order, if the last one is another.
pub(super) fn order_yield(space: &impl CellSpace, slot: usize) -> Order {
    match space.last_order(slot) {
        order if order.kind == OrderKind::Yield => order,
        _ => space.order(slot, OrderKind::Yield),
    }
}
