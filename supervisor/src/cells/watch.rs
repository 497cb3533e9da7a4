//! The watchdog: finds a core that reports that it runs events, but whose event loop makes no passes.
//!
//! A halted core is never suspected, as it waits for an interrupt. A cell that has reported nothing since its start is
//! judged by its first core. The cell itself writes the data, so the watchdog finds faulty cells, not deceptive ones.

use crate::report;
use alloc::vec::Vec;
use isola_abi::report::{CellPhase, CorePhase, Report};

/// The periodic check of a cell.
#[derive(Debug)]
pub(super) struct Watch {
    limit_ns: u64,
    next_ns: u64,
    cores: Vec<CoreSign>,
}

/// A core's last sign, and since when it is unchanged.
#[derive(Clone, Copy, Debug)]
struct CoreSign {
    sign: (CorePhase, u64),
    since_ns: u64,
}

impl Watch {
    /// Returns a watchdog for `core_count` core slots, beginning at `now`; `None` if `limit_ms` is 0.
    pub(super) fn new(limit_ms: u32, core_count: usize, now: u64) -> Option<Self> {
        let limit_ns = u64::from(limit_ms) * 1_000_000;
        let seen = CoreSign { sign: (CorePhase::Asleep, 0), since_ns: now };
        let watch = Self { limit_ns, next_ns: 0, cores: alloc::vec![seen; core_count] };
        (limit_ms > 0).then(|| Self { next_ns: now.saturating_add(watch.period_ns()), ..watch })
    }

    /// Returns the time of the next check.
    pub(super) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Restarts the measurement of all cores, as their lack of progress until now was legitimate.
    pub(super) fn forgive(&mut self, now: u64) {
        self.cores.iter_mut().for_each(|seen| seen.since_ns = now);
    }

    /// Checks the cell. Returns the index of a core that has made no progress for the limit times `slowdown`.
    pub(super) fn check(&mut self, report: &Report, now: u64, slowdown: u64) -> Option<usize> {
        let limit_ns = self.limit_ns.saturating_mul(slowdown);
        self.next_ns = now.saturating_add(self.period_ns());
        let silent = report::phase(report) == CellPhase::Silent;
        let mut suspect = None;
        for (index, seen) in self.cores.iter_mut().enumerate() {
            let sign = report::sign(report, index);
            let mute = silent && index == 0;
            if seen.sign != sign || (sign.0 != CorePhase::Running && !mute) {
                // The sign may have changed right after the previous check; counting from this one suspects no core too
                // early.
                *seen = CoreSign { sign, since_ns: now };
            } else if now.saturating_sub(seen.since_ns) >= limit_ns {
                suspect = suspect.or(Some(index));
            }
        }
        suspect
    }

    /// Returns the time between two checks, short enough to notice a hang within half the limit after the limit.
    fn period_ns(&self) -> u64 {
        (self.limit_ns / 4).max(1)
    }
}
