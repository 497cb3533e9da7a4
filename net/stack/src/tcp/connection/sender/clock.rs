//! The timers of the sending half: retransmission, tail loss probe or RACK check, and persist.

use super::repair::{Cause, Reduction, Repair, SpuriousTest};
use super::{EarlyTimer, Fin, Handshake, Retries, SendDue, Sender, Tail, TailKind};
use crate::base::{Counter, Counters, Instant};
use crate::tcp::congestion::Timeout;
use alloc::boxed::Box;

impl Sender {
    /// Starts the retransmission timer if data is in flight, otherwise starts or stops the persist timer as required.
    #[inline(always)]
    pub fn arm(&mut self, now: Instant) {
        let known = self.flight.sacked() + self.flight.lost();
        if self.nxt.since(self.una) > known {
            // The retransmission timer also covers data that was deemed lost and is in flight after an undo.
            if self.timeout_at.is_none() {
                self.timeout_at = Some(now + self.rtt.timeout());
            }
            self.persist_at = None;
            self.probes = 0;
        } else {
            self.arm_idle(now, known);
        }
    }

    /// Starts or stops the persist timer while nothing is in flight. `known` is the number of SACKed and lost bytes.
    fn arm_idle(&mut self, now: Instant, known: u32) {
        let pending =
            self.queue.unsent() > 0 || known > 0 || (self.fin == Fin::Wanted && self.nxt == self.end());
        let stuck = pending && self.handshake == Handshake::Done && !self.has_output();
        if !stuck {
            self.persist_at = None;
            if self.probe == SendDue::No {
                self.probes = 0;
            }
        } else if self.persist_at.is_none() {
            self.timeout_at = None;
            self.soon = None;
            let interval = self.rtt.timeout().times(1 << self.probes.min(16));
            self.persist_at = Some(now + interval.min(self.rtt.max_timeout()));
        }
    }

    /// Returns the next time at which `on_timer` has work; [`Instant::NEVER`] if no timer runs.
    #[inline(always)]
    pub fn deadline(&self) -> Instant {
        let soon = self.soon.map(|(at, _)| at);
        let at = |moment: Option<Instant>| moment.unwrap_or(Instant::NEVER);
        at(self.timeout_at).min(at(soon)).min(at(self.persist_at))
    }

    /// Acts on expired timers. `retries` is the maximum number of consecutive timeouts.
    pub fn on_timer(&mut self, now: Instant, retries: u8, counters: &mut Counters) -> Retries {
        if self.persist_at.is_some_and(|at| now >= at) {
            self.persist_at = None;
            self.probe = SendDue::Yes;
            self.probes = self.probes.saturating_add(1);
            self.timeouts = self.timeouts.saturating_add(1);
            counters.bump(Counter::TcpProbes);
        }
        if self.timeout_at.is_some_and(|at| now >= at) {
            self.on_timeout(now, counters);
        } else if let Some((at, soon)) = self.soon
            && now >= at
        {
            self.soon = None;
            match soon {
                EarlyTimer::Look => self.look(now, counters),
                EarlyTimer::Probe => self.probe_tail(now, counters),
            }
        }
        if self.timeouts > retries { Retries::Exhausted } else { Retries::Left }
    }

    fn on_timeout(&mut self, now: Instant, counters: &mut Counters) {
        counters.bump(Counter::TcpTimeouts);
        let timeout = if self.timeouts == 0 { Timeout::First } else { Timeout::Repeated };
        self.timeouts = self.timeouts.saturating_add(1);
        self.timeout_at = None;
        self.soon = None;
        self.rtt.back_off();
        if self.handshake == Handshake::Open {
            self.nxt = self.una;
            return;
        }
        self.control.on_timeout(now, self.nxt.since(self.una), timeout);
        // Only the first retransmission can show that the timeout was spurious.
        let question = match &self.repair {
            Some(repair) if repair.cause == Cause::Timeout => repair.question,
            _ => SpuriousTest::Unasked,
        };
        let (cause, rate) = (Cause::Timeout, Reduction::new(0));
        self.repair = Some(Box::new(Repair { cause, point: self.nxt, rate, question }));
        self.flight.lose_all();
        self.forget_doubts();
        self.recover = self.nxt;
        self.duplicates = 0;
        self.assumed = 0;
        self.tail = None;
        self.tail_due = SendDue::No;
    }

    /// Sends a tail loss probe: one more segment, so that the peer acknowledges or SACKs the tail (RFC 8985 7.3).
    fn probe_tail(&mut self, now: Instant, counters: &mut Counters) {
        // More data may have been sent since the timer was set.
        self.soon = self.probe_at(self.last_sent);
        if self.soon.is_none_or(|(at, _)| at > now) {
            return;
        }
        self.soon = None;
        counters.bump(Counter::TcpTailProbes);
        self.timeout_at = Some(now + self.rtt.timeout());
        self.tail_due = SendDue::Yes;
        if self.sendable() == 0 {
            self.tail_due = SendDue::No;
            self.flight.lose_last(self.mss);
            self.tail = Some(Tail { end: self.nxt, kind: TailKind::Again });
        }
    }
}
