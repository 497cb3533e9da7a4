//! What an acknowledgement changes while nothing is lost: progress, the window, the round trip, the timers.

use super::{Ack, AckKind, Bare, Fin, Sender, Soon};
use crate::counters::Counters;
use crate::tcp::congestion::{Arrived, Round, WindowUse};
use crate::tcp::connection::EndCame;
use crate::tcp::connection::header_prediction::Plain;
use crate::tcp::options::Sack;
use crate::tcp::seq::Seq;
use crate::time::{Duration, Instant};

/// The least time before the tail is probed: no peer acknowledges by the clock.
const LEAST_PROBE: Duration = Duration::from_millis(10);
/// How long a peer may keep the acknowledgement of a single segment back (RFC 8985 7.2).
const ACK_DELAY: Duration = Duration::from_millis(200);

/// Whether an acknowledgement only repeats the last one (RFC 5681 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeats {
    Yes,
    No,
}

impl Sender {
    /// Takes an acknowledgement in.
    pub fn on_ack(&mut self, now: Instant, ack: Ack<'_>, counters: &mut Counters) -> AckKind {
        let position = ack.ack;
        if position.after(self.max) || position.before(self.una.back(self.max_window)) {
            return AckKind::Invalid;
        }
        if position.before(self.una) {
            return AckKind::Old;
        }
        if self.probes > 0 {
            // An answer to a probe: the peer lives. While data is under way, only progress counts.
            self.timeouts = 0;
        }
        let window = u32::from(ack.window) << self.scale;
        let same_window = window == self.window;
        self.take_window(ack.seq, position, window);
        let moves = position != self.una;
        let repeats = !moves && same_window && ack.bare == Bare::Yes && self.nxt.after(self.una);
        if !self.is_calm() || !ack.sack.is_empty() || (repeats && self.sack == Sack::Refused) {
            let repeats = if repeats { Repeats::Yes } else { Repeats::No };
            self.on_troubled_ack(now, &ack, repeats, counters);
        } else if moves {
            self.take_progress(now, position);
        }
        if moves { AckKind::New } else { AckKind::Old }
    }

    /// Whether a segment with `len` bytes of data that acknowledges up to `ack` says nothing of losses, and nothing is being
    /// done about any.
    #[inline]
    pub fn expects(&self, ack: Seq, len: u32) -> bool {
        let moves = ack != self.una;
        let under_way = !ack.before(self.una) && !ack.after(self.max);
        // One without data that moves nothing may be a duplicate.
        under_way && (moves || len > 0) && self.is_calm() && self.probes == 0
    }

    /// Takes the acknowledgement of a segment in that [`Self::expects`] spoke of; returns whether it moved anything.
    #[inline]
    pub fn on_expected_ack(&mut self, now: Instant, plain: &Plain) -> bool {
        self.take_window(plain.seq, plain.ack, u32::from(plain.window) << self.scale);
        let moves = plain.ack != self.una;
        if moves {
            self.take_progress(now, plain.ack);
        }
        moves
    }

    /// Whether a segment without data that acknowledges up to `ack` says nothing of losses, and nothing is being done about
    /// any. One that neither moves anything nor ends the peer's stream may be a duplicate, where something is under way.
    pub fn expects_end(&self, ack: Seq, fin: EndCame) -> bool {
        let under_way = !ack.before(self.una) && !ack.after(self.max);
        let alone = ack != self.una || fin == EndCame::Yes || self.nxt == self.una;
        under_way && alone && self.is_calm() && self.probes == 0
    }

    /// Takes the acknowledgement of a segment in that [`Self::expects_end`] spoke of, which tells the window `window` as it
    /// stands in the header; returns whether it moved anything.
    pub fn on_calm_ack(&mut self, now: Instant, seq: Seq, ack: Seq, window: u16) -> bool {
        self.take_window(seq, ack, u32::from(window) << self.scale);
        let moves = ack != self.una;
        if moves {
            self.take_progress(now, ack);
        }
        moves
    }

    /// Whether nothing is lost or repaired, nor in doubt.
    #[inline(always)]
    pub(super) fn is_calm(&self) -> bool {
        self.flight.is_whole() && self.repair.is_none() && self.tail.is_none() && self.assumed == 0
    }

    /// All up to `position` has arrived, of a flight that is whole.
    #[inline]
    fn take_progress(&mut self, now: Instant, position: Seq) {
        let rtt = self.flight.acked_whole(position, now);
        let acked = self.advance(now, position);
        self.grow(now, position, acked, rtt);
    }

    /// RFC 9293 3.10.7.4: only a segment newer than the last one that told the window tells it again.
    #[inline]
    fn take_window(&mut self, seq: Seq, ack: Seq, window: u32) {
        let newer = self.window_seq.before(seq) || (self.window_seq == seq && !ack.before(self.window_ack));
        if newer {
            self.window = window;
            self.max_window = self.max_window.max(window);
            self.window_seq = seq;
            self.window_ack = ack;
        }
    }

    /// Lets go of what was acknowledged, and sets the timers anew; returns how many sequence numbers it was.
    #[inline]
    pub(super) fn advance(&mut self, now: Instant, ack: Seq) -> u32 {
        let acked = ack.since(self.una);
        let data = (acked as usize).min(self.queue.len());
        self.queue.acked(data);
        self.bytes_acked += data as u64;
        self.timeouts = 0;
        if acked as usize > data {
            self.fin = Fin::Acked;
        }
        self.una = ack;
        self.nxt = self.nxt.max(ack);
        self.persist_at = None;
        self.probe = super::Due::No;
        self.probes = 0;
        if self.nxt == self.una {
            self.timeout_at = None;
            self.soon = None;
        } else {
            self.timeout_at = Some(now + self.rtt.timeout());
            self.soon = self.probe_at(now);
        }
        acked
    }

    /// Tells the congestion control what arrived, and takes a measured round trip in: one a round trip.
    #[inline]
    pub(super) fn grow(&mut self, now: Instant, ack: Seq, acked: u32, rtt: Option<Duration>) {
        let mut round = Round::Same;
        if let Some(rtt) = rtt
            && !ack.before(self.round)
        {
            self.rtt.measure(rtt);
            self.round = self.nxt;
            round = Round::New;
        }
        let window_use = if ack.after(self.full) {
            self.full = ack.back(1);
            WindowUse::Partial
        } else {
            WindowUse::Full
        };
        self.control.on_ack(Arrived { bytes: acked, now, rtt, round }, window_use);
    }

    /// When the tail is to be probed, seen from `since`: only where that is before the timeout, and where a
    /// peer that reports what it has makes it useful (RFC 8985 7.2).
    #[inline]
    pub(super) fn probe_at(&self, since: Instant) -> Option<(Instant, Soon)> {
        let calm = self.repair.is_none() && self.tail.is_none() && self.flight.is_whole();
        if calm { self.probe_when_calm(since) } else { None }
    }

    /// The same where nothing is lost, repaired or probed.
    #[inline(always)]
    pub(super) fn probe_when_calm(&self, since: Instant) -> Option<(Instant, Soon)> {
        if self.sack == Sack::Refused {
            return None;
        }
        let smoothed = self.rtt.smoothed()?;
        let twice = smoothed + smoothed;
        let single = self.nxt.since(self.una) <= self.mss;
        let at = since + if single { twice + ACK_DELAY } else { twice.max(LEAST_PROBE) };
        (at < self.timeout_at?).then_some((at, Soon::Probe))
    }
}
