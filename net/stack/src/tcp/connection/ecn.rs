//! Explicit congestion notification (RFC 3168): a router that would drop a packet marks it instead. The
//! receiver of a marked packet says so in each acknowledgement, until the sender says that it has slowed down.

use crate::ip::Mark;
use crate::tcp::segment::{Flags, Segment};
use crate::tcp::seq::Seq;

/// Whether both sides said that they know marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Agreed {
    No,
    Yes,
}

/// What is to be told to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Telling {
    Nothing,
    Something,
}

/// Whether a segment carries data for the first time: only that may be marked (RFC 3168 6.1.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fresh {
    Yes,
    No,
}

/// What an acknowledgement says of marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advice {
    /// Nothing new.
    GoOn,
    /// The window is to shrink, as if something had been lost.
    SlowDown,
}

/// One connection's state.
#[derive(Debug)]
pub(super) struct Marks {
    pub agreed: Agreed,
    /// That a mark came in.
    echo: Telling,
    /// That the window was made smaller.
    slowed: Telling,
    /// What had been sent when it was: marks of what lies before mean no more.
    point: Seq,
}

impl Marks {
    pub const fn new(agreed: Agreed, initial: Seq) -> Self {
        Self { agreed, echo: Telling::Nothing, slowed: Telling::Nothing, point: initial }
    }

    /// Takes note of a segment that counts.
    pub fn on_segment(&mut self, segment: &Segment) {
        if segment.flags.has(Flags::CWR) {
            self.echo = Telling::Nothing;
        }
        if segment.mark == Mark::Congestion && !segment.payload.is_empty() {
            self.echo = Telling::Something;
        }
    }

    /// What a segment's flags say, once a round trip (RFC 3168 6.1.2).
    pub fn read(&mut self, flags: Flags, una: Seq, nxt: Seq) -> Advice {
        if !flags.has(Flags::ECE) || !una.after(self.point) || una == nxt {
            return Advice::GoOn;
        }
        self.point = nxt;
        self.slowed = Telling::Something;
        Advice::SlowDown
    }

    /// The flags of a segment that goes out.
    pub fn flags(&mut self, fresh: Fresh) -> Flags {
        let mut flags = Flags::NONE;
        if self.echo == Telling::Something {
            flags = flags | Flags::ECE;
        }
        if fresh == Fresh::Yes && self.slowed == Telling::Something {
            self.slowed = Telling::Nothing;
            flags = flags | Flags::CWR;
        }
        flags
    }
}
