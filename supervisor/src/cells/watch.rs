//! Cells that stand still: a core that says it runs events, but whose event loop does not come by.
//!
//! A halted core is never suspected: it waits for an interrupt, as it should. A cell that has said nothing
//! since it was started is judged by its first core. The cell writes what it is judged by: the watchdog finds
//! cells that went wrong, not cells that pretend.

use crate::report;
use alloc::vec::Vec;
use isola_abi::report::{CellPhase, CorePhase, Report};

/// Looks at a cell from time to time.
#[derive(Debug)]
pub(super) struct Watch {
    limit_ns: u64,
    next_ns: u64,
    cores: Vec<Seen>,
}

/// What a core's sign was, and since when.
#[derive(Clone, Copy, Debug)]
struct Seen {
    sign: (CorePhase, u64),
    since_ns: u64,
}

impl Watch {
    /// A watch over so many cores from now on; none where `limit_ms` is 0.
    pub(super) fn new(limit_ms: u32, core_count: usize, now: u64) -> Option<Self> {
        let limit_ns = u64::from(limit_ms) * 1_000_000;
        let seen = Seen { sign: (CorePhase::Asleep, 0), since_ns: now };
        let watch = Self { limit_ns, next_ns: 0, cores: alloc::vec![seen; core_count] };
        (limit_ms > 0).then(|| Self { next_ns: now.saturating_add(watch.period_ns()), ..watch })
    }

    /// When to look next.
    pub(super) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Begins anew: if cores have stood still so far, they were right to.
    pub(super) fn forgive(&mut self, now: u64) {
        self.cores.iter_mut().for_each(|seen| seen.since_ns = now);
    }

    /// Looks at the cell. Returns the index of a core that has stood still for the whole limit, times `slowdown`.
    pub(super) fn look(&mut self, report: &Report, now: u64, slowdown: u64) -> Option<usize> {
        let limit_ns = self.limit_ns.saturating_mul(slowdown);
        self.next_ns = now.saturating_add(self.period_ns());
        let silent = report::phase(report) == CellPhase::Silent;
        let mut suspect = None;
        for (index, seen) in self.cores.iter_mut().enumerate() {
            let sign = report::sign(report, index);
            let mute = silent && index == 0;
            if seen.sign != sign || (sign.0 != CorePhase::Running && !mute) {
                // Since this look at the latest: it may have changed right after the one before.
                *seen = Seen { sign, since_ns: now };
            } else if now.saturating_sub(seen.since_ns) >= limit_ns {
                suspect = suspect.or(Some(index));
            }
        }
        suspect
    }

    /// Often enough that a hang is noticed within half the limit after the limit.
    fn period_ns(&self) -> u64 {
        (self.limit_ns / 4).max(1)
    }
}
