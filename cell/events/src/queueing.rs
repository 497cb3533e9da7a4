//! Samples of the queueing delay: the time from an event's arrival to its start.
//!
//! A timestamp in each event would cost every event a word and a reading of the cycle counter. Instead the loop takes
//! samples. At the start of an event it notes its last check for arrivals (before that event, or after a halt) and the
//! number of waiting events. An event that arrived after that check is at best the last of those; so the start of the
//! last one, that many passes later, bounds its delay.
//!
//! ```text
//!             check       check: 3 wait     pass + 3
//!   ──────────┬─────────────┬───┬────┬───────┬──────────
//!     event   │  event      │ 1 │ 2  │  3    │ the last of them starts
//!             └─────────────────────────────▶│ one sample
//! ```
//!
//! This holds for a first-in, first-out queue; an application's own queue is treated as one. The number of passes
//! between two samples adapts, so that a core takes one sample in about 2^15 cycles in which it is not idle. A delay of
//! more cycles than that counts as several samples, as many as would have fitted; otherwise long delays, of which there
//! are few, would carry too little weight. An event without a sample costs two loads, a store, a comparison and a
//! branch.

use crate::event_loop::EVENTS;
use core::cell::Cell;
use core::sync::atomic::Ordering;
use core::time::Duration;
use isola_abi::report::CoreReport;
use isola_ebbs::platform;
use isola_platform::Instant;

/// Approximate number of cycles between samples, without idle cycles.
const SAMPLE_EVERY: u64 = 1 << 15;

/// Most passes between two samples.
const MAX_PASSES_BETWEEN: u64 = 256;

/// A core's sampling state.
pub(crate) struct Queueing {
    /// The pass at which the next check is due.
    at_pass: Cell<u64>,
    /// The reading of the cycle counter at which the current sample starts.
    since: Cell<Option<u64>>,
    /// The core's non-idle cycles at the end of the last sample, from an arbitrary origin.
    sampled: Cell<u64>,
    /// Passes from one sample to the next.
    passes_between: Cell<u64>,
    /// The pass at which the current sample ends.
    ends_at: Cell<u64>,
    /// The queueing delay, in cycles, above which the cell requests another core, and the reading from which on it may
    /// request again.
    limit: u64,
    request_from: Cell<u64>,
    /// Cycles between two requests.
    pause: u64,
}

/// Whether the cell requests another core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum CoreRequest {
    Yes,
    No,
}

/// Time between two requests of a core: until then a core is being transferred, or none is available.
const PAUSE: Duration = Duration::from_millis(2);

/// Passes between two checks of a long sample, so that an excessive delay is noticed before it ends.
const PASSES_PER_CHECK: u64 = 16;

/// Returns the reading of the cycle counter at this core's last check for arrivals, before the current event or
/// interrupt. Input that the core notices only now arrived after that.
#[inline]
pub fn last_arrival_check() -> u64 {
    EVENTS.accounting.last_check()
}

impl Queueing {
    /// Creates the samples of a core of the calling core's cell. The descriptor has the delay above which it requests a
    /// core.
    pub fn new() -> Self {
        let clock = platform().clock();
        let cycles =
            |duration| clock.cycles(Instant::default() + duration) - clock.cycles(Instant::default());
        let limit = match platform().descriptor().core_request_ns {
            0 => u64::MAX,
            ns => cycles(Duration::from_nanos(ns)),
        };
        Self::with_limit(limit, cycles(PAUSE))
    }

    fn with_limit(limit: u64, pause: u64) -> Self {
        Self {
            at_pass: Cell::new(0),
            since: Cell::new(None),
            sampled: Cell::new(0),
            passes_between: Cell::new(1),
            ends_at: Cell::new(0),
            limit,
            request_from: Cell::new(0),
            pause,
        }
    }

    /// Returns whether a sample begins or ends at the event of this pass.
    #[inline]
    pub fn must_sample(&self, pass: u64) -> bool {
        pass >= self.at_pass.get()
    }

    /// Begins, continues or ends a sample at the event of this pass, for which [`Self::must_sample`] holds. The event
    /// began at the reading `began`, `looked` is the reading of the check before, and `waiting` others wait.
    #[inline]
    pub fn sample(
        &self,
        report: &CoreReport,
        pass: u64,
        waiting: u64,
        looked: u64,
        began: u64,
    ) -> CoreRequest {
        let since = match self.since.take() {
            Some(since) if pass < self.ends_at.get() => {
                self.since.set(Some(since));
                self.at_pass.set(self.ends_at.get().min(pass + PASSES_PER_CHECK));
                return self.core_request(began.saturating_sub(since), began);
            }
            Some(since) => since,
            None if waiting == 0 => looked,
            None => {
                self.since.set(Some(looked));
                self.ends_at.set(pass + waiting);
                self.at_pass.set(pass + waiting.min(PASSES_PER_CHECK));
                return self.core_request(began.saturating_sub(looked), began);
            }
        };
        let waited = began.saturating_sub(since);
        report.queueing.count(waited, 1 + waited / SAMPLE_EVERY);
        let worked = began.wrapping_sub(report.idle_cycles.load(Ordering::Relaxed));
        let passes_between = match worked.wrapping_sub(self.sampled.replace(worked)) < SAMPLE_EVERY {
            true => (self.passes_between.get() * 2).min(MAX_PASSES_BETWEEN),
            false => (self.passes_between.get() / 2).max(1),
        };
        self.passes_between.set(passes_between);
        self.at_pass.set(pass + passes_between);
        self.core_request(waited, began)
    }

    /// Returns whether the cell requests another core, given this queueing delay.
    fn core_request(&self, waited: u64, now: u64) -> CoreRequest {
        if waited < self.limit || now < self.request_from.get() {
            return CoreRequest::No;
        }
        self.request_from.set(now.saturating_add(self.pause));
        CoreRequest::Yes
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::boxed::Box;
    use alloc::collections::VecDeque;
    use alloc::vec::Vec;
    use isola_abi::histogram::Histogram;

    /// A model of a core: only the order of events and time.
    struct Core {
        queueing: Queueing,
        report: Box<CoreReport>,
        /// Arrival time and duration of each waiting event.
        queue: VecDeque<(u64, u64)>,
        now: u64,
        looked: u64,
        passes: u64,
        /// The exact queueing delays of the events that ran.
        waited: Histogram,
        /// The times of the core's requests for another core.
        requests: Vec<u64>,
    }

    fn report() -> Box<CoreReport> {
        use core::sync::atomic::{AtomicU32, AtomicU64};
        Box::new(CoreReport {
            phase: AtomicU32::new(0),
            activity: AtomicU32::new(0),
            order: AtomicU32::new(0),
            vcore_runner: AtomicU32::new(0),
            yielded: AtomicU32::new(0),
            flushed_generation: AtomicU32::new(0),
            passes: AtomicU64::new(0),
            interrupts: AtomicU64::new(0),
            idle_cycles: AtomicU64::new(0),
            loop_cycles: AtomicU64::new(0),
            interrupt_cycles: AtomicU64::new(0),
            long_events: AtomicU64::new(0),
            longest_event_cycles: AtomicU64::new(0),
            queueing: Histogram::new(),
            service: Histogram::new(),
        })
    }

    impl Core {
        fn new() -> Self {
            Self {
                queueing: Queueing::with_limit(200_000, 5_000_000),
                report: report(),
                queue: VecDeque::new(),
                now: 0,
                looked: 0,
                passes: 0,
                waited: Histogram::new(),
                requests: Vec::new(),
            }
        }

        /// Simulates until `end` events of `event` cycles that arrive every `gap` cycles and are noticed at the start
        /// of each pass.
        fn run(&mut self, gap: u64, event: u64, end: u64) {
            let mut next = self.now;
            while self.now < end {
                self.passes += 1;
                while next <= self.now {
                    self.queue.push_back((next, event));
                    next += gap;
                }
                let Some((came, takes)) = self.queue.pop_front() else {
                    // The core is halted until the next arrival.
                    self.now = next;
                    self.looked = next;
                    continue;
                };
                self.waited.count(self.now - came, 1);
                if self.queueing.must_sample(self.passes) {
                    let waiting = self.queue.len() as u64;
                    let core_request =
                        self.queueing.sample(&self.report, self.passes, waiting, self.looked, self.now);
                    self.requests.extend((core_request == CoreRequest::Yes).then_some(self.now));
                }
                self.looked = self.now;
                self.now += takes;
            }
        }

        /// Returns the sampled and the exact percentile.
        fn quantiles(&self, per_mille: u32) -> (u64, u64) {
            let quantile = |histogram: &Histogram| histogram.read().quantile(per_mille).unwrap();
            (quantile(&self.report.queueing), quantile(&self.waited))
        }
    }

    #[test]
    fn events_that_arrive_one_at_a_time_do_not_wait() {
        let mut core = Core::new();
        core.run(100_000, 20_000, 100_000_000);
        assert!(core.quantiles(1000).0 <= 64, "{:?}", core.quantiles(1000));
    }

    #[test]
    fn samples_of_an_overloaded_core_match_the_exact_median_and_99th_percentile() {
        let mut core = Core::new();
        core.run(10_000, 11_000, 100_000_000);
        for per_mille in [500, 990] {
            let (sampled, exact) = core.quantiles(per_mille);
            assert!(sampled.abs_diff(exact) <= exact / 3, "{per_mille}: {sampled} for {exact}");
        }
    }

    #[test]
    fn a_busy_core_reports_the_delay_that_its_events_cause() {
        let mut core = Core::new();
        core.run(1_000_000, 1_000_000, 100_000_000);
        let (sampled, _) = core.quantiles(500);
        assert!(sampled.abs_diff(1_000_000) < 250_000, "{sampled}");
    }

    #[test]
    fn long_delays_request_a_core_at_once_and_then_at_intervals() {
        let mut core = Core::new();
        core.run(10_000, 9_000, 50_000_000);
        assert_eq!(core.requests, [], "no event waits");
        core.run(10_000, 30_000, 100_000_000);
        let first = core.requests.first().copied().unwrap();
        // A delay of 200,000 cycles is reached with some ten waiting events: PASSES_PER_CHECK passes within a sample
        // notice it.
        assert!((50_000_000..52_000_000).contains(&first), "{first}");
        assert!((8..=11).contains(&core.requests.len()), "{:?}", core.requests);
    }

    #[test]
    fn short_events_are_sampled_and_long_ones_count_by_duration() {
        for (event, least, most) in [(500, 1_000, 6_000), (100_000, 3_900, 4_100)] {
            let mut core = Core::new();
            core.run(event, event, 100_000_000);
            let samples = core.report.queueing.read().count();
            assert!((least..=most).contains(&samples), "{samples} samples of events of {event} cycles");
        }
    }
}
