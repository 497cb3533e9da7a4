//! Loss detection by time (RFC 8985): data that was sent before some arrived data, and is late, is lost.
//!
//! Allocated only for connections with a loss, reordering or a probe.

use super::run::{Run, Times};
use crate::base::{Duration, Instant};
use crate::tcp::sack::Block;
use crate::tcp::seq::Seq;
use crate::tcp::timestamps::tick_of;

/// Number of recoveries for which a reordering window widened by duplicates remains.
const PERSISTENCE: u8 = 16;

/// Whether reordering was seen on this path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Kept,
    Broken,
}

/// Strength of the evidence that a gap is a loss. With strong evidence, and without reordering so far, the sender does
/// not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// A recovery is in progress, or more than two segments' worth of data beyond a gap is SACKed.
    Strong,
    Weak,
}

/// Bytes that the last recovery retransmitted, and how many of them the peer reported as duplicates.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SpuriousRetransmissions {
    pub sent: u32,
    pub duplicates: u32,
}

/// The RACK state of a connection.
#[derive(Debug)]
pub(super) struct Rack {
    /// Send time and end of the latest sent data that has arrived.
    newest: Option<(Instant, Seq)>,
    /// The round-trip time of that data.
    rtt: Duration,
    /// The highest sequence number that has arrived.
    highest: Seq,
    order: Order,
    /// The reordering window, in quarters of the minimum round-trip time.
    quarters: u8,
    /// Number of recoveries until the reordering window is a quarter again.
    persistence: u8,
    pub unneeded: SpuriousRetransmissions,
    /// End of the flight at the last widening. Duplicates reported before it is acknowledged belong to the same round
    /// trip.
    round: Option<Seq>,
}

/// The data that an acknowledgement reports as arrived.
pub(super) struct Deliveries<'a> {
    pub now: Instant,
    /// The time at which the segment that the acknowledgement answers was sent, by its timestamp echo.
    pub echoed: Option<Instant>,
    pub least_rtt: Duration,
    pub rack: &'a mut Rack,
    /// Number of newly arrived bytes.
    pub bytes: u32,
    /// Smallest round-trip time of the arrived data that was sent only once.
    pub rtt: Option<Duration>,
}

impl Deliveries<'_> {
    /// Records that the bytes from `from` to `end`, of `run`, have arrived.
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

/// Returns whether `a` was sent after `b`.
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
            unneeded: SpuriousRetransmissions { sent: 0, duplicates: 0 },
            round: None,
        }
    }

    /// Advances the highest arrived position to the acknowledged data, if it has fallen out of the flight.
    pub fn keep_up(&mut self, una: Seq, nxt: Seq) {
        if !self.highest.within(una, nxt) {
            self.highest = una;
        }
    }

    /// Widens the reordering window after a reported duplicate, which was late and not lost: by a quarter of the
    /// minimum round-trip time, at most once per round trip (RFC 8985 6.2, step 4).
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

    /// Returns whether all data that the last recovery retransmitted has been reported as duplicates. Returns true
    /// once.
    pub fn was_unneeded(&mut self) -> bool {
        let all = self.unneeded.sent > 0 && self.unneeded.duplicates >= self.unneeded.sent;
        if all {
            self.unneeded = SpuriousRetransmissions::default();
        }
        all
    }

    /// Counts the end of a recovery.
    pub fn on_recovered(&mut self) {
        self.persistence = self.persistence.saturating_sub(1);
        if self.persistence == 0 {
            self.quarters = 1;
        }
    }

    /// Returns the reordering window: the time by which a segment may be late.
    pub fn lateness(&self, evidence: Evidence, least_rtt: Duration, smoothed: Duration) -> Duration {
        if self.order == Order::Kept && evidence == Evidence::Strong {
            return Duration::ZERO;
        }
        least_rtt.times(u64::from(self.quarters)).divided_by(4).min(smoothed)
    }

    /// Returns the time from which a run is lost, with this reordering window; `None` if no data sent later has
    /// arrived.
    pub fn lost_since(&self, run: &Run, lateness: Duration) -> Option<Instant> {
        self.newest.filter(|&newest| is_later(newest, (run.sent_at, run.end)))?;
        Some(run.sent_at + self.rtt + lateness)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_proves::proves;

    #[proves("RFC 8985 6.2", "the reordering window grows once per round trip.")]
    #[test]
    fn positions_recorded_gigabytes_ago_are_ignored() {
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
