//! What a segment that came in belongs to, and what is done about it.

use super::{Around, Tcp};
use crate::address::Flow;
use crate::counters::Counter;
use crate::event::{FailReason, ListenerId};
use crate::icmp::{ErrorKind, IcmpError};
use crate::limit::Allowed;
use crate::order::Order;
use crate::owner::Owner;
use crate::path_mtu::PathUser;
use crate::tcp::connection::header_prediction::Plain;
use crate::tcp::connection::{Agreed, Connection, Env, Handshake, Place, State, Taken, Verdict};
use crate::tcp::cookies;
use crate::tcp::flow_map::{FlowKey, FlowKey4, LeftBehind, Target};
use crate::tcp::isn::Beginning;
use crate::tcp::listener::{HalfOpen, Ours, Room};
use crate::tcp::options::Options;
use crate::tcp::segment::{DEFAULT_MSS, Flags, HEADER_LEN, Header, Segment};
use crate::tcp::seq::Seq;
use crate::tcp::time_wait::Answer;
use crate::time::{Duration, Instant};
use crate::{config, ipv4, ipv6};
use core::net::IpAddr;

/// The sequence number of a connection that follows another on the same flow is at least this far beyond.
const REUSE_DISTANCE: u32 = 1 << 17;

impl Tcp {
    /// Takes a segment in.
    pub fn receive(&mut self, flow: Flow, segment: Segment, around: &mut Around<'_>) {
        let target = self.target(&flow);
        if let Some((index, segment)) = self.take_apart(flow, target, segment, around) {
            self.deliver(index, segment, around);
        }
    }

    /// What a flow leads to.
    pub fn target(&self, flow: &Flow) -> Option<Target> {
        self.flows.get(&FlowKey::of(flow))
    }

    /// Takes a segment in that has no options but the usual ones, of a flow that leads to `target`.
    pub fn receive_end(
        &mut self,
        flow: Flow,
        target: Option<Target>,
        segment: Segment,
        around: &mut Around<'_>,
    ) {
        if let Some((index, segment)) = self.take_apart(flow, target, segment, around) {
            self.deliver_end(index, segment, around);
        }
    }

    /// Takes a segment in that is no connection's. Gives it back where it is one's, or completes the handshake of one.
    fn take_apart(
        &mut self,
        flow: Flow,
        target: Option<Target>,
        segment: Segment,
        around: &mut Around<'_>,
    ) -> Option<(u32, Segment)> {
        match target {
            Some(Target::Connection(index)) => Some((index, segment)),
            Some(Target::HalfOpen(index)) => self.continue_handshake(index, &flow, segment, around),
            Some(Target::TimeWait(index)) => self.disturb_time_wait(index, &flow, segment, around),
            None => self.open_or_refuse(&flow, segment, None, around),
        }
    }

    /// The connection of a flow, where it has one.
    pub fn connection_at(&self, flow: &FlowKey) -> Option<u32> {
        connection_of(self.flows.get(flow)?)
    }

    /// The same of a flow of IPv4.
    #[inline(always)]
    pub fn connection_at4(&self, flow: &FlowKey4) -> Option<u32> {
        connection_of(self.flows.get4(flow)?)
    }

    /// Returns the connection at `index`, if it expects the segment and searches no neighbour, with the queue of connections
    /// that are ready to send and the delay of acknowledgements.
    #[inline(always)]
    pub fn expecting(
        &mut self,
        index: u32,
        now: Instant,
        plain: &Plain,
    ) -> Option<(&mut Connection, &mut Order, Duration)> {
        let connection = self.connections.at_mut(index)?.as_mut();
        let expected = connection.expects(now, plain) && connection.searching == Place::Out;
        expected.then_some((connection, &mut self.ready, self.config.delayed_ack))
    }

    /// Takes a segment of a connection in that has no options but the usual ones: the fast path, where it has no data and is
    /// the expected one.
    pub fn deliver_end(&mut self, index: u32, segment: Segment, around: &mut Around<'_>) {
        match self
            .with(index, around, |connection, env| (connection.owner, connection.take_end(&segment, env)))
        {
            Some((owner, Taken::Yes)) => {
                around.interface.owner = owner;
                self.settle(index, around);
            }
            _ => self.deliver(index, segment, around),
        }
    }

    /// Takes a segment of a connection in.
    pub fn deliver(&mut self, index: u32, segment: Segment, around: &mut Around<'_>) {
        let (seq, ack, flags, end) = (segment.seq, segment.ack, segment.flags, segment.end());
        around.interface.owner = self.connections.at(index).map_or(Owner::UNKNOWN, |found| found.owner);
        let verdict = self.with(index, around, |connection, env| connection.on_segment(segment, env));
        match verdict {
            Some(Verdict::Reset) => {
                let Some(flow) = self.connections.at_mut(index).map(|connection| connection.flow) else {
                    return;
                };
                self.refuse(&flow, (seq, ack, flags, end), around);
            }
            Some(Verdict::Abort) => {
                self.give_up(index, FailReason::Reset, around);
                return;
            }
            Some(Verdict::Done) | None => {}
        }
        self.settle(index, around);
    }

    fn continue_handshake(
        &mut self,
        index: u32,
        flow: &Flow,
        segment: Segment,
        around: &mut Around<'_>,
    ) -> Option<(u32, Segment)> {
        let entry = self.half_open.get_mut(index)?;
        around.interface.owner = self.listeners.owner(entry.handshake.listener);
        let expected = entry.handshake.remote_initial + 1;
        if segment.flags.has(Flags::RST) {
            if segment.seq == expected {
                around.counters.bump(Counter::TcpResetsIn);
                self.half_open.remove(index);
                self.flows.remove(flow, Target::HalfOpen(index));
            } else {
                around.counters.bump(Counter::DropTcpReset);
            }
            return None;
        }
        if segment.flags.has(Flags::SYN) {
            // The same SYN again, or that of a peer which forgot: it will reset what our answer tells of.
            entry.handshake.answered_at = None;
            if !segment.flags.has(Flags::ECE | Flags::CWR) {
                // One that asked for marks in vain tries without them.
                entry.handshake.ecn = Agreed::No;
            }
            let answer = entry.answer();
            self.send_bare(flow, answer, around);
            return None;
        }
        if !segment.flags.has(Flags::ACK) {
            around.counters.bump(Counter::DropTcpFlags);
            return None;
        }
        if segment.ack != entry.handshake.local_initial + 1 {
            around.counters.bump(Counter::DropTcpAck);
            self.refuse(flow, (segment.seq, segment.ack, segment.flags, segment.end()), around);
            return None;
        }
        if segment.seq.since(expected) > u32::from(entry.local_window) {
            around.counters.bump(Counter::DropTcpWindow);
            return None;
        }
        let handshake = entry.handshake;
        self.establish(handshake, Some(index), segment, around)
    }

    /// A handshake is complete: it becomes a connection, which the segment is to be delivered to. `place` is its entry in the
    /// table of half-open ones, where it has one.
    fn establish(
        &mut self,
        handshake: Handshake,
        place: Option<u32>,
        segment: Segment,
        around: &mut Around<'_>,
    ) -> Option<(u32, Segment)> {
        let (flow, listener) = (handshake.flow, handshake.listener);
        match self.listeners.has_room(listener) {
            Some(Room::Left) => {}
            Some(Room::Full) => {
                around.counters.bump(Counter::DropTcpBacklog);
                return None;
            }
            None => {
                if let Some(place) = place {
                    self.half_open.remove(place);
                    self.flows.remove(&flow, Target::HalfOpen(place));
                }
                self.refuse(&flow, (segment.seq, segment.ack, segment.flags, segment.end()), around);
                return None;
            }
        }
        let env = Env {
            now: around.now,
            config: &self.config,
            counters: around.counters,
            challenges: &mut self.challenges,
        };
        if self.connections.is_full() {
            around.counters.bump(Counter::DropTcpTableFull);
            return None;
        }
        let mut connection = Connection::accept(&handshake, &env);
        connection.mapped = Place::In;
        connection.owner = self.listeners.owner(listener);
        connection.set_burst(around.interface.burst(flow.remote.ip()));
        let key = self.connections.insert(connection).ok()?;
        if let Some(place) = place {
            self.half_open.remove(place);
        }
        self.flows.insert(flow, Target::Connection(key.index));
        self.listeners.add_pending(listener);
        around.counters.bump(Counter::TcpAccepted);
        Some((key.index, segment))
    }

    fn disturb_time_wait(
        &mut self,
        index: u32,
        flow: &Flow,
        segment: Segment,
        around: &mut Around<'_>,
    ) -> Option<(u32, Segment)> {
        let entry = self.time_wait.get(index)?;
        let (answer, ack) = (entry.judge(&segment), entry.ack);
        match answer {
            Answer::Ignore => around.counters.bump(Counter::DropTcpWindow),
            Answer::Repeat => {
                self.time_wait.restart(index, around.now, self.config.time_wait);
                self.send_bare(flow, ack, around);
            }
            Answer::Challenge => match self.challenges.allow(around.now) {
                Allowed::Yes => self.send_bare(flow, ack, around),
                Allowed::No => around.counters.bump(Counter::ChallengeRate),
            },
            // Its SYN comes again. A cookie would not keep the numbers apart.
            Answer::Reuse(_) if self.half_open.is_full() => around.counters.bump(Counter::DropTcpHalfOpen),
            Answer::Reuse(last) => {
                self.time_wait.remove(index);
                let left_behind = self.flows.remove(flow, Target::TimeWait(index));
                let opened = self.open_or_refuse(flow, segment, Some(last), around);
                if left_behind == LeftBehind::Yes && self.flows.get(&FlowKey::of(flow)).is_some() {
                    self.flows.keep(*flow, &self.core);
                }
                return opened;
            }
        }
        None
    }

    /// A segment for no flow: the beginning of a connection, or a mistake. `last` is the last sequence number
    /// of the flow's connection before, where there was one just now.
    fn open_or_refuse(
        &mut self,
        flow: &Flow,
        segment: Segment,
        last: Option<Seq>,
        around: &mut Around<'_>,
    ) -> Option<(u32, Segment)> {
        if segment.flags.has(Flags::RST) {
            around.counters.bump(Counter::DropTcpPort);
            return None;
        }
        let listener = self.listeners.at_port(flow.local.port());
        around.interface.owner = listener.map_or(Owner::UNKNOWN, |listener| self.listeners.owner(listener));
        if let Some(handshake) = listener.and_then(|listener| self.redeem(flow, listener, &segment, around)) {
            return self.establish(handshake, None, segment, around);
        }
        let Some(listener) = listener.filter(|_| !segment.flags.has(Flags::ACK)) else {
            around.counters.bump(Counter::DropTcpPort);
            // What follows a cookie that was lost or overtaken is no reason for a reset: the peer sends again from
            // where the cookie is.
            let early = listener.is_some() && segment.len() > 0 && self.cookies.are_out(around.now);
            if !early {
                self.refuse(flow, (segment.seq, segment.ack, segment.flags, segment.end()), around);
            }
            return None;
        };
        if !segment.flags.has(Flags::SYN) {
            around.counters.bump(Counter::DropTcpFlags);
            return None;
        }
        if self.listeners.has_room(listener) != Some(Room::Left) {
            around.counters.bump(Counter::DropTcpBacklog);
            return None;
        }
        self.begin(flow, listener, &segment, last, around);
        None
    }

    fn begin(
        &mut self,
        flow: &Flow,
        listener: ListenerId,
        segment: &Segment,
        last: Option<Seq>,
        around: &mut Around<'_>,
    ) {
        let Beginning { sequence: mut initial, timestamp_offset } = self.chooser.beginning(around.now, flow);
        if let Some(least) = last.map(|last| last + REUSE_DISTANCE) {
            initial = initial.max(least);
        }
        let ours = Ours { initial, mss: self.local_mss(flow.remote.ip(), around), timestamp_offset };
        let entry = HalfOpen::new(*flow, listener, segment, ours, around.now, &self.config);
        let Some(index) = self.half_open.insert(entry, around.now, &self.config) else {
            self.answer_with_cookie(entry, around);
            return;
        };
        self.flows.insert(*flow, Target::HalfOpen(index));
        let path = self.send_answer(flow, entry.answer(), around);
        if let Some(entry) = self.half_open.get_mut(index) {
            entry.handshake.path = path;
        }
    }

    /// Answers a SYN of which nothing is kept (RFC 4987 3.6).
    fn answer_with_cookie(&mut self, entry: HalfOpen, around: &mut Around<'_>) {
        let Handshake { flow, remote_initial, options, .. } = entry.handshake;
        let mss = options.mss.unwrap_or(DEFAULT_MSS);
        around.counters.bump(Counter::TcpCookiesOut);
        let seq = self.cookies.make(around.now, &flow, remote_initial, mss);
        let header = Header {
            seq,
            // Nothing but what can be known again when the cookie comes back.
            flags: Flags::SYN | Flags::ACK,
            options: cookies::options_of_answer(entry.local_options, &options),
            ..entry.answer()
        };
        self.send_bare(&flow, header, around);
    }

    /// The handshake that a segment completes by bringing a cookie back.
    fn redeem(
        &mut self,
        flow: &Flow,
        listener: ListenerId,
        segment: &Segment,
        around: &mut Around<'_>,
    ) -> Option<Handshake> {
        let completes = segment.flags.has(Flags::ACK) && !segment.flags.has(Flags::SYN);
        if !completes || !self.cookies.are_out(around.now) {
            return None;
        }
        let (cookie, remote_initial) = (segment.ack.back(1), segment.seq.back(1));
        let Some(mss) = self.cookies.check(around.now, flow, remote_initial, cookie) else {
            around.counters.bump(Counter::TcpCookiesWrong);
            return None;
        };
        around.counters.bump(Counter::TcpCookiesIn);
        Some(Handshake {
            flow: *flow,
            listener,
            local_initial: cookie,
            remote_initial,
            options: cookies::options_of_syn(mss, &segment.options),
            window: segment.window,
            answered_at: None,
            ecn: Agreed::No,
            mss: self.local_mss(flow.remote.ip(), around),
            timestamp_offset: self.chooser.beginning(around.now, flow).timestamp_offset,
            path: None,
        })
    }

    /// The segment size to announce to a peer, and not to exceed: what fits into a packet on the way to it, as
    /// far as that is known. (A way that is narrow to there is most likely narrow from there.)
    pub(super) fn local_mss(&self, remote: IpAddr, around: &Around<'_>) -> u16 {
        mss_within(around.interface.mtu_to(around.now, remote, PathUser::Tcp), remote)
    }

    /// Answers a segment with a reset that its sender accepts (RFC 9293 3.10.7.1).
    fn refuse(&mut self, flow: &Flow, (_, ack, flags, end): (Seq, Seq, Flags, Seq), around: &mut Around<'_>) {
        if self.resets.allow(around.now) == Allowed::No {
            around.counters.bump(Counter::ResetRate);
            return;
        }
        around.counters.bump(Counter::TcpResetsOut);
        let (seq, ack, flags) = match flags.has(Flags::ACK) {
            true => (ack, Seq(0), Flags::RST),
            false => (Seq(0), end, Flags::RST | Flags::ACK),
        };
        let header = Header {
            source_port: flow.local.port(),
            destination_port: flow.remote.port(),
            seq,
            ack,
            flags,
            window: 0,
            options: Options::default(),
        };
        self.send_bare(flow, header, around);
    }

    /// An ICMP error quotes a segment that this stack is said to have sent. It counts only where the quoted
    /// sequence number is under way, which an outsider does not know (RFC 5927 4.1). Established connections
    /// are never ended by it (RFC 1122 4.2.3.9).
    pub fn on_icmp_error(&mut self, error: &IcmpError, around: &mut Around<'_>) {
        let connection = match self.flows.get(&FlowKey::of(&error.flow)) {
            Some(Target::Connection(index)) => self.connections.at_mut(index).map(|c| (index, c)),
            _ => None,
        };
        let Some((index, connection)) = connection.filter(|(_, c)| c.is_in_flight(Seq(error.sequence)))
        else {
            around.counters.bump(Counter::DropIcmpUnrelated);
            return;
        };
        match error.kind {
            ErrorKind::TooBig { mtu } => {
                let remote = error.flow.remote.ip();
                let mtu = around.interface.learn_mtu(around.now, remote, PathUser::Tcp, mtu, around.counters);
                connection.shrink_mss(mss_within(mtu, remote).into());
            }
            ErrorKind::Unreachable if connection.state == State::SynSent => {
                connection.fail(FailReason::Unreachable);
            }
            ErrorKind::Unreachable => {}
        }
        self.settle(index, around);
    }

    /// The neighbour search for these connections ended: they go on, or know that nobody is there.
    pub fn on_search_ended(&mut self, waiting: &[u32], outcome: SearchOutcome, around: &mut Around<'_>) {
        for &index in waiting {
            let Some(connection) = self.connections.at_mut(index) else { continue };
            connection.searching = Place::Out;
            if outcome == SearchOutcome::NobodyThere {
                if connection.state == State::SynSent {
                    connection.fail(FailReason::Unreachable);
                } else {
                    self.lose_output(index, around);
                }
            }
            self.settle(index, around);
        }
    }
}

/// The segment size that fits into packets of `mtu` bytes to `remote`.
pub(super) fn mss_within(mtu: usize, remote: IpAddr) -> u16 {
    let ip = if remote.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
    mtu.min(config::MAX_MTU).saturating_sub(ip + HEADER_LEN) as u16
}

/// The connection that is meant, where it is one.
#[inline(always)]
const fn connection_of(target: Target) -> Option<u32> {
    match target {
        Target::Connection(index) => Some(index),
        Target::HalfOpen(_) | Target::TimeWait(_) => None,
    }
}

/// How a neighbour search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SearchOutcome {
    Found,
    NobodyThere,
}
