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

use super::cell::{Cell, End, Run};
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

    /// Records that the cell has restarted.
    pub(super) fn restarted(&mut self) {
        self.next_ns = None;
        self.count = self.count.saturating_add(1);
    }

    /// Handles an attempt at `began` that was refused with `error`: schedules the next attempt if the error may be
    /// temporary, otherwise ends the restarts. Returns the delay of the next attempt.
    pub(super) fn refused(&mut self, error: &ManagementError, began: u64) -> Option<u64> {
        let after_ns = is_exhaustion(error).then(|| {
            self.refused_in_row = self.refused_in_row.saturating_add(1);
            self.delay_ns()
        });
        self.next_ns = after_ns.map(|after| began.saturating_add(after));
        after_ns
    }

    /// Returns the delay of the next attempt, by the number of ends and refusals.
    fn delay_ns(&self) -> u64 {
        let before = u64::from(self.ends_in_row) + u64::from(self.refused_in_row);
        let doublings = before.saturating_sub(1).min(30) as u32;
        (FIRST_DELAY_NS << doublings).min(LONGEST_DELAY_NS)
    }
}

impl Cell {
    /// Decides by policy whether a cell that ends will restart. Returns the journal event, if there is one.
    pub(super) fn decide_restart(&mut self, now: u64) -> Option<JournalEvent> {
        let most = self.wanted_restarts()?;
        let restarting = &mut self.restarting;
        if now.saturating_sub(self.times.started_ns) >= STEADY_NS {
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

    /// Returns `None` if an ended cell is not to be restarted, otherwise the most ends in a row after which it is; the
    /// inner `None` is no limit.
    fn wanted_restarts(&self) -> Option<Option<u32>> {
        let Run::Ended(end) = self.run else { return None };
        if self.restarting.intent == Intent::Stop || end == End::Killed {
            return None;
        }
        let failed = end == End::Crashed || self.outcome.exit_code != Some(0);
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
            | Why::DiskNotFree(_)
    )
}
