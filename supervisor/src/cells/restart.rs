//! Cells that are started again when they have ended, as their policies say: by the supervisor itself, from the
//! images that it keeps.
//!
//! ```text
//!                     policy wants it              due, and there is room
//!    Running -- end -----------------> waiting --------------------------> Running
//!                 |                    |   ^ |
//!                 | policy does not,   |   +-+ due, and no cores, memory or device is free, or not zero yet
//!                 | or has done so     | asked to stop,
//!                 | often enough       | or anything else is in the way
//!                 v                    v
//!               ended                ended
//! ```
//!
//! The first try comes [`FIRST_DELAY_NS`] after the end, and each further one after twice the time of the one
//! before, up to [`LONGEST_DELAY_NS`]: a cell that cannot run costs the machine little. A cell that has run for
//! [`STEADY_NS`] is taken to be well, and restarts with the first delay and a count of 0.
//!
//! Whoever asks a cell to stop means it: it is not started again until somebody asks for that.

use super::Cells;
use super::cell::{Cell, End, Run};
use super::pending::{Job, Need, Obstacle};
use crate::effects::Effects;
use alloc::vec::Vec;
use isola_abi::id::CellId;
use isola_abi::management::{JournalEvent, ManagementError, RestartPolicy};

/// From a cell's end to the first try to start it again, in ns.
pub const FIRST_DELAY_NS: u64 = 100_000_000;

/// The longest time from an end or a try to the next try, in ns.
pub const LONGEST_DELAY_NS: u64 = 60_000_000_000;

/// How long a cell has to run for what came before to be forgotten, in ns.
pub const STEADY_NS: u64 = 10_000_000_000;

/// How a cell's restarts stand.
#[derive(Debug)]
pub(super) struct Restarting {
    /// Restarts since somebody asked for a start.
    count: u32,
    /// Ends in a row, none having come after a steady time.
    ends_in_row: u32,
    /// Tries in a row that were refused since the last end.
    refused_in_row: u32,
    /// When the next try is due.
    next_ns: Option<u64>,
    intent: Intent,
}

/// What those who run the cell want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intent {
    /// What its policy says.
    Policy,
    /// That it stays ended.
    Stop,
}

impl Restarting {
    /// Of a cell that somebody has asked to create.
    pub(super) fn new() -> Self {
        Self { count: 0, ends_in_row: 0, refused_in_row: 0, next_ns: None, intent: Intent::Policy }
    }

    /// Of a cell that has been started again so often, has ended so often in a row, and is to be started again then.
    pub(super) fn resume((count, ends_in_row): (u32, u32), next_ns: Option<u64>) -> Self {
        Self { count, ends_in_row, next_ns, ..Self::new() }
    }

    /// What [`Self::resume`] takes first.
    pub(super) fn counts(&self) -> (u32, u32) {
        (self.count, self.ends_in_row)
    }

    /// When the next try is due, where there is to be one.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.next_ns
    }

    /// Somebody has asked the cell to stop. Returns whether it has waited for a try, and does not any more.
    pub(super) fn stop(&mut self) -> bool {
        self.intent = Intent::Stop;
        self.next_ns.take().is_some()
    }

    /// What is told of it, where time 0 is that time of day.
    pub(super) fn info(&self, boot_unix_ns: u64) -> isola_abi::management::Restarts {
        isola_abi::management::Restarts {
            count: self.count,
            ends_in_row: self.ends_in_row,
            next_unix_ns: self.next_ns.map(|next| boot_unix_ns.saturating_add(next)),
        }
    }

    /// How long to wait, after so many ends and refusals.
    fn delay_ns(&self) -> u64 {
        let before = u64::from(self.ends_in_row) + u64::from(self.refused_in_row);
        let doublings = before.saturating_sub(1).min(30) as u32;
        (FIRST_DELAY_NS << doublings).min(LONGEST_DELAY_NS)
    }
}

impl<E: Effects> Cells<E> {
    /// Decides what becomes of a cell that ends. Returns what is entered in the journal, where its policy says anything.
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

    /// Starts a cell again whose time has come, or sees to the next try. The checkpoint says that its time has come until it
    /// runs: a supervisor that comes after this one does not know a cell that is only about to.
    pub(super) fn restart(&mut self, id: CellId) {
        let began = self.effects.now_ns();
        if let Err(need) = self.restart_now(id, began) {
            self.put_off(Job::Restart(id), began, need);
        }
    }

    /// Starts a cell again, or sees to the next try.
    ///
    /// # Errors
    /// What has to be there first.
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
        // It was built just now, and can be.
        let _ = self.start(&name);
        self.count_images();
        Ok(())
    }

    /// A cell cannot be started again now.
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

    /// The cells that are going to be started again.
    pub(super) fn waiting(&self) -> Vec<CellId> {
        self.cells.values().filter(|cell| cell.restarting.next_ns.is_some()).map(|cell| cell.id).collect()
    }

    /// Takes note that a cell is to stop. Returns whether it had ended, and only waited to be started again.
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
    /// Whether a cell that has ended is to be started again: then how often at most.
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

/// Whether it may be otherwise in a while.
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
