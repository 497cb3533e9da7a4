//! The way out: routing, neighbours, encapsulation, and the queue of frames that are ready.
//!
//! Two kinds of senders use it. What is made once (an ARP answer, an ICMP error, a datagram, a reset) is
//! handed over as a [`Packet`] and waits here, in the transmit queue or with its neighbour's search. A TCP
//! connection instead asks for the [`Path`] first and makes its segment when the device takes it.

use crate::address::{Ipv4Config, MacAddr};
use crate::address6::{Ipv6Settings, group_mac};
use crate::checksum::Sum;
use crate::config::{Config, TxChecksum, TxSegments};
use crate::counters::{Counter, Counters};
use crate::heads::HeadPool;
use crate::neighbour::{Answer, Ask, Family, Known, NeighbourCache, Waiting};
use crate::owner::Owner;
use crate::path_mtu::{PathMtus, PathUser};
use crate::time::Instant;
use crate::{ethernet, ipv4, ipv6};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};
use etherparse::{EtherType, IpNumber};
use isola_iobuf::{Chain, Frame, IoBufMut, PartialChecksum};

/// What the longest IP packet has room for behind the longest header of TCP.
const LONGEST_DATA: u32 = 65_535 - ipv6::HEADER_LEN as u32 - 60;

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
    Sought(IpAddr),
    /// Not at all, or not now: what is sent there is lost.
    Lost,
}

enum NextHop {
    /// Everybody, or a group.
    Group(MacAddr),
    Neighbour(IpAddr),
}

/// The sending side of one interface.
pub(crate) struct Interface {
    pub mac: MacAddr,
    pub ipv4: Option<Ipv4Config>,
    pub ipv6: Ipv6Settings,
    pub mtu: usize,
    pub neighbours: NeighbourCache,
    paths: PathMtus,
    pub pool: HeadPool,
    pub tx_checksum: TxChecksum,
    tx_segments: TxSegments,
    queue: VecDeque<(Owner, Frame)>,
    queue_limit: usize,
    /// The owner of what the stack does now; frames that it queues meanwhile have the same.
    pub owner: Owner,
    /// Which instance this is: only the first speaks for the interface where nobody asked.
    announces: Announces,
    /// Routers in a row for which a search found nobody.
    silent_routers: usize,
}

/// What is left where a neighbour does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// It was a router, and another one may answer.
    NextRouter,
    NoWay,
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
            ipv6: Ipv6Settings::NONE,
            mtu: config.mtu,
            neighbours: NeighbourCache::new(&config.limits),
            paths: PathMtus::default(),
            pool: HeadPool::new(config.headroom),
            tx_checksum: config.tx_checksum,
            tx_segments: config.tx_segments,
            queue: VecDeque::new(),
            queue_limit: config.limits.transmit_queue,
            owner: Owner::UNKNOWN,
            announces: if config.core.is_first() { Announces::Yes } else { Announces::No },
            silent_routers: 0,
        }
    }

    /// Sets the address, tells the neighbours about it, and forgets what was learned on another network.
    /// Returns the connections that waited for a neighbour.
    pub fn set_ipv4(&mut self, ipv4: Option<Ipv4Config>, counters: &mut Counters) -> Vec<u32> {
        let waiting = self.neighbours.clear(Family::V4, counters);
        self.ipv4 = ipv4;
        if self.announces == Announces::Yes {
            self.announce(counters);
        }
        waiting
    }

    /// Tells the neighbours who has the IPv4 address: an ARP announcement (RFC 5227 3), a request for it.
    pub fn announce(&mut self, counters: &mut Counters) {
        if let Some(own) = self.ipv4 {
            self.ask(Ask { ip: own.address.into(), to: None }, counters);
        }
    }

    /// Sets what is used of IPv6. Returns the connections that waited for a neighbour, where there is none now.
    pub fn set_ipv6(&mut self, settings: Ipv6Settings, counters: &mut Counters) -> Vec<u32> {
        let ended = settings.is_empty() && !self.ipv6.is_empty();
        self.ipv6 = settings;
        // Whoever keeps a way looks again: routers may have changed.
        self.neighbours.epoch = self.neighbours.epoch.wrapping_add(1);
        if ended { self.neighbours.clear(Family::V6, counters) } else { Vec::new() }
    }

    /// Bytes of data that a frame to `remote` may carry where the device cuts it; 0 where it does not.
    pub fn burst(&self, remote: IpAddr) -> u32 {
        let cuts = if remote.is_ipv4() { self.tx_segments.ipv4 } else { self.tx_segments.ipv6 };
        if cuts && self.tx_checksum == TxChecksum::Device { LONGEST_DATA } else { 0 }
    }

    /// Whether `ip` is this interface's own address.
    pub fn is_own(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => self.ipv4.is_some_and(|own| ip == own.address),
            IpAddr::V6(ip) => self.ipv6.has(ip),
        }
    }

    /// The address from which to talk to `destination`; `None` while there is none of its family.
    pub fn source_for(&self, destination: IpAddr) -> Option<IpAddr> {
        match destination {
            IpAddr::V4(_) => self.ipv4.map(|own| own.address.into()),
            IpAddr::V6(ip) => self.ipv6.source_for(ip).map(IpAddr::V6),
        }
    }

    /// Whether there is an address of any family.
    pub fn is_set_up(&self) -> bool {
        self.ipv4.is_some() || !self.ipv6.is_empty()
    }

    /// Whether `ip` names one machine that a connection can be made to.
    pub fn is_one_host(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => {
                crate::address::is_unicast(ip) && !self.ipv4.is_some_and(|own| own.is_broadcast(ip))
            }
            IpAddr::V6(ip) => crate::address6::is_unicast6(ip),
        }
    }

    /// The longest packet that neighbours may be sent of the family of `destination`, in bytes.
    pub fn link_mtu(&self, destination: IpAddr) -> usize {
        match (destination, self.ipv6.mtu) {
            (IpAddr::V6(_), Some(mtu)) => self.mtu.min(mtu.into()),
            _ => self.mtu,
        }
    }

    /// The longest packet that `user` may send to `destination`, in bytes.
    pub fn mtu_to(&self, now: Instant, destination: IpAddr, user: PathUser) -> usize {
        let link = self.link_mtu(destination);
        self.paths.get(now, (destination, user)).map_or(link, |path| path.min(link))
    }

    /// A router says, as credibly as `user` can tell, that packets to `destination` may only be so long. Returns what
    /// is believed.
    pub fn learn_mtu(
        &mut self,
        now: Instant,
        destination: IpAddr,
        user: PathUser,
        mtu: u32,
        counters: &mut Counters,
    ) -> usize {
        counters.bump(Counter::PathMtuLearned);
        self.paths.learn(now, (destination, user), mtu).min(self.link_mtu(destination))
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
        // As often as a router can turn out to be silent.
        for _ in 0..=self.ipv6.routers.len() {
            let ip = match self.next_hop(destination) {
                None => break,
                Some(NextHop::Group(mac)) => return Path::Known(Known { mac, valid_until: now }),
                Some(NextHop::Neighbour(ip)) => ip,
            };
            match self.neighbours.look_up(now, ip, counters) {
                Answer::Known(known, ask) => {
                    ask.into_iter().for_each(|ask| self.ask(ask, counters));
                    return Path::Known(known);
                }
                Answer::Sought(ask) => {
                    ask.into_iter().for_each(|ask| self.ask(ask, counters));
                    return Path::Sought(ip);
                }
                Answer::Silent => _ = self.demote(ip),
                Answer::Full => return Path::Lost,
            }
        }
        counters.bump(Counter::DropNoRoute);
        Path::Lost
    }

    /// The transport heard from `destination`: whoever leads there is alive.
    pub fn confirm(&mut self, now: Instant, destination: IpAddr) {
        if let Some(NextHop::Neighbour(ip)) = self.next_hop(destination) {
            self.neighbours.confirm(now, ip);
        }
    }

    /// A search for a neighbour found nobody: where it is a router, the next one is tried (RFC 4861 6.3.6), until none
    /// of them answered.
    pub fn on_silent(&mut self, neighbour: IpAddr) -> Silence {
        let routers = self.ipv6.routers.iter().flatten().count();
        if !self.demote(neighbour) {
            return Silence::NoWay;
        }
        self.silent_routers += 1;
        if self.silent_routers < routers {
            return Silence::NextRouter;
        }
        self.silent_routers = 0;
        Silence::NoWay
    }

    /// A neighbour answers.
    pub fn on_heard(&mut self, neighbour: IpAddr) {
        if matches!(neighbour, IpAddr::V6(ip) if self.ipv6.routers.contains(&Some(ip))) {
            self.silent_routers = 0;
        }
    }

    /// Puts a router behind the others; returns whether another one comes before it now.
    fn demote(&mut self, neighbour: IpAddr) -> bool {
        matches!(neighbour, IpAddr::V6(ip) if self.ipv6.demote(ip))
    }

    /// Whether there is any way to `destination`.
    pub fn has_route(&self, destination: IpAddr) -> bool {
        self.next_hop(destination).is_some()
    }

    fn next_hop(&self, destination: IpAddr) -> Option<NextHop> {
        let ip = match destination {
            IpAddr::V4(ip) => ip,
            IpAddr::V6(ip) => return self.next_hop_v6(ip),
        };
        if ip.is_broadcast() {
            return Some(NextHop::Group(MacAddr::BROADCAST));
        }
        let own = self.ipv4?;
        if own.is_broadcast(ip) {
            return Some(NextHop::Group(MacAddr::BROADCAST));
        }
        // Packets to oneself would need a way around the device: there is none here.
        if ip == own.address || !crate::address::is_unicast(ip) {
            return None;
        }
        let hop = if own.on_link(ip) { Some(ip) } else { own.gateway };
        hop.map(|ip| NextHop::Neighbour(ip.into()))
    }

    fn next_hop_v6(&self, ip: Ipv6Addr) -> Option<NextHop> {
        if self.ipv6.is_empty() || self.ipv6.has(ip) {
            return None;
        }
        if ip.is_multicast() {
            return Some(NextHop::Group(group_mac(ip)));
        }
        if !crate::address6::is_unicast6(ip) {
            return None;
        }
        let hop = if self.ipv6.on_link(ip) { Some(ip) } else { *self.ipv6.routers.first()? };
        hop.map(|ip| NextHop::Neighbour(ip.into()))
    }

    /// Sends a packet: queues its frame, or lets it wait for its neighbour, or drops and counts it.
    pub fn send(&mut self, now: Instant, packet: Packet, counters: &mut Counters) {
        match self.path(now, packet.destination, counters) {
            Path::Known(known) => self.send_to(packet, known.mac, counters),
            Path::Sought(ip) => self.neighbours.wait_packet(ip, packet, counters),
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
        let headers_len = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                ipv4::prepend(&mut head, payload.len(), source, destination, protocol)?;
                ethernet::prepend(&mut head, self.mac, mac, EtherType::IPV4)?;
                ipv4::HEADER_LEN
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let hops = self.ipv6.hop_limit;
                ipv6::prepend(&mut head, payload.len(), source, destination, protocol, hops)?;
                ethernet::prepend(&mut head, self.mac, mac, EtherType::IPV6)?;
                ipv6::HEADER_LEN
            }
            _ => return None,
        };
        let start = (ethernet::HEADER_LEN + headers_len) as u16;
        let checksum = checksum_offset.map(|offset| PartialChecksum { start, offset });
        Some(Frame { head, payload, checksum, segment_len: None })
    }

    pub fn push(&mut self, frame: Frame, counters: &mut Counters) {
        if self.queue.len() >= self.queue_limit {
            counters.bump(Counter::DropTransmitQueue);
            self.pool.give(frame.head);
            return;
        }
        self.queue.push_back((self.owner, frame));
    }

    /// The next frame that is ready.
    #[inline]
    pub fn pop(&mut self) -> Option<Frame> {
        let (owner, frame) = self.queue.pop_front()?;
        self.owner = owner;
        Some(frame)
    }

    /// Whether there is a frame that is ready.
    #[inline]
    pub fn has_ready(&self) -> bool {
        !self.queue.is_empty()
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
