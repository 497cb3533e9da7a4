//! Finding losses by time (RFC 8985): what was sent before something that has arrived, and is late, is lost.
//!
//! Exists only on connections where something was lost, reordered or probed for.

use super::flight::{Run, Times};
use crate::tcp::sack::Block;
use crate::tcp::seq::Seq;
use crate::tcp::timestamps::tick_of;
use crate::time::{Duration, Instant};

/// Recoveries for which a reordering window stays that duplicates have widened.
const PERSISTENCE: u8 = 16;

/// Whether segments have overtaken each other on this path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Kept,
    Broken,
}

/// How sure the sender is that the gaps are losses: then it waits for nothing while the order was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// It recovers already, or three segments have arrived behind a gap.
    Strong,
    Weak,
}

/// Bytes that the last repair sent again, and how many of them the peer had.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unneeded {
    pub sent: u32,
    pub duplicates: u32,
}

/// What is known of a path's order.
#[derive(Debug)]
pub(super) struct Rack {
    /// Of all that has arrived, what was sent last: when, and its end.
    newest: Option<(Instant, Seq)>,
    /// Its round trip.
    rtt: Duration,
    /// The highest position that has arrived.
    highest: Seq,
    order: Order,
    /// Quarters of the least round trip that segments may be late.
    quarters: u8,
    /// Recoveries until that is one quarter again.
    persistence: u8,
    pub unneeded: Unneeded,
    /// Duplicates that are reported before this position is acknowledged are of one round trip.
    round: Option<Seq>,
}

/// What an acknowledgement delivers.
pub(super) struct Deliveries<'a> {
    pub now: Instant,
    /// When the segment went out that the acknowledgement answers, as its timestamp tells.
    pub echoed: Option<Instant>,
    pub least_rtt: Duration,
    pub rack: &'a mut Rack,
    /// Bytes that have arrived and were not known to.
    pub bytes: u32,
    /// The latest round trip of what was sent once.
    pub rtt: Option<Duration>,
}

impl Deliveries<'_> {
    /// The bytes from `from` to `end`, of `run`, have arrived.
    pub fn take(&mut self, from: Seq, end: Seq, run: &Run) {
        self.bytes += end.since(from);
        let rtt = self.now.since(run.sent_at);
        let ambiguous = run.times == Times::Again
            && (rtt < self.least_rtt || self.echoed.is_some_and(|echoed| echoed < tick_of(run.sent_at)));
        let rack = &mut *self.rack;
        if run.times == Times::Once {
            self.rtt = Some(self.rtt.map_or(rtt, |other| other.min(rtt)));
            if end.before(rack.highest) {
                rack.order = Order::Broken;
            }
        }
        rack.highest = rack.highest.max(end);
        if !ambiguous && rack.newest.is_none_or(|newest| is_later((run.sent_at, end), newest)) {
            rack.newest = Some((run.sent_at, end));
            rack.rtt = rtt;
        }
    }
}

/// Whether `a` was sent after `b`.
fn is_later(a: (Instant, Seq), b: (Instant, Seq)) -> bool {
    a.0 > b.0 || (a.0 == b.0 && a.1.after(b.1))
}

impl Rack {
    pub const fn new(una: Seq) -> Self {
        Self {
            newest: None,
            rtt: Duration::ZERO,
            highest: una,
            order: Order::Kept,
            quarters: 1,
            persistence: 0,
            unneeded: Unneeded { sent: 0, duplicates: 0 },
            round: None,
        }
    }

    /// What was acknowledged in order since the last look has moved on from the highest position known.
    pub fn keep_up(&mut self, una: Seq, nxt: Seq) {
        if !self.highest.within(una, nxt) {
            self.highest = una;
        }
    }

    /// The peer got something twice: it was late, not lost. More lateness is borne from now on, by a quarter
    /// of the least round trip a round trip (RFC 8985 6.2, step 4).
    pub fn on_duplicate(&mut self, una: Seq, nxt: Seq, block: Block) {
        let len = block.end.since(block.start);
        self.unneeded.duplicates = self.unneeded.duplicates.saturating_add(len);
        if self.round.is_some_and(|round| round != una && round.within(una, nxt.max(una))) {
            return;
        }
        self.round = Some(nxt);
        self.quarters = self.quarters.saturating_add(1);
        self.persistence = PERSISTENCE;
    }

    /// Whether all that the last repair sent again was reported as a duplicate: true once.
    pub fn was_unneeded(&mut self) -> bool {
        let all = self.unneeded.sent > 0 && self.unneeded.duplicates >= self.unneeded.sent;
        if all {
            self.unneeded = Unneeded::default();
        }
        all
    }

    /// A recovery is over.
    pub fn on_recovered(&mut self) {
        self.persistence = self.persistence.saturating_sub(1);
        if self.persistence == 0 {
            self.quarters = 1;
        }
    }

    /// How late a segment may be.
    pub fn lateness(&self, evidence: Evidence, least_rtt: Duration, smoothed: Duration) -> Duration {
        if self.order == Order::Kept && evidence == Evidence::Strong {
            return Duration::ZERO;
        }
        least_rtt.times(u64::from(self.quarters)).divided_by(4).min(smoothed)
    }

    /// Since when a run is lost that may be `lateness` late; nothing where nothing sent later has arrived.
    pub fn lost_since(&self, run: &Run, lateness: Duration) -> Option<Instant> {
        self.newest.filter(|&newest| is_later(newest, (run.sent_at, run.end)))?;
        Some(run.sent_at + self.rtt + lateness)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_proves::proves;

    #[proves("RFC 8985 6.2", "the reordering window grows once a round trip.")]
    #[test]
    fn what_was_noted_gigabytes_ago_means_nothing() {
        for gone in [2000, (1 << 31) + 5000, 3 << 30] {
            let mut rack = Rack::new(Seq(0));
            let block = Block { start: Seq(0), end: Seq(500) };
            rack.on_duplicate(Seq(1000), Seq(2000), block);
            rack.on_duplicate(Seq(1500), Seq(2500), block);
            assert_eq!(rack.quarters, 2);
            rack.highest = Seq(1500);
            let una = Seq(gone);
            rack.keep_up(una, una + 1000);
            assert_eq!(rack.highest, una);
            rack.on_duplicate(una, una + 1000, block);
            assert_eq!(rack.quarters, 3, "{gone}");
        }
    }
}
