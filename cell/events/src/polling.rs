//! Adaptive polling (EbbRT 3.2.1): interrupts while they are few, polling while there is much to find.
//!
//! ```text
//!                interrupts a second > poll_above, for a window
//!   INTERRUPTS ─────────────────────────────────────────────────▶ POLLING
//!       ▲         mask, look behind every round of the queue         │
//!       └────────────────────────────────────────────────────────────┘
//!                 found things a second < interrupt_below, for a window: unmask
//! ```
//!
//! A driver that polls does so in an event that queues itself again, and not in an idle handler: a core that always has
//! events is never idle, and would not look at its device any more. Between the two rates nothing changes: that is what
//! keeps a load near one of them from switching all the time. A driver tells of each interrupt, or of what it found while
//! it polled, and does what it is told; the rates are measured over windows of the cycle counter, so that a call costs an
//! addition and two comparisons.

use crate::event_loop::EVENTS;
use core::time::Duration;
use isola_ebbs::platform;
use isola_platform::{Clock, Instant};

/// Where a driver changes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// It polls from this rate of interrupts on, a second.
    pub poll_above: u64,
    /// It goes back to interrupts where it finds less than this, a second. At most `poll_above`: what is above counts as
    /// that.
    pub interrupt_below: u64,
    /// What the rates are measured over.
    pub window: Duration,
}

impl Thresholds {
    /// Takes interrupts whatever comes.
    pub const NEVER: Self =
        Self { poll_above: u64::MAX, interrupt_below: 0, window: Duration::from_millis(1) };
}

impl Default for Thresholds {
    /// An interrupt and its way through the loop cost some thousand cycles: from 100,000 a second on they take more of a
    /// core than is left to halt in.
    fn default() -> Self {
        Self { poll_above: 100_000, interrupt_below: 20_000, window: Duration::from_millis(1) }
    }
}

/// How a driver learns of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By interrupts.
    Interrupts,
    /// By looking.
    Polling,
}

/// The rates that a driver sees, and what follows from them.
#[derive(Clone, Debug)]
pub struct AdaptivePolling {
    mode: Mode,
    poll_above: u64,
    interrupt_below: u64,
    window_cycles: u64,
    window_start: u64,
    /// Interrupts, or things found, in this window.
    count: u64,
}

impl AdaptivePolling {
    /// Begins with interrupts, and measures on the calling core's cell's clock.
    pub fn new(thresholds: Thresholds) -> Self {
        Self::on(platform().clock(), thresholds)
    }

    fn on(clock: &Clock, thresholds: Thresholds) -> Self {
        let window = thresholds.window.max(Duration::from_micros(1));
        let zero = Instant::default();
        let a_window = |rate: u64| {
            let count = u128::from(rate) * window.as_nanos() / 1_000_000_000;
            u64::try_from(count).unwrap_or(u64::MAX)
        };
        Self {
            mode: Mode::Interrupts,
            poll_above: a_window(thresholds.poll_above).max(1),
            // Less than one a window is none in it.
            interrupt_below: match thresholds.interrupt_below.min(thresholds.poll_above) {
                0 => 0,
                rate => a_window(rate).max(1),
            },
            window_cycles: clock.cycles(zero + window) - clock.cycles(zero),
            window_start: 0,
            count: 0,
        }
    }

    /// How the driver learns of work now.
    #[inline]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// An interrupt came. Returns how the driver is to go on.
    #[inline]
    pub fn interrupted(&mut self) -> Mode {
        self.interrupted_at(EVENTS.accounting.last_boundary())
    }

    /// The driver looked, and found so many things: they count while it polls. Returns how it is to go on.
    #[inline]
    pub fn looked(&mut self, found: usize) -> Mode {
        self.looked_at(EVENTS.accounting.last_boundary(), found)
    }

    fn interrupted_at(&mut self, now: u64) -> Mode {
        if now.wrapping_sub(self.window_start) >= self.window_cycles {
            self.begin(now);
        }
        self.count += 1;
        if self.count > self.poll_above {
            self.mode = Mode::Polling;
            self.begin(now);
        }
        self.mode
    }

    fn looked_at(&mut self, now: u64, found: usize) -> Mode {
        // While interrupts tell of things, they are what is counted.
        if self.mode == Mode::Interrupts {
            return self.mode;
        }
        self.count += found as u64;
        if now.wrapping_sub(self.window_start) >= self.window_cycles {
            if self.count < self.interrupt_below {
                self.mode = Mode::Interrupts;
            }
            self.begin(now);
        }
        self.mode
    }

    fn begin(&mut self, now: u64) {
        self.window_start = now;
        self.count = 0;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A cycle is a nanosecond, and a window a millisecond.
    fn polling(poll_above: u64, interrupt_below: u64) -> AdaptivePolling {
        let words = isola_abi::descriptor::Clock {
            tsc_hz: 1_000_000_000,
            apic_timer_hz: 0,
            tsc_at_epoch: 0,
            unix_ns_at_epoch: 0,
        };
        let window = Duration::from_millis(1);
        AdaptivePolling::on(&Clock::new(&words), Thresholds { poll_above, interrupt_below, window })
    }

    /// Interrupts at that rate for so many ms from `start_ns` on. Returns when the driver was told to poll.
    fn interrupts(polling: &mut AdaptivePolling, rate: u64, start_ns: u64, ms: u64) -> Option<u64> {
        let gap_ns = 1_000_000_000 / rate;
        (0..ms * 1_000_000 / gap_ns)
            .map(|index| start_ns + index * gap_ns)
            .find(|now| polling.interrupted_at(*now) == Mode::Polling)
    }

    /// Looks every 10 us at what comes at that rate. Returns when the driver was told to take interrupts.
    fn looks(polling: &mut AdaptivePolling, rate: u64, start_ns: u64, ms: u64) -> Option<u64> {
        let mut left_over = 0;
        (1..=ms * 100).map(|index| start_ns + index * 10_000).find(|now| {
            left_over += rate * 10_000;
            let found = left_over / 1_000_000_000;
            left_over %= 1_000_000_000;
            polling.looked_at(*now, found as usize) == Mode::Interrupts
        })
    }

    #[test]
    fn rates_up_to_the_threshold_never_poll() {
        for rate in [100, 9_000, 49_000] {
            assert_eq!(
                interrupts(&mut polling(50_000, 10_000), rate, 5_000_000, 1_000),
                None,
                "{rate} a second"
            );
        }
    }

    #[test]
    fn few_interrupts_that_tell_of_many_things_never_poll() {
        let mut polling = polling(50_000, 10_000);
        // 5,000 interrupts a second, of 64 things each.
        for now in (0..100_000_000_u64).step_by(200_000) {
            assert_eq!(polling.interrupted_at(now), Mode::Interrupts);
            assert_eq!(polling.looked_at(now, 64), Mode::Interrupts);
        }
    }

    #[test]
    fn a_rate_above_the_threshold_polls_within_a_window() {
        for rate in [60_000, 100_000, 1_000_000] {
            let told = interrupts(&mut polling(50_000, 10_000), rate, 5_000_000, 10);
            assert!(told.is_some_and(|at| at < 7_000_000), "{rate} a second: {told:?}");
        }
    }

    #[test]
    fn what_falls_below_the_lower_threshold_goes_back_within_two_windows_and_what_does_not_stays() {
        for rate in [0, 1_000, 8_000] {
            let mut polling = polling(50_000, 10_000);
            let told = interrupts(&mut polling, 200_000, 0, 10).unwrap();
            let back = looks(&mut polling, rate, told, 10);
            assert!(back.is_some_and(|at| at <= told + 2_000_000), "{rate} a second: {back:?}");
        }
        for rate in [12_000, 30_000, 300_000] {
            let mut polling = polling(50_000, 10_000);
            let told = interrupts(&mut polling, 200_000, 0, 10).unwrap();
            assert_eq!(looks(&mut polling, rate, told, 1_000), None, "{rate} a second");
        }
    }

    #[test]
    fn a_rate_between_the_thresholds_changes_nothing_in_either_mode() {
        let mut polling = polling(50_000, 10_000);
        assert_eq!(interrupts(&mut polling, 30_000, 0, 100), None);
        let told = interrupts(&mut polling, 200_000, 200_000_000, 10).unwrap();
        assert_eq!(looks(&mut polling, 30_000, told, 100), None);
        assert!(looks(&mut polling, 1_000, told + 100_000_000, 10).is_some());
        assert_eq!(interrupts(&mut polling, 30_000, told + 200_000_000, 100), None);
    }

    #[test]
    fn thresholds_the_wrong_way_round_do_not_switch_with_every_window() {
        let mut polling = polling(10_000, 50_000);
        let told = interrupts(&mut polling, 60_000, 0, 10).unwrap();
        assert_eq!(looks(&mut polling, 20_000, told, 100), None);
    }

    #[test]
    fn a_lower_threshold_of_less_than_one_thing_a_window_goes_back_all_the_same() {
        let mut polling = polling(50_000, 500);
        let told = interrupts(&mut polling, 200_000, 0, 10).unwrap();
        assert!(looks(&mut polling, 100, told, 20).is_some());
    }

    #[test]
    fn who_never_polls_never_does() {
        let mut polling = polling(u64::MAX, 0);
        assert_eq!(interrupts(&mut polling, 1_000_000_000, 0, 1), None);
    }
}
