//! Acknowledgements on a connection with possible losses: loss detection, recovery, and the undo of a spurious
//! recovery.

use super::acks::Repeats;
use super::rack::{Deliveries, Evidence, Rack, SpuriousRetransmissions};
use super::repair::{Cause, Reduction, Repair, SafeAck, SpuriousTest};
use super::{Ack, EarlyTimer, Sender, Tail, TailKind};
use crate::base::{Counter, Counters, Duration, Instant};
use crate::tcp::options::Sack;
use crate::tcp::sack::{Block, SackBlocks};
use crate::tcp::seq::Seq;
use alloc::boxed::Box;

/// Number of duplicate acknowledgements that indicate a loss, if the peer does not send SACK (RFC 5681 3.2).
const THRESHOLD: u8 = 3;

impl Sender {
    /// Returns the number of bytes in flight, excluding those SACKed, lost, or assumed to have left the network.
    #[inline]
    pub(super) fn pipe(&self) -> u32 {
        let known = self.flight.sacked() + self.flight.lost();
        self.nxt.since(self.una).saturating_sub(known).saturating_sub(self.assumed)
    }

    /// Returns the number of bytes that may be in flight.
    #[inline]
    pub(super) fn allowed(&self) -> u32 {
        match &self.repair {
            Some(repair) if repair.cause == Cause::Loss => repair.rate.window,
            _ => self.control.window(),
        }
    }

    #[cold]
    pub(super) fn on_troubled_ack(
        &mut self,
        now: Instant,
        ack: &Ack<'_>,
        repeats: Repeats,
        counters: &mut Counters,
    ) {
        let (position, in_flight) = (ack.ack, self.nxt.since(self.una));
        let mut rack = self.rack.take().unwrap_or_else(|| Box::new(Rack::new(self.una)));
        rack.keep_up(self.una, self.nxt);
        let least_rtt = self.rtt.least();
        let mut news =
            Deliveries { now, echoed: ack.echoed, least_rtt, rack: &mut rack, bytes: 0, rtt: None };
        self.flight.acked(position, &mut news);
        let (blocks, duplicate) = self.sort(ack);
        blocks.iter().for_each(|block| self.flight.sack(block, &mut news));
        let (mut delivered, rtt) = (news.bytes, news.rtt);
        // The round-trip time of a retransmission is measured by timestamps, if both sides use them (RFC 7323 4.1).
        let longest = self.rtt.max_timeout();
        let rtt = rtt.or(ack.echoed.map(|echoed| now.since(echoed)).filter(|&rtt| rtt <= longest));
        if let Some(block) = duplicate {
            rack.on_duplicate(position, self.nxt, block);
        }
        self.rack = Some(rack);
        let acked = if position == self.una { 0 } else { self.advance(now, position) };
        self.judge_tail(now, position, duplicate, repeats, in_flight);
        let unneeded = self.rack.as_mut().is_some_and(|rack| rack.was_unneeded());
        if unneeded || self.answers_the_first(ack.echoed, acked) {
            self.take_back(counters);
        }
        if self.sack == Sack::Refused {
            delivered = self.count_duplicates(position, acked, repeats, delivered);
        }
        let ended = self.end_repair(position, acked);
        let lost = self.find_losses(now);
        if lost > 0 && self.repair.is_none() {
            self.begin_repair(now, in_flight, delivered, counters);
        }
        let safe = if acked > 0 && lost == 0 { SafeAck::Yes } else { SafeAck::No };
        let (pipe, threshold) = (self.pipe(), self.control.threshold());
        match &mut self.repair {
            Some(repair) if repair.cause == Cause::Loss => {
                repair.rate.on_ack(delivered, pipe, threshold, self.mss, safe);
                self.measure_only(position, rtt);
            }
            // The acknowledgement that ends a recovery does not let the window grow.
            _ if ended == Some(Cause::Loss) => self.measure_only(position, rtt),
            _ if acked > 0 => self.grow(now, position, acked, rtt),
            _ => {}
        }
    }

    /// Returns the plausible SACK blocks in order of sequence numbers, and the block that reports a duplicate (RFC 2883
    /// 4). The latter is first in the segment, and lies below the acknowledgement or in the second block. The blocks of
    /// a peer that did not negotiate SACK are ignored.
    fn sort(&self, ack: &Ack<'_>) -> (SackBlocks, Option<Block>) {
        let (mut sorted, mut duplicate) = (SackBlocks::NONE, None);
        if self.sack == Sack::Refused {
            return (sorted, duplicate);
        }
        let mut all = ack.sack.iter();
        if let Some(first) = all.next() {
            let old = !first.end.after(ack.ack);
            if old || all.next().is_some_and(|second| second.covers(first)) {
                let near = !first.start.before(ack.ack.back(self.max_window));
                duplicate = Some(first).filter(|_| near && first.start.before(first.end));
            }
        }
        // Blocks are compared by their distance from the acknowledgement: sequence numbers have an order only if they
        // are near each other, and a peer can send arbitrary ones. Data of zero-window probes is ahead of `nxt`.
        let under_way = self.nxt.max(ack.ack).since(ack.ack);
        let mut below = 0;
        // The blocks are few, so a search for the minimum in each step is fastest. Each block begins behind the
        // previous one, so that no block is taken twice.
        while let Some(next) = ack
            .sack
            .iter()
            .filter(|block| Some(*block) != duplicate)
            .filter(|block| {
                let (start, end) = (block.start.since(ack.ack), block.end.since(ack.ack));
                below <= start && start < end && end <= under_way
            })
            .min_by_key(|block| block.start.since(ack.ack))
        {
            sorted.push(next);
            below = next.end.since(ack.ack);
        }
        (sorted, duplicate)
    }

    /// Marks data as lost, and sets the timer of the next RACK check or tail loss probe. Returns the number of bytes
    /// newly lost.
    fn find_losses(&mut self, now: Instant) -> u32 {
        let Some(rack) = self.rack.as_ref().filter(|_| self.sack == Sack::Permitted) else {
            return core::mem::take(&mut self.presumed);
        };
        let strong = self.repair.is_some() || self.flight.sacked() > 2 * self.mss;
        let evidence = if strong { Evidence::Strong } else { Evidence::Weak };
        let smoothed = self.rtt.smoothed().unwrap_or(Duration::ZERO);
        let lateness = rack.lateness(evidence, self.rtt.least(), smoothed);
        let before = self.flight.lost();
        let look_at = self.flight.find_lost(now, |run| rack.lost_since(run, lateness));
        self.soon = match look_at {
            Some(at) => Some((at, EarlyTimer::Look)),
            None => self.probe_at(now),
        };
        self.flight.lost() - before
    }

    /// Runs the RACK check of the timer.
    pub(super) fn look(&mut self, now: Instant, counters: &mut Counters) {
        let in_flight = self.nxt.since(self.una);
        let lost = self.find_losses(now);
        if lost > 0 && self.repair.is_none() {
            self.begin_repair(now, in_flight, 0, counters);
        }
        let (pipe, threshold) = (self.pipe(), self.control.threshold());
        if let Some(repair) = &mut self.repair
            && repair.cause == Cause::Loss
        {
            repair.rate.on_ack(0, pipe, threshold, self.mss, SafeAck::No);
        }
    }

    /// Processes duplicate acknowledgements of a peer without SACK (RFC 5681 3.2, RFC 6582). Each indicates that a
    /// segment has left the network; the third, that the first segment in flight is lost; and progress that does not
    /// reach the recovery point, that the next one is lost too. Returns the number of bytes that arrived.
    fn count_duplicates(&mut self, ack: Seq, acked: u32, repeats: Repeats, delivered: u32) -> u32 {
        let cause = self.repair.as_ref().map(|repair| (repair.cause, repair.point));
        if acked > 0 {
            self.duplicates = 0;
            let counted = self.assumed.min(acked.saturating_sub(self.mss));
            match cause {
                Some((Cause::Loss, point)) if ack.before(point) => {
                    self.assumed -= counted;
                    self.presume_lost();
                }
                _ => self.assumed = 0,
            }
            return delivered.saturating_sub(counted);
        }
        let counts = match cause {
            None => !self.recover.within(self.una, self.nxt),
            Some((cause, _)) => cause == Cause::Loss,
        };
        if repeats == Repeats::No || !counts {
            return delivered;
        }
        self.duplicates = self.duplicates.saturating_add(1);
        self.assumed = self.assumed.saturating_add(self.mss).min(self.nxt.since(self.una));
        if self.duplicates >= THRESHOLD && cause.is_none() {
            self.presume_lost();
        }
        self.mss
    }

    fn presume_lost(&mut self) {
        let before = self.flight.lost();
        self.flight.lose_first(self.mss);
        self.presumed = self.flight.lost() - before;
    }

    fn begin_repair(&mut self, now: Instant, in_flight: u32, delivered: u32, counters: &mut Counters) {
        counters.bump(Counter::TcpFastRetransmits);
        self.control.on_loss(now, in_flight);
        let unreported = self.nxt.since(self.una).saturating_sub(self.flight.sacked());
        self.repair = Some(Box::new(Repair {
            cause: Cause::Loss,
            point: self.nxt,
            rate: Reduction::new(unreported.saturating_add(delivered)),
            question: SpuriousTest::Unasked,
        }));
        self.recover = self.nxt;
        self.tail = None;
        self.forget_doubts();
    }

    /// Discards the duplicates counted for an earlier recovery: they give no evidence about the new one.
    pub(super) fn forget_doubts(&mut self) {
        if let Some(rack) = &mut self.rack {
            rack.unneeded = SpuriousRetransmissions::default();
        }
    }

    /// Ends a recovery whose recovery point is acknowledged. Returns its cause.
    fn end_repair(&mut self, ack: Seq, acked: u32) -> Option<Cause> {
        let repair = self.repair.as_ref().filter(|repair| acked > 0 && !ack.before(repair.point))?;
        let cause = repair.cause;
        if cause == Cause::Loss {
            self.control.on_recovered();
        }
        self.repair = None;
        self.assumed = 0;
        if let Some(rack) = &mut self.rack {
            rack.on_recovered();
        }
        Some(cause)
    }

    /// Returns whether this is the first progress since a retransmission, and answers a segment sent before it: then
    /// the original was not lost (RFC 3522).
    fn answers_the_first(&mut self, echoed: Option<Instant>, acked: u32) -> bool {
        let Some(repair) = self.repair.as_mut().filter(|_| acked > 0) else { return false };
        let SpuriousTest::Asked(at) = repair.question else { return false };
        repair.question = SpuriousTest::Answered;
        echoed.is_some_and(|echoed| echoed < at)
    }

    /// Undoes a spurious recovery (RFC 4015).
    fn take_back(&mut self, counters: &mut Counters) {
        counters.bump(Counter::TcpSpurious);
        self.control.on_undo();
        self.flight.find_all();
        self.repair = None;
        self.assumed = 0;
        self.duplicates = 0;
    }

    /// Evaluates a tail loss probe (RFC 8985 7.4): if it was acknowledged without a report of a duplicate, it has
    /// repaired a loss, and the congestion control must react to that.
    fn judge_tail(
        &mut self,
        now: Instant,
        ack: Seq,
        duplicate: Option<Block>,
        repeats: Repeats,
        in_flight: u32,
    ) {
        let Some(Tail { end, kind }) = self.tail.filter(|tail| !ack.before(tail.end)) else { return };
        let unneeded = duplicate.is_some_and(|block| block.end == end) || repeats == Repeats::Yes;
        if kind == TailKind::New || unneeded {
            self.tail = None;
        } else if ack.after(end) {
            self.tail = None;
            if self.repair.is_none() {
                self.control.on_loss(now, in_flight);
                self.control.on_recovered();
                self.forget_doubts();
            }
        }
    }

    /// Updates the round-trip time without informing the congestion control.
    fn measure_only(&mut self, ack: Seq, rtt: Option<Duration>) {
        if let Some(rtt) = rtt
            && !ack.before(self.round)
        {
            self.rtt.measure(rtt);
            self.round = self.nxt;
        }
    }
}
