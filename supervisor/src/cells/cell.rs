//! A cell's record.

use super::grow::Growth;
use super::info::Usage;
use super::memory::Shrink;
use super::moves::Moves;
use super::restart::Restarting;
use super::watch::Watch;
use crate::effects::Effects;
use crate::logs::Log;
use alloc::boxed::Box;
use alloc::vec::Vec;
use isola_abi::id::{CellId, CoreId};
use isola_abi::management::{CellSpec, CellState, Crash, Durations};
use isola_abi::report::Report;
use serde::{Deserialize, Serialize};

/// A cell's state and resources.
pub(super) struct Cell<E: Effects> {
    pub(super) id: CellId,
    pub(super) spec: CellSpec,
    pub(super) body: Body<E>,
    /// By core slot, as far as slots were ever occupied: its core, or the last one.
    pub(super) core_ids: Vec<CoreId>,
    /// The cores that are joining or leaving, and the request that moves them.
    pub(super) moves: Moves,
    /// The cell's core requests that were handled, as counted in its report.
    pub(super) core_requests: u32,
    /// Bytes of the memory that the cell has received, minus the unplugged memory.
    pub(super) memory_bytes: u64,
    pub(super) growth: Growth,
    /// The unplug of memory in progress.
    pub(super) shrink: Option<Shrink>,
    /// Bytes of the image's segments in the cell's own memory.
    pub(super) image_bytes: u64,
    /// Bytes of the image's text that the cell maps from the image store.
    pub(super) text_bytes: u64,
    pub(super) run: Run,
    pub(super) log: Log,
    pub(super) restarting: Restarting,
    pub(super) exit_code: Option<i32>,
    pub(super) crash: Option<Crash>,
    pub(super) created_unix_ns: u64,
    pub(super) started_unix_ns: Option<u64>,
    pub(super) started_ns: u64,
    pub(super) durations: Durations,
}

/// A cell's resources, or the usage of a cell that has ended.
pub(super) enum Body<E: Effects> {
    /// The resources, until the cell ends.
    Held(Held<E>),
    /// The usage at the end.
    Gone(Box<Usage>),
}

/// A cell's resources.
pub(super) struct Held<E: Effects> {
    pub(super) space: E::Space,
    /// By core slot: its core.
    pub(super) cores: Vec<Option<E::Core>>,
    pub(super) device: Option<E::Device>,
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

impl<E: Effects> Cell<E> {
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

    /// Returns whether cores execute the cell.
    pub(super) fn is_live(&self) -> bool {
        !matches!(self.run, Run::Created | Run::Ended(_))
    }

    /// Returns whether the image store must keep the cell's image.
    pub(super) fn uses_image(&self) -> bool {
        self.held().is_some() || self.restarting.next_ns().is_some()
    }

    /// Returns whether the cell has ended and awaits no restart.
    pub(super) fn is_only_a_record(&self) -> bool {
        self.held().is_none() && self.restarting.next_ns().is_none()
    }

    pub(super) fn held(&self) -> Option<&Held<E>> {
        match &self.body {
            Body::Held(held) => Some(held),
            Body::Gone(_) => None,
        }
    }

    /// Returns the number of the cell's cores.
    pub(super) fn core_count(&self) -> usize {
        self.held().map_or(0, |held| held.cores.iter().flatten().count())
    }

    pub(super) fn report<'a>(&'a self, effects: &E) -> Option<&'a Report> {
        self.held().map(|held| effects.report(&held.space))
    }

    pub(super) fn drain_console(&mut self, effects: &E) {
        if let Body::Held(held) = &self.body {
            self.log.drain(&effects.report(&held.space).console);
        }
    }
}
