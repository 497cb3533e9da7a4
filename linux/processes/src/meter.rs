//! The cycles of a thread.
//!
//! All cycles of the polls of a thread's task are those of the thread; those in ring 3 are counted apart. The rest, in calls
//! and page faults, is system time. The activity of the process has the same cycles, and those of the event loop between
//! the polls.

use crate::thread::Thread;
use alloc::boxed::Box;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::sync::atomic::{AtomicU64, Ordering};

/// The cycles of a thread. Only its own task writes them.
#[derive(Debug, Default)]
pub struct Meter {
    /// Those of polls that have ended.
    total: AtomicU64,
    /// Those in ring 3, of runs that have ended.
    user: AtomicU64,
    /// The reading of the cycle counter at the start of the present poll; 0 if the thread does not run.
    since: AtomicU64,
    /// The same of the present run in ring 3.
    user_since: AtomicU64,
    /// The polls: how often the thread got a core.
    turns: AtomicU64,
}

impl Meter {
    /// Marks the start of a poll, or of a turn in that of another thread.
    pub fn begin(&self, now: u64) {
        self.since.store(now.max(1), Ordering::Relaxed);
        add(&self.turns, 1);
    }

    /// Marks the end of a poll; without one, there is nothing to count.
    pub fn end(&self, now: u64) {
        match self.since.swap(0, Ordering::Relaxed) {
            0 => {}
            since => add(&self.total, now.saturating_sub(since)),
        }
    }

    /// Marks the entry to ring 3.
    #[inline]
    pub fn enter_user(&self, now: u64) {
        self.user_since.store(now.max(1), Ordering::Relaxed);
    }

    /// Marks the return from ring 3.
    #[inline]
    pub fn leave_user(&self, now: u64) {
        let since = self.user_since.load(Ordering::Relaxed);
        self.user_since.store(0, Ordering::Relaxed);
        add(&self.user, now.saturating_sub(since));
    }

    /// Returns the cycles so far in ring 3 and in calls, those of the present run included.
    pub fn read(&self, now: u64) -> (u64, u64) {
        let so_far = |since: &AtomicU64| match since.load(Ordering::Relaxed) {
            0 => 0,
            // Another core's counter may be behind.
            since => now.saturating_sub(since),
        };
        let user = self.user.load(Ordering::Relaxed) + so_far(&self.user_since);
        let total = self.total.load(Ordering::Relaxed) + so_far(&self.since);
        (user.min(total), total.saturating_sub(user))
    }

    /// Returns all cycles so far.
    pub fn total(&self, now: u64) -> u64 {
        let (user, system) = self.read(now);
        user + system
    }

    /// Returns whether the thread runs now.
    pub fn runs(&self) -> bool {
        self.since.load(Ordering::Relaxed) != 0
    }

    /// Returns how often the thread got a core.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }
}

/// Adds to a counter of which this thread is the only writer.
fn add(counter: &AtomicU64, cycles: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(cycles), Ordering::Relaxed);
}

/// Runs a thread, and counts its cycles.
pub async fn metered(thread: Box<Thread>) {
    let (state, system) = (thread.state.clone(), thread.system.clone());
    let environment = &system.environment;
    let core = environment.current_core();
    let mut run = pin!(thread.run());
    poll_fn(|context| {
        state.meter.begin(environment.cycles().0);
        system.loads.set_runs_thread(core, true);
        let result = run.as_mut().poll(context);
        system.loads.set_runs_thread(core, false);
        // A thread that has moved may run on another core already: it has ended the poll itself.
        if result.is_pending() {
            state.meter.end(environment.cycles().0);
        }
        result
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_outside_of_ring_3_are_system_time_and_waits_none() {
        let meter = Meter::default();
        meter.begin(100);
        assert_eq!((meter.read(130), meter.runs()), ((0, 30), true));
        meter.enter_user(150);
        assert_eq!(meter.read(190), (40, 50), "the present run counts");
        meter.leave_user(200);
        meter.end(210);
        meter.end(4_000);
        assert_eq!((meter.read(5_000), meter.runs()), ((50, 60), false), "a poll ends once");
        meter.begin(6_000);
        assert_eq!((meter.read(5_990), meter.total(6_010), meter.turns()), ((50, 60), 120, 2));
    }
}
