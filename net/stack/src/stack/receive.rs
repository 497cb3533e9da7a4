//! The way in: from a frame to the protocol that it is for.

use super::{Stack, around};
use crate::address::{Flow, is_unicast};
use crate::arp::{ArpPacket, MakeEntry};
use crate::config::RxChecksum;
use crate::counters::Counter;
use crate::icmp::Message;
use crate::ipv4::Ipv4Packet;
use crate::limit::Allowed;
use crate::tcp::segment::Segment;
use crate::tcp::tables::Around;
use crate::time::Instant;
use crate::udp::Datagram;
use crate::{dhcp, ethernet, icmp, ipv4, udp};
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use etherparse::{ArpOperation, EtherType, IpNumber};
use isola_iobuf::IoBuf;

/// Whom a packet is addressed to, seen from this interface.
#[derive(Clone, Copy, PartialEq)]
enum Addressee {
    /// This interface alone.
    Own,
    /// Everybody on the network.
    Everybody,
}

impl Stack {
    /// Takes in a frame that the device received at `now`. Payloads are kept as views of `frame`.
    pub fn receive(&mut self, now: Instant, frame: IoBuf, checksum: RxChecksum) {
        self.at(now);
        self.counters.bump(Counter::FramesIn);
        self.counters.add(Counter::BytesIn, frame.len() as u64);
        if let Err(reason) = self.receive_ethernet(frame, checksum) {
            self.counters.bump(reason);
        }
    }

    fn receive_ethernet(&mut self, frame: IoBuf, checksum: RxChecksum) -> Result<(), Counter> {
        let frame = ethernet::parse(frame)?;
        if frame.destination != self.interface.mac && !frame.destination.is_group() {
            return Err(Counter::DropEthernetAddress);
        }
        if frame.source.is_group() || frame.source == self.interface.mac {
            return Err(Counter::DropEthernetAddress);
        }
        match frame.ether_type {
            EtherType::IPV4 => {
                let broadcast = frame.destination.is_group();
                let link = if broadcast { Addressee::Everybody } else { Addressee::Own };
                self.receive_ipv4(frame.payload, link, checksum)
            }
            EtherType::ARP => self.receive_arp(&frame.payload),
            _ => Err(Counter::DropEtherType),
        }
    }

    fn receive_arp(&mut self, bytes: &[u8]) -> Result<(), Counter> {
        let packet = ArpPacket::parse(bytes).ok_or(Counter::DropArpMalformed)?;
        let own = self.interface.ipv4.ok_or(Counter::DropNoAddress)?;
        if packet.sender_ip == own.address {
            // Somebody uses our address: telling the neighbours who has it is all that helps.
            return Err(Counter::DropArpNotForUs);
        }
        if !own.on_link(packet.sender_ip) || own.is_broadcast(packet.sender_ip) {
            return Err(Counter::DropArpNotForUs);
        }
        // What is between others only refreshes what is known (RFC 826's merge flag).
        let for_us = packet.target_ip == own.address;
        let make = if for_us { MakeEntry::Always } else { MakeEntry::IfPresent };
        self.learn_neighbour(packet.sender_ip, packet.sender_mac, make);
        if !for_us {
            return Err(Counter::DropArpNotForUs);
        }
        if packet.operation == ArpOperation::REQUEST {
            let reply = ArpPacket {
                operation: ArpOperation::REPLY,
                sender_mac: self.interface.mac,
                sender_ip: own.address,
                target_mac: packet.sender_mac,
                target_ip: packet.sender_ip,
            };
            self.interface.send_arp(reply, packet.sender_mac, &mut self.counters);
        }
        Ok(())
    }

    /// `link` says whom the frame was addressed to: a packet for this interface alone in a frame for everybody
    /// is somebody's trick (RFC 1122 3.3.6).
    fn receive_ipv4(&mut self, packet: IoBuf, link: Addressee, checksum: RxChecksum) -> Result<(), Counter> {
        let packet = ipv4::parse(packet)?;
        let Some(own) = self.interface.ipv4 else {
            return self.receive_without_address(packet, checksum);
        };
        let addressee = match packet.destination {
            ip if ip == own.address && link == Addressee::Own => Addressee::Own,
            ip if ip == own.address && self.dhcp.is_some() => Addressee::Everybody,
            ip if own.is_broadcast(ip) => Addressee::Everybody,
            _ => return Err(Counter::DropIpv4Address),
        };
        // A sender that nobody can answer, or that claims to be us. One without an address yet may ask
        // everybody (RFC 1122 3.2.1.3): that is what a DHCP server hears.
        let source = packet.source;
        let asks_everybody =
            source.is_unspecified() && addressee == Addressee::Everybody && packet.protocol == IpNumber::UDP;
        let possible = is_unicast(source) && !own.is_broadcast(source) && source != own.address;
        if !possible && !asks_everybody {
            return Err(Counter::DropIpv4Source);
        }
        match (packet.protocol, addressee) {
            (IpNumber::TCP, Addressee::Own) => self.receive_tcp(packet, checksum),
            (IpNumber::UDP, _) => self.receive_udp(packet, addressee, checksum),
            (IpNumber::ICMP, Addressee::Own) => self.receive_icmp(packet),
            (IpNumber::TCP | IpNumber::ICMP, Addressee::Everybody) => Err(Counter::DropIpv4Address),
            _ => Err(Counter::DropIpv4Protocol),
        }
    }

    /// Without an address only DHCP's answers are of interest, to whomever they are sent.
    fn receive_without_address(&mut self, packet: Ipv4Packet, checksum: RxChecksum) -> Result<(), Counter> {
        if self.dhcp.is_none() || packet.protocol != IpNumber::UDP {
            return Err(Counter::DropNoAddress);
        }
        self.receive_udp(packet, Addressee::Everybody, checksum)
    }

    fn receive_tcp(&mut self, packet: Ipv4Packet, checksum: RxChecksum) -> Result<(), Counter> {
        let (remote, local) = (IpAddr::V4(packet.source), IpAddr::V4(packet.destination));
        let segment = Segment::parse(packet.into_payload(), remote, local, checksum)?;
        let flow = Flow::new(local, segment.destination_port, remote, segment.source_port);
        self.tcp.receive(flow, segment, &mut around!(self));
        Ok(())
    }

    fn receive_udp(
        &mut self,
        packet: Ipv4Packet,
        addressee: Addressee,
        checksum: RxChecksum,
    ) -> Result<(), Counter> {
        let (source, destination) = (IpAddr::V4(packet.source), IpAddr::V4(packet.destination));
        let whole = packet.whole.clone();
        let header_len = packet.header_len;
        let received = udp::parse(packet.into_payload(), source, destination, checksum)?;
        let from_server =
            received.destination_port == dhcp::CLIENT_PORT && received.source_port == dhcp::SERVER_PORT;
        if let Some(client) = self.dhcp.as_mut().filter(|_| from_server) {
            let change = client.receive(self.now, &received.payload).map_err(|_| Counter::DropDhcp)?;
            self.apply(change);
            return Ok(());
        }
        if self.interface.ipv4.is_none() {
            return Err(Counter::DropNoAddress);
        }
        let remote = SocketAddr::new(source, received.source_port);
        let datagram = Datagram { remote, local: destination, payload: received.payload };
        let delivered = self.udp.deliver(received.destination_port, datagram, &mut self.events);
        if delivered == Err(Counter::DropUdpPort)
            && addressee == Addressee::Own
            && let (IpAddr::V4(source), IpAddr::V4(destination)) = (source, destination)
        {
            let packet = Ipv4Packet { source, destination, protocol: IpNumber::UDP, whole, header_len };
            self.refuse_datagram(packet);
        }
        delivered
    }

    fn refuse_datagram(&mut self, packet: Ipv4Packet) {
        if self.error_limit.allow(self.now) == Allowed::No {
            self.counters.bump(Counter::DropIcmpRate);
            return;
        }
        let own = IpAddr::V4(packet.destination);
        let head = self.interface.pool.take();
        if let Some(error) = icmp::port_unreachable(head, own, packet) {
            self.interface.send(self.now, error, &mut self.counters);
        }
    }

    fn receive_icmp(&mut self, packet: Ipv4Packet) -> Result<(), Counter> {
        let (asker, own): (Ipv4Addr, Ipv4Addr) = (packet.source, packet.destination);
        match icmp::parse(packet.into_payload())? {
            Message::Echo { identity, data } => {
                if self.echo_limit.allow(self.now) == Allowed::No {
                    return Err(Counter::DropIcmpRate);
                }
                let head = self.interface.pool.take();
                if let Some(reply) = icmp::echo_reply(head, own.into(), asker.into(), identity, data) {
                    self.interface.send(self.now, reply, &mut self.counters);
                }
                Ok(())
            }
            Message::Error(error) if error.protocol == IpNumber::TCP => {
                self.tcp.on_icmp_error(&error, &mut around!(self));
                Ok(())
            }
            Message::Error(_) => Err(Counter::DropIcmpIgnored),
        }
    }
}
