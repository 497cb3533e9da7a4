//! What outlives this supervisor of a cell: noted whenever it changes, as it can go wrong at any time.
//!
//! What a cell holds, [`Effects::keep`] writes down beside this; images, and cells that have ended, are in the `checkpoint`. The
//! rest is lost with the supervisor: what cells printed longer ago than their rings reach, or had printed and
//! used when they ended, and requests to stop that are due. Entries of the journal are noted one by one.

use super::Cells;
use super::cell::{Body, Cell};
use super::lend::{Debt, KeptLoans};
use crate::effects::Effects;
use alloc::vec::Vec;
use isola_abi::id::CellId;
use isola_abi::management::{CellSpec, Durations};
use isola_abi::stage::Stage;
use serde::{Deserialize, Serialize};

/// What is to be known again of a cell.
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
    /// The most memory that it may have, where that is not what its specification says.
    pub(super) limit: Option<u64>,
    /// What of its memory is stacks of cores that came later.
    pub(super) stack_bytes: u64,
    /// How often it was started again, and has ended in a row.
    pub(super) restarts: (u32, u32),
    /// What it has borrowed, and is owed.
    pub(super) loans: KeptLoans,
}

impl SavedState {
    /// What was written; `None` where it is not what a supervisor writes.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }

    /// What a cell owes and is owed that has nothing any more.
    pub(super) fn into_debts(self) -> Vec<Debt> {
        self.loans.into_debts(self.id)
    }
}

impl<E: Effects> Cell<E> {
    /// What is to be known again of the cell, which has lent and borrowed this.
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
    /// Notes what is to be known again of a cell that is as far as before.
    pub(super) fn keep_up(&mut self, id: CellId) {
        let stage = match self.cells.get(&id) {
            Some(cell) if cell.is_live() => Stage::Entered,
            _ => Stage::Built,
        };
        self.keep(id, stage);
    }

    /// Notes how far a cell is, and what is to be known again of it.
    pub(super) fn keep(&mut self, id: CellId, stage: Stage) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        let saved_state = cell.saved_state(self.loans.kept(id));
        if let Body::Held(held) = &mut cell.body {
            self.effects.keep(&mut held.space, stage, saved_state);
        }
    }
}
