//! Finding out that a segment was lost, and getting over it: fast retransmit and NewReno (RFC 6582).
//!
//! The state machine only: it says what an acknowledgement means. The sender acts on it.

use crate::tcp::seq::Seq;

/// Duplicate acknowledgements that mean a loss.
const THRESHOLD: u32 = 3;
/// Segments that may be sent beyond the window for the first duplicates (RFC 3042).
const LIMITED_TRANSMIT: u32 = 2;

/// What one connection's sender knows about losses.
#[derive(Debug)]
pub(crate) struct Recovery {
    phase: Phase,
    /// All before this was sent when the last loss was found. Duplicates that acknowledge no more than this
    /// may come from segments sent again, and mean nothing.
    recover: Seq,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Nothing is known to be lost; so many duplicates came in a row.
    Open { duplicates: u32 },
    /// Getting over a loss. `inflation` is added to the window for segments that left the network.
    Fast { inflation: u32, partials: u32 },
}

/// What an acknowledgement of new data means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// No loss is known.
    Normal,
    /// The next hole was found: its first segment is to be sent again.
    FirstPartial,
    /// As above, and not the first of this recovery: the retransmission timer runs on.
    Partial,
    /// Everything that was under way when the loss was found has arrived.
    Recovered,
}

/// What a duplicate acknowledgement means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Duplicate {
    /// Too few to say.
    Waiting,
    /// The first unacknowledged segment was lost.
    Loss,
}

impl Recovery {
    pub fn new(initial: Seq) -> Self {
        Self { phase: Phase::Open { duplicates: 0 }, recover: initial }
    }

    /// Bytes that may be under way beyond the congestion window.
    pub fn allowance(&self, mss: u32) -> u32 {
        match self.phase {
            Phase::Open { duplicates } => duplicates.min(LIMITED_TRANSMIT) * mss,
            Phase::Fast { inflation, .. } => inflation,
        }
    }

    /// New data up to `ack` was acknowledged, `acked` bytes of it.
    pub fn on_progress(&mut self, ack: Seq, acked: u32, mss: u32) -> Progress {
        match &mut self.phase {
            Phase::Open { duplicates } => {
                *duplicates = 0;
                Progress::Normal
            }
            Phase::Fast { .. } if !ack.before(self.recover) => {
                self.phase = Phase::Open { duplicates: 0 };
                Progress::Recovered
            }
            Phase::Fast { inflation, partials } => {
                *inflation = inflation.saturating_sub(acked);
                if acked >= mss {
                    *inflation += mss;
                }
                *partials += 1;
                if *partials == 1 { Progress::FirstPartial } else { Progress::Partial }
            }
        }
    }

    /// An acknowledgement told nothing new while data up to `max` was under way from `una` on.
    pub fn on_duplicate(&mut self, una: Seq, max: Seq, mss: u32) -> Duplicate {
        match &mut self.phase {
            Phase::Fast { inflation, .. } => {
                *inflation = inflation.saturating_add(mss);
                Duplicate::Waiting
            }
            Phase::Open { duplicates } => {
                *duplicates += 1;
                if *duplicates < THRESHOLD || !una.after(self.recover) {
                    return Duplicate::Waiting;
                }
                self.phase = Phase::Fast { inflation: THRESHOLD * mss, partials: 0 };
                self.recover = max;
                Duplicate::Loss
            }
        }
    }

    /// The retransmission timer ran out with data up to `max` under way.
    pub fn on_timeout(&mut self, max: Seq) {
        self.phase = Phase::Open { duplicates: 0 };
        self.recover = max;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 5681 3.2: the third duplicate begins fast recovery
    #[test]
    fn three_duplicates_are_a_loss_once() {
        let mut recovery = Recovery::new(Seq(0));
        let mut on_duplicate = || recovery.on_duplicate(Seq(1), Seq(10_001), 1000);
        assert_eq!(on_duplicate(), Duplicate::Waiting);
        assert_eq!(on_duplicate(), Duplicate::Waiting);
        assert_eq!(on_duplicate(), Duplicate::Loss);
        assert_eq!(on_duplicate(), Duplicate::Waiting);
        assert_eq!(recovery.allowance(1000), 4000);
        assert_eq!(recovery.on_progress(Seq(3001), 3000, 1000), Progress::FirstPartial);
        assert_eq!(recovery.allowance(1000), 2000);
        assert_eq!(recovery.on_progress(Seq(4001), 1000, 1000), Progress::Partial);
        assert_eq!(recovery.on_progress(Seq(10_001), 6000, 1000), Progress::Recovered);
        assert_eq!(recovery.on_progress(Seq(11_001), 1000, 1000), Progress::Normal);
    }

    /// RFC 6582 4: duplicates of what was sent again after a timeout do not begin another recovery
    #[test]
    fn duplicates_of_segments_sent_again_after_a_timeout_mean_nothing() {
        let mut recovery = Recovery::new(Seq(0));
        recovery.on_timeout(Seq(5000));
        for _ in 0..10 {
            assert_eq!(recovery.on_duplicate(Seq(5000), Seq(6000), 1000), Duplicate::Waiting);
        }
        assert_eq!(recovery.on_progress(Seq(5001), 1, 1000), Progress::Normal);
        for expected in [Duplicate::Waiting, Duplicate::Waiting, Duplicate::Loss] {
            assert_eq!(recovery.on_duplicate(Seq(5001), Seq(6000), 1000), expected);
        }
    }
}
