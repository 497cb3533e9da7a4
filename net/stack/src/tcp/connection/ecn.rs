//! Explicit congestion notification (RFC 3168): a router marks a packet instead of dropping it. The receiver of a
//! marked packet sets ECE in each acknowledgement until the sender confirms by CWR that it has reduced its window.

use crate::ip::Mark;
use crate::tcp::segment::{Flags, Segment};
use crate::tcp::seq::Seq;

/// Whether both sides agreed on ECN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EcnAgreement {
    No,
    Yes,
}

/// Whether a flag must be sent to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlagToSend {
    Nothing,
    Something,
}

/// Whether a segment has only data that was not sent before: only such segments may be marked (RFC 3168 6.1.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewDataOnly {
    Yes,
    No,
}

/// Whether a segment may be a long one, which the device cuts into several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LongSegment {
    Yes,
    No,
}

/// The result of an acknowledgement's ECE flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EcnReaction {
    /// No change.
    GoOn,
    /// The window must be reduced, as for a loss.
    SlowDown,
}

/// The ECN state of a connection.
#[derive(Debug)]
pub(super) struct Marks {
    pub agreed: EcnAgreement,
    /// Whether to send ECE, because a marked packet was received.
    echo: FlagToSend,
    /// Whether to send CWR, because the window was reduced.
    slowed: FlagToSend,
    /// The end of the flight when the window was last reduced. ECE is ignored until it is acknowledged.
    point: Seq,
}

impl Marks {
    pub const fn new(agreed: EcnAgreement, initial: Seq) -> Self {
        Self { agreed, echo: FlagToSend::Nothing, slowed: FlagToSend::Nothing, point: initial }
    }

    /// Processes the CWR flag and the mark of an accepted segment.
    pub fn on_segment(&mut self, segment: &Segment) {
        if segment.flags.has(Flags::CWR) {
            self.echo = FlagToSend::Nothing;
        }
        if segment.mark == Mark::Congestion && !segment.payload.is_empty() {
            self.echo = FlagToSend::Something;
        }
    }

    /// Processes the ECE flag, at most once per round trip (RFC 3168 6.1.2).
    pub fn read(&mut self, flags: Flags, una: Seq, nxt: Seq) -> EcnReaction {
        if !flags.has(Flags::ECE) || self.point.within(una, nxt) || una == nxt {
            return EcnReaction::GoOn;
        }
        self.point = nxt;
        self.slowed = FlagToSend::Something;
        EcnReaction::SlowDown
    }

    /// Returns whether the next segment may be a long one. The segment with CWR may not: a device without ECN support
    /// would repeat CWR in each segment.
    #[inline]
    pub fn long(&self) -> LongSegment {
        if self.slowed == FlagToSend::Something { LongSegment::No } else { LongSegment::Yes }
    }

    /// Returns the ECN flags of an outgoing segment.
    pub fn flags(&mut self, fresh: NewDataOnly) -> Flags {
        let mut flags = Flags::NONE;
        if self.echo == FlagToSend::Something {
            flags = flags | Flags::ECE;
        }
        if fresh == NewDataOnly::Yes && self.slowed == FlagToSend::Something {
            self.slowed = FlagToSend::Nothing;
            flags = flags | Flags::CWR;
        }
        flags
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_proves::proves;

    #[proves(
        "RFC 3168 6.1.2",
        "a mark reduces the window once per flight, and a later mark again, however far ahead it is"
    )]
    #[test]
    fn a_mark_counts_at_any_distance_from_the_last_one() {
        let mut marks = Marks::new(EcnAgreement::Yes, Seq(0));
        assert_eq!(marks.read(Flags::ECE, Seq(1), Seq(1001)), EcnReaction::SlowDown);
        assert_eq!(marks.read(Flags::ECE, Seq(501), Seq(2001)), EcnReaction::GoOn);
        for una in [1002, (1 << 31) + 2000, 3 << 30] {
            let mut later = Marks { ..marks };
            assert_eq!(later.read(Flags::ECE, Seq(una), Seq(una + 1000)), EcnReaction::SlowDown, "{una}");
        }
    }
}
