//! An algorithm's state, and the window that it allows: read for each segment, changed once a round trip.

use super::{Algorithm, Arrived, CongestionControl, Timeout};
use crate::time::Instant;
use alloc::boxed::Box;

/// The congestion control of one connection.
#[derive(Debug)]
pub(crate) struct Control {
    algorithm: Box<dyn CongestionControl>,
    /// What the algorithm said after it was told something last.
    window: u32,
}

impl Control {
    /// Begins with segments of at most `mss` bytes.
    pub fn new(algorithm: Algorithm, mss: u32) -> Self {
        let algorithm = algorithm.start(mss);
        Self { window: algorithm.window(), algorithm }
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

    /// See [`CongestionControl::on_ack`].
    #[inline]
    pub fn on_ack(&mut self, arrived: Arrived) {
        self.tell(|algorithm| algorithm.on_ack(arrived));
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

    #[inline]
    fn tell(&mut self, news: impl FnOnce(&mut dyn CongestionControl)) {
        news(&mut *self.algorithm);
        self.window = self.algorithm.window();
    }
}
