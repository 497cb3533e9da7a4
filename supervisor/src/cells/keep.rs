//! The saved state of a cell: the part of its ownership record that the supervisor fills. It is written at every
//! change, as the supervisor can fail at any time.
//!
//! [`Effects::keep`] writes the cell's resources beside it. Images and ended cells are in the `checkpoint`, and each
//! journal entry is saved by itself. A failure of the supervisor loses the rest: console output that the cells' rings
//! have overwritten, logs and usage of ended cells, and pending stop requests.

use super::Cells;
use super::cell::{Body, Cell};
use super::lend::{Debt, KeptLoans};
use crate::effects::Effects;
use alloc::vec::Vec;
use isola_abi::id::CellId;
use isola_abi::management::{CellSpec, Durations};
use isola_abi::stage::Stage;
use serde::{Deserialize, Serialize};

/// The state from which a restarted supervisor recovers a cell's record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SavedState {
    pub(super) id: CellId,
    pub(super) spec: CellSpec,
    pub(super) image_bytes: u64,
    pub(super) text_bytes: u64,
    pub(super) created_unix_ns: u64,
    pub(super) started_unix_ns: Option<u64>,
    pub(super) started_ns: u64,
    pub(super) durations: Durations,
    /// The most memory that the cell may have, in bytes, if that is not the limit of its specification.
    pub(super) limit: Option<u64>,
    /// Bytes of the cell's memory for the stacks of plugged cores.
    pub(super) stack_bytes: u64,
    /// The number of restarts, and of ends in a row.
    pub(super) restarts: (u32, u32),
    /// The cell's loans.
    pub(super) loans: KeptLoans,
}

impl SavedState {
    /// Decodes a saved state. Returns `None` if the bytes are invalid.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }

    /// Returns the cores that a cell without resources owes and is owed.
    pub(super) fn into_debts(self) -> Vec<Debt> {
        self.loans.into_debts(self.id)
    }
}

impl<E: Effects> Cell<E> {
    /// Encodes the cell's state, with its loans.
    pub(super) fn saved_state(&self, loans: KeptLoans) -> Vec<u8> {
        postcard::to_allocvec(&self.to_saved_state(loans)).unwrap_or_default()
    }

    pub(super) fn to_saved_state(&self, loans: KeptLoans) -> SavedState {
        SavedState {
            id: self.id,
            spec: self.spec.clone(),
            image_bytes: self.image_bytes,
            text_bytes: self.text_bytes,
            created_unix_ns: self.created_unix_ns,
            started_unix_ns: self.started_unix_ns,
            started_ns: self.started_ns,
            durations: self.durations,
            limit: self.growth.limit,
            stack_bytes: self.growth.stack_bytes,
            restarts: self.restarting.counts(),
            loans,
        }
    }
}

impl<E: Effects> Cells<E> {
    /// Writes the saved state of a cell whose stage is unchanged.
    pub(super) fn keep_up(&mut self, id: CellId) {
        let stage = match self.cells.get(&id) {
            Some(cell) if cell.is_live() => Stage::Entered,
            _ => Stage::Built,
        };
        self.keep(id, stage);
    }

    /// Writes a cell's stage and saved state to its ownership record.
    pub(super) fn keep(&mut self, id: CellId, stage: Stage) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        let saved_state = cell.saved_state(self.loans.kept(id));
        if let Body::Held(held) = &mut cell.body {
            self.effects.keep(&mut held.space, stage, saved_state);
        }
    }
}
