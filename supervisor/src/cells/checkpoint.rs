//! The supervisor checkpoint: state beside the ownership records that survives a supervisor restart. It contains the
//! locations of stored images, and the records of ended cells with their restart times. It is saved at every change.
//! After a restart its contents are untrusted: they are validated, and images are hashed again before use.

use super::Cells;
use super::cell::{Body, Cell, End, Run};
use super::grow::Growth;
use super::info::Usage;
use super::keep::SavedState;
use super::lend::KeptLoans;
use super::moves::Moves;
use super::restart::Restarting;
use crate::effects::Effects;
use crate::images::KeptImage;
use crate::logs::Log;
use alloc::boxed::Box;
use alloc::vec::Vec;
use isola_abi::management::{Crash, MAX_CELLS};
use serde::{Deserialize, Serialize};

/// The state that a failed supervisor left beside the ownership records.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The stored images, the least recently used first.
    pub images: Vec<KeptImage>,
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
}

impl<E: Effects> Cells<E> {
    /// Saves the stored images and the ended cells. If these do not fit, crash details are omitted; then also the cells
    /// that await no restart.
    pub(super) fn save_checkpoint(&mut self) {
        let records = self.cells.values().filter_map(Record::of).collect();
        let mut checkpoint = Checkpoint { images: self.images.kept(), records };
        if self.write(&checkpoint) {
            return;
        }
        checkpoint.records.iter_mut().for_each(|record| record.crash = None);
        if !self.write(&checkpoint) {
            checkpoint.records.retain(|record| record.next_ns.is_some());
            self.write(&checkpoint);
        }
    }

    fn write(&mut self, checkpoint: &Checkpoint) -> bool {
        postcard::to_allocvec(checkpoint).is_ok_and(|bytes| self.effects.save_checkpoint(&bytes))
    }

    /// Enters the ended cells of a checkpoint.
    pub(super) fn take_over_records(&mut self, checkpoint: Checkpoint) {
        for record in checkpoint.records {
            let SavedState { id, spec, .. } = &record.saved_state;
            let is_new = !self.cells.contains_key(id) && self.find(&spec.name).is_err();
            if is_new && spec.validate().is_ok() && self.cells.len() < MAX_CELLS {
                self.next_id = self.next_id.max(id.0.saturating_add(1));
                self.cells.insert(*id, record.into_cell());
            }
        }
    }
}

impl Record {
    fn of<E: Effects>(cell: &Cell<E>) -> Option<Self> {
        let Run::Ended(end) = cell.run else { return None };
        Some(Self {
            saved_state: cell.to_saved_state(KeptLoans::default()),
            end,
            exit_code: cell.exit_code,
            crash: cell.crash.clone(),
            next_ns: cell.restarting.next_ns(),
        })
    }

    /// Converts the record to a cell. Its log and usage are lost.
    fn into_cell<E: Effects>(self) -> Cell<E> {
        let Self { saved_state, end, exit_code, crash, next_ns } = self;
        Cell {
            id: saved_state.id,
            body: Body::Gone(Box::new(Usage::forgotten(end))),
            core_ids: Vec::new(),
            moves: Moves::new(),
            core_requests: 0,
            memory_bytes: 0,
            growth: Growth::resume(0, 0, saved_state.limit, 0),
            shrink: None,
            image_bytes: saved_state.image_bytes,
            text_bytes: saved_state.text_bytes,
            run: Run::Ended(end),
            log: Log::new(),
            restarting: Restarting::resume(saved_state.restarts, next_ns),
            exit_code,
            crash,
            created_unix_ns: saved_state.created_unix_ns,
            started_unix_ns: saved_state.started_unix_ns,
            started_ns: saved_state.started_ns,
            durations: saved_state.durations,
            spec: saved_state.spec,
        }
    }
}
