//! The policy's notes about a cell, in the cell's ownership record. They are written at every change, as the supervisor
//! can fail at any time.
//!
//! The core writes the cell's resources beside them. Images and ended cells are in the `checkpoint`, and each journal
//! entry is saved by itself. A failure of the supervisor loses the rest: console output that the cells' rings have
//! overwritten, logs and usage of ended cells, and pending stop requests.

use super::cell::{Cell, ImageBytes, Times};
use super::lend::{Debt, SavedLoans};
use alloc::vec::Vec;
use isola_abi::id::CellId;
use isola_abi::management::CellSpec;
use serde::{Deserialize, Serialize};

/// The state from which a restarted supervisor recovers a cell's record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SavedState {
    pub(super) id: CellId,
    pub(super) spec: CellSpec,
    pub(super) image: ImageBytes,
    pub(super) times: Times,
    /// The most memory that the cell may have, in bytes, if that is not the limit of its specification.
    pub(super) limit: Option<u64>,
    /// Bytes of the cell's memory for the stacks of plugged cores.
    pub(super) stack_bytes: u64,
    /// The number of restarts, and of ends in a row.
    pub(super) restarts: (u32, u32),
    /// The cell's loans.
    pub(super) loans: SavedLoans,
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

impl Cell {
    /// Encodes the cell's state, with its loans.
    pub(super) fn notes(&self, loans: SavedLoans) -> Vec<u8> {
        postcard::to_allocvec(&self.saved_state(loans)).unwrap_or_default()
    }

    pub(super) fn saved_state(&self, loans: SavedLoans) -> SavedState {
        SavedState {
            id: self.id,
            spec: self.spec.clone(),
            image: self.image,
            times: self.times,
            limit: self.growth.limit,
            stack_bytes: self.growth.stack_bytes,
            restarts: self.restarting.counts(),
            loans,
        }
    }
}
