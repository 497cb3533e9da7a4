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

/// Whether a segment may be a long one, which the device cuts into several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Long {
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
        if !flags.has(Flags::ECE) || self.point.within(una, nxt) || una == nxt {
            return Advice::GoOn;
        }
        self.point = nxt;
        self.slowed = Telling::Something;
        Advice::SlowDown
    }

    /// Whether the next segment may be cut by the device: not the one that says that the window was made smaller, as a
    /// device that knows nothing of it would say so in each piece.
    #[inline]
    pub fn long(&self) -> Long {
        if self.slowed == Telling::Something { Long::No } else { Long::Yes }
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

#[cfg(test)]
mod tests {
    use super::*;
    use isola_proves::proves;

    /// much went through without any in between.
    #[proves(
        "RFC 3168 6.1.2",
        "a mark slows the sender down, once for what is under way, and so does the next one, however"
    )]
    #[test]
    fn a_mark_counts_however_long_ago_the_last_one_was() {
        let mut marks = Marks::new(Agreed::Yes, Seq(0));
        assert_eq!(marks.read(Flags::ECE, Seq(1), Seq(1001)), Advice::SlowDown);
        assert_eq!(marks.read(Flags::ECE, Seq(501), Seq(2001)), Advice::GoOn);
        for una in [1002, (1 << 31) + 2000, 3 << 30] {
            let mut later = Marks { ..marks };
            assert_eq!(later.read(Flags::ECE, Seq(una), Seq(una + 1000)), Advice::SlowDown, "{una}");
        }
    }
}
