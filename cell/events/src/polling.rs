//! Adaptive polling (EbbRT 3.2.1): interrupts at low rates, polling at high rates.
//!
//! ```text
//!                interrupts per second > poll_above, within a window
//!   INTERRUPTS ─────────────────────────────────────────────────────▶ POLLING
//!       ▲         mask interrupts; poll after every round of the queue    │
//!       └─────────────────────────────────────────────────────────────────┘
//!                 items per second < interrupt_below, over a window: unmask
//! ```
//!
//! A driver polls in an event that queues itself again, not in an idle handler: a core that always has events is never
//! idle, and would no longer poll its device. Rates between the two thresholds change nothing, so a load near one of
//! them does not switch the mode all the time. The driver reports each interrupt, or the number of items that a poll
//! found, and follows the returned mode. Rates are measured over windows of the cycle counter, so a call costs an
//! addition and two comparisons.

use crate::event_loop::EVENTS;
use core::cell::Cell;
use core::hint::spin_loop;
use core::time::Duration;
use isola_ebbs::{cycles, platform};
use isola_platform::{Clock, Instant};

/// The rates at which a driver switches its mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollingThresholds {
    /// Interrupts per second above which the driver polls.
    pub poll_above: u64,
    /// Items per second below which the driver returns to interrupts. At most `poll_above`: higher values count as
    /// `poll_above`.
    pub interrupt_below: u64,
    /// The time over which rates are measured. At least 1 µs.
    pub window: Duration,
}

impl PollingThresholds {
    /// Never polls.
    pub const NEVER: Self =
        Self { poll_above: u64::MAX, interrupt_below: 0, window: Duration::from_millis(1) };
}

impl Default for PollingThresholds {
    /// An interrupt and its path through the loop cost some thousand cycles: from 100,000 per second on they take so
    /// much of a core that halting in between saves little.
    fn default() -> Self {
        Self { poll_above: 100_000, interrupt_below: 20_000, window: Duration::from_millis(1) }
    }
}

/// The source from which a driver learns of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollingMode {
    /// Interrupts.
    Interrupts,
    /// Polls of the device.
    Polling,
}

/// A driver's measured rates, and its mode.
#[derive(Clone, Debug)]
pub struct AdaptivePolling {
    mode: PollingMode,
    poll_above: u64,
    interrupt_below: u64,
    window_cycles: u64,
    window_start: u64,
    /// Interrupts, or items found, in this window.
    count: u64,
}

impl AdaptivePolling {
    /// Starts with interrupts. Times are those of the cell's clock.
    pub fn new(thresholds: PollingThresholds) -> Self {
        Self::on(platform().clock(), thresholds)
    }

    fn on(clock: &Clock, thresholds: PollingThresholds) -> Self {
        let window = thresholds.window.max(Duration::from_micros(1));
        let zero = Instant::default();
        let a_window = |rate: u64| {
            let count = u128::from(rate) * window.as_nanos() / 1_000_000_000;
            u64::try_from(count).unwrap_or(u64::MAX)
        };
        Self {
            mode: PollingMode::Interrupts,
            poll_above: a_window(thresholds.poll_above).max(1),
            // A nonzero rate of less than one item per window counts as one item per window.
            interrupt_below: match thresholds.interrupt_below.min(thresholds.poll_above) {
                0 => 0,
                rate => a_window(rate).max(1),
            },
            window_cycles: clock.cycles(zero + window) - clock.cycles(zero),
            window_start: 0,
            count: 0,
        }
    }

    /// Returns the driver's current mode.
    #[inline]
    pub fn mode(&self) -> PollingMode {
        self.mode
    }

    /// Counts an interrupt. Returns the driver's mode from now on.
    #[inline]
    pub fn interrupted(&mut self) -> PollingMode {
        self.interrupted_at(EVENTS.accounting.last_boundary())
    }

    /// Counts the items that a poll found; ignored outside of polling mode. Returns the driver's mode from now on.
    #[inline]
    pub fn polled(&mut self, found: usize) -> PollingMode {
        self.polled_at(EVENTS.accounting.last_boundary(), found)
    }

    fn interrupted_at(&mut self, now: u64) -> PollingMode {
        if now.wrapping_sub(self.window_start) >= self.window_cycles {
            self.begin(now);
        }
        self.count += 1;
        if self.count > self.poll_above {
            self.mode = PollingMode::Polling;
            self.begin(now);
        }
        self.mode
    }

    fn polled_at(&mut self, now: u64, found: usize) -> PollingMode {
        // In interrupt mode interrupts are counted, not items.
        if self.mode == PollingMode::Interrupts {
            return self.mode;
        }
        self.count += found as u64;
        if now.wrapping_sub(self.window_start) >= self.window_cycles {
            if self.count < self.interrupt_below {
                self.mode = PollingMode::Interrupts;
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

/// A short poll for what another core writes, before a task waits for that core's interrupt: as long as waits are short. A
/// poll in vain ends that until a wait was short again, so at most every second wait begins with a poll in vain.
///
/// The poll is a part of the task's event, and charged to its activity. It ends as soon as its core has other work.
#[derive(Debug)]
pub struct BriefPolling {
    most_cycles: Cell<u64>,
    waits_are_short: Cell<bool>,
    /// The reading of the cycle counter at the beginning of the wait.
    since: Cell<u64>,
}

/// The longest time of a [`BriefPolling`]: some times that of an interrupt to a halted core, up to its task.
const MOST_BRIEF: Duration = Duration::from_micros(20);

impl Default for BriefPolling {
    fn default() -> Self {
        Self::of(cycles_of(MOST_BRIEF))
    }
}

/// Returns a length of time in cycles.
fn cycles_of(time: Duration) -> u64 {
    let (clock, zero) = (platform().clock(), Instant::default());
    clock.cycles(zero + time) - clock.cycles(zero)
}

impl BriefPolling {
    fn of(most_cycles: u64) -> Self {
        Self { most_cycles: Cell::new(most_cycles), waits_are_short: Cell::new(false), since: Cell::new(0) }
    }

    /// Sets the longest time of a poll, which is also the longest wait that counts as short. Zero ends the polling.
    pub fn set_most(&self, most: Duration) {
        self.most_cycles.set(cycles_of(most));
        self.waits_are_short.set(false);
    }

    /// Returns whether waits are short, so that a poll is worth its time.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.waits_are_short.get()
    }

    /// Calls `look` until it returns a value, for a short time.
    pub fn poll<T>(&self, look: impl FnMut() -> Option<T>) -> Option<T> {
        self.poll_with(look, cycles, || EVENTS.has_other_work())
    }

    fn poll_with<T>(
        &self,
        mut look: impl FnMut() -> Option<T>,
        now: impl Fn() -> u64,
        has_other_work: impl Fn() -> bool,
    ) -> Option<T> {
        let began = now();
        loop {
            let found = look();
            if found.is_some() || has_other_work() {
                return found;
            }
            if now().wrapping_sub(began) >= self.most_cycles.get() {
                self.waits_are_short.set(false);
                return None;
            }
            spin_loop();
        }
    }

    /// Notes the beginning of a wait.
    #[inline]
    pub fn begin_wait(&self) {
        self.since.set(EVENTS.accounting.last_check());
    }

    /// Notes the end of a wait by that for which the task has waited.
    #[inline]
    pub fn end_wait(&self) {
        self.end_wait_at(EVENTS.accounting.last_check());
    }

    fn end_wait_at(&self, now: u64) {
        self.waits_are_short.set(now.wrapping_sub(self.since.get()) < self.most_cycles.get());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Returns thresholds with a clock of one cycle per nanosecond and a window of one millisecond.
    fn polling(poll_above: u64, interrupt_below: u64) -> AdaptivePolling {
        let words = isola_abi::descriptor::Clock {
            tsc_hz: 1_000_000_000,
            apic_timer_hz: 0,
            tsc_at_epoch: 0,
            unix_ns_at_epoch: 0,
        };
        let window = Duration::from_millis(1);
        AdaptivePolling::on(&Clock::new(&words), PollingThresholds { poll_above, interrupt_below, window })
    }

    /// Simulates interrupts at `rate` for `ms` from `start_ns` on. Returns the time at which the mode changed to
    /// polling.
    fn interrupts(polling: &mut AdaptivePolling, rate: u64, start_ns: u64, ms: u64) -> Option<u64> {
        let gap_ns = 1_000_000_000 / rate;
        (0..ms * 1_000_000 / gap_ns)
            .map(|index| start_ns + index * gap_ns)
            .find(|now| polling.interrupted_at(*now) == PollingMode::Polling)
    }

    /// Polls every 10 µs for items that arrive at `rate`. Returns the time at which the mode changed to interrupts.
    fn polls(polling: &mut AdaptivePolling, rate: u64, start_ns: u64, ms: u64) -> Option<u64> {
        let mut left_over = 0;
        (1..=ms * 100).map(|index| start_ns + index * 10_000).find(|now| {
            left_over += rate * 10_000;
            let found = left_over / 1_000_000_000;
            left_over %= 1_000_000_000;
            polling.polled_at(*now, found as usize) == PollingMode::Interrupts
        })
    }

    #[test]
    fn interrupt_rates_below_the_threshold_never_poll() {
        for rate in [100, 9_000, 49_000] {
            assert_eq!(
                interrupts(&mut polling(50_000, 10_000), rate, 5_000_000, 1_000),
                None,
                "{rate} per second"
            );
        }
    }

    #[test]
    fn few_interrupts_with_many_items_each_never_poll() {
        let mut polling = polling(50_000, 10_000);
        // 5,000 interrupts per second, with 64 items each.
        for now in (0..100_000_000_u64).step_by(200_000) {
            assert_eq!(polling.interrupted_at(now), PollingMode::Interrupts);
            assert_eq!(polling.polled_at(now, 64), PollingMode::Interrupts);
        }
    }

    #[test]
    fn a_rate_above_the_threshold_polls_within_a_window() {
        for rate in [60_000, 100_000, 1_000_000] {
            let polls_from = interrupts(&mut polling(50_000, 10_000), rate, 5_000_000, 10);
            assert!(polls_from.is_some_and(|at| at < 7_000_000), "{rate} per second: {polls_from:?}");
        }
    }

    #[test]
    fn only_a_rate_below_the_lower_threshold_returns_to_interrupts_within_two_windows() {
        for rate in [0, 1_000, 8_000] {
            let mut polling = polling(50_000, 10_000);
            let polls_from = interrupts(&mut polling, 200_000, 0, 10).unwrap();
            let back = polls(&mut polling, rate, polls_from, 10);
            assert!(back.is_some_and(|at| at <= polls_from + 2_000_000), "{rate} per second: {back:?}");
        }
        for rate in [12_000, 30_000, 300_000] {
            let mut polling = polling(50_000, 10_000);
            let polls_from = interrupts(&mut polling, 200_000, 0, 10).unwrap();
            assert_eq!(polls(&mut polling, rate, polls_from, 1_000), None, "{rate} per second");
        }
    }

    #[test]
    fn a_rate_between_the_thresholds_changes_nothing_in_either_mode() {
        let mut polling = polling(50_000, 10_000);
        assert_eq!(interrupts(&mut polling, 30_000, 0, 100), None);
        let polls_from = interrupts(&mut polling, 200_000, 200_000_000, 10).unwrap();
        assert_eq!(polls(&mut polling, 30_000, polls_from, 100), None);
        assert!(polls(&mut polling, 1_000, polls_from + 100_000_000, 10).is_some());
        assert_eq!(interrupts(&mut polling, 30_000, polls_from + 200_000_000, 100), None);
    }

    #[test]
    fn inverted_thresholds_do_not_switch_the_mode_in_every_window() {
        let mut polling = polling(10_000, 50_000);
        let polls_from = interrupts(&mut polling, 60_000, 0, 10).unwrap();
        assert_eq!(polls(&mut polling, 20_000, polls_from, 100), None);
    }

    #[test]
    fn a_lower_threshold_of_less_than_one_item_per_window_returns_to_interrupts() {
        let mut polling = polling(50_000, 500);
        let polls_from = interrupts(&mut polling, 200_000, 0, 10).unwrap();
        assert!(polls(&mut polling, 100, polls_from, 20).is_some());
    }

    #[test]
    fn a_driver_without_a_polling_threshold_never_polls() {
        let mut polling = polling(u64::MAX, 0);
        assert_eq!(interrupts(&mut polling, 1_000_000_000, 0, 1), None);
    }

    /// Polls for what never comes, while the clock advances by 1 with each reading. Returns the number of looks.
    fn poll_in_vain(polling: &BriefPolling, other_work_at: u64) -> u64 {
        if !polling.waits_are_short.get() {
            return 0;
        }
        let (looks, now) = (Cell::new(0), Cell::new(0));
        let look = || -> Option<()> {
            looks.set(looks.get() + 1);
            None
        };
        polling.poll_with(look, || now.replace(now.get() + 1), || looks.get() >= other_work_at);
        looks.get()
    }

    #[test]
    fn a_short_wait_lets_the_next_poll_until_one_is_in_vain() {
        let polling = BriefPolling::of(100);
        assert_eq!(poll_in_vain(&polling, u64::MAX), 0, "nothing is known yet");
        for (waited, looks) in [(99, 100), (100, 0), (u64::MAX, 0), (0, 100)] {
            polling.end_wait_at(waited);
            assert_eq!(poll_in_vain(&polling, u64::MAX), looks, "a wait of {waited}");
            assert_eq!(poll_in_vain(&polling, u64::MAX), 0, "one in vain is the last");
        }
    }

    #[test]
    fn a_poll_ends_for_other_work_and_is_not_in_vain_then() {
        let polling = BriefPolling::of(100);
        polling.end_wait_at(1);
        for _ in 0..3 {
            assert_eq!(poll_in_vain(&polling, 7), 7);
        }
        let found = polling.poll_with(|| Some(5), || 0, || true);
        assert_eq!(found, Some(5), "it looks before it ends");
        assert!(polling.waits_are_short.get());
    }
}
