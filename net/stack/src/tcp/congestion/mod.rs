//! How much may be under way: congestion control behind one trait.
//!
//! The trait has what every loss-based algorithm needs; finding out *that* something was lost, and getting
//! over it, is the sender's (`connection/sender`): any algorithm goes with any way of finding losses.

mod control;
mod cubic;
mod hystart;
mod new_reno;

use crate::time::{Duration, Instant};
use alloc::boxed::Box;
pub(crate) use control::Control;
use core::fmt::Debug;
use cubic::Cubic;
use new_reno::NewReno;

/// Which algorithm a connection uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// RFC 9438, with HyStart++ (RFC 9406): what most of the Internet uses.
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

/// Whether the window was what held the sender back. A window that isn't used must not grow (RFC 7661).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowUse {
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

/// Whether an acknowledgement is the first of another round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// It belongs to the round trip of the one before.
    Same,
    /// What was sent after the last round trip's beginning arrived.
    New,
}

/// What an acknowledgement of new data tells, of data that had filled the window.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    /// Bytes that arrived.
    pub bytes: u32,
    /// The time.
    pub now: Instant,
    /// The round trip, where one was measured.
    pub rtt: Option<Duration>,
    /// Whether a round trip begins.
    pub round: Round,
}

/// A congestion control algorithm's state for one connection. All amounts are in bytes.
pub trait CongestionControl: Debug + Send {
    /// The algorithm's name.
    fn name(&self) -> &'static str;

    /// Bytes that may be under way.
    fn window(&self) -> u32;

    /// Bytes that may be under way when the recovery is over that has begun.
    fn threshold(&self) -> u32;

    /// Takes note that the window was not the limit for `span`: the data that arrived meanwhile had not filled it. `rtt` is
    /// the last round trip that this data measured, if any. Called before any of the methods below.
    fn on_unused(&mut self, span: Duration, rtt: Option<Duration>);

    /// Data arrived, outside of a recovery from a loss, that had filled the window.
    fn on_ack(&mut self, arrived: Arrived);

    /// A segment was lost, as acknowledgements tell; recovery begins. Until it ends the sender lowers what is
    /// under way to the threshold by itself (RFC 9937).
    fn on_loss(&mut self, now: Instant, in_flight: u32);

    /// All that was under way when the loss was found has arrived; recovery ends.
    fn on_recovered(&mut self);

    /// The retransmission timer ran out.
    fn on_timeout(&mut self, now: Instant, in_flight: u32, timeout: Timeout);

    /// The last loss or timeout was none: the window is as if it had not been found (RFC 4015).
    fn on_undo(&mut self);

    /// Nothing was sent for longer than a timeout (RFC 5681 4.1).
    fn on_idle(&mut self);

    /// The handshake told that segments carry at most `mss` bytes: begins anew.
    fn start(&mut self, mss: u32);

    /// Segments carry at most `mss` bytes from now on.
    fn set_mss(&mut self, mss: u32);
}

/// RFC 6928: ten segments, less where they are large.
fn initial_window(mss: u32) -> u32 {
    (10 * mss).min((2 * mss).max(14_600))
}

/// A window for segments of `new` bytes that has as many of them as `window` had of `old` bytes (RFC 8201 5.4's
/// spirit), and at least one.
fn rescaled(window: u32, old: u32, new: u32) -> u32 {
    let segments = (window / old.max(1)).max(1);
    segments.saturating_mul(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_proves::proves;

    #[proves("RFC 6928 2", "ten segments, at most 14,600 bytes but two segments in any case.")]
    #[test]
    fn large_segments_make_a_smaller_first_window() {
        assert_eq!(initial_window(1460), 14_600);
        assert_eq!(initial_window(536), 5_360);
        assert_eq!(initial_window(9000), 18_000);
    }
}
