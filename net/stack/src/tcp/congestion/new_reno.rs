//! NewReno's slow start and congestion avoidance (RFC 5681).

use super::{AckedData, CongestionControl, Timeout, initial_window, rescaled, rescaled_or_none};
use crate::base::{Duration, Instant};

/// The NewReno state of a connection.
#[derive(Debug)]
pub(super) struct NewReno {
    mss: u32,
    window: u32,
    threshold: u32,
    /// Bytes acknowledged in congestion avoidance that have not been used for growth yet.
    credit: u32,
    /// Window and threshold before the last loss or timeout.
    before: (u32, u32),
}

impl NewReno {
    pub fn new(mss: u32) -> Self {
        let window = initial_window(mss);
        Self { mss, window, threshold: u32::MAX, credit: 0, before: (window, u32::MAX) }
    }

    fn lower_threshold(&mut self, in_flight: u32) {
        self.before = (self.window, self.threshold);
        self.threshold = (in_flight / 2).max(2 * self.mss);
        self.credit = 0;
    }
}

impl CongestionControl for NewReno {
    fn name(&self) -> &'static str {
        "NewReno"
    }

    fn window(&self) -> u32 {
        self.window
    }

    fn threshold(&self) -> u32 {
        self.threshold
    }

    fn on_unused(&mut self, _span: Duration, _rtt: Option<Duration>) {}

    fn on_ack(&mut self, arrived: AckedData) {
        if self.window < self.threshold {
            // At most two segments per acknowledgement (RFC 3465 2.2).
            self.window = self.window.saturating_add(arrived.bytes.min(2 * self.mss));
            return;
        }
        self.credit = self.credit.saturating_add(arrived.bytes);
        if self.credit >= self.window {
            self.credit -= self.window;
            self.window = self.window.saturating_add(self.mss);
        }
    }

    fn on_loss(&mut self, _now: Instant, in_flight: u32) {
        self.lower_threshold(in_flight);
        self.window = self.threshold;
    }

    fn on_recovered(&mut self) {
        self.window = self.threshold;
    }

    fn on_timeout(&mut self, _now: Instant, in_flight: u32, timeout: Timeout) {
        if timeout == Timeout::First {
            self.lower_threshold(in_flight);
        }
        self.window = self.mss;
    }

    fn on_undo(&mut self) {
        let (window, threshold) = self.before;
        self.window = self.window.max(window);
        self.threshold = self.threshold.max(threshold);
    }

    fn on_idle(&mut self) {
        self.window = self.window.min(initial_window(self.mss));
    }

    fn start(&mut self, mss: u32) {
        *self = Self::new(mss);
    }

    fn set_mss(&mut self, mss: u32) {
        let (window, threshold) = self.before;
        self.before = (rescaled(window, self.mss, mss), rescaled_or_none(threshold, self.mss, mss));
        self.window = rescaled(self.window, self.mss, mss);
        self.threshold = rescaled_or_none(self.threshold, self.mss, mss);
        self.mss = mss;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::congestion::Round;
    use isola_proves::proves;

    fn arrive(reno: &mut NewReno, bytes: u32) {
        reno.on_ack(AckedData { bytes, now: Instant::ZERO, rtt: None, round: Round::Same });
    }

    #[proves(
        "RFC 5681 3.1",
        "slow start doubles the window each round trip, congestion avoidance adds a segment."
    )]
    #[test]
    fn slow_start_doubles_and_avoidance_adds_one_segment_per_round_trip() {
        let mut reno = NewReno::new(1000);
        assert_eq!(reno.window(), 10_000);
        (0..10).for_each(|_| arrive(&mut reno, 1000));
        assert_eq!(reno.window(), 20_000);
        reno.on_loss(Instant::ZERO, 20_000);
        reno.on_recovered();
        assert_eq!(reno.window(), 10_000);
        (0..10).for_each(|_| arrive(&mut reno, 1000));
        assert_eq!(reno.window(), 11_000);
    }

    #[proves("RFC 5681 3.1", "a timeout leaves one segment, and a repeated one the threshold as it is.")]
    #[test]
    fn a_timeout_leaves_one_segment_and_a_repeated_one_keeps_the_threshold() {
        let mut reno = NewReno::new(1000);
        reno.on_timeout(Instant::ZERO, 10_000, Timeout::First);
        assert_eq!((reno.window(), reno.threshold), (1000, 5000));
        reno.on_timeout(Instant::ZERO, 1000, Timeout::Repeated);
        assert_eq!((reno.window(), reno.threshold), (1000, 5000));
        reno.on_loss(Instant::ZERO, 0);
        assert_eq!(reno.window(), 2000);
    }

    #[proves("RFC 4015 3.2", "the undo of a spurious loss restores window and threshold.")]
    #[test]
    fn the_undo_of_a_spurious_loss_restores_the_state() {
        let mut reno = NewReno::new(1000);
        reno.on_timeout(Instant::ZERO, 10_000, Timeout::First);
        reno.on_timeout(Instant::ZERO, 10_000, Timeout::Repeated);
        reno.on_undo();
        assert_eq!((reno.window(), reno.threshold), (10_000, u32::MAX));
    }

    #[test]
    fn smaller_segments_keep_their_number_in_the_window_the_threshold_and_the_undo() {
        let mut reno = NewReno::new(1000);
        reno.set_mss(500);
        assert_eq!((reno.window(), reno.threshold), (5000, u32::MAX));
        reno.on_loss(Instant::ZERO, 5000);
        assert_eq!((reno.window(), reno.threshold), (2500, 2500));
        reno.set_mss(250);
        assert_eq!((reno.window(), reno.threshold), (1250, 1250));
        reno.on_recovered();
        assert_eq!(reno.window(), 1250);
        reno.on_undo();
        assert_eq!((reno.window(), reno.threshold), (2500, u32::MAX));
    }
}
