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

/// All that is known of a cell, and all that it holds.
pub(super) struct Cell<E: Effects> {
    pub(super) id: CellId,
    pub(super) spec: CellSpec,
    pub(super) body: Body<E>,
    /// By place that ever had one: the core that is there, or was there last.
    pub(super) core_ids: Vec<CoreId>,
    /// What is under way of its cores coming and going.
    pub(super) moves: Moves,
    /// How many of its requests for a core have been looked at.
    pub(super) core_requests: u32,
    /// The memory that it was given, less what it gave back.
    pub(super) memory_bytes: u64,
    pub(super) growth: Growth,
    /// What it is giving back.
    pub(super) shrink: Option<Shrink>,
    /// What of it its image takes.
    pub(super) image_bytes: u64,
    /// What its image takes of the memory that it is kept in.
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

/// What a cell consists of.
pub(super) enum Body<E: Effects> {
    /// What it holds, until it ends.
    Held(Held<E>),
    /// After that nothing, but what it had used by then.
    Gone(Box<Usage>),
}

/// What a cell holds.
pub(super) struct Held<E: Effects> {
    pub(super) space: E::Space,
    /// By place: the core that is there.
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

    /// Whether its image has to be there.
    pub(super) fn uses_image(&self) -> bool {
        self.held().is_some() || self.restarting.next_ns().is_some()
    }

    /// Whether it has ended, and is not to be started again by itself.
    pub(super) fn is_only_a_record(&self) -> bool {
        self.held().is_none() && self.restarting.next_ns().is_none()
    }

    pub(super) fn held(&self) -> Option<&Held<E>> {
        match &self.body {
            Body::Held(held) => Some(held),
            Body::Gone(_) => None,
        }
    }

    /// How many cores it has.
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
