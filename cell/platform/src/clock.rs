//! Time, from the cycle counter.

use core::ops::{Add, Sub};
use core::time::Duration;
use isola_abi::descriptor;

/// A moment, in ns since the cell's clock began. The same on all cores of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant {
    ns: u64,
}

impl Instant {
    /// The moment `ns` nanoseconds after the clock began.
    pub const fn from_ns(ns: u64) -> Self {
        Self { ns }
    }

    /// Nanoseconds since the clock began.
    pub const fn as_ns(self) -> u64 {
        self.ns
    }

    /// How long after `earlier` this is; zero where it is not.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.ns.saturating_sub(earlier.ns))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    /// Saturates at the end of time, 584 years after the clock began.
    fn add(self, duration: Duration) -> Instant {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Instant { ns: self.ns.saturating_add(ns) }
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

/// Turns readings of the cycle counter into time, and back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Reading at the clock's beginning.
    zero_cycles: u64,
    /// Nanoseconds a cycle, as a fraction of 2^32.
    ns_per_cycle: u64,
    /// Time of day at the clock's beginning, in ns since 1970-01-01 UTC.
    unix_ns_at_zero: u64,
}

impl Clock {
    /// The clock that begins at the descriptor's epoch.
    ///
    /// A rate of 0, which no machine has, counts as 1 GHz; so does one beyond what nanoseconds resolve.
    pub fn new(clock: &descriptor::Clock) -> Self {
        let sane = 1..1_000_000_000_000;
        let hz = if !sane.contains(&clock.tsc_hz) { 1_000_000_000 } else { clock.tsc_hz };
        Self {
            zero_cycles: clock.tsc_at_epoch,
            ns_per_cycle: (1_000_000_000 << 32) / hz,
            unix_ns_at_zero: clock.unix_ns_at_epoch,
        }
    }

    /// The moment of a reading of the cycle counter; the beginning, for readings before it.
    #[inline]
    pub fn instant(&self, cycles: u64) -> Instant {
        let since = u128::from(cycles.saturating_sub(self.zero_cycles));
        Instant { ns: ((since * u128::from(self.ns_per_cycle)) >> 32) as u64 }
    }

    /// The first reading of the cycle counter at which `instant` has come.
    #[inline]
    pub fn cycles(&self, instant: Instant) -> u64 {
        let since = (u128::from(instant.ns) << 32).div_ceil(u128::from(self.ns_per_cycle));
        self.zero_cycles.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }

    /// Time of day at `instant`, in ns since 1970-01-01 UTC.
    pub fn unix_ns(&self, instant: Instant) -> u64 {
        self.unix_ns_at_zero.saturating_add(instant.ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(tsc_hz: u64) -> Clock {
        Clock::new(&descriptor::Clock {
            tsc_hz,
            apic_timer_hz: 0,
            tsc_at_epoch: 1_000,
            unix_ns_at_epoch: 1_700_000_000_000_000_000,
        })
    }

    #[test]
    fn a_day_is_a_day_at_every_rate() {
        for hz in [1_000_000_000, 2_099_999_123, 3_600_000_000, 33_000_000] {
            let day = clock(hz).instant(1_000 + hz * 86_400);
            let error = day.as_ns().abs_diff(86_400_000_000_000);
            assert!(error < 86_400_000_000_000 / 1_000_000, "{hz}: {error} ns off");
        }
    }

    #[test]
    fn a_deadline_in_cycles_is_never_before_the_deadline() {
        for hz in [1_000_000_000, 2_099_999_123, 3_600_000_000, 33_000_000] {
            let clock = clock(hz);
            for ns in [0, 1, 999, 1_000_000, 123_456_789_012, 86_400_000_000_000] {
                let deadline = Instant::from_ns(ns);
                assert!(clock.instant(clock.cycles(deadline)) >= deadline, "{hz} Hz, {ns} ns");
            }
        }
    }

    #[test]
    fn time_neither_runs_backwards_nor_wraps() {
        let clock = clock(2_000_000_000);
        assert_eq!(clock.instant(0), Instant::from_ns(0));
        assert_eq!(Instant::from_ns(5) - Instant::from_ns(9), Duration::ZERO);
        assert_eq!((Instant::from_ns(u64::MAX) + Duration::from_secs(1)).as_ns(), u64::MAX);
        assert_eq!(clock.unix_ns(Instant::from_ns(7)), 1_700_000_000_000_000_007);
    }
}
