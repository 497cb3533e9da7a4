//! Time, derived from the cycle counter.

use core::ops::{Add, Sub};
use core::time::Duration;
use isola_abi::descriptor;

/// A point in time, in ns since the start of the cell's clock. The same on all cores of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant {
    ns: u64,
}

impl Instant {
    /// Returns the instant `ns` nanoseconds after the clock's start.
    pub const fn from_ns(ns: u64) -> Self {
        Self { ns }
    }

    /// Returns the nanoseconds since the clock's start.
    pub const fn as_ns(self) -> u64 {
        self.ns
    }

    /// Returns the time from `earlier` to this instant; zero if `earlier` is later.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.ns.saturating_sub(earlier.ns))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    /// Saturates at the largest instant, 584 years after the clock's start.
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

/// Converts readings of the cycle counter to time, and back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The reading at the clock's start.
    zero_cycles: u64,
    /// Nanoseconds per cycle, in units of 2^-32.
    ns_per_cycle: u64,
    /// The time of day at the clock's start, in ns since 1970-01-01 UTC.
    unix_ns_at_zero: u64,
}

impl Clock {
    /// Returns a clock that starts at the descriptor's reference time.
    ///
    /// A rate of 0, or of 1 THz and more, which no machine has, counts as 1 GHz.
    pub fn new(clock: &descriptor::Clock) -> Self {
        let sane = 1..1_000_000_000_000;
        let hz = if !sane.contains(&clock.tsc_hz) { 1_000_000_000 } else { clock.tsc_hz };
        Self {
            zero_cycles: clock.tsc_at_epoch,
            ns_per_cycle: (1_000_000_000 << 32) / hz,
            unix_ns_at_zero: clock.unix_ns_at_epoch,
        }
    }

    /// Returns the instant of a reading of the cycle counter; the clock's start for earlier readings.
    #[inline]
    pub fn instant(&self, cycles: u64) -> Instant {
        let since = u128::from(cycles.saturating_sub(self.zero_cycles));
        Instant { ns: ((since * u128::from(self.ns_per_cycle)) >> 32) as u64 }
    }

    /// Returns the first reading of the cycle counter at or after `instant`.
    #[inline]
    pub fn cycles(&self, instant: Instant) -> u64 {
        let since = (u128::from(instant.ns) << 32).div_ceil(u128::from(self.ns_per_cycle));
        self.zero_cycles.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }

    /// Returns the numbers of the clock, for a copy of it outside of the cell's own code: the reading of the cycle counter at
    /// its start, nanoseconds per cycle in units of 2^-32, and the time of day at its start in ns since 1970-01-01 UTC.
    pub fn parameters(&self) -> (u64, u64, u64) {
        (self.zero_cycles, self.ns_per_cycle, self.unix_ns_at_zero)
    }

    /// Returns the time of day at `instant`, in ns since 1970-01-01 UTC.
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
    fn a_day_is_accurate_at_every_rate() {
        for hz in [1_000_000_000, 2_099_999_123, 3_600_000_000, 33_000_000] {
            let day = clock(hz).instant(1_000 + hz * 86_400);
            let error = day.as_ns().abs_diff(86_400_000_000_000);
            assert!(error < 86_400_000_000_000 / 1_000_000, "{hz}: {error} ns off");
        }
    }

    #[test]
    fn a_deadline_in_cycles_is_not_early() {
        for hz in [1_000_000_000, 2_099_999_123, 3_600_000_000, 33_000_000] {
            let clock = clock(hz);
            for ns in [0, 1, 999, 1_000_000, 123_456_789_012, 86_400_000_000_000] {
                let deadline = Instant::from_ns(ns);
                assert!(clock.instant(clock.cycles(deadline)) >= deadline, "{hz} Hz, {ns} ns");
            }
        }
    }

    #[test]
    fn time_saturates() {
        let clock = clock(2_000_000_000);
        assert_eq!(clock.instant(0), Instant::from_ns(0));
        assert_eq!(Instant::from_ns(5) - Instant::from_ns(9), Duration::ZERO);
        assert_eq!((Instant::from_ns(u64::MAX) + Duration::from_secs(1)).as_ns(), u64::MAX);
        assert_eq!(clock.unix_ns(Instant::from_ns(7)), 1_700_000_000_000_000_007);
    }
}
