//! The sending side of an interface: routing, neighbours, encapsulation, and the transmit queue.
//!
//! There are two kinds of senders. Single messages (an ARP reply, an ICMP error, a datagram, a reset) are passed as a
//! [`Packet`], and wait in the transmit queue or for the resolution of their neighbour. A TCP connection first requests
//! the [`Path`], and creates its segment when the device takes it.

mod messages;

pub(crate) use messages::{LinkMessage, LinkMessageKind};

use crate::base::{
    Counter, Counters, Instant, Ipv4Config, Ipv6Settings, Limits, MacAddr, Owner, Sum, TxChecksum,
    TxSegments, group_mac, is_unicast, is_unicast6,
};
use crate::ip::heads::HeadPool;
use crate::ip::neighbour::{Answer, Family, KnownNeighbour, NeighbourCache, ResolutionRequest, Waiting};
use crate::ip::packet::Packet;
use crate::ip::path_mtu::{PathMtus, PathUser};
use crate::ip::{ethernet, ipv4, ipv6};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};
use etherparse::{EtherType, IpNumber};
use isola_iobuf::{Chain, Frame, IoBufMut, PartialChecksum};

/// The most data of an IP packet with the longest TCP header.
const LONGEST_DATA: u32 = 65_535 - ipv6::HEADER_LEN as u32 - 60;

/// The configuration of an interface.
pub(crate) struct InterfaceConfig {
    pub mac: MacAddr,
    /// The longest IP packet of the link, in bytes.
    pub mtu: usize,
    /// Bytes left free before each outgoing frame.
    pub headroom: usize,
    pub tx_checksum: TxChecksum,
    pub tx_segments: TxSegments,
    pub limits: Limits,
    /// Whether this instance announces addresses unasked: only the first does.
    pub announces: bool,
}

/// The route to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// Through this neighbour.
    Known(KnownNeighbour),
    /// Through a neighbour that is being resolved.
    Sought(IpAddr),
    /// None, or none at present: packets are dropped.
    Lost,
}

enum NextHop {
    /// A broadcast or multicast address.
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
    /// The hardware addresses to which frames go over a link in memory.
    linked: Vec<MacAddr>,
    queue: VecDeque<(Owner, Frame)>,
    queue_limit: usize,
    /// The owner of the stack's current work, and of the frames that it queues meanwhile.
    pub owner: Owner,
    /// Whether this instance announces addresses unasked: only the first does.
    announces: bool,
    /// The number of consecutive routers that could not be resolved.
    silent_routers: usize,
}

/// The consequence of an unresponsive neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SilentNeighbour {
    /// It was a router, and another one may respond.
    NextRouter,
    NoRoute,
}

impl Interface {
    pub fn new(config: &InterfaceConfig) -> Self {
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
            linked: Vec::new(),
            queue: VecDeque::new(),
            queue_limit: config.limits.transmit_queue,
            owner: Owner::UNKNOWN,
            announces: config.announces,
            silent_routers: 0,
        }
    }

    /// Sets the address, announces it to the neighbours, and removes the entries of the previous network. Returns the
    /// connections that waited for a neighbour.
    pub fn set_ipv4(&mut self, ipv4: Option<Ipv4Config>, counters: &mut Counters) -> Vec<u32> {
        let waiting = self.neighbours.clear(Family::V4, counters);
        self.ipv4 = ipv4;
        if self.announces {
            self.announce(counters);
        }
        waiting
    }

    /// Sends an ARP announcement (RFC 5227 3): a request for the own IPv4 address.
    pub fn announce(&mut self, counters: &mut Counters) {
        if let Some(own) = self.ipv4 {
            self.ask(ResolutionRequest { ip: own.address.into(), to: None }, counters);
        }
    }

    /// Sets the IPv6 settings. Returns the connections that waited for a neighbour, if IPv6 is no longer in use.
    pub fn set_ipv6(&mut self, settings: Ipv6Settings, counters: &mut Counters) -> Vec<u32> {
        let ended = settings.is_empty() && !self.ipv6.is_empty();
        self.ipv6 = settings;
        // Cached paths are invalid: routers may have changed.
        self.neighbours.epoch = self.neighbours.epoch.wrapping_add(1);
        if ended { self.neighbours.clear(Family::V6, counters) } else { Vec::new() }
    }

    /// Returns the most bytes of data of a frame to `remote` that the device segments; 0 if it does not.
    pub fn burst(&self, remote: IpAddr) -> u32 {
        let cuts = if remote.is_ipv4() { self.tx_segments.ipv4 } else { self.tx_segments.ipv6 };
        if cuts && self.tx_checksum == TxChecksum::Device { LONGEST_DATA } else { 0 }
    }

    /// Returns the same for a frame that goes to the hardware address `mac`: over a link, all frames may be long.
    pub fn burst_to(&self, remote: IpAddr, mac: MacAddr) -> u32 {
        if self.is_linked(mac) { LONGEST_DATA } else { self.burst(remote) }
    }

    /// Returns whether frames to the hardware address `mac` go over a link in memory.
    pub fn is_linked(&self, mac: MacAddr) -> bool {
        self.linked.contains(&mac)
    }

    /// Sets the hardware addresses to which frames go over a link in memory.
    pub fn set_linked(&mut self, linked: Vec<MacAddr>) {
        self.linked = linked;
        // Cached paths are invalid.
        self.neighbours.epoch = self.neighbours.epoch.wrapping_add(1);
    }

    /// Returns whether `ip` is an address of this interface.
    pub fn is_own(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => self.ipv4.is_some_and(|own| ip == own.address),
            IpAddr::V6(ip) => self.ipv6.has(ip),
        }
    }

    /// Returns the source address for `destination`; `None` while there is none of its family.
    pub fn source_for(&self, destination: IpAddr) -> Option<IpAddr> {
        match destination {
            IpAddr::V4(_) => self.ipv4.map(|own| own.address.into()),
            IpAddr::V6(ip) => self.ipv6.source_for(ip).map(IpAddr::V6),
        }
    }

    /// Returns whether there is an address of any family.
    pub fn is_set_up(&self) -> bool {
        self.ipv4.is_some() || !self.ipv6.is_empty()
    }

    /// Returns whether `ip` identifies a single host, to which a connection is possible.
    pub fn is_one_host(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => is_unicast(ip) && !self.ipv4.is_some_and(|own| own.is_broadcast(ip)),
            IpAddr::V6(ip) => is_unicast6(ip),
        }
    }

    /// Returns the longest packet on this link for the family of `destination`, in bytes.
    pub fn link_mtu(&self, destination: IpAddr) -> usize {
        match (destination, self.ipv6.mtu) {
            (IpAddr::V6(_), Some(mtu)) => self.mtu.min(mtu.into()),
            _ => self.mtu,
        }
    }

    /// Returns the longest packet that `user` may send to `destination`, in bytes.
    pub fn mtu_to(&self, now: Instant, destination: IpAddr, user: PathUser) -> usize {
        let link = self.link_mtu(destination);
        self.paths.get(now, (destination, user)).map_or(link, |path| path.min(link))
    }

    /// Processes a router's message about the path MTU to `destination`, which `user` has found credible. Returns the
    /// accepted MTU.
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

    /// Computes the checksum of a transport header, or prepares it for the device and returns the field's offset, for
    /// [`Packet::checksum_offset`].
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
                // In UDP zero means "no checksum" (RFC 768); all ones is its equal in one's complement.
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

    /// Returns the route to `destination`; starts the resolution of its neighbour if necessary.
    pub fn path(&mut self, now: Instant, destination: IpAddr, counters: &mut Counters) -> Path {
        // Each router can turn out to be unresponsive.
        for _ in 0..=self.ipv6.routers.len() {
            let ip = match self.next_hop(destination) {
                None => break,
                Some(NextHop::Group(mac)) => return Path::Known(KnownNeighbour { mac, valid_until: now }),
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

    /// Confirms the reachability of the neighbour on the route, as the transport received an answer from `destination`.
    pub fn confirm(&mut self, now: Instant, destination: IpAddr) {
        if let Some(NextHop::Neighbour(ip)) = self.next_hop(destination) {
            self.neighbours.confirm(now, ip);
        }
    }

    /// Processes a failed resolution: if the neighbour is a router, the next one is tried (RFC 4861 6.3.6), until all
    /// have failed.
    pub fn on_silent(&mut self, neighbour: IpAddr) -> SilentNeighbour {
        let routers = self.ipv6.routers.iter().flatten().count();
        if !self.demote(neighbour) {
            return SilentNeighbour::NoRoute;
        }
        self.silent_routers += 1;
        if self.silent_routers < routers {
            return SilentNeighbour::NextRouter;
        }
        self.silent_routers = 0;
        SilentNeighbour::NoRoute
    }

    /// Processes a neighbour's answer.
    pub fn on_heard(&mut self, neighbour: IpAddr) {
        if matches!(neighbour, IpAddr::V6(ip) if self.ipv6.routers.contains(&Some(ip))) {
            self.silent_routers = 0;
        }
    }

    /// Moves a router behind the others; returns whether another one now precedes it.
    fn demote(&mut self, neighbour: IpAddr) -> bool {
        matches!(neighbour, IpAddr::V6(ip) if self.ipv6.demote(ip))
    }

    /// Returns whether there is a route to `destination`.
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
        // Packets to the own address would need a loopback path, which does not exist here.
        if ip == own.address || !is_unicast(ip) {
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
        if !is_unicast6(ip) {
            return None;
        }
        let hop = if self.ipv6.on_link(ip) { Some(ip) } else { *self.ipv6.routers.first()? };
        hop.map(|ip| NextHop::Neighbour(ip.into()))
    }

    /// Sends a packet: queues its frame, lets it wait for its neighbour, or drops and counts it.
    pub fn send(&mut self, now: Instant, packet: Packet, counters: &mut Counters) {
        match self.path(now, packet.destination, counters) {
            Path::Known(known) => self.send_to(packet, known.mac, counters),
            Path::Sought(ip) => self.neighbours.wait_packet(ip, packet, counters),
            Path::Lost => {}
        }
    }

    /// Queues a packet's frame for a neighbour.
    pub fn send_to(&mut self, packet: Packet, mac: MacAddr, counters: &mut Counters) {
        match self.encapsulate(packet, mac) {
            Some(frame) => self.push(frame, counters),
            None => counters.bump(Counter::DropNoRoute),
        }
    }

    /// Sends the packets that waited for a neighbour.
    pub fn send_waiting(&mut self, waiting: Waiting, mac: MacAddr, counters: &mut Counters) {
        waiting.packets.into_iter().for_each(|packet| self.send_to(packet, mac, counters));
    }

    /// Prepends IP and Ethernet headers. Returns `None` if the packet is longer than IP allows.
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

    /// Takes the next frame of the transmit queue.
    #[inline]
    pub fn pop(&mut self) -> Option<Frame> {
        let (owner, frame) = self.queue.pop_front()?;
        self.owner = owner;
        Some(frame)
    }

    /// Returns whether the transmit queue has a frame.
    #[inline]
    pub fn has_ready(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns whether the transmit queue is full.
    pub fn is_congested(&self) -> bool {
        self.queue.len() >= self.queue_limit
    }

    /// Takes back a header's memory.
    pub fn recycle(&mut self, head: IoBufMut) {
        self.pool.give(head);
    }

    /// Frees the memory of headers that was taken back.
    pub fn free_recycled(&mut self) {
        self.pool.clear();
    }
}
