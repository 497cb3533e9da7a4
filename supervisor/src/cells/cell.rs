//! A cell's record: the policy's knowledge of a cell. The core has its resources.

use super::cores::CoreRequests;
use super::grow::Growth;
use super::memory::Shrink;
use super::restart::Restarting;
use super::sampling::Sampling;
use super::usage::Usage;
use super::watch::Watch;
use crate::logs::Log;
use alloc::boxed::Box;
use isola_abi::id::CellId;
use isola_abi::management::{CellSpec, CellState, Crash, Durations, ManagementError};
use serde::{Deserialize, Serialize};

/// A cell.
pub(super) struct Cell {
    pub(super) id: CellId,
    pub(super) spec: CellSpec,
    pub(super) run: Run,
    pub(super) image: ImageBytes,
    pub(super) cores: CoreRequests,
    pub(super) growth: Growth,
    /// The unplug of memory in progress.
    pub(super) shrink: Option<Shrink>,
    pub(super) sampling: Option<Sampling>,
    pub(super) log: Log,
    pub(super) restarting: Restarting,
    pub(super) times: Times,
    pub(super) outcome: Outcome,
}

/// The memory of a cell's image, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ImageBytes {
    /// Bytes of the image's segments in the cell's own memory.
    pub(super) copied: u64,
    /// Bytes of the image's text that the cell maps from the image store.
    pub(super) shared: u64,
}

/// When a cell was created and started, and how long that took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Times {
    pub(super) created_unix_ns: u64,
    pub(super) started_unix_ns: Option<u64>,
    pub(super) started_ns: u64,
    pub(super) durations: Durations,
}

/// The remains of a cell that has ended.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) exit_code: Option<i32>,
    pub(super) crash: Option<Crash>,
    /// The usage at the end; `None` while the cell has resources.
    pub(super) usage: Option<Box<Usage>>,
    /// Bytes of the memory that the cell had at the end.
    pub(super) memory_bytes: u64,
}

/// How a cell ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum End {
    Exited,
    Crashed,
    Killed,
}

/// The stage of a cell's life.
#[derive(Debug)]
pub(super) enum Run {
    Created,
    Running {
        watch: Option<Watch>,
    },
    Stopping {
        since_ns: u64,
        deadline_ns: u64,
    },
    /// The cell did not respond and received an NMI, so that it records the interrupted instruction. It ends once it
    /// has done so, or at the deadline.
    Examined {
        since_ns: u64,
        deadline_ns: u64,
        suspect: usize,
        end: End,
    },
    Ended(End),
}

impl Cell {
    /// Returns a cell that has just been built.
    pub(super) fn new(id: CellId, spec: CellSpec, image: ImageBytes, times: Times) -> Self {
        Self {
            id,
            spec,
            run: Run::Created,
            image,
            cores: CoreRequests::default(),
            growth: Growth::new(),
            shrink: None,
            sampling: None,
            log: Log::new(),
            restarting: Restarting::new(),
            times,
            outcome: Outcome::default(),
        }
    }

    /// Makes an ended cell one that has just been built again. Its log continues, and its restarts still count.
    pub(super) fn rebuild(&mut self, image: ImageBytes, create_ns: u64) {
        self.run = Run::Created;
        self.image = image;
        self.cores = CoreRequests::default();
        self.growth = Growth::new();
        self.log.restart();
        self.times.durations = Durations { create_ns: Some(create_ns), ..Durations::default() };
        self.outcome = Outcome::default();
    }

    pub(super) fn state(&self) -> CellState {
        match self.run {
            Run::Created => CellState::Created,
            Run::Running { .. } | Run::Examined { end: End::Crashed | End::Exited, .. } => CellState::Running,
            Run::Stopping { .. } | Run::Examined { end: End::Killed, .. } => CellState::Stopping,
            Run::Ended(End::Exited) => CellState::Exited,
            Run::Ended(End::Crashed) => CellState::Crashed,
            Run::Ended(End::Killed) => CellState::Killed,
        }
    }

    /// Returns the error that the cell's state does not permit an operation.
    pub(super) fn wrong_state(&self) -> ManagementError {
        ManagementError::WrongState { name: self.spec.name.clone(), state: self.state() }
    }

    /// Returns whether cores execute the cell.
    pub(super) fn is_live(&self) -> bool {
        !matches!(self.run, Run::Created | Run::Ended(_))
    }

    /// Returns whether the cell runs, and was not asked to stop.
    pub(super) fn is_running(&self) -> bool {
        matches!(self.run, Run::Running { .. })
    }

    /// Returns whether the cell has resources, also while it is ending.
    pub(super) fn has_resources(&self) -> bool {
        self.outcome.usage.is_none()
    }

    /// Returns whether the image store must keep the cell's image.
    pub(super) fn uses_image(&self) -> bool {
        self.has_resources() || self.restarting.next_ns().is_some()
    }
}
