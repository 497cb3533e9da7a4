//! Reports of events that run too long and so delay all others of their core.
//!
//! The loop knows an event's cycles at its end anyway, so an ordinary event costs one comparison. If an event exceeds
//! the core's limit, the watchdog counts it in the report and prints its source location and its activity. An event
//! that never ends is found by the supervisor, whose NMI makes the core record the interrupted instruction.

use crate::accounting::add;
use crate::event::EventTag;
use crate::event_loop::EVENTS;
use core::cell::Cell;
use core::panic::Location;
use core::sync::atomic::Ordering;
use core::time::Duration;
use isola_abi::report::CoreReport;
use isola_ebbs::platform;
use isola_platform::Instant;

/// The default limit: longer than the delays that an emulator on a busy host adds by itself.
pub const DEFAULT_LIMIT: Duration = Duration::from_millis(100);

/// Least time between two printed lines of a core.
const PRINT_INTERVAL: Duration = Duration::from_secs(1);

/// A core's limit.
pub(crate) struct Watchdog {
    /// Events with more cycles than this are inspected: the limit, or the longest event so far if that is less.
    inspect_from: Cell<u64>,
    limit_cycles: Cell<u64>,
    /// The cycle count from which on a line may be printed again.
    print_from: Cell<u64>,
    /// Long events since the last line, not printed.
    unprinted: Cell<u64>,
    /// Whether all events are inspected, for a trace.
    inspects_all: Cell<bool>,
}

/// Sets this core's limit, above which the console names an event; `None` for no limit. The limit applies to the
/// running event, too.
pub fn set_event_limit(limit: Option<Duration>) {
    EVENTS.watchdog.set_limit(limit);
}

fn to_cycles(duration: Duration) -> u64 {
    let clock = platform().clock();
    clock.cycles(Instant::default() + duration) - clock.cycles(Instant::default())
}

fn from_cycles(cycles: u64) -> Duration {
    let clock = platform().clock();
    clock.instant(clock.cycles(Instant::default()).saturating_add(cycles)) - Instant::default()
}

impl Watchdog {
    pub fn new() -> Self {
        let (inspect_from, limit_cycles) = (Cell::new(0), Cell::new(0));
        let (print_from, unprinted, inspects_all) = (Cell::new(0), Cell::new(0), Cell::new(false));
        let watchdog = Self { inspect_from, limit_cycles, print_from, unprinted, inspects_all };
        watchdog.set_limit(Some(DEFAULT_LIMIT));
        watchdog
    }

    fn set_limit(&self, limit: Option<Duration>) {
        self.limit_cycles.set(limit.map_or(u64::MAX, to_cycles));
        self.inspect_from.set(0);
    }

    /// Sets whether all events are inspected.
    pub fn set_inspects_all(&self, inspects_all: bool) {
        self.inspects_all.set(inspects_all);
        self.inspect_from.set(0);
    }

    /// Returns whether an event was longer than all before it, or than the limit; during a trace always.
    #[inline]
    pub fn must_inspect(&self, spent_cycles: u64) -> bool {
        spent_cycles > self.inspect_from.get()
    }

    /// Records an event for which [`Self::must_inspect`] holds, and which ended at the reading `now`.
    #[cold]
    pub fn inspect(
        &self,
        report: &CoreReport,
        tag: EventTag,
        made_at: &Location<'_>,
        spent_cycles: u64,
        now: u64,
    ) {
        let limit = self.limit_cycles.get();
        let longest = report.longest_event_cycles.load(Ordering::Relaxed).max(spent_cycles);
        report.longest_event_cycles.store(longest, Ordering::Relaxed);
        self.inspect_from.set(if self.inspects_all.get() { 0 } else { longest.min(limit) });
        if spent_cycles <= limit {
            return;
        }
        add(&report.long_events, 1);
        if now < self.print_from.get() {
            self.unprinted.set(self.unprinted.get() + 1);
            return;
        }
        self.print_from.set(now.saturating_add(to_cycles(PRINT_INTERVAL)));
        let ms = |cycles| from_cycles(cycles).as_millis();
        let (activity, unprinted) = (isola_activities::name_of(tag.activity), self.unprinted.take());
        let mut text = alloc::format!(
            "watchdog: an event for {activity}, made at {made_at}, held its core up for {} ms; the limit is {} ms",
            ms(spent_cycles),
            ms(limit),
        );
        if unprinted > 0 {
            text += &alloc::format!("; {unprinted} others since the last line");
        }
        text.push('\n');
        platform().print(text.as_bytes());
    }
}
