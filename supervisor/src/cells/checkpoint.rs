//! The supervisor checkpoint: state beside the ownership records that survives a supervisor restart. It contains the
//! locations of stored images, and the records of ended cells with their restart times. It is saved at every change.
//! After a restart its contents are untrusted: they are validated, and images are hashed again before use.

use super::cell::{Cell, End, Outcome, Run};
use super::grow::Growth;
use super::lend::SavedLoans;
use super::restart::Restarting;
use super::saved_state::SavedState;
use super::table::CellTable;
use super::usage::Usage;
use crate::images::{ImageRecord, Images};
use alloc::boxed::Box;
use alloc::vec::Vec;
use isola_abi::management::Crash;
use isola_supervisor_core::{Hardware, TrustedCore};
use serde::{Deserialize, Serialize};

/// The state that a failed supervisor left beside the ownership records.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The stored images, the least recently used first.
    pub images: Vec<ImageRecord>,
    records: Vec<Record>,
}

/// A cell that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Record {
    saved_state: SavedState,
    end: End,
    exit_code: Option<i32>,
    crash: Option<Crash>,
    /// The time of the restart, if one is due.
    next_ns: Option<u64>,
}

impl Checkpoint {
    /// Decodes a checkpoint. Returns an empty one if the bytes are invalid.
    pub fn decode(bytes: &[u8]) -> Self {
        postcard::from_bytes(bytes).unwrap_or_default()
    }

    /// Enters the ended cells in the table.
    pub(super) fn enter_ended_cells(self, table: &mut CellTable) {
        for record in self.records {
            let SavedState { id, spec, .. } = &record.saved_state;
            if table.is_new(*id, &spec.name) && spec.validate().is_ok() && table.len() < table.limit() {
                table.insert(record.into_cell());
            }
        }
    }
}

/// Saves the stored images and the ended cells. If these do not fit, crash details are omitted; then also the cells that
/// await no restart; then the younger half of the others, again and again.
pub(super) fn save<H: Hardware>(core: &mut TrustedCore<H>, table: &CellTable, images: &Images<H>) {
    let records = table.iter().filter_map(Record::of).collect();
    let mut checkpoint = Checkpoint { images: images.records(), records };
    if write(core, &checkpoint) {
        return;
    }
    checkpoint.records.iter_mut().for_each(|record| record.crash = None);
    if !write(core, &checkpoint) {
        checkpoint.records.retain(|record| record.next_ns.is_some());
        while !write(core, &checkpoint) && !checkpoint.records.is_empty() {
            checkpoint.records.truncate(checkpoint.records.len() / 2);
        }
    }
}

fn write<H: Hardware>(core: &mut TrustedCore<H>, checkpoint: &Checkpoint) -> bool {
    postcard::to_allocvec(checkpoint).is_ok_and(|bytes| core.save_checkpoint(&bytes))
}

impl Record {
    fn of(cell: &Cell) -> Option<Self> {
        let Run::Ended(end) = cell.run else { return None };
        Some(Self {
            saved_state: cell.saved_state(SavedLoans::default()),
            end,
            exit_code: cell.outcome.exit_code,
            crash: cell.outcome.crash.clone(),
            next_ns: cell.restarting.next_ns(),
        })
    }

    /// Converts the record to a cell. Its log and usage are lost.
    fn into_cell(self) -> Cell {
        let Self { saved_state, end, exit_code, crash, next_ns } = self;
        let SavedState { id, spec, image, times, limit, restarts, .. } = saved_state;
        let usage = Some(Box::new(Usage::forgotten(end)));
        Cell {
            run: Run::Ended(end),
            growth: Growth::resume(limit, 0),
            restarting: Restarting::resume(restarts, next_ns),
            outcome: Outcome { exit_code, crash, usage, memory_bytes: 0 },
            ..Cell::new(id, spec, image, times)
        }
    }
}
