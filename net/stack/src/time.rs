//! Points in time and spans of it, in nanoseconds, as the caller tells them. Nothing here reads a clock.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// A point in time: nanoseconds since some moment that is the same for every call on one stack.
///
/// 64 bits of nanoseconds last 584 years, so arithmetic saturates instead of wrapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

/// A span of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(u64);

impl Instant {
    /// The moment from which the clock counts.
    pub const ZERO: Self = Self(0);

    /// A moment that does not come.
    pub const NEVER: Self = Self(u64::MAX);

    /// The point `nanos` nanoseconds after [`Instant::ZERO`].
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since [`Instant::ZERO`].
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The span from `earlier` to here; zero where `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
}

impl From<core::time::Duration> for Duration {
    /// What is longer than 584 years counts as that.
    fn from(duration: core::time::Duration) -> Self {
        Self(duration.as_nanos().try_into().unwrap_or(u64::MAX))
    }
}

impl Duration {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// A span of `nanos` nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A span of `micros` microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// A span of `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// A span of `secs` seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// The span in nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The span in whole milliseconds, rounded down.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// The span in whole seconds, rounded down.
    pub const fn as_secs(self) -> u64 {
        self.0 / 1_000_000_000
    }

    /// `factor` times the span.
    pub const fn times(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }

    /// The span divided by `divisor` (by one, where that is zero).
    pub const fn divided_by(self, divisor: u64) -> Self {
        Self(match self.0.checked_div(divisor) {
            Some(nanos) => nanos,
            None => self.0,
        })
    }
}

impl Duration {
    /// Returns how far the two are from each other.
    pub(crate) const fn distance_to(self, other: Self) -> Self {
        Self(self.0.abs_diff(other.0))
    }

    /// Returns this span moved towards `other` by one part in 2^`shift` of the distance, rounded down: an exponentially
    /// weighted average, for spans of less than 2^63 ns.
    pub(crate) const fn nearer_to(self, other: Self, shift: u32) -> Self {
        let step = (other.0.wrapping_sub(self.0) as i64) >> shift;
        Self(self.0.wrapping_add_signed(step))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, span: Duration) {
        *self = *self + span;
    }
}

impl Add for Duration {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Duration {
    type Output = Self;

    /// The difference; zero where `other` is the longer one.
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06} s", self.0 / 1_000_000_000, self.0 / 1_000 % 1_000_000)
    }
}
