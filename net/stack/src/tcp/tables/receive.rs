//! Received segments: the look-up of their table entry, and the reaction.

use super::Tcp;
use crate::base::{
    Counter, Duration, FailReason, Flow, Instant, ListenerId, MAX_MTU, Order, Owner, Permit, RxChecksum,
};
use crate::ip::{ErrorKind, IPV4_HEADER_LEN, IPV6_HEADER_LEN, IcmpError, IpPacket, PathUser};
use crate::tcp::connection::{
    Connection, EcnAgreement, Env, FastPathResult, Handshake, Membership, State, Verdict,
    header_prediction::PlainSegment,
};
use crate::tcp::cookies;
use crate::tcp::flow_map::{FlowKey, FlowKey4, LeftBehind, Target};
use crate::tcp::in_use::is_in_use;
use crate::tcp::isn::InitialValues;
use crate::tcp::listener::{HalfOpen, LocalValues, Room};
use crate::tcp::refusal::Refused;
use crate::tcp::segment::{DEFAULT_MSS, Flags, HEADER_LEN, Header, Segment};
use crate::tcp::seq::Seq;
use crate::tcp::stack_parts::StackParts;
use crate::tcp::time_wait::Answer;
use core::net::IpAddr;

/// Minimum distance of a connection's initial sequence number from the last one of the previous connection on the same
/// flow.
const REUSE_DISTANCE: u32 = 1 << 17;

impl Tcp {
    /// Processes the segment of a packet.
    ///
    /// # Errors
    ///
    /// The counter of the reason for which the segment must be dropped.
    pub fn receive_packet(
        &mut self,
        packet: IpPacket,
        checksum: RxChecksum,
        stack: &mut StackParts<'_>,
    ) -> Result<(), Counter> {
        let (remote, local) = (packet.source, packet.destination);
        let mark = packet.mark();
        let mut segment = Segment::parse(packet.into_payload(), remote, local, checksum)?;
        segment.mark = mark;
        let flow = Flow::new(local, segment.destination_port, remote, segment.source_port);
        self.receive(flow, segment, stack);
        Ok(())
    }

    /// Processes a segment.
    fn receive(&mut self, flow: Flow, segment: Segment, stack: &mut StackParts<'_>) {
        let target = self.target(&flow);
        if let Some((index, segment)) = self.dispatch(flow, target, segment, stack) {
            self.deliver(index, segment, stack);
        }
    }

    /// Returns the target of a flow.
    pub fn target(&self, flow: &Flow) -> Option<Target> {
        self.flows.get(&FlowKey::of(flow))
    }

    /// Returns the owner of a flow's segments: that of its connection or handshake, otherwise that of the listener of
    /// its port.
    pub fn owner_of(&self, flow: &Flow) -> Owner {
        let of_listener = |listener| self.listeners.owner(listener);
        let owner = match self.target(flow) {
            Some(Target::Connection(index)) => self.connections.at(index).map(|connection| connection.owner),
            Some(Target::HalfOpen(index)) => {
                self.half_open.get(index).map(|entry| of_listener(entry.handshake.listener))
            }
            Some(Target::TimeWait(_)) => None,
            None => self.listeners.at_port(flow.local.port()).map(of_listener),
        };
        owner.unwrap_or(Owner::UNKNOWN)
    }

    /// Processes a segment of a flow with this target, whose options have one of the common layouts.
    pub fn receive_end(
        &mut self,
        flow: Flow,
        target: Option<Target>,
        segment: Segment,
        stack: &mut StackParts<'_>,
    ) {
        if let Some((index, segment)) = self.dispatch(flow, target, segment, stack) {
            self.deliver_end(index, segment, stack);
        }
    }

    /// Processes a segment that belongs to no connection. Returns the segment, with the index of its connection, if it
    /// belongs to one or completes a handshake.
    fn dispatch(
        &mut self,
        flow: Flow,
        target: Option<Target>,
        segment: Segment,
        stack: &mut StackParts<'_>,
    ) -> Option<(u32, Segment)> {
        match target {
            Some(Target::Connection(index)) => Some((index, segment)),
            Some(Target::HalfOpen(index)) => self.continue_handshake(index, &flow, segment, stack),
            Some(Target::TimeWait(index)) => self.disturb_time_wait(index, &flow, segment, stack),
            None => self.open_or_refuse(&flow, segment, None, stack),
        }
    }

    /// Returns the index of a flow's connection; `None` if the flow has none.
    pub fn connection_at(&self, flow: &FlowKey) -> Option<u32> {
        connection_of(self.flows.get(flow)?)
    }

    /// Returns the index of an IPv4 flow's connection; `None` if the flow has none.
    #[inline(always)]
    pub fn connection_at4(&self, flow: &FlowKey4) -> Option<u32> {
        connection_of(self.flows.get4(flow)?)
    }

    /// Returns the connection at `index` if it expects the segment and waits for no neighbour, with the queue of
    /// connections that may have something to send and the delay of acknowledgements.
    #[inline(always)]
    pub fn expecting(
        &mut self,
        index: u32,
        now: Instant,
        plain: &PlainSegment,
    ) -> Option<(&mut Connection, &mut Order, Duration)> {
        let connection = self.connections.at_mut(index)?.as_mut();
        let expected = connection.expects(now, plain) && connection.searching == Membership::Out;
        expected.then_some((connection, &mut self.ready, self.config.delayed_ack))
    }

    /// Delivers a segment whose options have a common layout to a connection, by the fast path if the segment has no
    /// data and is the expected one.
    pub fn deliver_end(&mut self, index: u32, segment: Segment, stack: &mut StackParts<'_>) {
        match self
            .with(index, stack, |connection, env| (connection.owner, connection.take_end(&segment, env)))
        {
            Some((owner, FastPathResult::Done)) => {
                stack.interface.owner = owner;
                self.settle(index, stack);
            }
            _ => self.deliver(index, segment, stack),
        }
    }

    /// Delivers a segment to a connection.
    pub fn deliver(&mut self, index: u32, segment: Segment, stack: &mut StackParts<'_>) {
        let refused = Refused::of(&segment);
        stack.interface.owner = self.connections.at(index).map_or(Owner::UNKNOWN, |found| found.owner);
        let verdict = self.with(index, stack, |connection, env| connection.on_segment(segment, env));
        match verdict {
            Some(Verdict::Reset) => {
                let Some(flow) = self.connections.at_mut(index).map(|connection| connection.flow) else {
                    return;
                };
                self.refuse(&flow, refused, stack);
            }
            Some(Verdict::Abort) => {
                self.give_up(index, FailReason::Reset, stack);
                return;
            }
            Some(Verdict::Done) | None => {}
        }
        self.settle(index, stack);
    }

    fn continue_handshake(
        &mut self,
        index: u32,
        flow: &Flow,
        segment: Segment,
        stack: &mut StackParts<'_>,
    ) -> Option<(u32, Segment)> {
        let entry = self.half_open.get_mut(index)?;
        stack.interface.owner = self.listeners.owner(entry.handshake.listener);
        let expected = entry.handshake.remote_initial + 1;
        if segment.flags.has(Flags::RST) {
            if segment.seq == expected {
                stack.counters.bump(Counter::TcpResetsIn);
                self.half_open.remove(index);
                self.flows.remove(flow, Target::HalfOpen(index));
            } else {
                stack.counters.bump(Counter::DropTcpReset);
            }
            return None;
        }
        if segment.flags.has(Flags::SYN) {
            // Either a retransmission of the SYN, or a new SYN of a peer that lost its state. In the second case the
            // peer resets our SYN-ACK.
            entry.handshake.answered_at = None;
            if !segment.flags.has(Flags::ECE | Flags::CWR) {
                // The peer may have retransmitted its SYN without a request for ECN.
                entry.handshake.ecn = EcnAgreement::No;
            }
            let answer = entry.answer();
            self.send_bare(flow, answer, stack);
            return None;
        }
        if !segment.flags.has(Flags::ACK) {
            stack.counters.bump(Counter::DropTcpFlags);
            return None;
        }
        if segment.ack != entry.handshake.local_initial + 1 {
            stack.counters.bump(Counter::DropTcpAck);
            self.refuse(flow, Refused::of(&segment), stack);
            return None;
        }
        if segment.seq.since(expected) > u32::from(entry.local_window) {
            stack.counters.bump(Counter::DropTcpWindow);
            return None;
        }
        let handshake = entry.handshake;
        self.establish(handshake, Some(index), segment, stack)
    }

    /// Turns a complete handshake into a connection, to which the returned segment must be delivered.
    /// `half_open_index` is the index of the half-open entry, if there is one.
    fn establish(
        &mut self,
        handshake: Handshake,
        half_open_index: Option<u32>,
        segment: Segment,
        stack: &mut StackParts<'_>,
    ) -> Option<(u32, Segment)> {
        let (flow, listener) = (handshake.flow, handshake.listener);
        match self.listeners.has_room(listener) {
            Some(Room::Left) => {}
            Some(Room::Full) => {
                stack.counters.bump(Counter::DropTcpBacklog);
                return None;
            }
            None => {
                if let Some(half_open_index) = half_open_index {
                    self.half_open.remove(half_open_index);
                    self.flows.remove(&flow, Target::HalfOpen(half_open_index));
                }
                self.refuse(&flow, Refused::of(&segment), stack);
                return None;
            }
        }
        let env = Env {
            now: stack.now,
            config: &self.config,
            counters: stack.counters,
            challenges: &mut self.challenges,
        };
        if self.connections.is_full() {
            stack.counters.bump(Counter::DropTcpTableFull);
            return None;
        }
        let mut connection = Connection::accept(&handshake, &env);
        connection.mapped = Membership::In;
        connection.owner = self.listeners.owner(listener);
        let remote = flow.remote.ip();
        match &handshake.path {
            Some(path) => {
                let burst = stack.interface.burst_to(remote, path.known.mac);
                connection.set_path_limits(burst, path.over_link);
            }
            None => connection.set_burst(stack.interface.burst(remote)),
        }
        let key = self.connections.insert(connection).ok()?;
        if let Some(half_open_index) = half_open_index {
            self.half_open.remove(half_open_index);
        }
        self.flows.insert(flow, Target::Connection(key.index));
        self.listeners.add_pending(listener);
        stack.counters.bump(Counter::TcpAccepted);
        Some((key.index, segment))
    }

    fn disturb_time_wait(
        &mut self,
        index: u32,
        flow: &Flow,
        segment: Segment,
        stack: &mut StackParts<'_>,
    ) -> Option<(u32, Segment)> {
        let entry = self.time_wait.get(index)?;
        let (answer, ack) = (entry.judge(&segment), entry.ack);
        match answer {
            Answer::Ignore => stack.counters.bump(Counter::DropTcpWindow),
            Answer::Repeat => {
                self.time_wait.restart(index, stack.now, self.config.time_wait);
                self.send_bare(flow, ack, stack);
            }
            Answer::Challenge => match self.challenges.allow(stack.now) {
                Permit::Yes => self.send_bare(flow, ack, stack),
                Permit::No => stack.counters.bump(Counter::ChallengeRate),
            },
            // The peer retransmits its SYN. A SYN cookie cannot separate the two sequence ranges.
            Answer::Reuse(_) if self.half_open.is_full() => stack.counters.bump(Counter::DropTcpHalfOpen),
            Answer::Reuse(last) => {
                self.time_wait.remove(index);
                let left_behind = self.flows.remove(flow, Target::TimeWait(index));
                let opened = self.open_or_refuse(flow, segment, Some(last), stack);
                if left_behind == LeftBehind::Yes && self.flows.get(&FlowKey::of(flow)).is_some() {
                    self.flows.keep(*flow, &self.core);
                }
                return opened;
            }
        }
        None
    }

    /// Processes a segment of an unknown flow: opens a connection or refuses it. `last` is the last sequence number of
    /// the previous connection of the flow, if that was in TIME-WAIT until now.
    fn open_or_refuse(
        &mut self,
        flow: &Flow,
        segment: Segment,
        last: Option<Seq>,
        stack: &mut StackParts<'_>,
    ) -> Option<(u32, Segment)> {
        if segment.flags.has(Flags::RST) {
            stack.counters.bump(Counter::DropTcpPort);
            return None;
        }
        let listener = self.listeners.at_port(flow.local.port());
        stack.interface.owner = listener.map_or(Owner::UNKNOWN, |listener| self.listeners.owner(listener));
        if let Some(handshake) = listener.and_then(|listener| self.redeem(flow, listener, &segment, stack)) {
            return self.establish(handshake, None, segment, stack);
        }
        let Some(listener) = listener.filter(|_| !segment.flags.has(Flags::ACK)) else {
            stack.counters.bump(Counter::DropTcpPort);
            // Data whose cookie was lost or overtaken must not cause a reset: the peer retransmits from the segment
            // with the cookie on.
            let early = listener.is_some() && segment.len() > 0 && self.cookies.are_out(stack.now);
            if !early {
                self.refuse(flow, Refused::of(&segment), stack);
            }
            return None;
        };
        if !segment.flags.has(Flags::SYN) {
            stack.counters.bump(Counter::DropTcpFlags);
            return None;
        }
        if self.listeners.has_room(listener) != Some(Room::Left) {
            stack.counters.bump(Counter::DropTcpBacklog);
            return None;
        }
        self.begin(flow, listener, &segment, last, stack);
        None
    }

    fn begin(
        &mut self,
        flow: &Flow,
        listener: ListenerId,
        segment: &Segment,
        last: Option<Seq>,
        stack: &mut StackParts<'_>,
    ) {
        let InitialValues { sequence: mut initial, timestamp_offset } =
            self.chooser.initial_values(stack.now, flow);
        if let Some(least) = last.map(|last| last + REUSE_DISTANCE) {
            initial = initial.max(least);
        }
        let ours = LocalValues { initial, mss: self.local_mss(flow.remote.ip(), stack), timestamp_offset };
        let entry = HalfOpen::new(*flow, listener, segment, ours, stack.now, &self.config);
        let Some(index) = self.half_open.insert(entry, stack.now, &self.config) else {
            self.answer_with_cookie(entry, stack);
            return;
        };
        self.flows.insert(*flow, Target::HalfOpen(index));
        let path = self.send_answer(flow, entry.answer(), stack);
        if let Some(entry) = self.half_open.get_mut(index) {
            entry.handshake.path = path;
        }
    }

    /// Answers a SYN without keeping state (RFC 4987 3.6).
    fn answer_with_cookie(&mut self, entry: HalfOpen, stack: &mut StackParts<'_>) {
        let Handshake { flow, remote_initial, options, .. } = entry.handshake;
        let mss = options.mss.unwrap_or(DEFAULT_MSS);
        stack.counters.bump(Counter::TcpCookiesOut);
        let seq = self.cookies.make(stack.now, &flow, remote_initial, mss);
        let header = Header {
            seq,
            // Only flags and options that can be recovered from the returned cookie.
            flags: Flags::SYN | Flags::ACK,
            options: cookies::options_of_answer(entry.local_options, &options),
            ..entry.answer()
        };
        self.send_bare(&flow, header, stack);
    }

    /// Returns the handshake that a segment with a valid cookie completes.
    fn redeem(
        &mut self,
        flow: &Flow,
        listener: ListenerId,
        segment: &Segment,
        stack: &mut StackParts<'_>,
    ) -> Option<Handshake> {
        let completes = segment.flags.has(Flags::ACK) && !segment.flags.has(Flags::SYN);
        if !completes || !self.cookies.are_out(stack.now) {
            return None;
        }
        let (cookie, remote_initial) = (segment.ack.back(1), segment.seq.back(1));
        let Some(mss) = self.cookies.check(stack.now, flow, remote_initial, cookie) else {
            stack.counters.bump(Counter::TcpCookiesWrong);
            return None;
        };
        stack.counters.bump(Counter::TcpCookiesIn);
        Some(Handshake {
            flow: *flow,
            listener,
            local_initial: cookie,
            remote_initial,
            options: cookies::options_of_syn(mss, &segment.options),
            window: segment.window,
            answered_at: None,
            ecn: EcnAgreement::No,
            mss: self.local_mss(flow.remote.ip(), stack),
            timestamp_offset: self.chooser.initial_values(stack.now, flow).timestamp_offset,
            path: None,
        })
    }

    /// Returns the segment size to announce to a peer and not to exceed: the payload of a packet on the path to it, as
    /// far as the path's MTU is known. (The reverse path most likely has the same MTU.)
    pub(super) fn local_mss(&self, remote: IpAddr, stack: &StackParts<'_>) -> u16 {
        mss_within(stack.interface.mtu_to(stack.now, remote, PathUser::Tcp), remote)
    }

    /// Answers a segment with a reset, within the rate limit.
    fn refuse(&mut self, flow: &Flow, refused: Refused, stack: &mut StackParts<'_>) {
        self.resets.answer(flow, refused, stack);
    }

    /// Processes an ICMP error, which quotes a segment that this stack appears to have sent. The error is accepted only
    /// if the quoted sequence number is in flight, which an outsider does not know (RFC 5927 4.1). It never ends an
    /// established connection (RFC 1122 4.2.3.9).
    pub fn on_icmp_error(&mut self, error: &IcmpError, stack: &mut StackParts<'_>) {
        if !is_in_use() {
            stack.counters.bump(Counter::DropIcmpUnrelated);
            return;
        }
        let connection = match self.flows.get(&FlowKey::of(&error.flow)) {
            Some(Target::Connection(index)) => self.connections.at_mut(index).map(|c| (index, c)),
            _ => None,
        };
        let Some((index, connection)) = connection.filter(|(_, c)| c.is_in_flight(Seq(error.sequence)))
        else {
            stack.counters.bump(Counter::DropIcmpUnrelated);
            return;
        };
        match error.kind {
            ErrorKind::TooBig { mtu } => {
                let remote = error.flow.remote.ip();
                let mtu = stack.interface.learn_mtu(stack.now, remote, PathUser::Tcp, mtu, stack.counters);
                connection.shrink_mss(mss_within(mtu, remote).into());
            }
            ErrorKind::Unreachable | ErrorKind::PortUnreachable if connection.state == State::SynSent => {
                connection.fail(FailReason::Unreachable);
            }
            ErrorKind::Unreachable | ErrorKind::PortUnreachable => {}
        }
        self.settle(index, stack);
    }

    /// Continues the connections whose neighbour resolution has ended. If it failed, a connection in SYN-SENT fails,
    /// and others lose their output.
    pub fn on_search_ended(&mut self, waiting: &[u32], outcome: SearchOutcome, stack: &mut StackParts<'_>) {
        if !is_in_use() {
            return;
        }
        for &index in waiting {
            let Some(connection) = self.connections.at_mut(index) else { continue };
            connection.searching = Membership::Out;
            if outcome == SearchOutcome::NoAnswer {
                if connection.state == State::SynSent {
                    connection.fail(FailReason::Unreachable);
                } else {
                    self.lose_output(index, stack);
                }
            }
            self.settle(index, stack);
        }
    }
}

/// Returns the segment size for packets of `mtu` bytes to `remote`.
pub(super) fn mss_within(mtu: usize, remote: IpAddr) -> u16 {
    let ip = if remote.is_ipv4() { IPV4_HEADER_LEN } else { IPV6_HEADER_LEN };
    mtu.min(MAX_MTU).saturating_sub(ip + HEADER_LEN) as u16
}

/// Returns the connection's index if the target is a connection.
#[inline(always)]
const fn connection_of(target: Target) -> Option<u32> {
    match target {
        Target::Connection(index) => Some(index),
        Target::HalfOpen(_) | Target::TimeWait(_) => None,
    }
}

/// The result of a neighbour resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SearchOutcome {
    Found,
    NoAnswer,
}
