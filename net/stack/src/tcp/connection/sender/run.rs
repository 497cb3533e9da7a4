//! Sequence numbers with the same state: the elements of a flight.

use crate::base::Instant;
use crate::tcp::seq::Seq;

/// The state of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunState {
    /// Sent, with no further information.
    Sent,
    /// SACKed: the peer has received it beyond a gap.
    Sacked,
    /// Lost: to be retransmitted.
    Lost,
}

/// Whether a run was retransmitted. Retransmitted data gives no round-trip time (Karn's algorithm).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Times {
    Once,
    Again,
}

/// Sequence numbers up to `end` with the same state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub end: Seq,
    pub fate: RunState,
    pub times: Times,
    /// The time of the last transmission.
    pub sent_at: Instant,
}
