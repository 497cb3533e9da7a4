//! How much may be under way: congestion control behind one trait.
//!
//! The trait has what every loss-based algorithm needs; finding out *that* something was lost, and the
//! inflation of the window during NewReno's recovery, is the sender's (`connection/recovery.rs`), so that
//! another recovery (SACK, RACK) and another algorithm (CUBIC) come independently of each other.

use alloc::boxed::Box;
use core::fmt::Debug;

/// Which algorithm a connection uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// RFC 5681 with RFC 6582's recovery.
    NewReno,
}

impl Algorithm {
    pub(crate) fn start(self, mss: u32) -> Box<dyn CongestionControl> {
        match self {
            Self::NewReno => Box::new(NewReno::new(mss)),
        }
    }
}

/// Whether the window was what held the sender back. A window that isn't used must not grow (RFC 7661).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowUse {
    /// All of it was under way.
    Full,
    /// The application or the peer's window was the limit.
    Partial,
}

/// The first timeout of a segment, or a further one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// The first.
    First,
    /// One more without progress since: the threshold was lowered already (RFC 5681 3.1).
    Repeated,
}

/// A congestion control algorithm's state for one connection. All amounts are in bytes.
pub trait CongestionControl: Debug + Send {
    /// Bytes that may be under way.
    fn window(&self) -> u32;

    /// `acked` bytes arrived, outside of any recovery.
    fn on_ack(&mut self, acked: u32, window_use: WindowUse);

    /// A segment was lost, as duplicate acknowledgements tell; recovery begins.
    fn on_loss(&mut self, in_flight: u32);

    /// All that was under way when the loss was found has arrived; recovery ends.
    fn on_recovered(&mut self, in_flight: u32);

    /// The retransmission timer ran out.
    fn on_timeout(&mut self, in_flight: u32, timeout: Timeout);

    /// Nothing was sent for longer than a timeout (RFC 5681 4.1).
    fn on_idle(&mut self);

    /// The handshake told that segments carry at most `mss` bytes: begins anew.
    fn start(&mut self, mss: u32);

    /// Segments carry at most `mss` bytes from now on.
    fn set_mss(&mut self, mss: u32);
}

/// RFC 5681: slow start and congestion avoidance.
#[derive(Debug)]
struct NewReno {
    mss: u32,
    window: u32,
    threshold: u32,
    /// Bytes acknowledged in congestion avoidance that have not made the window grow yet.
    credit: u32,
}

impl NewReno {
    fn new(mss: u32) -> Self {
        Self { mss, window: initial_window(mss), threshold: u32::MAX, credit: 0 }
    }

    fn lower_threshold(&mut self, in_flight: u32) {
        self.threshold = (in_flight / 2).max(2 * self.mss);
    }
}

/// RFC 6928: ten segments, less where they are large.
fn initial_window(mss: u32) -> u32 {
    (10 * mss).min((2 * mss).max(14_600))
}

impl CongestionControl for NewReno {
    fn window(&self) -> u32 {
        self.window
    }

    fn on_ack(&mut self, acked: u32, window_use: WindowUse) {
        if window_use == WindowUse::Partial {
            return;
        }
        if self.window < self.threshold {
            // At most two segments for one acknowledgement (RFC 3465 2.2).
            self.window = self.window.saturating_add(acked.min(2 * self.mss));
            return;
        }
        self.credit = self.credit.saturating_add(acked);
        if self.credit >= self.window {
            self.credit -= self.window;
            self.window = self.window.saturating_add(self.mss);
        }
    }

    fn on_loss(&mut self, in_flight: u32) {
        self.lower_threshold(in_flight);
        self.window = self.threshold;
        self.credit = 0;
    }

    fn on_recovered(&mut self, in_flight: u32) {
        self.window = self.threshold.min(in_flight.max(self.mss) + self.mss);
    }

    fn on_timeout(&mut self, in_flight: u32, timeout: Timeout) {
        if timeout == Timeout::First {
            self.lower_threshold(in_flight);
        }
        self.window = self.mss;
        self.credit = 0;
    }

    fn on_idle(&mut self) {
        self.window = self.window.min(initial_window(self.mss));
    }

    fn start(&mut self, mss: u32) {
        *self = Self::new(mss);
    }

    fn set_mss(&mut self, mss: u32) {
        // The window keeps its count of segments (RFC 8201 5.4's spirit), and at least one of them.
        let segments = (self.window / self.mss.max(1)).max(1);
        self.mss = mss;
        self.window = segments.saturating_mul(mss);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 5681 3.1: congestion avoidance adds one segment a round trip
    #[test]
    fn slow_start_doubles_and_avoidance_adds_one_segment_a_round() {
        let mut reno = NewReno::new(1000);
        assert_eq!(reno.window(), 10_000);
        (0..10).for_each(|_| reno.on_ack(1000, WindowUse::Full));
        assert_eq!(reno.window(), 20_000);
        reno.on_loss(20_000);
        assert_eq!(reno.window(), 10_000);
        (0..10).for_each(|_| reno.on_ack(1000, WindowUse::Full));
        assert_eq!(reno.window(), 11_000);
        reno.on_ack(100_000, WindowUse::Partial);
        assert_eq!(reno.window(), 11_000);
    }

    /// RFC 5681 3.1: a timeout leaves a window of one segment and halves the threshold
    #[test]
    fn a_timeout_leaves_one_segment_and_a_repeated_one_keeps_the_threshold() {
        let mut reno = NewReno::new(1000);
        reno.on_timeout(10_000, Timeout::First);
        assert_eq!((reno.window(), reno.threshold), (1000, 5000));
        reno.on_timeout(1000, Timeout::Repeated);
        assert_eq!((reno.window(), reno.threshold), (1000, 5000));
        reno.on_loss(0);
        assert_eq!(reno.window(), 2000);
    }

    /// RFC 6928 2: the first window is bounded in bytes
    #[test]
    fn large_segments_make_a_smaller_first_window() {
        assert_eq!(initial_window(1460), 14_600);
        assert_eq!(initial_window(536), 5_360);
        assert_eq!(initial_window(9000), 18_000);
    }
}
