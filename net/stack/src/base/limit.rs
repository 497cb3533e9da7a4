//! A rate limit by a token bucket.

use super::time::{Duration, Instant};

/// Allows `per_second` actions a second, and as many at once after a pause.
#[derive(Clone, Debug)]
pub(crate) struct RateLimit {
    per_second: u32,
    tokens: u32,
    /// The time up to which tokens were added.
    filled: Instant,
}

impl RateLimit {
    pub fn new(per_second: u32, now: Instant) -> Self {
        Self { per_second, tokens: per_second, filled: now }
    }

    /// Takes a token, if there is one.
    pub fn allow(&mut self, now: Instant) -> Permit {
        if self.tokens == 0 {
            self.fill(now);
        }
        match self.tokens.checked_sub(1) {
            Some(left) => {
                self.tokens = left;
                Permit::Yes
            }
            None => Permit::No,
        }
    }

    fn fill(&mut self, now: Instant) {
        let elapsed = now.since(self.filled).as_nanos();
        let second = Duration::from_secs(1).as_nanos();
        let earned = (u128::from(elapsed) * u128::from(self.per_second) / u128::from(second))
            .min(u128::from(self.per_second)) as u32;
        if earned > 0 {
            self.tokens = earned;
            self.filled = now;
        }
    }
}

/// The result of a rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permit {
    Yes,
    No,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_bounded_and_tokens_return_over_time() {
        let mut limit = RateLimit::new(10, Instant::ZERO);
        let allowed = |limit: &mut RateLimit, now, tries| {
            (0..tries).filter(|_| limit.allow(now) == Permit::Yes).count()
        };
        assert_eq!(allowed(&mut limit, Instant::ZERO, 50), 10);
        let later = Instant::ZERO + Duration::from_millis(250);
        assert_eq!(allowed(&mut limit, later, 50), 2);
        let much_later = Instant::ZERO + Duration::from_secs(1000);
        assert_eq!(allowed(&mut limit, much_later, 50), 10);
        assert_eq!(allowed(&mut RateLimit::new(0, Instant::ZERO), much_later, 5), 0);
    }
}
