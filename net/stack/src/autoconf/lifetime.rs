//! How long an address may be used (RFC 4862 5.5.3, 5.5.4).

use crate::address6::Preference;
use crate::time::{Duration, Instant};

/// The end of what has none.
pub(super) const NEVER: Instant = Instant::from_nanos(u64::MAX);
/// An advertisement that nobody vouches for cannot shorten an address's life below this.
const TWO_HOURS: u32 = 2 * 3600;

/// Until when an address is used for everything, and until when at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lifetime {
    preferred_until: Instant,
    valid_until: Instant,
    /// Whether the first end was told about already.
    passed: Preference,
}

/// The moment so many seconds from now; all ones are for ever.
pub(super) fn end_of(now: Instant, seconds: u32) -> Instant {
    if seconds == u32::MAX { NEVER } else { now + Duration::from_secs(seconds.into()) }
}

impl Lifetime {
    /// Without end.
    pub const FOREVER: Self =
        Self { preferred_until: NEVER, valid_until: NEVER, passed: Preference::Preferred };

    /// So many seconds from now.
    pub fn new(now: Instant, preferred: u32, valid: u32) -> Self {
        let (preferred_until, valid_until) = (end_of(now, preferred), end_of(now, valid));
        Self { preferred_until, valid_until, passed: Preference::Preferred }
    }

    /// Takes new figures in; a life of more than two hours is not cut below that at once (RFC 4862 5.5.3 e).
    pub fn renew(&mut self, now: Instant, preferred: u32, valid: u32) {
        let left = self.valid_until.since(now).as_secs();
        let told = end_of(now, valid);
        self.preferred_until = end_of(now, preferred);
        self.passed = Preference::Preferred;
        if valid > TWO_HOURS || told > self.valid_until {
            self.valid_until = told;
        } else if left > u64::from(TWO_HOURS) {
            self.valid_until = end_of(now, TWO_HOURS);
        }
        self.preferred_until = self.preferred_until.min(self.valid_until);
    }

    /// The next moment at which something changes.
    pub fn next_change(&self) -> Option<Instant> {
        let next = if self.passed == Preference::Preferred { self.preferred_until } else { self.valid_until };
        (next != NEVER).then_some(next)
    }

    /// Lets time pass; returns whether the address lives on.
    pub fn pass(&mut self, now: Instant) -> bool {
        self.passed = self.preference(now);
        now < self.valid_until
    }

    /// How the address is to be used now.
    pub fn preference(&self, now: Instant) -> Preference {
        if now < self.preferred_until { Preference::Preferred } else { Preference::Deprecated }
    }
}
