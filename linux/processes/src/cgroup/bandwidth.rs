//! A limit of processor time for all cores together (`cpu.max`).
//!
//! A thread of a limited group asks before its program continues. While the group has time left in the present period, the
//! program runs for at most a part of it; otherwise it waits for the next period. Time that threads used in excess counts
//! for the next periods, so the limit holds in the long run.

use core::sync::atomic::{AtomicU64, Ordering};
use spin::Mutex;

/// The longest time for which a program runs before its group is asked again, in nanoseconds: threads on other cores use
/// the same time.
const SLICE_NS: u64 = 5_000_000;
/// The shortest.
const MIN_SLICE_NS: u64 = 100_000;

/// A limit: this much time in each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The time, in nanoseconds.
    pub quota_ns: u64,
    /// The period, in nanoseconds.
    pub period_ns: u64,
}

impl Quota {
    /// The period unless one is given.
    pub const DEFAULT_PERIOD_NS: u64 = 100_000_000;
}

/// The limit of a group, and its use.
#[derive(Debug, Default)]
pub struct Bandwidth {
    state: Mutex<State>,
    /// Periods in which a thread ran, those in which one had to wait, and the time of the waits, in nanoseconds.
    pub(super) periods: AtomicU64,
    pub(super) throttled: AtomicU64,
    pub(super) throttled_ns: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    quota: Option<Quota>,
    period_end_ns: u64,
    used_ns: u64,
    has_throttled: bool,
}

/// The answer to a thread that asks for time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// The program may run for this time, in nanoseconds.
    Run(u64),
    /// The thread waits until this time.
    WaitUntil(u64),
}

impl Bandwidth {
    /// Returns the limit.
    pub fn quota(&self) -> Option<Quota> {
        self.state.lock().quota
    }

    /// Sets the limit; `None` for none.
    pub fn set(&self, quota: Option<Quota>) {
        *self.state.lock() = State { quota, ..State::default() };
    }

    /// Counts time that a thread has used, and answers whether it may continue. Without a limit it may for any time.
    pub fn ask(&self, now_ns: u64, used_ns: u64) -> Grant {
        let mut state = self.state.lock();
        let Some(quota) = state.quota else { return Grant::Run(u64::MAX) };
        state.used_ns = state.used_ns.saturating_add(used_ns);
        if now_ns >= state.period_end_ns {
            let passed = (now_ns - state.period_end_ns) / quota.period_ns + 1;
            state.used_ns = state.used_ns.saturating_sub(passed.saturating_mul(quota.quota_ns));
            state.period_end_ns += passed * quota.period_ns;
            state.has_throttled = false;
            self.periods.fetch_add(1, Ordering::Relaxed);
        }
        if state.used_ns < quota.quota_ns {
            let left = quota.quota_ns - state.used_ns;
            return Grant::Run(left.clamp(MIN_SLICE_NS, SLICE_NS));
        }
        if !core::mem::replace(&mut state.has_throttled, true) {
            self.throttled.fetch_add(1, Ordering::Relaxed);
        }
        self.throttled_ns.fetch_add(state.period_end_ns - now_ns, Ordering::Relaxed);
        Grant::WaitUntil(state.period_end_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Returns the time for which a thread that always wants to run runs until `end_ns`.
    fn run(bandwidth: &Bandwidth, end_ns: u64, excess_ns: u64) -> u64 {
        let (mut now, mut used, mut total) = (0, 0, 0);
        while now < end_ns {
            match bandwidth.ask(now, used) {
                Grant::Run(time) => {
                    used = time + excess_ns;
                    total += used;
                    now += used;
                }
                Grant::WaitUntil(time) => {
                    assert!(time > now);
                    (now, used) = (time, 0);
                }
            }
        }
        total
    }

    #[test]
    fn a_group_gets_its_time_in_each_period() {
        let bandwidth = Bandwidth::default();
        assert_eq!(bandwidth.ask(5, 7), Grant::Run(u64::MAX), "no limit");
        bandwidth.set(Some(Quota { quota_ns: 20 * MS, period_ns: 100 * MS }));
        let total = run(&bandwidth, 10_000 * MS, 0);
        assert!((1_980 * MS..=2_020 * MS).contains(&total), "{} ms", total / MS);
        assert!(bandwidth.throttled.load(Ordering::Relaxed) >= 98);
    }

    #[test]
    fn time_in_excess_counts_for_later_periods() {
        let bandwidth = Bandwidth::default();
        bandwidth.set(Some(Quota { quota_ns: 10 * MS, period_ns: 100 * MS }));
        // Each run is 17 ms too long.
        let total = run(&bandwidth, 20_000 * MS, 17 * MS);
        assert!((1_960 * MS..=2_060 * MS).contains(&total), "{} ms", total / MS);
    }

    #[test]
    fn a_group_that_slept_saves_no_time() {
        let bandwidth = Bandwidth::default();
        bandwidth.set(Some(Quota { quota_ns: 10 * MS, period_ns: 100 * MS }));
        assert_eq!(bandwidth.ask(0, 0), Grant::Run(5 * MS));
        assert_eq!(bandwidth.ask(90_000 * MS, 5 * MS), Grant::Run(5 * MS));
        let Grant::WaitUntil(end) = bandwidth.ask(90_000 * MS + 10 * MS, 10 * MS) else { panic!("a wait") };
        assert!(end <= 90_100 * MS);
    }
}
