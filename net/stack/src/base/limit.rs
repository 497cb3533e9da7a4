//! A rate limit: a token bucket, as the time of its next action (the generic cell rate algorithm of ITU-T I.371).

use super::time::{Duration, Instant};

/// Allows `per_second` actions a second, and as many at once after a pause of a second.
#[derive(Clone, Debug)]
pub(crate) struct RateLimit {
    /// The time that an action takes up; `None`: no action is allowed.
    interval_ns: Option<u64>,
    /// How much time actions may take up in advance.
    ahead_ns: u64,
    /// The time up to which actions have taken up the time.
    used_until_ns: u64,
}

impl RateLimit {
    pub fn new(per_second: u32, now: Instant) -> Self {
        let second = Duration::from_secs(1).as_nanos();
        let interval_ns = (per_second > 0).then(|| second.div_ceil(per_second.into()));
        let ahead_ns = interval_ns.unwrap_or(0) * u64::from(per_second.saturating_sub(1));
        Self { interval_ns, ahead_ns, used_until_ns: now.as_nanos() }
    }

    /// Counts an action, if it is allowed.
    pub fn allow(&mut self, now: Instant) -> Permit {
        let Some(interval_ns) = self.interval_ns else { return Permit::No };
        let from = self.used_until_ns.max(now.as_nanos());
        if from - now.as_nanos() > self.ahead_ns {
            return Permit::No;
        }
        self.used_until_ns = from + interval_ns;
        Permit::Yes
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
    fn a_pause_allows_one_burst_and_not_two() {
        for per_second in [1, 3, 10, 1_000, 70_000] {
            let mut limit = RateLimit::new(per_second, Instant::ZERO);
            // Full since the beginning, and used at once.
            let now = Instant::ZERO + Duration::from_secs(10);
            let tries = 3 * per_second;
            let allowed = (0..tries).filter(|_| limit.allow(now) == Permit::Yes).count();
            assert_eq!(allowed, per_second as usize);
            // A part of it is used before the pause.
            let now = now + Duration::from_secs(10);
            assert_eq!(limit.allow(now), Permit::Yes);
            let now = now + Duration::from_secs(2);
            let allowed = (0..tries).filter(|_| limit.allow(now) == Permit::Yes).count();
            assert_eq!(allowed, per_second as usize);
        }
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
