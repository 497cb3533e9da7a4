//! How long an event waits until it runs, of some events.
//!
//! To stamp each event would cost each of them a word and a reading of the cycle counter. Instead the loop takes samples: at
//! the start of an event it notes when it last looked at what has come (before that event, or when it woke up) and how many
//! events wait. Whatever has come since that look is at best the last of those, so that it has waited no longer than until
//! that many passes later.
//!
//! ```text
//!             look        look: 3 wait      pass + 3
//!   ──────────┬─────────────┬───┬────┬───────┬──────────
//!     event   │  event      │ 1 │ 2  │  3    │ the last of them starts
//!             └─────────────────────────────▶│ one sample
//! ```
//!
//! That holds for a queue that is first in, first out; an application's own queue is taken for one. Between samples passes go
//! by, so many that a core takes a sample in some 2^15 cycles in which it does not idle: an event that takes longer is a sample itself. One that took
//! longer counts for as many as would have fitted, or long waits, which are few, would count for little. Where none is due the event's path is longer by two loads, a store, a comparison and a branch.

use crate::event_loop::EVENTS;
use core::cell::Cell;
use core::sync::atomic::Ordering;
use core::time::Duration;
use isola_abi::report::CoreReport;
use isola_ebbs::platform;
use isola_platform::Instant;

/// Cycles between samples, about, those of idling apart.
const SAMPLE_EVERY: u64 = 1 << 15;

/// Most passes from one sample to the next.
const MOST_REST: u64 = 256;

/// A core's samples.
pub(crate) struct Queueing {
    /// The pass at which there is something to do.
    at_pass: Cell<u64>,
    /// The reading of the cycle counter from which the sample that is being taken counts.
    since: Cell<Option<u64>>,
    /// How many cycles the core had not idled at the end of the last sample, from some beginning on.
    sampled: Cell<u64>,
    /// Passes from one sample to the next.
    rest: Cell<u64>,
    /// The pass at which the sample that is being taken ends.
    ends_at: Cell<u64>,
    /// How long an event may wait until the core wishes for another one, and the reading from which it may wish again.
    limit: u64,
    wish_from: Cell<u64>,
    /// From one wish to the next, in cycles.
    pause: u64,
}

/// Whether the core wishes for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Wish {
    Yes,
    No,
}

/// From one wish of a core to the next: a core is on its way meanwhile, or there is none.
const PAUSE: Duration = Duration::from_millis(2);

/// Passes from one look at a long sample to the next: what waits too long is noticed before it has run.
const GLANCE: u64 = 16;

/// The reading of the cycle counter at this core's last look at what has come, before the event or the interrupt that is
/// being handled now: what is noticed only now has not come before that.
#[inline]
pub fn last_look() -> u64 {
    EVENTS.accounting.looked()
}

impl Queueing {
    /// Samples of a core of the calling core's cell, which wishes for another one as its descriptor says.
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
            rest: Cell::new(1),
            ends_at: Cell::new(0),
            limit,
            wish_from: Cell::new(0),
            pause,
        }
    }

    /// Whether a sample begins or ends at the event of this pass.
    #[inline]
    pub fn must_look(&self, pass: u64) -> bool {
        pass >= self.at_pass.get()
    }

    /// Begins or ends a sample at the event of this pass, for which [`Self::must_look`] holds: it began at the reading
    /// `began`, `looked` is that of the look before, and `waiting` others wait.
    #[inline]
    pub fn look(&self, report: &CoreReport, pass: u64, waiting: u64, looked: u64, began: u64) -> Wish {
        let since = match self.since.take() {
            Some(since) if pass < self.ends_at.get() => {
                self.since.set(Some(since));
                self.at_pass.set(self.ends_at.get().min(pass + GLANCE));
                return self.wish(began.saturating_sub(since), began);
            }
            Some(since) => since,
            None if waiting == 0 => looked,
            None => {
                self.since.set(Some(looked));
                self.ends_at.set(pass + waiting);
                self.at_pass.set(pass + waiting.min(GLANCE));
                return self.wish(began.saturating_sub(looked), began);
            }
        };
        let waited = began.saturating_sub(since);
        report.queueing.count(waited, 1 + waited / SAMPLE_EVERY);
        let worked = began.wrapping_sub(report.idle_cycles.load(Ordering::Relaxed));
        let rest = match worked.wrapping_sub(self.sampled.replace(worked)) < SAMPLE_EVERY {
            true => (self.rest.get() * 2).min(MOST_REST),
            false => (self.rest.get() / 2).max(1),
        };
        self.rest.set(rest);
        self.at_pass.set(pass + rest);
        self.wish(waited, began)
    }

    /// Whether the core wishes for another one, as an event has waited so long.
    fn wish(&self, waited: u64, now: u64) -> Wish {
        if waited < self.limit || now < self.wish_from.get() {
            return Wish::No;
        }
        self.wish_from.set(now.saturating_add(self.pause));
        Wish::Yes
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::boxed::Box;
    use alloc::collections::VecDeque;
    use alloc::vec::Vec;
    use isola_abi::histogram::Histogram;

    /// A core of which only the order of events and time matter.
    struct Core {
        queueing: Queueing,
        report: Box<CoreReport>,
        /// When each event that waits came in, and how long it takes.
        queue: VecDeque<(u64, u64)>,
        now: u64,
        looked: u64,
        passes: u64,
        /// How long the events that ran have waited.
        waited: Histogram,
        /// When the core wished for another one.
        wishes: Vec<u64>,
    }

    fn report() -> Box<CoreReport> {
        use core::sync::atomic::{AtomicU32, AtomicU64};
        Box::new(CoreReport {
            phase: AtomicU32::new(0),
            activity: AtomicU32::new(0),
            order: AtomicU32::new(0),
            carrier: AtomicU32::new(0),
            yielded: AtomicU32::new(0),
            forgotten: AtomicU32::new(0),
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
                wishes: Vec::new(),
            }
        }

        /// Runs until `end` what comes every `gap` cycles and takes `event` each; noticed at the start of each pass.
        fn run(&mut self, gap: u64, event: u64, end: u64) {
            let mut next = self.now;
            while self.now < end {
                self.passes += 1;
                while next <= self.now {
                    self.queue.push_back((next, event));
                    next += gap;
                }
                let Some((came, takes)) = self.queue.pop_front() else {
                    // Halted until something comes.
                    self.now = next;
                    self.looked = next;
                    continue;
                };
                self.waited.count(self.now - came, 1);
                if self.queueing.must_look(self.passes) {
                    let waiting = self.queue.len() as u64;
                    let wish = self.queueing.look(&self.report, self.passes, waiting, self.looked, self.now);
                    self.wishes.extend((wish == Wish::Yes).then_some(self.now));
                }
                self.looked = self.now;
                self.now += takes;
            }
        }

        /// The sampled percentile, and the true one.
        fn quantiles(&self, per_mille: u32) -> (u64, u64) {
            let quantile = |histogram: &Histogram| histogram.read().quantile(per_mille).unwrap();
            (quantile(&self.report.queueing), quantile(&self.waited))
        }
    }

    #[test]
    fn events_that_come_one_at_a_time_do_not_wait() {
        let mut core = Core::new();
        core.run(100_000, 20_000, 100_000_000);
        assert!(core.quantiles(1000).0 <= 64, "{:?}", core.quantiles(1000));
    }

    #[test]
    fn an_overloaded_core_s_samples_show_what_events_wait_at_the_median_and_at_the_end() {
        let mut core = Core::new();
        core.run(10_000, 11_000, 100_000_000);
        for per_mille in [500, 990] {
            let (sampled, exact) = core.quantiles(per_mille);
            assert!(sampled.abs_diff(exact) <= exact / 3, "{per_mille}: {sampled} for {exact}");
        }
    }

    #[test]
    fn a_core_that_always_has_something_to_do_says_how_long_an_event_holds_others_up() {
        let mut core = Core::new();
        core.run(1_000_000, 1_000_000, 100_000_000);
        let (sampled, _) = core.quantiles(500);
        assert!(sampled.abs_diff(1_000_000) < 250_000, "{sampled}");
    }

    #[test]
    fn a_core_whose_events_wait_too_long_wishes_at_once_and_then_now_and_then() {
        let mut core = Core::new();
        core.run(10_000, 9_000, 50_000_000);
        assert_eq!(core.wishes, [], "nobody waits");
        core.run(10_000, 30_000, 100_000_000);
        let first = core.wishes.first().copied().unwrap();
        // 200,000 cycles are waited for when some ten events wait: it is noticed within a sample's glance.
        assert!((50_000_000..52_000_000).contains(&first), "{first}");
        assert!((8..=11).contains(&core.wishes.len()), "{:?}", core.wishes);
    }

    #[test]
    fn short_events_are_sampled_now_and_then_and_long_ones_count_for_as_long_as_they_take() {
        for (event, least, most) in [(500, 1_000, 6_000), (100_000, 3_900, 4_100)] {
            let mut core = Core::new();
            core.run(event, event, 100_000_000);
            let samples = core.report.queueing.read().count();
            assert!((least..=most).contains(&samples), "{samples} samples of events of {event} cycles");
        }
    }
}
