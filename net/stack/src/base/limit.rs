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

    /// Fills the empty bucket. The time of a fraction of a token counts for the next fill.
    fn fill(&mut self, now: Instant) {
        let (second, per_second) = (Duration::from_secs(1).as_nanos(), u64::from(self.per_second));
        let elapsed = now.since(self.filled).as_nanos().min(second);
        let earned = elapsed * per_second / second;
        if earned > 0 {
            let rest = elapsed - (earned * second).div_ceil(per_second);
            self.tokens = earned as u32;
            self.filled = Instant::from_nanos(now.as_nanos() - rest);
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

    #[test]
    fn no_fraction_of_a_token_is_lost_between_frequent_calls() {
        let mut limit = RateLimit::new(10, Instant::ZERO);
        // A try every 60 ms, for 100 s: a token each 100 ms, and the ten of the beginning.
        let times = (0..=100_000).step_by(60).map(|millis| Instant::ZERO + Duration::from_millis(millis));
        let allowed = times.filter(|now| limit.allow(*now) == Permit::Yes).count();
        assert!((1008..=1010).contains(&allowed), "{allowed}");
    }
}
