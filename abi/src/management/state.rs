//! The state of a cell.

use core::fmt;
use serde::{Deserialize, Serialize};

/// The state of a cell in the supervisor's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CellState {
    /// The cell has its resources, and was not started, or not started again.
    Created,
    /// The cell's cores run it.
    Running,
    /// The cell was requested to stop.
    Stopping,
    /// The application returned.
    Exited,
    /// The cell crashed.
    Crashed,
    /// The supervisor ended the cell by force, by request.
    Killed,
}

impl CellState {
    /// Returns whether a cell in this state has ended and has no resources.
    pub fn has_ended(self) -> bool {
        match self {
            Self::Created | Self::Running | Self::Stopping => false,
            Self::Exited | Self::Crashed | Self::Killed => true,
        }
    }
}

impl fmt::Display for CellState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Exited => "exited",
            Self::Crashed => "crashed",
            Self::Killed => "killed",
        })
    }
}
