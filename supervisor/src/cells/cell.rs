//! A cell's record.

use super::watch::Watch;
use crate::effects::Effects;
use crate::image::ImagePlan;
use crate::logs::Log;
use alloc::vec::Vec;
use isola_abi::id::{CellId, CoreId};
use isola_abi::management::{CellSpec, CellState, Crash, Durations};
use isola_abi::report::Report;

/// All that belongs to a cell.
pub(super) struct Cell<E: Effects> {
    pub(super) id: CellId,
    pub(super) spec: CellSpec,
    pub(super) plan: ImagePlan,
    /// The image as it was sent, where the cell cannot get at it.
    pub(super) image: E::Memory,
    pub(super) image_len: usize,
    pub(super) body: Body<E>,
    /// The cores that it has; after its end, those that came back.
    pub(super) cores: Vec<E::Core>,
    /// The cores that it was given, in the order of core indices.
    pub(super) core_ids: Vec<CoreId>,
    pub(super) device: Option<E::Device>,
    pub(super) soundness: Soundness,
    /// All its memory, the kept image included.
    pub(super) memory_bytes: u64,
    pub(super) run: Run,
    pub(super) log: Log,
    pub(super) exit_code: Option<i32>,
    pub(super) crash: Option<Crash>,
    pub(super) created_unix_ns: u64,
    pub(super) started_unix_ns: Option<u64>,
    pub(super) started_ns: u64,
    pub(super) durations: Durations,
}

/// The cell's memory, but for the kept image.
pub(super) enum Body<E: Effects> {
    Built(E::Space),
    /// Zeroed; what is left where building anew failed.
    Loose(Vec<E::Memory>),
}

/// Whether all that the cell was given is still under control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Soundness {
    Sound,
    /// A core did not come back: it may still write to the cell's memory.
    CoreLost,
    /// The device could not be reset: it may still write to the cell's memory.
    DeviceLost,
}

/// How a cell ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Exited,
    Crashed,
    Killed,
}

/// Where in its life a cell is.
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
    /// Did not answer; was made to say where it stands, and ends then or at the deadline.
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

    /// Whether its cores execute it.
    pub(super) fn is_live(&self) -> bool {
        !matches!(self.run, Run::Created | Run::Ended(_))
    }

    pub(super) fn report<'a>(&'a self, effects: &E) -> Option<&'a Report> {
        match &self.body {
            Body::Built(space) => Some(effects.report(space)),
            Body::Loose(_) => None,
        }
    }

    pub(super) fn drain_console(&mut self, effects: &E) {
        if let Body::Built(space) = &self.body {
            self.log.drain(&effects.report(space).console);
        }
    }
}
