//! An algorithm's state and its congestion window, which is read for each segment.
//!
//! While a connection does not fill its window, the algorithm needs only the duration of that. [`Control`] accumulates
//! it, and reports it before the next other call of the algorithm.

use super::{AckedData, Algorithm, CongestionControl, Timeout, WindowUse};
use crate::base::{Duration, Instant};
use alloc::boxed::Box;

/// The congestion control of one connection.
#[derive(Debug)]
pub(crate) struct Control {
    algorithm: Box<dyn CongestionControl>,
    /// The algorithm's window, cached after each call.
    window: u32,
    /// The time of the last arrival.
    heard_at: Instant,
    /// The time for which the window was not the limit since the last call of the algorithm, and the last round-trip
    /// time measured in it.
    unused: Duration,
    unused_rtt: Option<Duration>,
    /// The least window, until the next loss.
    least: u32,
}

impl Control {
    /// Starts with segments of at most `mss` bytes.
    pub fn new(algorithm: Algorithm, mss: u32) -> Self {
        Self::of(algorithm.start(mss))
    }

    fn of(algorithm: Box<dyn CongestionControl>) -> Self {
        let (heard_at, unused) = (Instant::ZERO, Duration::ZERO);
        Self { window: algorithm.window(), algorithm, heard_at, unused, unused_rtt: None, least: 0 }
    }

    /// See [`CongestionControl::name`].
    pub fn name(&self) -> &'static str {
        self.algorithm.name()
    }

    /// See [`CongestionControl::window`].
    #[inline]
    pub const fn window(&self) -> u32 {
        self.window
    }

    /// Sets the least window, in bytes, until a loss shows that the path has no room for it.
    pub fn set_least(&mut self, bytes: u32) {
        self.least = bytes;
        self.window = self.algorithm.window().max(bytes);
    }

    /// See [`CongestionControl::threshold`].
    pub fn threshold(&self) -> u32 {
        self.algorithm.threshold()
    }

    /// Processes arrived data, outside of a recovery.
    #[inline(always)]
    pub fn on_ack(&mut self, arrived: AckedData, window_use: WindowUse) {
        let pause = arrived.now.since(self.heard_at);
        self.heard_at = arrived.now;
        match window_use {
            WindowUse::Full => self.notify(|algorithm| algorithm.on_ack(arrived)),
            WindowUse::Partial => {
                self.unused = self.unused + pause;
                self.unused_rtt = arrived.rtt.or(self.unused_rtt);
            }
        }
    }

    /// See [`CongestionControl::on_loss`].
    pub fn on_loss(&mut self, now: Instant, in_flight: u32) {
        self.least = 0;
        self.notify(|algorithm| algorithm.on_loss(now, in_flight));
    }

    /// See [`CongestionControl::on_recovered`].
    pub fn on_recovered(&mut self) {
        self.notify(|algorithm| algorithm.on_recovered());
    }

    /// See [`CongestionControl::on_timeout`].
    pub fn on_timeout(&mut self, now: Instant, in_flight: u32, timeout: Timeout) {
        self.least = 0;
        self.notify(|algorithm| algorithm.on_timeout(now, in_flight, timeout));
    }

    /// See [`CongestionControl::on_undo`].
    pub fn on_undo(&mut self) {
        self.notify(|algorithm| algorithm.on_undo());
    }

    /// See [`CongestionControl::on_idle`].
    #[cold]
    pub fn on_idle(&mut self) {
        self.notify(|algorithm| algorithm.on_idle());
    }

    /// See [`CongestionControl::start`].
    pub fn start(&mut self, mss: u32) {
        self.notify(|algorithm| algorithm.start(mss));
    }

    /// See [`CongestionControl::set_mss`].
    pub fn set_mss(&mut self, mss: u32) {
        self.notify(|algorithm| algorithm.set_mss(mss));
    }

    fn notify(&mut self, news: impl FnOnce(&mut dyn CongestionControl)) {
        let (unused, rtt) = (core::mem::take(&mut self.unused), self.unused_rtt.take());
        if unused > Duration::ZERO || rtt.is_some() {
            self.algorithm.on_unused(unused, rtt);
        }
        news(&mut *self.algorithm);
        self.window = self.algorithm.window().max(self.least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::congestion::Round;
    use isola_proves::proves;

    const MSS: u32 = 1000;
    const RTT: Duration = Duration::from_millis(100);

    /// Delivers a window of data per round trip for a time. Returns the window.
    fn pass(control: &mut Control, now: &mut Instant, span: Duration, window_use: WindowUse) -> u32 {
        let end = *now + span;
        while *now < end {
            *now += RTT;
            for number in 0..control.window() / MSS {
                let round = if number == 0 { Round::New } else { Round::Same };
                control.on_ack(AckedData { bytes: MSS, now: *now, rtt: Some(RTT), round }, window_use);
            }
        }
        control.window()
    }

    /// Returns the state of a connection that lost a segment at a window of 1000 segments, and recovered.
    fn after_loss(algorithm: Algorithm) -> (Control, Instant) {
        let (mut control, mut now) = (Control::new(algorithm, MSS), Instant::ZERO);
        while control.window() < 1000 * MSS {
            pass(&mut control, &mut now, RTT, WindowUse::Full);
        }
        control.on_loss(now, 1000 * MSS);
        control.on_recovered();
        (control, now)
    }

    #[test]
    fn the_least_window_ends_with_a_loss() {
        for algorithm in [Algorithm::Cubic, Algorithm::NewReno] {
            let start = || {
                let mut control = Control::new(algorithm, MSS);
                control.set_least(200 * MSS);
                control.start(MSS);
                assert_eq!(control.window(), 200 * MSS);
                control
            };
            let (mut lost, mut late) = (start(), start());
            lost.on_loss(Instant::ZERO, 10 * MSS);
            assert_eq!(lost.window(), lost.algorithm.window());
            late.on_timeout(Instant::ZERO, 10 * MSS, Timeout::First);
            assert_eq!(late.window(), MSS);
            let mut elsewhere = start();
            elsewhere.set_least(0);
            assert_eq!(elsewhere.window(), Control::new(algorithm, MSS).window());
        }
    }

    #[proves("RFC 9438 5.8", "time in which the window is not used does not let it grow afterwards.")]
    #[test]
    fn time_with_an_unused_window_does_not_let_it_grow() {
        for algorithm in [Algorithm::Cubic, Algorithm::NewReno] {
            let (mut control, mut now) = after_loss(algorithm);
            let before = pass(&mut control, &mut now, Duration::from_secs(1), WindowUse::Full);
            let unused = pass(&mut control, &mut now, RTT.times(1000), WindowUse::Partial);
            assert_eq!(unused, before, "{algorithm:?}");
            let after = pass(&mut control, &mut now, RTT.times(2), WindowUse::Full);
            assert!(after < before * 11 / 10, "{algorithm:?}: {before} to {after}");
        }
    }
}
