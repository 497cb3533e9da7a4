//! An algorithm's state, and the window that it allows, which is read for each segment.
//!
//! While a connection does not fill its window, the algorithm needs to know only how long that lasts. [`Control`] adds this
//! time up and reports it before it calls the algorithm for another reason.

use super::{Algorithm, Arrived, CongestionControl, Timeout, WindowUse};
use crate::time::{Duration, Instant};
use alloc::boxed::Box;

/// The congestion control of one connection.
#[derive(Debug)]
pub(crate) struct Control {
    algorithm: Box<dyn CongestionControl>,
    /// The algorithm's window, read after each call that may change it.
    window: u32,
    /// When data arrived last.
    heard_at: Instant,
    /// For how long the window was not the limit, and the last round trip measured meanwhile, since the last call of the
    /// algorithm.
    unused: Duration,
    unused_rtt: Option<Duration>,
}

impl Control {
    /// Begins with segments of at most `mss` bytes.
    pub fn new(algorithm: Algorithm, mss: u32) -> Self {
        Self::of(algorithm.start(mss))
    }

    fn of(algorithm: Box<dyn CongestionControl>) -> Self {
        let (heard_at, unused) = (Instant::ZERO, Duration::ZERO);
        Self { window: algorithm.window(), algorithm, heard_at, unused, unused_rtt: None }
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

    /// See [`CongestionControl::threshold`].
    pub fn threshold(&self) -> u32 {
        self.algorithm.threshold()
    }

    /// Data arrived, outside of a recovery from a loss.
    #[inline(always)]
    pub fn on_ack(&mut self, arrived: Arrived, window_use: WindowUse) {
        let pause = arrived.now.since(self.heard_at);
        self.heard_at = arrived.now;
        match window_use {
            WindowUse::Full => self.tell(|algorithm| algorithm.on_ack(arrived)),
            WindowUse::Partial => {
                self.unused = self.unused + pause;
                self.unused_rtt = arrived.rtt.or(self.unused_rtt);
            }
        }
    }

    /// See [`CongestionControl::on_loss`].
    pub fn on_loss(&mut self, now: Instant, in_flight: u32) {
        self.tell(|algorithm| algorithm.on_loss(now, in_flight));
    }

    /// See [`CongestionControl::on_recovered`].
    pub fn on_recovered(&mut self) {
        self.tell(|algorithm| algorithm.on_recovered());
    }

    /// See [`CongestionControl::on_timeout`].
    pub fn on_timeout(&mut self, now: Instant, in_flight: u32, timeout: Timeout) {
        self.tell(|algorithm| algorithm.on_timeout(now, in_flight, timeout));
    }

    /// See [`CongestionControl::on_undo`].
    pub fn on_undo(&mut self) {
        self.tell(|algorithm| algorithm.on_undo());
    }

    /// See [`CongestionControl::on_idle`].
    #[cold]
    pub fn on_idle(&mut self) {
        self.tell(|algorithm| algorithm.on_idle());
    }

    /// See [`CongestionControl::start`].
    pub fn start(&mut self, mss: u32) {
        self.tell(|algorithm| algorithm.start(mss));
    }

    /// See [`CongestionControl::set_mss`].
    pub fn set_mss(&mut self, mss: u32) {
        self.tell(|algorithm| algorithm.set_mss(mss));
    }

    fn tell(&mut self, news: impl FnOnce(&mut dyn CongestionControl)) {
        let (unused, rtt) = (core::mem::take(&mut self.unused), self.unused_rtt.take());
        if unused > Duration::ZERO || rtt.is_some() {
            self.algorithm.on_unused(unused, rtt);
        }
        news(&mut *self.algorithm);
        self.window = self.algorithm.window();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::congestion::Round;
    use isola_proves::proves;

    const MSS: u32 = 1000;
    const RTT: Duration = Duration::from_millis(100);

    /// A window's worth arrives each round trip for a time; returns the window.
    fn pass(control: &mut Control, now: &mut Instant, span: Duration, window_use: WindowUse) -> u32 {
        let end = *now + span;
        while *now < end {
            *now += RTT;
            for number in 0..control.window() / MSS {
                let round = if number == 0 { Round::New } else { Round::Same };
                control.on_ack(Arrived { bytes: MSS, now: *now, rtt: Some(RTT), round }, window_use);
            }
        }
        control.window()
    }

    /// A connection that lost a segment at a window of a thousand.
    fn after_loss(algorithm: Algorithm) -> (Control, Instant) {
        let (mut control, mut now) = (Control::new(algorithm, MSS), Instant::ZERO);
        while control.window() < 1000 * MSS {
            pass(&mut control, &mut now, RTT, WindowUse::Full);
        }
        control.on_loss(now, 1000 * MSS);
        control.on_recovered();
        (control, now)
    }

    #[proves("RFC 9438 5.8", "time in which the window is not used does not make it grow afterwards.")]
    #[test]
    fn time_without_use_does_not_count() {
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
