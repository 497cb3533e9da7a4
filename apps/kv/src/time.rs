//! Times in seconds: the time of day, expiration times of clients, and deadlines of items.

/// A time of day, in whole seconds since 1970-01-01 UTC. It overflows in the year 2106.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixTime(pub u32);

/// The longest relative expiration time, in seconds (30 days). A larger number is an absolute time (memcached's
/// protocol.txt, "Expiration times").
const LONGEST_RELATIVE_S: i64 = 60 * 60 * 24 * 30;

/// An expiration time as a client states it: 0 is never, up to 30 days is relative to now, more is an absolute time in
/// seconds since 1970, and a negative time has passed already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exptime(pub i64);

impl Exptime {
    /// Returns the deadline that the client means in a request at the time `now`.
    pub fn deadline(self, now: UnixTime) -> Deadline {
        match self.0 {
            0 => Deadline::NEVER,
            seconds if seconds < 0 => Deadline::PAST,
            seconds if seconds <= LONGEST_RELATIVE_S => Deadline::at(i64::from(now.0) + seconds),
            moment => Deadline::at(moment),
        }
    }

    /// Returns the due time of a flush with this time: `now`, or the time that the client means.
    pub fn flush_time(self, now: UnixTime) -> UnixTime {
        if self.0 <= 0 { now } else { UnixTime(self.deadline(now).0) }
    }
}

/// The time from which on an item no longer exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(u32);

impl Deadline {
    /// The deadline of an item that never expires.
    pub const NEVER: Self = Self(0);
    /// A deadline that passed long ago.
    pub const PAST: Self = Self(1);

    fn at(moment: i64) -> Self {
        Self(u32::try_from(moment.max(1)).unwrap_or(u32::MAX))
    }

    /// Returns the deadline in seconds since 1970, or 0 if it is [`Self::NEVER`].
    pub fn unix_s(self) -> u32 {
        self.0
    }

    /// Returns the seconds from `now` until the deadline, or `None` if it is [`Self::NEVER`].
    pub fn left(self, now: UnixTime) -> Option<u32> {
        (self != Self::NEVER).then(|| self.0.saturating_sub(now.0))
    }

    /// Returns whether the deadline is before `other`, and neither is [`Self::NEVER`].
    pub fn is_before(self, other: Self) -> bool {
        self != Self::NEVER && other != Self::NEVER && self.0 < other.0
    }

    /// Returns whether the deadline has passed at `now`.
    pub fn is_over(self, now: UnixTime) -> bool {
        self != Self::NEVER && self.0 <= now.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixTime = UnixTime(1_800_000_000);

    #[test]
    fn thirty_days_are_the_longest_relative_time() {
        let month = Exptime(2_592_000).deadline(NOW);
        assert!(!month.is_over(UnixTime(NOW.0 + 2_591_999)));
        assert!(month.is_over(UnixTime(NOW.0 + 2_592_000)));
        assert!(Exptime(2_592_001).deadline(NOW).is_over(NOW));
    }

    #[test]
    fn a_negative_time_has_passed_and_zero_is_never() {
        assert!(Exptime(-1).deadline(NOW).is_over(NOW));
        assert!(Exptime(i64::MIN).deadline(NOW).is_over(UnixTime(1)));
        assert!(!Exptime(0).deadline(NOW).is_over(UnixTime(u32::MAX)));
    }

    #[test]
    fn a_time_beyond_the_range_becomes_the_last_time() {
        assert!(!Exptime(i64::MAX).deadline(NOW).is_over(UnixTime(u32::MAX - 1)));
    }
}
