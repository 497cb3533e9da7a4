//! The way out: routing, neighbours, encapsulation, and the queue of frames that are ready.
//!
//! Two kinds of senders use it. What is made once (an ARP answer, an ICMP error, a datagram, a reset) is
//! handed over as a [`Packet`] and waits here, in the transmit queue or with its neighbour's search. A TCP
//! connection instead asks for the [`Path`] first and makes its segment when the device takes it.

use crate::address::{Ipv4Config, MacAddr};
use crate::arp::{ArpCache, ArpPacket, Ask, Known, PACKET_LEN, Waiting};
use crate::checksum::Sum;
use crate::config::{Config, TxChecksum};
use crate::counters::{Counter, Counters};
use crate::frame::{ChecksumOffload, Frame, HeadPool};
use crate::time::Instant;
use crate::{ethernet, ipv4};
use alloc::collections::VecDeque;
use core::net::{IpAddr, Ipv4Addr};
use etherparse::{ArpOperation, EtherType, IpNumber};
use isola_iobuf::{Chain, IoBufMut};

/// An IP packet without its IP header.
pub(crate) struct Packet {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: IpNumber,
    /// The transport header, with room for the others in front.
    pub head: IoBufMut,
    pub payload: Chain,
    /// Distance from the transport header's start to the checksum that the device completes.
    pub checksum_offset: Option<u16>,
}

/// How a destination is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// Through this neighbour.
    Known(Known),
    /// Through a neighbour whose hardware address is being sought.
    Sought(Ipv4Addr),
    /// Not at all, or not now: what is sent there is lost.
    Lost,
}

enum NextHop {
    Broadcast,
    Neighbour(Ipv4Addr),
}

/// The sending side of one interface.
pub(crate) struct Interface {
    pub mac: MacAddr,
    pub ipv4: Option<Ipv4Config>,
    pub mtu: usize,
    pub arp: ArpCache,
    pub pool: HeadPool,
    tx_checksum: TxChecksum,
    queue: VecDeque<Frame>,
    queue_limit: usize,
    /// Which instance this is: only the first speaks for the interface where nobody asked.
    announces: Announces,
}

#[derive(PartialEq)]
enum Announces {
    Yes,
    No,
}

impl Interface {
    pub fn new(config: &Config) -> Self {
        Self {
            mac: config.mac,
            ipv4: None,
            mtu: config.mtu,
            arp: ArpCache::new(&config.limits),
            pool: HeadPool::new(config.headroom),
            tx_checksum: config.tx_checksum,
            queue: VecDeque::new(),
            queue_limit: config.limits.transmit_queue,
            announces: if config.core.is_first() { Announces::Yes } else { Announces::No },
        }
    }

    /// Sets the address, tells the neighbours about it, and forgets what was learned on another network.
    /// Returns the connections that waited for a neighbour.
    pub fn set_ipv4(&mut self, ipv4: Option<Ipv4Config>, counters: &mut Counters) -> alloc::vec::Vec<u32> {
        let waiting = self.arp.clear(counters);
        self.ipv4 = ipv4;
        if let Some(own) = ipv4
            && self.announces == Announces::Yes
        {
            // An ARP announcement (RFC 5227 3): a request for the own address.
            self.ask(Ask { ip: own.address, to: MacAddr::BROADCAST }, counters);
        }
        waiting
    }

    /// Whether `ip` is this interface's own address.
    pub fn is_own(&self, ip: IpAddr) -> bool {
        self.ipv4.is_some_and(|own| ip == IpAddr::V4(own.address))
    }

    /// Completes the checksum of a transport header, or prepares it for the device: in that case returns the
    /// field's offset again, for [`Packet::checksum_offset`].
    pub fn seal(
        &self,
        head: &mut IoBufMut,
        payload: &Chain,
        ends: (IpAddr, IpAddr),
        protocol: IpNumber,
        offset: u16,
    ) -> Option<u16> {
        let mut sum = Sum::pseudo_header(ends.0, ends.1, protocol.0, head.len() + payload.len());
        let (value, left) = match self.tx_checksum {
            TxChecksum::Device => (sum.folded(), Some(offset)),
            TxChecksum::Software => {
                sum.add(head);
                sum.add_chain(payload);
                // UDP's zero means "none" (RFC 768); its equal in one's complement is all ones.
                let value = sum.checksum();
                (if protocol == IpNumber::UDP && value == 0 { 0xffff } else { value }, None)
            }
        };
        let at = usize::from(offset);
        if let Some(field) = head.data_mut().get_mut(at..at + 2) {
            field.copy_from_slice(&value.to_be_bytes());
        }
        left
    }

    /// How `destination` is reached; starts the search for its neighbour where it must.
    pub fn path(&mut self, now: Instant, destination: IpAddr, counters: &mut Counters) -> Path {
        match self.next_hop(destination) {
            None => {
                counters.bump(Counter::DropNoRoute);
                Path::Lost
            }
            Some(NextHop::Broadcast) => Path::Known(Known { mac: MacAddr::BROADCAST, valid_until: now }),
            Some(NextHop::Neighbour(ip)) => {
                let answer = self.arp.look_up(now, ip, counters);
                if let Some(ask) = answer.ask {
                    self.ask(ask, counters);
                }
                match answer.known {
                    Some(known) => Path::Known(known),
                    None if self.arp.is_sought(ip) => Path::Sought(ip),
                    None => Path::Lost,
                }
            }
        }
    }

    /// Whether there is any way to `destination`.
    pub fn has_route(&self, destination: IpAddr) -> bool {
        self.next_hop(destination).is_some()
    }

    fn next_hop(&self, destination: IpAddr) -> Option<NextHop> {
        let IpAddr::V4(ip) = destination else { return None };
        if ip.is_broadcast() {
            return Some(NextHop::Broadcast);
        }
        let own = self.ipv4?;
        if own.is_broadcast(ip) {
            return Some(NextHop::Broadcast);
        }
        // Packets to oneself would need a way around the device: there is none here.
        if ip == own.address || !crate::address::is_unicast(ip) {
            return None;
        }
        if own.on_link(ip) { Some(NextHop::Neighbour(ip)) } else { own.gateway.map(NextHop::Neighbour) }
    }

    /// Sends a packet: queues its frame, or lets it wait for its neighbour, or drops and counts it.
    pub fn send(&mut self, now: Instant, packet: Packet, counters: &mut Counters) {
        match self.path(now, packet.destination, counters) {
            Path::Known(known) => self.send_to(packet, known.mac, counters),
            Path::Sought(ip) => self.arp.wait_packet(ip, packet, counters),
            Path::Lost => {}
        }
    }

    /// Queues a packet's frame to a neighbour.
    pub fn send_to(&mut self, packet: Packet, mac: MacAddr, counters: &mut Counters) {
        match self.encapsulate(packet, mac) {
            Some(frame) => self.push(frame, counters),
            None => counters.bump(Counter::DropNoRoute),
        }
    }

    /// Sends what waited for a neighbour that is known now.
    pub fn send_waiting(&mut self, waiting: Waiting, mac: MacAddr, counters: &mut Counters) {
        waiting.packets.into_iter().for_each(|packet| self.send_to(packet, mac, counters));
    }

    /// Puts the IP and Ethernet headers on. `None` where the packet is longer than IP allows.
    pub fn encapsulate(&mut self, packet: Packet, mac: MacAddr) -> Option<Frame> {
        let Packet { source, destination, protocol, mut head, payload, checksum_offset } = packet;
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                ipv4::prepend(&mut head, payload.len(), source, destination, protocol)?;
                ethernet::prepend(&mut head, self.mac, mac, EtherType::IPV4)?;
            }
            _ => return None,
        }
        let start = (ethernet::HEADER_LEN + ipv4::HEADER_LEN) as u16;
        let checksum = checksum_offset.map(|offset| ChecksumOffload { start, offset });
        Some(Frame { head, payload, checksum })
    }

    /// Sends an ARP request.
    pub fn ask(&mut self, ask: Ask, counters: &mut Counters) {
        let Some(own) = self.ipv4 else { return };
        let request = ArpPacket {
            operation: ArpOperation::REQUEST,
            sender_mac: self.mac,
            sender_ip: own.address,
            target_mac: MacAddr([0; 6]),
            target_ip: ask.ip,
        };
        self.send_arp(request, ask.to, counters);
    }

    /// Sends an ARP packet to `mac`.
    pub fn send_arp(&mut self, packet: ArpPacket, mac: MacAddr, counters: &mut Counters) {
        let mut head = self.pool.take();
        if let Some(bytes) = head.prepend(PACKET_LEN)
            && bytes.len() == PACKET_LEN
        {
            bytes.copy_from_slice(&packet.bytes());
        }
        if ethernet::prepend(&mut head, self.mac, mac, EtherType::ARP).is_some() {
            self.push(Frame { head, payload: Chain::new(), checksum: None }, counters);
        }
    }

    fn push(&mut self, frame: Frame, counters: &mut Counters) {
        if self.queue.len() >= self.queue_limit {
            counters.bump(Counter::DropTransmitQueue);
            self.pool.give(frame.head);
            return;
        }
        self.queue.push_back(frame);
    }

    /// The next frame that is ready.
    pub fn pop(&mut self) -> Option<Frame> {
        self.queue.pop_front()
    }

    /// Whether the transmit queue takes no further frame.
    pub fn is_congested(&self) -> bool {
        self.queue.len() >= self.queue_limit
    }

    /// Takes a header's memory back.
    pub fn recycle(&mut self, head: IoBufMut) {
        self.pool.give(head);
    }
}
