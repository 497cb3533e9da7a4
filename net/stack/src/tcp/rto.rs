//! The retransmission timeout (RFC 6298): smoothed round-trip time, its variation, and exponential back-off.

use super::TcpConfig;
use crate::base::Duration;

/// The clock granularity (G) in the computation of the timeout.
const GRANULARITY: Duration = Duration::from_millis(1);

/// Estimate of a path's round-trip time, and the timeout computed from it.
#[derive(Clone, Debug)]
pub(crate) struct RttEstimator {
    smoothed: Option<Duration>,
    variation: Duration,
    /// Recent minimum of the round-trip time.
    least: Duration,
    rto: Duration,
    /// Number of doublings of the timeout since the last measurement (Karn's algorithm).
    doublings: u8,
    min: Duration,
    max: Duration,
    /// The resulting timeout, cached because it is read more often than its inputs change.
    timeout: Duration,
}

impl RttEstimator {
    pub fn new(config: &TcpConfig) -> Self {
        let mut estimator = Self {
            smoothed: None,
            variation: Duration::ZERO,
            least: Duration::ZERO,
            rto: config.rto_initial,
            doublings: 0,
            min: config.rto_min,
            max: config.rto_max,
            timeout: Duration::ZERO,
        };
        estimator.update();
        estimator
    }

    /// Updates the estimate by a measurement of a segment that was sent only once (2.2, 2.3). Ends the back-off.
    #[inline]
    pub fn measure(&mut self, rtt: Duration) {
        match self.smoothed {
            None => {
                self.variation = rtt.divided_by(2);
                self.least = rtt;
                self.smoothed = Some(rtt);
            }
            Some(smoothed) => {
                self.smoothed = Some(smoothed.nearer_to(rtt, 3));
                self.variation = self.variation.nearer_to(smoothed.distance_to(rtt), 2);
                // The minimum approaches a longer path's round-trip time in some dozen round trips.
                self.least = rtt.min(self.least.nearer_to(rtt, 6));
            }
        }
        let smoothed = self.smoothed.unwrap_or(rtt);
        self.rto = smoothed + self.variation.times(4).max(GRANULARITY);
        self.doublings = 0;
        self.update();
    }

    /// Doubles the timeout after it has expired (5.5).
    pub fn back_off(&mut self) {
        self.doublings = self.doublings.saturating_add(1);
        self.update();
    }

    /// Sets the timeout to 3 s, after a handshake with a retransmitted SYN (5.7).
    pub fn after_lost_syn(&mut self) {
        self.rto = Duration::from_secs(3);
        self.doublings = 0;
        self.update();
    }

    #[inline]
    fn update(&mut self) {
        let base = self.rto.max(self.min);
        let doubled = if self.doublings == 0 { base } else { base.times(1 << self.doublings.min(32)) };
        self.timeout = doubled.min(self.max);
    }

    /// Returns the current timeout.
    #[inline]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the recent minimum of the round-trip time; zero before the first measurement.
    pub fn least(&self) -> Duration {
        self.least
    }

    /// Returns the longest timeout.
    pub fn max_timeout(&self) -> Duration {
        self.max
    }

    /// Returns the smoothed round-trip time; `None` before the first measurement.
    pub fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_proves::proves;

    fn estimator() -> RttEstimator {
        RttEstimator::new(&TcpConfig::default())
    }

    #[proves("RFC 6298 2.2", "the first measurement sets the round trip and its variation")]
    #[proves("RFC 6298 2.3", "later ones smooth them")]
    #[test]
    fn the_timeout_follows_the_measurements() {
        let mut rtt = estimator();
        assert_eq!(rtt.timeout(), Duration::from_secs(1));
        rtt.measure(Duration::from_millis(100));
        assert_eq!(rtt.timeout(), Duration::from_millis(300));
        for _ in 0..100 {
            rtt.measure(Duration::from_millis(100));
        }
        assert_eq!(rtt.timeout(), Duration::from_millis(200));
        for _ in 0..100 {
            rtt.measure(Duration::from_micros(50));
        }
        assert_eq!(rtt.timeout(), TcpConfig::default().rto_min);
    }

    #[proves("RFC 6298 5.5", "the timeout doubles, up to a largest value")]
    #[test]
    fn back_off_doubles_up_to_the_limit_and_ends_with_a_measurement() {
        let mut rtt = estimator();
        for expected in [2, 4, 8, 16, 32, 60, 60] {
            rtt.back_off();
            assert_eq!(rtt.timeout(), Duration::from_secs(expected));
        }
        (0..300).for_each(|_| rtt.back_off());
        assert_eq!(rtt.timeout(), Duration::from_secs(60));
        rtt.measure(Duration::from_millis(400));
        assert_eq!(rtt.timeout(), Duration::from_millis(1200));
    }
}
