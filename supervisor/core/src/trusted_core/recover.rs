//! Recovery: the core of a restarted supervisor takes over the cells of the failed one.
//!
//! The owner of each resource is decided earlier, from the ownership records: each core, chunk and device is in the
//! inventory or belongs to one recovered cell. The policy reads its notes in the records, and
//! [adopts](TrustedCore::adopt) or [gives up](TrustedCore::give_up) each cell. A cell with which the policy does neither
//! keeps its resources, and nothing else gets them.

use super::cell::{OwnedCell, Reclaim, order_yield};
use super::cores::{Moves, RecoveredOrder};
use super::force::SuspendedContexts;
use super::lifecycle::reset;
use super::{Quarantined, TrustedCore};
use crate::hardware::{Hardware, InventoryOf, Reclaimed, RecoveredCell, RecoveredState};
use crate::inventory::CoreToken;
use crate::report;
use crate::space::CellSpace;
use alloc::vec::Vec;
use isola_abi::core_slots::OrderKind;
use isola_abi::id::{CellId, CoreId, MAX_CORES, PhysRange};
use isola_abi::management::RestartCause;
use isola_abi::stage::Stage;

/// The part of the recovered state that the policy needs.
pub struct Recovery<H: Hardware> {
    /// The cause of the restart.
    pub cause: RestartCause,
    /// The number of restarts so far, including this one.
    pub number: u32,
    /// The time of the failure.
    pub ended_ns: u64,
    /// The number of cells with resources that could not be recovered; the resources were taken back.
    pub gone: u32,
    /// The recovered cells.
    pub cells: Vec<UnclaimedCell<H>>,
}

/// A recovered cell without an id.
#[must_use]
pub struct UnclaimedCell<H: Hardware>(RecoveredCell<H>);

impl<H: Hardware> UnclaimedCell<H> {
    /// Returns the policy's notes about the cell, not validated.
    pub fn notes(&self) -> &[u8] {
        &self.0.saved_state
    }

    /// Returns whether the cell has all the cores that it needs to run on.
    pub fn is_whole(&self) -> bool {
        self.0.lost.is_empty() && self.0.cores.first().is_some_and(Option::is_some)
    }
}

impl<H: Hardware> TrustedCore<H> {
    /// Returns the core of a restarted supervisor. `inventory` has the resources without an owner. The memory of cells
    /// in quarantine stays there.
    pub fn recover(
        hardware: H,
        inventory: InventoryOf<H>,
        recovered: RecoveredState<H>,
    ) -> (Self, Recovery<H>) {
        let RecoveredState { cause, number, ended_ns, recovered_cells, gone, withheld_bytes } = recovered;
        let mut core = Self { withheld_bytes, ..Self::new(hardware, inventory) };
        let mut cells = Vec::new();
        for cell in recovered_cells {
            match cell.stage {
                Stage::Quarantined => {
                    let RecoveredCell { space, devices, memory, .. } = cell;
                    core.exposed.extend(space.peer_memory());
                    let memory_bytes = len_bytes(&memory);
                    core.quarantine.push(Quarantined { memory_bytes, _parts: (space, devices) });
                }
                _ => cells.push(cell),
            }
        }
        core.recover_links(&mut cells);
        let cells = cells.into_iter().map(UnclaimedCell).collect();
        (core, Recovery { cause, number, ended_ns, gone, cells })
    }

    /// Takes a cell over under `id`.
    ///
    /// # Errors
    /// Returns the cell if it is not [whole](UnclaimedCell::is_whole), a cell with that id has resources, or the cell's
    /// peers know it by another.
    pub fn adopt(&mut self, cell: UnclaimedCell<H>, id: CellId) -> Result<(), UnclaimedCell<H>> {
        let links = cell.0.space.links();
        let is_of_other = links.has_links() || self.unclaimed.contains(&id);
        let has_other_id = is_of_other && links.owner() != Some(id);
        if !cell.is_whole() || has_other_id || self.cells.contains_key(&id) {
            return Err(cell);
        }
        self.unclaimed.remove(&id);
        let UnclaimedCell(RecoveredCell {
            stage,
            space,
            mut cores,
            mut core_ids,
            devices,
            memory,
            answered,
            settled,
            ..
        }) = cell;
        for core in cores.iter().flatten() {
            self.inventory.cores.assign(core.id(), id);
        }
        let used = cores.iter().rposition(Option::is_some).map_or(0, |slot| slot + 1).max(core_ids.len());
        cores.resize_with(used, || None);
        core_ids.resize(used, CoreId(0));
        let moves = match stage {
            Stage::Built => Moves::new(),
            _ => moves_of(&space, &cores, self.hardware.now_ns()),
        };
        let cell = OwnedCell {
            space,
            slots_with_stacks: core_ids.len(),
            cores,
            core_ids,
            devices,
            memory_bytes: len_bytes(&memory),
            stage: if stage == Stage::Built { Stage::Built } else { Stage::Entered },
            moves,
            answered,
            reclaim: Reclaim { open: None, settled },
            lost: Vec::new(),
            devices_are_back: true,
        };
        self.cells.insert(id, cell);
        self.close_links_to_ended(id);
        Ok(())
    }

    /// Dismantles a cell that cannot be recovered.
    pub fn give_up(&mut self, cell: UnclaimedCell<H>) {
        let UnclaimedCell(RecoveredCell { space, cores, mut lost, mut devices, memory, .. }) = cell;
        let Reclaimed { back, lost: more } = self.hardware.reclaim(cores.into_iter().flatten().collect());
        lost.extend(more);
        let devices_are_back = reset(&mut self.hardware, &mut devices);
        let cell = OwnedCell {
            space,
            slots_with_stacks: 0,
            cores: back.into_iter().map(Some).collect(),
            core_ids: Vec::new(),
            devices,
            memory_bytes: len_bytes(&memory),
            stage: Stage::Ending,
            moves: Moves::new(),
            answered: 0,
            reclaim: Reclaim::default(),
            lost,
            devices_are_back,
        };
        self.end_links_of_unclaimed(&cell.space);
        self.take_back(None, cell);
    }
}

/// Returns the moves in progress and the suspended contexts of a recovered cell.
fn moves_of<S: CellSpace<Core = C>, C: CoreToken>(space: &S, cores: &[Option<C>], now: u64) -> Moves {
    let report = space.report();
    let here = cores.iter().enumerate().filter_map(|(slot, core)| Some((slot, core.as_ref()?.id())));
    let orders = here.map(|(slot, core)| {
        let (order, acknowledged) = (space.last_order(slot), report::acknowledged(report, slot));
        RecoveredOrder { slot, core, order, acknowledged }
    });
    let orders: Vec<RecoveredOrder> = orders.collect();
    let empty = (0..MAX_CORES).filter(|slot| cores.get(*slot).is_none_or(Option::is_none));
    let unfinished = empty.filter(|slot| space.last_order(*slot).kind != OrderKind::Vacant);
    let suspended = unfinished.inspect(|slot| _ = order_yield(space, *slot));
    let suspended = SuspendedContexts::resume(suspended, now);
    Moves::resume(orders.into_iter(), suspended, now)
}

fn len_bytes(memory: &[PhysRange]) -> u64 {
    memory.iter().map(|range| range.len_bytes).sum()
}
