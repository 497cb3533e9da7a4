//! Lifetimes of addresses (RFC 4862 5.5.3, 5.5.4).

use crate::base::{Duration, Instant, Preference};

/// The end of an infinite lifetime.
pub(super) const NEVER: Instant = Instant::from_nanos(u64::MAX);
/// An unauthenticated advertisement cannot reduce an address's lifetime below this.
const TWO_HOURS: u32 = 2 * 3600;

/// The ends of an address's preferred and valid lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lifetime {
    preferred_until: Instant,
    valid_until: Instant,
    /// Whether the end of the preferred lifetime was already reported.
    passed: Preference,
}

/// Returns the time `seconds` from now; all ones mean infinity.
pub(super) fn end_of(now: Instant, seconds: u32) -> Instant {
    if seconds == u32::MAX { NEVER } else { now + Duration::from_secs(seconds.into()) }
}

impl Lifetime {
    /// The infinite lifetime.
    pub const FOREVER: Self =
        Self { preferred_until: NEVER, valid_until: NEVER, passed: Preference::Preferred };

    /// Returns a lifetime of these seconds from now.
    pub fn new(now: Instant, preferred: u32, valid: u32) -> Self {
        let (preferred_until, valid_until) = (end_of(now, preferred), end_of(now, valid));
        Self { preferred_until, valid_until, passed: Preference::Preferred }
    }

    /// Updates the lifetime; a remaining lifetime of more than two hours is not reduced below that (RFC 4862 5.5.3 e).
    pub fn renew(&mut self, now: Instant, preferred: u32, valid: u32) {
        let left = self.valid_until.since(now).as_secs();
        let advertised = end_of(now, valid);
        self.preferred_until = end_of(now, preferred);
        self.passed = Preference::Preferred;
        if valid > TWO_HOURS || advertised > self.valid_until {
            self.valid_until = advertised;
        } else if left > u64::from(TWO_HOURS) {
            self.valid_until = end_of(now, TWO_HOURS);
        }
        self.preferred_until = self.preferred_until.min(self.valid_until);
    }

    /// Returns the time of the next change.
    pub fn next_change(&self) -> Option<Instant> {
        let next = if self.passed == Preference::Preferred { self.preferred_until } else { self.valid_until };
        (next != NEVER).then_some(next)
    }

    /// Advances the time; returns whether the address is still valid.
    pub fn pass(&mut self, now: Instant) -> bool {
        self.passed = self.preference(now);
        now < self.valid_until
    }

    /// Returns the current preference of the address.
    pub fn preference(&self, now: Instant) -> Preference {
        if now < self.preferred_until { Preference::Preferred } else { Preference::Deprecated }
    }
}
