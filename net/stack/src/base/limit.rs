//! A rate limit by a token bucket.

use super::time::{Duration, Instant};

/// The credit of one token: a nanosecond earns `per_second`, so no fraction of a token is lost.
const TOKEN: u64 = 1_000_000_000;

/// Allows `per_second` actions a second, and as many at once after a pause.
#[derive(Clone, Debug)]
pub(crate) struct RateLimit {
    per_second: u32,
    /// At most `per_second` tokens.
    credit: u64,
    /// The time up to which credit was added.
    filled: Instant,
}

impl RateLimit {
    pub fn new(per_second: u32, now: Instant) -> Self {
        Self { per_second, credit: u64::from(per_second) * TOKEN, filled: now }
    }

    /// Takes a token, if there is one.
    pub fn allow(&mut self, now: Instant) -> Permit {
        let per_second = u64::from(self.per_second);
        // A second fills the bucket, and the sum of two full buckets is less than 2^64.
        let elapsed = now.since(self.filled).as_nanos().min(Duration::from_secs(1).as_nanos());
        self.credit = (self.credit + elapsed * per_second).min(per_second * TOKEN);
        self.filled = self.filled.max(now);
        match self.credit.checked_sub(TOKEN) {
            Some(left) => {
                self.credit = left;
                Permit::Yes
            }
            None => Permit::No,
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

    #[test]
    fn a_burst_after_a_pause_is_no_longer_if_tokens_were_left_before_it() {
        let mut limit = RateLimit::new(10, Instant::ZERO);
        assert_eq!(limit.allow(Instant::ZERO), Permit::Yes);
        let later = Instant::ZERO + Duration::from_secs(1000);
        assert_eq!((0..50).filter(|_| limit.allow(later) == Permit::Yes).count(), 10);
    }

    #[test]
    fn the_largest_rate_and_a_clock_that_runs_backwards_do_no_harm() {
        let mut limit = RateLimit::new(u32::MAX, Instant::ZERO);
        for now in [Instant::NEVER, Instant::ZERO, Instant::NEVER] {
            assert_eq!(limit.allow(now), Permit::Yes);
        }
        assert_eq!(limit.filled, Instant::NEVER);
    }
}
