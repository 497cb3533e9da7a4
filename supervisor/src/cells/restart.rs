//! Restarts of ended cells by policy, from stored images.
//!
//! ```text
//!                  by policy                            due, and resources are free
//!    Running -- end ------------> waiting -------------------------------------> Running
//!                |                 |   ^ |
//!                | not by policy,  |   +-+ due, and no cores, memory or device is free, or not zero yet
//!                | or restarts     | stop request,
//!                | are used up     | or any other error
//!                v                 v
//!              ended             ended
//! ```
//!
//! The first attempt comes [`FIRST_DELAY_NS`] after the end. Each delay doubles, up to [`LONGEST_DELAY_NS`]: a cell
//! that cannot run costs the machine little. A cell that has run for [`STEADY_NS`] counts as healthy, and restarts with
//! the first delay and a count of 0.
//!
//! A stop request cancels restarts: the cell starts again only by request.

use super::Cells;
use super::cell::{Cell, End, Run};
use super::pending::{Job, Need, Obstacle};
use crate::effects::Effects;
use alloc::vec::Vec;
use isola_abi::id::CellId;
use isola_abi::management::{JournalEvent, ManagementError, RestartPolicy};

/// The time from a cell's end to the first attempt to restart it, in ns.
pub const FIRST_DELAY_NS: u64 = 100_000_000;

/// The longest time from an end or an attempt to the next attempt, in ns.
pub const LONGEST_DELAY_NS: u64 = 60_000_000_000;

/// After this run time a cell's earlier ends do not count, in ns.
pub const STEADY_NS: u64 = 10_000_000_000;

/// The state of a cell's restarts.
#[derive(Debug)]
pub(super) struct Restarting {
    /// Restarts since the last start by request.
    count: u32,
    /// Ends in a row, each before [`STEADY_NS`] of run time.
    ends_in_row: u32,
    /// Refused attempts in a row since the last end.
    refused_in_row: u32,
    /// The time of the next attempt.
    next_ns: Option<u64>,
    intent: Intent,
}

/// The operator's intent for the cell after its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intent {
    /// The cell's policy applies.
    Policy,
    /// The cell stays ended.
    Stop,
}

impl Restarting {
    /// Returns the state of a cell that was created by request.
    pub(super) fn new() -> Self {
        Self { count: 0, ends_in_row: 0, refused_in_row: 0, next_ns: None, intent: Intent::Policy }
    }

    /// Returns the state of a recovered cell, with its restarts, its ends in a row, and the time of the next attempt.
    pub(super) fn resume((count, ends_in_row): (u32, u32), next_ns: Option<u64>) -> Self {
        Self { count, ends_in_row, next_ns, ..Self::new() }
    }

    /// Returns the first argument of [`Self::resume`].
    pub(super) fn counts(&self) -> (u32, u32) {
        (self.count, self.ends_in_row)
    }

    /// Returns the time of the next attempt, if one is due.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.next_ns
    }

    /// Handles a stop request. Returns whether an attempt was due, which is now cancelled.
    pub(super) fn stop(&mut self) -> bool {
        self.intent = Intent::Stop;
        self.next_ns.take().is_some()
    }

    /// Returns information for a response; `boot_unix_ns` is the time of day at time 0.
    pub(super) fn info(&self, boot_unix_ns: u64) -> isola_abi::management::Restarts {
        isola_abi::management::Restarts {
            count: self.count,
            ends_in_row: self.ends_in_row,
            next_unix_ns: self.next_ns.map(|next| boot_unix_ns.saturating_add(next)),
        }
    }

    /// Returns the delay of the next attempt, by the number of ends and refusals.
    fn delay_ns(&self) -> u64 {
        let before = u64::from(self.ends_in_row) + u64::from(self.refused_in_row);
        let doublings = before.saturating_sub(1).min(30) as u32;
        (FIRST_DELAY_NS << doublings).min(LONGEST_DELAY_NS)
    }
}

impl<E: Effects> Cells<E> {
    /// Decides by policy whether a cell that ends will restart. Returns the journal event, if there is one.
    pub(super) fn decide_restart(&mut self, id: CellId) -> Option<JournalEvent> {
        let now = self.effects.now_ns();
        let cell = self.cells.get_mut(&id)?;
        let most = cell.wanted_restarts()?;
        let restarting = &mut cell.restarting;
        if now.saturating_sub(cell.started_ns) >= STEADY_NS {
            restarting.ends_in_row = 0;
        }
        restarting.refused_in_row = 0;
        if most.is_some_and(|most| restarting.ends_in_row >= most) {
            return Some(JournalEvent::RestartsUsedUp {
                ends_in_row: restarting.ends_in_row.saturating_add(1),
            });
        }
        restarting.ends_in_row = restarting.ends_in_row.saturating_add(1);
        let after_ns = restarting.delay_ns();
        restarting.next_ns = Some(now.saturating_add(after_ns));
        Some(JournalEvent::RestartDue { ends_in_row: restarting.ends_in_row, after_ns })
    }

    /// Restarts a cell whose restart is due, or schedules the next attempt. The checkpoint says that the restart is due
    /// until the cell runs, as a restarted supervisor does not recover a cell that was only *entering*.
    pub(super) fn restart(&mut self, id: CellId) {
        let began = self.effects.now_ns();
        if let Err(need) = self.restart_now(id, began) {
            self.put_off(Job::Restart(id), began, need);
        }
    }

    /// Restarts a cell, or schedules the next attempt.
    ///
    /// # Errors
    /// Returns the missing prerequisite.
    pub(super) fn restart_now(&mut self, id: CellId, began: u64) -> Result<(), Need> {
        let Some(name) = self.name_of(id) else { return Ok(()) };
        match self.rebuild(id, began) {
            Err(Obstacle::Needs(need)) => return Err(need),
            Err(Obstacle::Refused(error)) => {
                self.put_restart_off(id, error, began);
                return Ok(());
            }
            Ok(()) => {}
        }
        let Some(cell) = self.cells.get_mut(&id) else { return Ok(()) };
        cell.restarting.next_ns = None;
        cell.restarting.count = cell.restarting.count.saturating_add(1);
        // Cannot fail, as the cell was just built.
        let _ = self.start(&name);
        self.count_images();
        Ok(())
    }

    /// Schedules the next attempt if the error may be temporary; otherwise ends the restarts.
    fn put_restart_off(&mut self, id: CellId, error: ManagementError, began: u64) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        let (name, restarting) = (cell.spec.name.clone(), &mut cell.restarting);
        let after_ns = is_exhaustion(&error).then(|| {
            restarting.refused_in_row = restarting.refused_in_row.saturating_add(1);
            restarting.delay_ns()
        });
        restarting.next_ns = after_ns.map(|after| began.saturating_add(after));
        self.count_images();
        self.record(began, Some(&name), JournalEvent::RestartRefused { error, after_ns });
    }

    /// Returns the cells that await a restart.
    pub(super) fn waiting(&self) -> Vec<CellId> {
        self.cells.values().filter(|cell| cell.restarting.next_ns.is_some()).map(|cell| cell.id).collect()
    }

    /// Handles a stop request. Returns whether the cell had ended and awaited a restart.
    pub(super) fn stop_restarting(&mut self, id: CellId) -> bool {
        let began = self.effects.now_ns();
        let Some(cell) = self.cells.get_mut(&id) else { return false };
        if !cell.restarting.stop() {
            return false;
        }
        let name = cell.spec.name.clone();
        self.cancel_of(id);
        self.count_images();
        self.record(began, Some(&name), JournalEvent::RestartCancelled);
        true
    }
}

impl<E: Effects> Cell<E> {
    /// Returns `None` if an ended cell is not to be restarted, otherwise the most ends in a row after which it is; the
    /// inner `None` is no limit.
    fn wanted_restarts(&self) -> Option<Option<u32>> {
        let Run::Ended(end) = self.run else { return None };
        if self.restarting.intent == Intent::Stop || end == End::Killed {
            return None;
        }
        let failed = end == End::Crashed || self.exit_code != Some(0);
        match self.spec.restart {
            RestartPolicy::Always => Some(None),
            RestartPolicy::OnFailure { most } if failed => Some(most),
            RestartPolicy::OnFailure { .. } | RestartPolicy::No => None,
        }
    }
}

/// Returns whether an error may be temporary.
fn is_exhaustion(error: &ManagementError) -> bool {
    use ManagementError as Why;
    matches!(
        error,
        Why::CoresExhausted { .. }
            | Why::NodeCoresExhausted { .. }
            | Why::CoresTaken { .. }
            | Why::NotWholeCores { .. }
            | Why::MemoryExhausted { .. }
            | Why::DevicesExhausted
    )
}
