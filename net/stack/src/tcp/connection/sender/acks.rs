//! Acknowledgements on a connection without losses: progress, window, round-trip time and timers.

use super::{Ack, AckKind, BareSegment, EarlyTimer, Fin, Sender};
use crate::base::{Counters, Duration, Instant};
use crate::tcp::congestion::{AckedData, Round, WindowUse};
use crate::tcp::connection::{StreamEnd, header_prediction::PlainSegment};
use crate::tcp::options::Sack;
use crate::tcp::seq::Seq;

/// Minimum time before a tail loss probe, because peers do not acknowledge without delay.
const LEAST_PROBE: Duration = Duration::from_millis(10);
/// Maximum time for which a peer may delay the acknowledgement of a single segment (RFC 8985 7.2).
const ACK_DELAY: Duration = Duration::from_millis(200);

/// Whether an acknowledgement is a duplicate of the previous one (RFC 5681 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeats {
    Yes,
    No,
}

impl Sender {
    /// Processes an acknowledgement.
    pub fn on_ack(&mut self, now: Instant, ack: Ack<'_>, counters: &mut Counters) -> AckKind {
        let position = ack.ack;
        if position.after(self.max) || position.before(self.una.back(self.max_window)) {
            return AckKind::Invalid;
        }
        if position.before(self.una) {
            return AckKind::Old;
        }
        if self.probes > 0 {
            // The peer has answered a probe, so it is alive. While data is in flight, only progress counts.
            self.timeouts = 0;
        }
        let window = u32::from(ack.window) << self.scale;
        let same_window = window == self.window;
        self.take_window(ack.seq, position, window);
        let moves = position != self.una;
        let repeats = !moves && same_window && ack.bare == BareSegment::Yes && self.nxt.after(self.una);
        if !self.is_calm() || !ack.sack.is_empty() || (repeats && self.sack == Sack::Refused) {
            let repeats = if repeats { Repeats::Yes } else { Repeats::No };
            self.on_troubled_ack(now, &ack, repeats, counters);
        } else if moves {
            self.take_progress(now, position);
        }
        if moves { AckKind::New } else { AckKind::Old }
    }

    /// Returns whether a segment with `len` bytes of data and this acknowledgement indicates no loss, and no recovery
    /// is in progress.
    #[inline(always)]
    pub fn expects(&self, ack: Seq, len: u32) -> bool {
        let moves = ack != self.una;
        let under_way = !ack.before(self.una) && !ack.after(self.max);
        // An empty segment without progress may be a duplicate acknowledgement.
        under_way && (moves || len > 0) && self.is_calm() && self.probes == 0
    }

    /// Processes an acknowledgement for which [`Self::expects`] is true. Returns whether it made progress.
    #[inline]
    pub fn on_expected_ack(&mut self, now: Instant, plain: &PlainSegment) -> bool {
        self.take_window(plain.seq, plain.ack, u32::from(plain.window) << self.scale);
        let moves = plain.ack != self.una;
        if moves {
            self.take_progress(now, plain.ack);
        }
        moves
    }

    /// Returns whether a segment without data and with this acknowledgement indicates no loss, and no recovery is in
    /// progress. While data is in flight, a segment without progress and FIN may be a duplicate acknowledgement.
    pub fn expects_end(&self, ack: Seq, fin: StreamEnd) -> bool {
        let under_way = !ack.before(self.una) && !ack.after(self.max);
        let alone = ack != self.una || fin == StreamEnd::Yes || self.nxt == self.una;
        under_way && alone && self.is_calm() && self.probes == 0
    }

    /// Processes an acknowledgement for which [`Self::expects_end`] is true. `window` is the field of the header, not
    /// scaled. Returns whether the acknowledgement made progress.
    pub fn on_calm_ack(&mut self, now: Instant, seq: Seq, ack: Seq, window: u16) -> bool {
        self.take_window(seq, ack, u32::from(window) << self.scale);
        let moves = ack != self.una;
        if moves {
            self.take_progress(now, ack);
        }
        moves
    }

    /// Returns whether no data is lost, under recovery, or presumed lost.
    #[inline(always)]
    pub(super) fn is_calm(&self) -> bool {
        self.flight.is_whole() && self.repair.is_none() && self.tail.is_none() && self.assumed == 0
    }

    /// Processes the acknowledgement of all data before `position`, in a flight without SACKed or lost data.
    #[inline]
    fn take_progress(&mut self, now: Instant, position: Seq) {
        let rtt = self.flight.acked_whole(position, now);
        let acked = self.advance(now, position);
        self.grow(now, position, acked, rtt);
    }

    /// Updates the window, if the segment is newer than the one of the last update (RFC 9293 3.10.7.4).
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

    /// Removes the acknowledged data from the queue and restarts the timers. Returns the number of acknowledged
    /// sequence numbers.
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
        self.probe = super::SendDue::No;
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

    /// Reports arrived data to the congestion control. One sample per round trip enters the retransmission timeout.
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
        self.control.on_ack(AckedData { bytes: acked, now, rtt, round }, window_use);
    }

    /// Returns the time of a tail loss probe, counted from `since`; `None` if it would not precede the timeout, or if
    /// the peer does not send SACK, which makes the probe useless (RFC 8985 7.2).
    #[inline]
    pub(super) fn probe_at(&self, since: Instant) -> Option<(Instant, EarlyTimer)> {
        let calm = self.repair.is_none() && self.tail.is_none() && self.flight.is_whole();
        if calm { self.probe_when_calm(since) } else { None }
    }

    /// Returns the time of a tail loss probe on a connection without losses, recovery and probe.
    #[inline(always)]
    pub(super) fn probe_when_calm(&self, since: Instant) -> Option<(Instant, EarlyTimer)> {
        if self.sack == Sack::Refused {
            return None;
        }
        let smoothed = self.rtt.smoothed()?;
        let twice = smoothed + smoothed;
        let single = self.nxt.since(self.una) <= self.mss;
        let at = since + if single { twice + ACK_DELAY } else { twice.max(LEAST_PROBE) };
        (at < self.timeout_at?).then_some((at, EarlyTimer::Probe))
    }
}
