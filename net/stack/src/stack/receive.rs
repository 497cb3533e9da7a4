//! The receive path: from a frame to the protocol that processes it.

use super::{Stack, stack_parts};
use crate::base::{
    Counter, Event, Flow, Instant, MacAddr, Owner, Permit, RxChecksum, is_unicast, is_unicast6,
};
use crate::configuration::{DHCP_CLIENT_PORT, DHCP_SERVER_PORT, DHCP6_CLIENT_PORT, DHCP6_SERVER_PORT};
use crate::ip::{
    ErrorKind, Fragment, Fragmentation, IPV6_HEADER_LEN, Icmp6ErrorKind, Icmp6Message, IcmpError,
    IcmpMessage, IpPacket, PROBLEM_NEXT_HEADER, Packet, ParsedIpv4, ParsedIpv6, PathUser, Refusal,
    echo_reply, icmp6_error, is_about_neighbours, may_cause_error, parse_ethernet, parse_icmp, parse_icmp6,
    parse_ipv4, parse_ipv6, port_unreachable, prepend_ethernet,
};
use crate::tcp::{self, StackParts};
use crate::udp::{self, Datagram};
use alloc::boxed::Box;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use etherparse::{EtherType, IpNumber};
use isola_iobuf::{Chain, IoBuf, IoBufMut};

/// Maximum number of reassembled packets that wait to be steered.
const REASSEMBLED: usize = 64;
/// The source address of a frame with a reassembled packet, whose fragments may have come from several sources. It is
/// unlikely to be in use.
const FROM_FRAGMENTS: MacAddr = MacAddr(*b"\x02whole");

/// The addressee of a packet.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Addressee {
    /// This interface only.
    Own,
    /// All hosts of the network, or a multicast group.
    Group,
}

impl Stack {
    /// Processes a frame that the device received. Payloads are kept as views of `frame`.
    #[inline]
    pub fn receive(&mut self, now: Instant, mut frame: IoBuf, checksum: RxChecksum) {
        self.at(now);
        self.interface.owner = Owner::UNKNOWN;
        self.counters.bump(Counter::FramesIn);
        self.counters.add(Counter::BytesIn, frame.len() as u64);
        if tcp::is_in_use() {
            if let Some(fast) = self.tcp.fast_segment(&frame, 0, checksum, &self.interface) {
                self.tcp.receive_fast(fast, frame, None, stack_parts!(self));
                return;
            }
            match self.tcp.receive_end_frame(frame, checksum, &mut stack_parts!(self)) {
                Some(other) => frame = other,
                None => return,
            }
        }
        if let Err(reason) = self.receive_ethernet(frame, checksum) {
            self.counters.bump(reason);
        }
    }

    /// Processes a frame that a device has merged from several segments of a connection, as [`Self::receive`] does.
    /// `frame` has all headers, and `rest` follows it.
    pub fn receive_long(&mut self, now: Instant, frame: IoBuf, rest: Box<Chain>, checksum: RxChecksum) {
        self.at(now);
        self.interface.owner = Owner::UNKNOWN;
        self.counters.bump(Counter::FramesIn);
        self.counters.add(Counter::BytesIn, (frame.len() + rest.len()) as u64);
        if tcp::is_in_use()
            && let Some(fast) = self.tcp.fast_segment(&frame, rest.len(), checksum, &self.interface)
        {
            self.tcp.receive_fast(fast, frame, Some(rest), stack_parts!(self));
            return;
        }
        // Frames with FIN or SACK blocks, among others: too rare for a path without copying.
        self.counters.bump(Counter::LongFramesCopied);
        let mut whole = IoBufMut::with_room(0, frame.len() + rest.len());
        let copied =
            core::iter::once(&frame).chain(rest.parts()).try_for_each(|part| whole.append_slice(part));
        let result = copied.ok_or(Counter::DropEthernetShort);
        if let Err(reason) = result.and_then(|()| self.receive_ethernet(whole.freeze(), checksum)) {
            self.counters.bump(reason);
        }
    }

    fn receive_ethernet(&mut self, frame: IoBuf, checksum: RxChecksum) -> Result<(), Counter> {
        let frame = parse_ethernet(frame)?;
        if frame.destination != self.interface.mac && !frame.destination.is_group() {
            return Err(Counter::DropEthernetAddress);
        }
        if frame.source.is_group() || frame.source == self.interface.mac {
            return Err(Counter::DropEthernetAddress);
        }
        let link = if frame.destination.is_group() { Addressee::Group } else { Addressee::Own };
        match frame.ether_type {
            EtherType::IPV4 => self.receive_ipv4(frame.payload, link, checksum),
            EtherType::IPV6 => {
                let fragmentation =
                    if frame.source == FROM_FRAGMENTS { Fragmentation::Present } else { Fragmentation::None };
                self.receive_ipv6(frame.payload, link, checksum, fragmentation)
            }
            EtherType::ARP => {
                self.setup_due = Instant::ZERO;
                self.receive_arp(&frame.payload)
            }
            _ => Err(Counter::DropEtherType),
        }
    }

    /// Processes an IPv4 packet. `link` is the addressee of the frame: a packet to this interface alone in a broadcast
    /// frame is not accepted (RFC 1122 3.3.6).
    fn receive_ipv4(&mut self, packet: IoBuf, link: Addressee, checksum: RxChecksum) -> Result<(), Counter> {
        let packet = match parse_ipv4(packet)? {
            ParsedIpv4::Whole(packet) => packet,
            ParsedIpv4::Fragment(fragment) => return self.receive_fragment(fragment, link),
        };
        let (IpAddr::V4(source), IpAddr::V4(destination)) = (packet.source, packet.destination) else {
            return Err(Counter::DropIpv4Malformed);
        };
        let Some(own) = self.interface.ipv4 else {
            return self.receive_without_address(packet, checksum);
        };
        let addressee = match destination {
            ip if ip == own.address && link == Addressee::Own => Addressee::Own,
            ip if ip == own.address && self.dhcp.is_some() => Addressee::Group,
            ip if own.is_broadcast(ip) => Addressee::Group,
            _ => return Err(Counter::DropIpv4Address),
        };
        // Reject a source address that cannot be answered or is ours. A host without an address may broadcast (RFC 1122
        // 3.2.1.3); a DHCP server receives such packets.
        let asks_everybody =
            source.is_unspecified() && addressee == Addressee::Group && packet.protocol == IpNumber::UDP;
        let possible = is_unicast(source) && !own.is_broadcast(source) && source != own.address;
        if !possible && !asks_everybody {
            return Err(Counter::DropIpv4Source);
        }
        match (packet.protocol, addressee) {
            (IpNumber::TCP, Addressee::Own) => self.receive_tcp(packet, checksum),
            (IpNumber::UDP, _) => self.receive_udp(packet, addressee, checksum),
            (IpNumber::ICMP, Addressee::Own) => self.receive_icmp(packet, (destination, source)),
            (IpNumber::TCP | IpNumber::ICMP, Addressee::Group) => Err(Counter::DropIpv4Address),
            _ => Err(Counter::DropIpv4Protocol),
        }
    }

    /// Processes a packet while the interface has no address: only DHCP answers are accepted, with any destination.
    fn receive_without_address(&mut self, packet: IpPacket, checksum: RxChecksum) -> Result<(), Counter> {
        if self.dhcp.is_none() || packet.protocol != IpNumber::UDP {
            return Err(Counter::DropNoAddress);
        }
        self.receive_udp(packet, Addressee::Group, checksum)
    }

    fn receive_ipv6(
        &mut self,
        packet: IoBuf,
        link: Addressee,
        checksum: RxChecksum,
        fragmentation: Fragmentation,
    ) -> Result<(), Counter> {
        match parse_ipv6(packet) {
            // Fragmentation may hide neighbour discovery messages from filters (RFC 6980 5).
            Ok(ParsedIpv6::Whole(packet, _, with)) if is_hidden(&packet, fragmentation, with) => {
                Err(Counter::DropNdpInvalid)
            }
            Ok(ParsedIpv6::Whole(packet, next_header_at, _)) => {
                self.receive_whole_ipv6(packet, next_header_at, link, checksum)
            }
            // A reassembled packet must not itself be a fragment: its reassembly would nest.
            Ok(ParsedIpv6::Fragment(_)) if fragmentation == Fragmentation::Present => {
                Err(Counter::DropFragmentMalformed)
            }
            Ok(ParsedIpv6::Fragment(fragment)) => self.receive_fragment(fragment, link),
            Err((Refusal::Problem { counter, code, pointer }, packet)) => {
                self.send_icmp6_error(packet, link, Icmp6ErrorKind::Problem { code, pointer });
                Err(counter)
            }
            Err((refusal, _)) => Err(refusal.counter()),
        }
    }

    fn receive_whole_ipv6(
        &mut self,
        packet: IpPacket,
        next_header_at: usize,
        link: Addressee,
        checksum: RxChecksum,
    ) -> Result<(), Counter> {
        let (IpAddr::V6(source), IpAddr::V6(destination)) = (packet.source, packet.destination) else {
            return Err(Counter::DropIpv6Malformed);
        };
        let addressee = match destination {
            ip if self.interface.ipv6.has(ip) && link == Addressee::Own => Addressee::Own,
            ip if ip.is_multicast() && self.listens_to(ip) => Addressee::Group,
            _ => return Err(Counter::DropIpv6Address),
        };
        // A host without an address may only check whether an address is in use (RFC 4862 5.4).
        let asks = source.is_unspecified() && packet.protocol == IpNumber::IPV6_ICMP;
        if !asks && (!is_unicast6(source) || self.interface.ipv6.has(source)) {
            return Err(Counter::DropIpv6Source);
        }
        match (packet.protocol, addressee) {
            (IpNumber::TCP, Addressee::Own) => self.receive_tcp(packet, checksum),
            (IpNumber::UDP, _) => self.receive_udp(packet, addressee, checksum),
            (IpNumber::IPV6_ICMP, _) => self.receive_icmp6(packet, (destination, source)),
            (IpNumber::TCP, Addressee::Group) => Err(Counter::DropIpv6Address),
            _ => {
                let problem = (PROBLEM_NEXT_HEADER, next_header_at as u32);
                self.send_icmp6_error(
                    packet.whole,
                    link,
                    Icmp6ErrorKind::Problem { code: problem.0, pointer: problem.1 },
                );
                Err(Counter::DropIpv6Protocol)
            }
        }
    }

    /// Returns whether the interface receives a multicast group, for its addresses and those under check.
    fn listens_to(&self, group: Ipv6Addr) -> bool {
        // The all-nodes group is received before there is an address, for router advertisements.
        self.interface.ipv6.listens_to(group)
            || self.autoconf.as_ref().is_some_and(|autoconf| autoconf.checks_in(group))
    }

    fn receive_tcp(&mut self, packet: IpPacket, checksum: RxChecksum) -> Result<(), Counter> {
        let parts = &mut stack_parts!(self);
        match tcp::is_in_use() {
            true => self.tcp.receive_packet(packet, checksum, parts),
            false => self.tcp.resets.refuse(packet, checksum, parts),
        }
    }

    fn receive_udp(
        &mut self,
        packet: IpPacket,
        addressee: Addressee,
        checksum: RxChecksum,
    ) -> Result<(), Counter> {
        let (source, destination) = (packet.source, packet.destination);
        let whole = IpPacket { whole: packet.whole.clone(), ..packet };
        let received = udp::parse(packet.into_payload(), source, destination, checksum)?;
        let from_server =
            received.destination_port == DHCP_CLIENT_PORT && received.source_port == DHCP_SERVER_PORT;
        if let Some(client) = self.dhcp.as_mut().filter(|_| from_server && source.is_ipv4()) {
            self.setup_due = Instant::ZERO;
            let change = client.receive(self.now, &received.payload).map_err(|_| Counter::DropDhcp)?;
            self.apply(change);
            return Ok(());
        }
        let from_server6 =
            received.destination_port == DHCP6_CLIENT_PORT && received.source_port == DHCP6_SERVER_PORT;
        if from_server6 && source.is_ipv6() && self.autoconf.is_some() {
            self.setup_due = Instant::ZERO;
            return self.receive_dhcp6(&received.payload);
        }
        if destination.is_ipv4() && self.interface.ipv4.is_none() {
            return Err(Counter::DropNoAddress);
        }
        let remote = SocketAddr::new(source, received.source_port);
        let datagram = Datagram { remote, local: destination, payload: received.payload };
        self.interface.owner = self.udp.owner_of_port(received.destination_port);
        let delivered = self.udp.deliver(received.destination_port, datagram, &mut self.events);
        if delivered == Err(Counter::DropUdpPort) && addressee == Addressee::Own {
            self.refuse_datagram(whole);
        }
        delivered
    }

    fn refuse_datagram(&mut self, packet: IpPacket) {
        if packet.source.is_ipv6() {
            self.send_icmp6_error(packet.whole, Addressee::Own, Icmp6ErrorKind::Port);
            return;
        }
        if self.error_limit.allow(self.now) == Permit::No {
            self.counters.bump(Counter::DropIcmpRate);
            return;
        }
        let head = self.interface.pool.take();
        if let Some(error) = port_unreachable(head, packet) {
            self.interface.send(self.now, error, &mut self.counters);
        }
    }

    /// Sends an ICMPv6 error about a received packet, if that is permitted (RFC 4443 2.4 e, f). For multicast and
    /// broadcast packets, only the errors permitted by section 2.4 e.3.
    pub(super) fn send_icmp6_error(
        &mut self,
        mut whole: IoBuf,
        link: Addressee,
        kind_of_error: Icmp6ErrorKind,
    ) {
        let Ok(header) = etherparse::Ipv6HeaderSlice::from_slice(&whole) else { return };
        let len = IPV6_HEADER_LEN + usize::from(header.payload_length());
        let (source, destination) = (header.source_addr(), header.destination_addr());
        let about_option = matches!(kind_of_error, Icmp6ErrorKind::Problem { code: 2, .. });
        let group = destination.is_multicast();
        if !may_cause_error(&whole, source) || ((group || link == Addressee::Group) && !about_option) {
            return;
        }
        let own = if self.interface.ipv6.has(destination) {
            Some(destination)
        } else {
            self.interface.ipv6.source_for(source).filter(|_| group && self.listens_to(destination))
        };
        let Some(own) = own else { return };
        // Remove the padding of the link.
        whole.truncate(len);
        if self.error_limit.allow(self.now) == Permit::No {
            self.counters.bump(Counter::DropIcmpRate);
            return;
        }
        let head = self.interface.pool.take();
        if let Some(error) = icmp6_error(head, (own, source), kind_of_error, whole) {
            self.interface.send(self.now, error, &mut self.counters);
        }
    }

    fn receive_icmp(&mut self, packet: IpPacket, (own, asker): (Ipv4Addr, Ipv4Addr)) -> Result<(), Counter> {
        match parse_icmp(packet.into_payload())? {
            IcmpMessage::Echo { identity, data } => {
                let head = self.interface.pool.take();
                self.echo(echo_reply(head, own.into(), asker.into(), identity, data))
            }
            IcmpMessage::Error(error) => self.receive_error(&error),
        }
    }

    fn receive_icmp6(
        &mut self,
        packet: IpPacket,
        (destination, source): (Ipv6Addr, Ipv6Addr),
    ) -> Result<(), Counter> {
        self.setup_due = Instant::ZERO;
        let hops = packet.hops;
        match parse_icmp6(packet.into_payload(), source, destination, hops)? {
            Icmp6Message::Echo { identity, data } if !source.is_unspecified() => {
                // The answer to a multicast request has an address of this interface as source (RFC 4443 4.2).
                let own = if destination.is_multicast() {
                    self.interface.ipv6.source_for(source).ok_or(Counter::DropNoAddress)?
                } else {
                    destination
                };
                let head = self.interface.pool.take();
                self.echo(echo_reply(head, own.into(), source.into(), identity, data))
            }
            Icmp6Message::Echo { .. } => Err(Counter::DropIpv6Source),
            Icmp6Message::Error(error) => self.receive_error(&error),
            Icmp6Message::Neighbours(message) => self.receive_ndp(message, source, destination),
            Icmp6Message::Query { within_ms } => {
                let autoconf = self.autoconf.as_mut().ok_or(Counter::DropIcmpIgnored)?;
                autoconf.on_query(self.now, within_ms);
                Ok(())
            }
        }
    }

    fn echo(&mut self, reply: Option<Packet>) -> Result<(), Counter> {
        if self.echo_limit.allow(self.now) == Permit::No {
            return Err(Counter::DropIcmpRate);
        }
        if let Some(reply) = reply {
            self.interface.send(self.now, reply, &mut self.counters);
        }
        Ok(())
    }

    /// Stores a fragment, or processes the packet that it completes. If other cores share the interface, the packet is
    /// queued for the layer above, which steers it like a received frame.
    fn receive_fragment(&mut self, fragment: Fragment, link: Addressee) -> Result<(), Counter> {
        let destination = fragment.id.destination;
        let ours = match destination {
            IpAddr::V4(ip) => {
                self.interface.ipv4.is_some_and(|own| own.address == ip || own.is_broadcast(ip))
            }
            IpAddr::V6(ip) => self.interface.ipv6.has(ip) || (ip.is_multicast() && self.listens_to(ip)),
        };
        if !ours {
            return Err(match destination {
                IpAddr::V4(_) => Counter::DropIpv4Address,
                IpAddr::V6(_) => Counter::DropIpv6Address,
            });
        }
        let whole = self.fragments.add(self.now, fragment, &mut self.counters).map_err(Refusal::counter)?;
        let Some(mut whole) = whole else { return Ok(()) };
        self.counters.bump(Counter::Reassembled);
        let ether_type = if destination.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
        if self.core.is_alone() {
            return match destination {
                IpAddr::V4(_) => self.receive_ipv4(whole.freeze(), link, RxChecksum::Unverified),
                IpAddr::V6(_) => {
                    self.receive_ipv6(whole.freeze(), link, RxChecksum::Unverified, Fragmentation::Present)
                }
            };
        }
        let own = self.interface.mac;
        let to = if link == Addressee::Own { own } else { MacAddr::BROADCAST };
        if self.reassembled.len() >= REASSEMBLED
            || prepend_ethernet(&mut whole, FROM_FRAGMENTS, to, ether_type).is_none()
        {
            return Err(Counter::DropFragmentLimit);
        }
        self.reassembled.push_back(whole.freeze());
        Ok(())
    }

    /// Returns the next reassembled frame, to be steered to the core of its flow. There are such frames only if several
    /// stacks share the interface. Call this after `receive`.
    pub fn take_reassembled(&mut self) -> Option<IoBuf> {
        self.reassembled.pop_front()
    }

    fn receive_error(&mut self, error: &IcmpError) -> Result<(), Counter> {
        match error.protocol {
            IpNumber::TCP => {
                self.tcp.on_icmp_error(error, &mut stack_parts!(self));
                Ok(())
            }
            IpNumber::UDP => match error.kind {
                ErrorKind::TooBig { mtu } if self.is_our_datagram(error) => {
                    let remote = error.flow.remote.ip();
                    self.interface.learn_mtu(self.now, remote, PathUser::Udp, mtu, &mut self.counters);
                    Ok(())
                }
                ErrorKind::TooBig { .. } => Err(Counter::DropIcmpUnrelated),
                ErrorKind::PortUnreachable if self.refusal_limit.allow(self.now) == Permit::No => {
                    Err(Counter::DropIcmpRate)
                }
                ErrorKind::PortUnreachable => {
                    let Flow { local, remote } = error.flow;
                    self.events.notice(Event::DatagramRefused { port: local.port(), remote });
                    Ok(())
                }
                ErrorKind::Unreachable => Err(Counter::DropIcmpIgnored),
            },
            _ => Err(Counter::DropIcmpIgnored),
        }
    }

    /// Returns whether a quoted datagram was sent by this stack, with the length in its header.
    fn is_our_datagram(&self, error: &IcmpError) -> bool {
        self.sent_datagrams.has(self.now, &error.flow, (error.sequence >> 16) as u16)
    }
}

/// Returns whether a packet is a neighbour discovery message that came in fragments, or with a fragment header.
fn is_hidden(packet: &IpPacket, fragmentation: Fragmentation, with: Fragmentation) -> bool {
    (fragmentation, with) != (Fragmentation::None, Fragmentation::None)
        && packet.protocol == IpNumber::IPV6_ICMP
        && packet.whole.get(packet.headers_len).is_some_and(|&kind| is_about_neighbours(kind))
}
