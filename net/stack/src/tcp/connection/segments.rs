//! The processing of received segments (RFC 9293 3.10.7, hardened by RFC 5961).

use super::ecn::EcnReaction;
use super::receiver::{Arrival, Fit, NewData, StreamEnd};
use super::sender::{Ack, AckKind, BareSegment, Fin};
use super::signals::Signal;
use super::{Connection, EcnAgreement, Env, HeldByApp, State};
use crate::base::{Counter, Duration, FailReason, Permit};
use crate::tcp::Ecn;
use crate::tcp::segment::{Flags, Segment};
use crate::tcp::seq::Seq;
use crate::tcp::timestamps::Age;
use isola_iobuf::{Chain, IoBuf};

/// Maximum number of challenge acknowledgements of one connection in a span of time (RFC 5961 7).
const CHALLENGES: u8 = 10;
const CHALLENGE_SPAN: Duration = Duration::from_secs(1);

/// The reaction that the tables must perform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// None.
    Done,
    /// Answer the segment with a reset (RFC 9293 3.10.7.1).
    Reset,
    /// Abort the connection: it receives data that will never be read.
    Abort,
}

impl Connection {
    /// Processes a segment.
    pub fn on_segment(&mut self, segment: Segment, env: &mut Env<'_>) -> Verdict {
        self.segments_in += 1;
        match self.state {
            State::Closed | State::TimeWait => Verdict::Done,
            State::SynSent => self.on_segment_in_syn_sent(segment, env),
            _ => self.on_segment_synchronized(segment, env),
        }
    }

    fn on_segment_in_syn_sent(&mut self, segment: Segment, env: &mut Env<'_>) -> Verdict {
        let acks = segment.flags.has(Flags::ACK);
        if acks && !self.sender.acks_syn(segment.ack) {
            env.counters.bump(Counter::DropTcpAck);
            return if segment.flags.has(Flags::RST) { Verdict::Done } else { Verdict::Reset };
        }
        if segment.flags.has(Flags::RST) {
            if acks {
                env.counters.bump(Counter::TcpResetsIn);
                self.fail(FailReason::Refused);
            } else {
                env.counters.bump(Counter::DropTcpReset);
            }
            return Verdict::Done;
        }
        if !segment.flags.has(Flags::SYN) {
            env.counters.bump(Counter::DropTcpFlags);
            return Verdict::Done;
        }
        self.silent_since = env.now;
        self.synchronize(segment.seq, segment.options, env);
        let knows = segment.flags.has(Flags::ECE) && !segment.flags.has(Flags::CWR);
        if acks && knows && env.config.ecn == Ecn::Offered {
            self.marks.agreed = EcnAgreement::Yes;
        }
        if acks {
            self.become_established(&segment, env);
            self.receiver.ack_now();
        } else {
            // Simultaneous open: our SYN is sent again, as a SYN-ACK.
            self.state = State::SynReceived;
            self.sender.answer_syn();
        }
        Verdict::Done
    }

    /// Completes the handshake after our SYN was acknowledged. The window of a segment with SYN is not scaled.
    fn become_established(&mut self, segment: &Segment, env: &mut Env<'_>) {
        let scale = if segment.flags.has(Flags::SYN) { 0 } else { self.sender.scale };
        self.sender.establish(env.now, segment.seq, u32::from(segment.window) << scale);
        self.state = match self.sender.fin {
            Fin::Open => State::Established,
            Fin::Wanted | Fin::Acked => State::FinWait1,
        };
        if self.listener.is_none() {
            env.counters.bump(Counter::TcpConnected);
            self.signals.raise(Signal::Connected);
        }
    }

    fn on_segment_synchronized(&mut self, segment: Segment, env: &mut Env<'_>) -> Verdict {
        let fit = self.receiver.fit(segment.seq, segment.len());
        if segment.flags.has(Flags::RST) {
            self.on_reset(&segment, fit, env);
            return Verdict::Done;
        }
        // In a simultaneous open, the peer's SYN-ACK has the sequence number of its SYN.
        let answer = self.state == State::SynReceived
            && segment.flags.has(Flags::SYN | Flags::ACK)
            && segment.seq + 1 == self.receiver.nxt;
        // Independent of its sequence number (RFC 5961 4.2).
        if segment.flags.has(Flags::SYN) && !answer {
            env.counters.bump(Counter::DropTcpFlags);
            self.challenge(env);
            return Verdict::Done;
        }
        if self.stamps.is_some() && self.read_clock(&segment, fit, env) == Age::Old {
            env.counters.bump(Counter::DropTcpOld);
            self.answer_misplaced(&segment, env);
            return Verdict::Done;
        }
        if fit == Fit::Outside && !answer {
            env.counters.bump(Counter::DropTcpWindow);
            self.receiver.note_old(segment.seq, segment.data_len());
            self.answer_misplaced(&segment, env);
            return Verdict::Done;
        }
        if !segment.flags.has(Flags::ACK) {
            env.counters.bump(Counter::DropTcpFlags);
            return Verdict::Done;
        }
        self.silent_since = env.now;
        self.keep_alive_probes = 0;
        if self.state == State::SynReceived {
            if !self.sender.acks_syn(segment.ack) {
                env.counters.bump(Counter::DropTcpAck);
                return Verdict::Reset;
            }
            self.become_established(&segment, env);
            if answer {
                return Verdict::Done;
            }
        } else if self.take_ack(&segment, env) == AckKind::Invalid {
            env.counters.bump(Counter::DropTcpAck);
            self.challenge(env);
            return Verdict::Done;
        }
        if fit == Fit::Shut {
            env.counters.bump(Counter::DropTcpWindow);
            self.receiver.ack_now();
            self.signal_end(self.receiver.inbox.len());
            return Verdict::Done;
        }
        let verdict = self.take_data(segment, env);
        self.signal_end(self.receiver.inbox.len());
        verdict
    }

    /// Checks a segment's timestamp and records it if it is valid (RFC 7323 4.3, 5.3). A segment without a timestamp is
    /// treated like one with an old timestamp (RFC 7323 3.2).
    fn read_clock(&mut self, segment: &Segment, fit: Fit, env: &Env<'_>) -> Age {
        let (Some(stamps), Some(theirs)) = (&mut self.stamps, segment.options.timestamps) else {
            return Age::Old;
        };
        let age = stamps.judge(env.now, theirs.value);
        if age == Age::Fresh && fit != Fit::Outside && !segment.seq.after(self.receiver.acked) {
            stamps.hear(env.now, theirs.value);
        }
        age
    }

    /// Answers a segment outside the window with an acknowledgement. A keep-alive probe and a forged segment without
    /// data look the same, so both are answered at a limited rate.
    fn answer_misplaced(&mut self, segment: &Segment, env: &mut Env<'_>) {
        if segment.len() == 0 {
            self.challenge(env);
        } else {
            self.receiver.ack_now();
        }
    }

    /// Accepts a reset only if it has exactly the expected sequence number. Answers others in the window by a challenge
    /// acknowledgement (RFC 5961 3.2).
    fn on_reset(&mut self, segment: &Segment, fit: Fit, env: &mut Env<'_>) {
        if segment.seq == self.receiver.nxt {
            env.counters.bump(Counter::TcpResetsIn);
            let refused = self.state == State::SynReceived;
            // If the peer has acknowledged our FIN, its reset loses no data.
            if self.state == State::LastAck && self.sender.queued() == 0 {
                self.state = State::Closed;
                self.signal_end(self.receiver.inbox.len());
                return;
            }
            self.fail(if refused { FailReason::Refused } else { FailReason::Reset });
            return;
        }
        env.counters.bump(Counter::DropTcpReset);
        if fit != Fit::Outside {
            self.challenge(env);
        }
    }

    fn challenge(&mut self, env: &mut Env<'_>) {
        let (since, answers) = &mut self.challenged;
        if env.now.since(*since) >= CHALLENGE_SPAN {
            (*since, *answers) = (env.now, 0);
        }
        // The connection's own limit is checked first: its peer learns nothing about other connections by exhausting
        // it.
        if *answers >= CHALLENGES || env.challenges.allow(env.now) == Permit::No {
            env.counters.bump(Counter::ChallengeRate);
            return;
        }
        *answers += 1;
        self.receiver.ack_now();
    }

    fn take_ack(&mut self, segment: &Segment, env: &mut Env<'_>) -> AckKind {
        let bare = if segment.len() == 0 { BareSegment::Yes } else { BareSegment::No };
        let echo = segment.options.timestamps.map(|theirs| theirs.echo);
        let echoed = self.stamps.zip(echo).map(|(stamps, echo)| stamps.moment(env.now, echo));
        let ack = Ack {
            seq: segment.seq,
            ack: segment.ack,
            window: segment.window,
            bare,
            sack: &segment.sack,
            echoed,
        };
        let kind = self.sender.on_ack(env.now, ack, env.counters);
        if self.marks.agreed == EcnAgreement::Yes && kind != AckKind::Invalid {
            self.marks.on_segment(segment);
            let (una, nxt) = self.sender.under_way();
            if self.marks.read(segment.flags, una, nxt) == EcnReaction::SlowDown {
                env.counters.bump(Counter::TcpMarks);
                self.sender.slow_down(env.now);
            }
        }
        if kind == AckKind::New {
            self.signal_space();
            if self.sender.fin == Fin::Acked {
                self.on_fin_acked(env);
            }
        }
        kind
    }

    pub(super) fn on_fin_acked(&mut self, env: &Env<'_>) {
        self.state = match self.state {
            State::FinWait1 => {
                if self.held_by_app == HeldByApp::No {
                    self.fin_wait_until = Some(env.now + env.config.fin_wait_2);
                }
                State::FinWait2
            }
            State::Closing => State::TimeWait,
            State::LastAck => State::Closed,
            other => other,
        };
    }

    fn take_data(&mut self, segment: Segment, env: &mut Env<'_>) -> Verdict {
        let fin = if segment.flags.has(Flags::FIN) { StreamEnd::Yes } else { StreamEnd::No };
        if segment.payload.is_empty() && fin == StreamEnd::No {
            return Verdict::Done;
        }
        if !matches!(self.state, State::Established | State::FinWait1 | State::FinWait2) {
            // The peer's stream has ended: the segment is a retransmission or invalid.
            self.receiver.ack_now();
            return Verdict::Done;
        }
        let data_end = segment.seq + segment.data_len();
        if self.held_by_app == HeldByApp::No && data_end.after(self.receiver.nxt) {
            env.counters.bump(Counter::DropTcpAfterClose);
            return Verdict::Abort;
        }
        let delay = env.config.delayed_ack;
        let Segment { seq, payload, rest, .. } = segment;
        let Arrival { data, end } = match rest {
            None => self.receiver.accept(env.now, (seq, payload), fin, delay, env.counters),
            Some(rest) => self.accept_parts(seq, (payload, *rest), fin, env),
        };
        if data == NewData::Yes {
            self.signals.raise(Signal::Readable);
        }
        if end == StreamEnd::Yes {
            self.signals.raise(Signal::PeerClosed);
            self.on_fin();
        }
        Verdict::Done
    }

    /// Accepts the data of a merged segment, part by part.
    #[cold]
    fn accept_parts(
        &mut self,
        seq: Seq,
        (first, mut rest): (IoBuf, Chain),
        fin: StreamEnd,
        env: &mut Env<'_>,
    ) -> Arrival {
        let (mut seq, mut part, delay) = (seq, first, env.config.delayed_ack);
        let mut came = NewData::No;
        loop {
            let next = rest.pop_front();
            let (len, last) = (part.len() as u32, next.is_none());
            let fin = if last { fin } else { StreamEnd::No };
            let Arrival { data, end } = self.receiver.accept(env.now, (seq, part), fin, delay, env.counters);
            if data == NewData::Yes {
                came = NewData::Yes;
            }
            seq += len;
            match next {
                Some(next) => part = next,
                None => return Arrival { data: came, end },
            }
        }
    }

    pub(super) fn on_fin(&mut self) {
        self.fin_wait_until = None;
        self.state = match self.state {
            State::Established => State::CloseWait,
            State::FinWait1 => State::Closing,
            State::FinWait2 => State::TimeWait,
            other => other,
        };
    }
}
