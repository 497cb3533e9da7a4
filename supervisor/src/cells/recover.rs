//! Recovery: a restarted supervisor takes over the cells of the failed one.
//!
//! The core has the recovered cells. This module rebuilds their records from the notes in the ownership records. A cell
//! whose notes are invalid is dismantled, so no resource is left with an unidentified owner.

use super::cell::{Cell, Run};
use super::checkpoint::Checkpoint;
use super::grow::Growth;
use super::lend::{Debt, Loans};
use super::restart::Restarting;
use super::saved_state::SavedState;
use super::table::CellTable;
use super::watch::Watch;
use crate::images::ImageRecord;
use crate::logs::Log;
use crate::report;
use alloc::vec::Vec;
use isola_abi::id::CoreId;
use isola_supervisor_core::hardware::SharedOf;
use isola_supervisor_core::trusted_core::UnclaimedCell;
use isola_supervisor_core::{Hardware, TrustedCore};

/// Journal entries and cell ids continue at this number, times the number of restarts, or after the largest one found. The
/// last number given out is not known after a restart; this avoids reuse.
pub(super) const NUMBERS: u32 = 1 << 16;

/// The state that a failed supervisor left beside the ownership records.
pub struct SupervisorState<H: Hardware> {
    /// The last checkpoint, not validated.
    pub checkpoint: Checkpoint,
    /// The latest journal entries, in any order, not validated.
    pub journal: Vec<Vec<u8>>,
    /// The images of the checkpoint whose memory has no other owner, with that memory.
    pub images: Vec<(ImageRecord, SharedOf<H>)>,
    /// Other shared memory from which recovered cells map text.
    pub texts: Vec<SharedOf<H>>,
}

/// The result of [`adopt_all`].
#[derive(Default)]
pub(super) struct AdoptionResult {
    /// The number of cells that run on.
    pub(super) found: u32,
    /// The number of cells that were dismantled.
    pub(super) gone: u32,
    /// The cores that cells owe and are owed.
    pub(super) debts: Vec<Debt>,
}

/// Takes the recovered cells over, and dismantles those with invalid notes.
pub(super) fn adopt_all<H: Hardware>(
    cells: Vec<UnclaimedCell<H>>,
    core: &mut TrustedCore<H>,
    table: &mut CellTable,
    loans: &mut Loans,
) -> AdoptionResult {
    let mut adopted = AdoptionResult::default();
    let mut rejected = Vec::new();
    for cell in cells {
        match adopt(cell, core, table, loans) {
            Ok(debts) => {
                adopted.found += 1;
                adopted.debts.extend(debts);
            }
            Err(cell) => rejected.push(cell),
        }
    }
    // After the others were adopted, which lose their links to these.
    for cell in rejected {
        adopted.gone += 1;
        let saved_state = SavedState::decode(cell.notes());
        adopted.debts.extend(saved_state.into_iter().flat_map(SavedState::into_debts));
        core.give_up(cell);
    }
    adopted
}

/// Takes a cell over, if its notes are valid and it has all its cores. Returns the cores that it owes and is owed.
fn adopt<H: Hardware>(
    cell: UnclaimedCell<H>,
    core: &mut TrustedCore<H>,
    table: &mut CellTable,
    loans: &mut Loans,
) -> Result<Vec<Debt>, UnclaimedCell<H>> {
    let Some(saved_state) = SavedState::decode(cell.notes()) else { return Err(cell) };
    let SavedState { id, spec, image, times, limit, stack_bytes, restarts, loans: saved_loans } = saved_state;
    if !table.is_new(id, &spec.name) || spec.validate().is_err() || table.len() >= table.limit() {
        return Err(cell);
    }
    core.adopt(cell, id)?;
    let now = core.now_ns();
    let slots = core.inventory().cores.slots_of_each_cell();
    let Some(owned) = core.cell(id) else { return Ok(Vec::new()) };
    // A first core is never lent.
    let others: Vec<CoreId> = owned.movable_cores().collect();
    loans.memory.resume(id, &saved_loans.memory);
    let debts = loans.resume(id, saved_loans, &others, now);
    let watchdog_ms = spec.watchdog_ms;
    let mut cell = Cell {
        growth: Growth::resume(limit, stack_bytes),
        log: Log::resume(&owned.report().console),
        restarting: Restarting::resume(restarts, None),
        ..Cell::new(id, spec, image, times)
    };
    cell.cores.handled = report::core_requests(owned.report());
    if owned.is_entered() {
        cell.run = Run::Running { watch: Watch::new(watchdog_ms, slots, now) };
    }
    table.insert(cell);
    Ok(debts)
}
