//! Congestion control behind one trait.
//!
//! The trait has the inputs that every loss-based algorithm needs. Loss detection and recovery are in the sender
//! (`connection/sender`), so that any algorithm works with any loss detection.

mod control;
mod cubic;
mod hystart;
mod new_reno;

use crate::base::{Duration, Instant};
use alloc::boxed::Box;
pub(crate) use control::Control;
use core::fmt::Debug;
use cubic::Cubic;
use new_reno::NewReno;

/// A congestion control algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// RFC 9438, with HyStart++ (RFC 9406): the most common algorithm in the Internet.
    Cubic,
    /// RFC 5681.
    NewReno,
}

impl Algorithm {
    pub(crate) fn start(self, mss: u32) -> Box<dyn CongestionControl> {
        match self {
            Self::Cubic => Box::new(Cubic::new(mss)),
            Self::NewReno => Box::new(NewReno::new(mss)),
        }
    }
}

/// Whether the congestion window was the limit. An unused window must not grow (RFC 7661).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowUse {
    /// The window was full.
    Full,
    /// The application or the peer's window was the limit.
    Partial,
}

/// Whether a timeout is the first one of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// The first.
    First,
    /// A further one without progress in between; the first has lowered the threshold (RFC 5681 3.1).
    Repeated,
}

/// Whether an acknowledgement is the first of a round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// It belongs to the same round trip as the previous one.
    Same,
    /// It acknowledges data that was sent after the start of the previous round trip.
    New,
}

/// An acknowledgement of new data that had filled the window.
#[derive(Clone, Copy, Debug)]
pub struct AckedData {
    /// Number of bytes that arrived.
    pub bytes: u32,
    /// The current time.
    pub now: Instant,
    /// The round-trip time, if it was measured.
    pub rtt: Option<Duration>,
    /// Whether a new round trip starts.
    pub round: Round,
}

/// The state of a congestion control algorithm for one connection. All amounts are in bytes.
pub trait CongestionControl: Debug + Send {
    /// Returns the algorithm's name.
    fn name(&self) -> &'static str;

    /// Returns the congestion window.
    fn window(&self) -> u32;

    /// Returns the slow-start threshold: the target of a recovery in progress.
    fn threshold(&self) -> u32;

    /// Records that the window was not the limit for `span`: the data that arrived in it had not filled the window.
    /// `rtt` is the last round-trip time measured with this data. Called before any of the methods below.
    fn on_unused(&mut self, span: Duration, rtt: Option<Duration>);

    /// Processes arrived data that had filled the window, outside of a recovery.
    fn on_ack(&mut self, arrived: AckedData);

    /// Processes a loss that acknowledgements indicated. A recovery begins; until it ends, the sender itself reduces
    /// the flight to the threshold (RFC 9937).
    fn on_loss(&mut self, now: Instant, in_flight: u32);

    /// Ends the recovery: all data in flight at the detection has arrived.
    fn on_recovered(&mut self);

    /// Processes an expiry of the retransmission timer.
    fn on_timeout(&mut self, now: Instant, in_flight: u32, timeout: Timeout);

    /// Undoes the last loss or timeout, which was spurious (RFC 4015).
    fn on_undo(&mut self);

    /// Processes a transmission after idleness of more than a timeout (RFC 5681 4.1).
    fn on_idle(&mut self);

    /// Restarts with segments of at most `mss` bytes, as the handshake determined.
    fn start(&mut self, mss: u32);

    /// Changes the segment size to at most `mss` bytes. All windows, also those that an undo restores, keep their number
    /// of segments (RFC 9438 4.1 counts in segments).
    fn set_mss(&mut self, mss: u32);
}

/// Returns the initial window (RFC 6928): ten segments, fewer if they are large.
fn initial_window(mss: u32) -> u32 {
    (10 * mss).min((2 * mss).max(14_600))
}

/// Returns a window for segments of `new` bytes with as many segments as `window` has of `old` bytes, and at least one
/// (in the spirit of RFC 8201 5.4).
fn rescaled(window: u32, old: u32, new: u32) -> u32 {
    let segments = (window / old.max(1)).max(1);
    segments.saturating_mul(new)
}

/// Returns a threshold or an earlier window, rescaled; 0 and [`u32::MAX`] mean "none", and stay.
fn rescaled_or_none(bytes: u32, old: u32, new: u32) -> u32 {
    if bytes == 0 || bytes == u32::MAX { bytes } else { rescaled(bytes, old, new) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_proves::proves;

    #[proves("RFC 6928 2", "ten segments, at most 14,600 bytes, but at least two segments.")]
    #[test]
    fn the_initial_window_has_fewer_large_segments() {
        assert_eq!(initial_window(1460), 14_600);
        assert_eq!(initial_window(536), 5_360);
        assert_eq!(initial_window(9000), 18_000);
    }
}
