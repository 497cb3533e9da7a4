//! ARP (RFC 826): the packets, and the cache of who answers for which address.
//!
//! The cache is a pure table: what it wants sent it returns, and [`Interface`](crate::interface) sends it.
//! An entry is either *known* or *sought*. A sought one keeps a bounded queue of packets and the numbers of
//! the connections that wait; three requests a second apart without an answer end the search. A known one is
//! asked again, unicast, before it gets old, but only when it is used.

use crate::address::{MacAddr, is_unicast};
use crate::config::Limits;
use crate::counters::{Counter, Counters};
use crate::interface::Packet;
use crate::time::{Duration, Instant};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use etherparse::{ArpHardwareId, ArpOperation, ArpPacketSlice, EtherType};

/// Length of an ARP packet for IPv4 on Ethernet.
pub(crate) const PACKET_LEN: usize = 28;
/// How long a neighbour's address is used without being asked again.
const FRESH: Duration = Duration::from_secs(60);
/// How long it is used while it does not answer.
const STALE: Duration = Duration::from_secs(30);
/// Time between two requests for the same address (RFC 1122 2.3.2.1: at most one a second).
const RETRY: Duration = Duration::from_secs(1);
/// Requests before a search ends.
const ATTEMPTS: u8 = 3;
/// Addresses sought at once.
const SOUGHT: usize = 64;

/// A request or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArpPacket {
    pub operation: ArpOperation,
    pub sender_mac: MacAddr,
    pub sender_ip: Ipv4Addr,
    pub target_mac: MacAddr,
    pub target_ip: Ipv4Addr,
}

impl ArpPacket {
    /// Reads a packet; `None` where it is malformed or not about IPv4 on Ethernet.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let packet = ArpPacketSlice::from_slice(bytes).ok()?;
        if packet.hw_addr_type() != ArpHardwareId::ETHERNET || packet.proto_addr_type() != EtherType::IPV4 {
            return None;
        }
        Some(Self {
            operation: packet.operation(),
            sender_mac: MacAddr(packet.sender_hw_addr().try_into().ok()?),
            sender_ip: <[u8; 4]>::try_from(packet.sender_protocol_addr()).ok()?.into(),
            target_mac: MacAddr(packet.target_hw_addr().try_into().ok()?),
            target_ip: <[u8; 4]>::try_from(packet.target_protocol_addr()).ok()?.into(),
        })
    }

    /// The packet's bytes.
    pub fn bytes(&self) -> [u8; PACKET_LEN] {
        let mut bytes = [0; PACKET_LEN];
        bytes[0..8].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, self.operation.0 as u8]);
        bytes[8..14].copy_from_slice(&self.sender_mac.0);
        bytes[14..18].copy_from_slice(&self.sender_ip.octets());
        bytes[18..24].copy_from_slice(&self.target_mac.0);
        bytes[24..28].copy_from_slice(&self.target_ip.octets());
        bytes
    }
}

/// A known neighbour's address and how long it may be used without another look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub mac: MacAddr,
    pub valid_until: Instant,
}

/// A request that the cache wants sent: about `ip`, to `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub ip: Ipv4Addr,
    pub to: MacAddr,
}

/// What a look into the cache gives.
pub(crate) struct Answer {
    /// The address, where it is known; otherwise the search for it goes on.
    pub known: Option<Known>,
    /// A request to be sent.
    pub ask: Option<Ask>,
}

/// What waited for an address that became known or turned out to be nobody's.
#[derive(Default)]
pub(crate) struct Waiting {
    pub packets: VecDeque<Packet>,
    pub connections: Vec<u32>,
}

enum State {
    Known { mac: MacAddr, fresh_until: Instant, asked_at: Option<Instant> },
    Sought { attempts: u8, retry_at: Instant, waiting: Waiting },
}

struct Entry {
    state: State,
    used: Instant,
}

/// Neighbours by address.
pub(crate) struct ArpCache {
    entries: BTreeMap<Ipv4Addr, Entry>,
    /// The addresses whose entries are sought.
    sought: Vec<Ipv4Addr>,
    capacity: usize,
    queue: usize,
    /// Counts what changed: whoever keeps an answer looks again when this has moved.
    pub epoch: u32,
}

impl ArpCache {
    pub fn new(limits: &Limits) -> Self {
        Self {
            entries: BTreeMap::new(),
            sought: Vec::new(),
            capacity: limits.neighbours.max(1),
            queue: limits.neighbour_queue,
            epoch: 0,
        }
    }

    /// Looks an address up, and starts or carries on the search for it.
    pub fn look_up(&mut self, now: Instant, ip: Ipv4Addr, counters: &mut Counters) -> Answer {
        if let Some(entry) = self.entries.get_mut(&ip) {
            entry.used = now;
            match &mut entry.state {
                State::Sought { .. } => return Answer { known: None, ask: None },
                State::Known { mac, fresh_until, asked_at } => {
                    let mac = *mac;
                    if now < *fresh_until {
                        let known = Known { mac, valid_until: *fresh_until };
                        return Answer { known: Some(known), ask: None };
                    }
                    if now < *fresh_until + STALE {
                        let due = asked_at.is_none_or(|asked| now >= asked + RETRY);
                        if due {
                            *asked_at = Some(now);
                        }
                        let known = Known { mac, valid_until: now + RETRY };
                        return Answer { known: Some(known), ask: due.then_some(Ask { ip, to: mac }) };
                    }
                }
            }
            self.entries.remove(&ip);
        }
        if self.sought.len() >= SOUGHT {
            counters.bump(Counter::DropNeighbourQueue);
            return Answer { known: None, ask: None };
        }
        self.make_room(counters);
        let state = State::Sought { attempts: 1, retry_at: now + RETRY, waiting: Waiting::default() };
        self.entries.insert(ip, Entry { state, used: now });
        self.sought.push(ip);
        Answer { known: None, ask: Some(Ask { ip, to: MacAddr::BROADCAST }) }
    }

    /// Whether the search for an address is under way.
    pub fn is_sought(&self, ip: Ipv4Addr) -> bool {
        matches!(self.entries.get(&ip), Some(Entry { state: State::Sought { .. }, .. }))
    }

    /// Keeps a packet until the sought address is known.
    pub fn wait_packet(&mut self, ip: Ipv4Addr, packet: Packet, counters: &mut Counters) {
        match self.entries.get_mut(&ip).map(|entry| &mut entry.state) {
            Some(State::Sought { waiting, .. }) if waiting.packets.len() < self.queue => {
                waiting.packets.push_back(packet);
            }
            _ => counters.bump(Counter::DropNeighbourQueue),
        }
    }

    /// Notes a connection that is to be told when the sought address is known or given up.
    pub fn wait_connection(&mut self, ip: Ipv4Addr, connection: u32) {
        if let Some(Entry { state: State::Sought { waiting, .. }, .. }) = self.entries.get_mut(&ip) {
            waiting.connections.push(connection);
        }
    }

    /// Takes in that `mac` answers for `ip`; returns what waited for it.
    ///
    /// `make` says whether an address that nobody asked for gets an entry.
    pub fn learn(
        &mut self,
        now: Instant,
        ip: Ipv4Addr,
        mac: MacAddr,
        make: MakeEntry,
        counters: &mut Counters,
    ) -> Learned {
        if !mac.is_unicast() || !is_unicast(ip) {
            return Learned::Nothing;
        }
        let known = State::Known { mac, fresh_until: now + FRESH, asked_at: None };
        let Some(entry) = self.entries.get_mut(&ip) else {
            if make == MakeEntry::IfPresent {
                return Learned::Nothing;
            }
            self.make_room(counters);
            self.entries.insert(ip, Entry { state: known, used: now });
            return Learned::Fresh(Waiting::default());
        };
        match core::mem::replace(&mut entry.state, known) {
            State::Known { mac: before, fresh_until, .. } if before == mac => {
                // Answers that merely confirm are not worth telling others, unless the old one got stale.
                if now < fresh_until { Learned::Nothing } else { Learned::Fresh(Waiting::default()) }
            }
            State::Known { .. } => {
                self.epoch = self.epoch.wrapping_add(1);
                Learned::Fresh(Waiting::default())
            }
            State::Sought { waiting, .. } => {
                self.sought.retain(|&sought| sought != ip);
                Learned::Fresh(waiting)
            }
        }
    }

    /// Forgets everything, because the network changed. What waited is dropped and counted.
    pub fn clear(&mut self, counters: &mut Counters) -> Vec<u32> {
        let mut connections = Vec::new();
        for ip in core::mem::take(&mut self.sought) {
            let waiting = self.give_up(ip, counters);
            connections.extend(waiting.connections);
        }
        self.entries.clear();
        self.epoch = self.epoch.wrapping_add(1);
        connections
    }

    /// When `on_timer` is due.
    pub fn deadline(&self) -> Option<Instant> {
        let retry_at = |ip: &Ipv4Addr| match self.entries.get(ip)?.state {
            State::Sought { retry_at, .. } => Some(retry_at),
            State::Known { .. } => None,
        };
        self.sought.iter().filter_map(retry_at).min()
    }

    /// Asks again for what is sought, and ends searches without an answer: returns the requests to send and
    /// what waited for those given up.
    pub fn on_timer(&mut self, now: Instant, counters: &mut Counters) -> (Vec<Ask>, Vec<Waiting>) {
        let (mut asks, mut lost) = (Vec::new(), Vec::new());
        for ip in core::mem::take(&mut self.sought) {
            let Some(entry) = self.entries.get_mut(&ip) else { continue };
            let State::Sought { attempts, retry_at, .. } = &mut entry.state else { continue };
            if now >= *retry_at && *attempts >= ATTEMPTS {
                lost.push(self.give_up(ip, counters));
                continue;
            }
            if now >= *retry_at {
                *attempts += 1;
                *retry_at = now + RETRY;
                asks.push(Ask { ip, to: MacAddr::BROADCAST });
            }
            self.sought.push(ip);
        }
        (asks, lost)
    }

    fn give_up(&mut self, ip: Ipv4Addr, counters: &mut Counters) -> Waiting {
        match self.entries.remove(&ip).map(|entry| entry.state) {
            Some(State::Sought { waiting, .. }) => {
                counters.add(Counter::DropNeighbourSilent, waiting.packets.len() as u64);
                waiting
            }
            _ => Waiting::default(),
        }
    }

    /// Forgets the known neighbour that was not used for longest, where the cache is full.
    fn make_room(&mut self, counters: &mut Counters) {
        if self.entries.len() < self.capacity + self.sought.len() {
            return;
        }
        let known = self.entries.iter().filter(|(_, entry)| matches!(entry.state, State::Known { .. }));
        if let Some(ip) = known.min_by_key(|(_, entry)| entry.used).map(|(&ip, _)| ip) {
            self.entries.remove(&ip);
            self.epoch = self.epoch.wrapping_add(1);
            counters.bump(Counter::DropNeighbourCache);
        }
    }
}

/// Whether an address that is not in the cache gets in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MakeEntry {
    IfPresent,
    Always,
}

/// What `learn` brought.
pub(crate) enum Learned {
    /// Nothing that was not known.
    Nothing,
    /// A new, changed or renewed neighbour, and what waited for it.
    Fresh(Waiting),
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

    fn cache(neighbours: usize) -> (ArpCache, Counters) {
        (ArpCache::new(&Limits { neighbours, ..Limits::default() }), Counters::new())
    }

    #[test]
    fn packets_survive_the_way_out_and_in() {
        let packet = ArpPacket {
            operation: ArpOperation::REPLY,
            sender_mac: MAC,
            sender_ip: PEER,
            target_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            target_ip: Ipv4Addr::new(10, 0, 0, 1),
        };
        assert_eq!(ArpPacket::parse(&packet.bytes()), Some(packet));
        for len in 0..PACKET_LEN {
            assert_eq!(ArpPacket::parse(&packet.bytes()[..len]), None);
        }
        let mut bytes = packet.bytes();
        bytes[4] = 8;
        assert_eq!(ArpPacket::parse(&bytes), None);
    }

    /// RFC 1122 2.3.2.1: requests for one address are a second apart
    #[test]
    fn a_search_asks_three_times_and_ends() {
        let (mut cache, mut counters) = cache(8);
        let answer = cache.look_up(Instant::ZERO, PEER, &mut counters);
        assert_eq!(answer.ask, Some(Ask { ip: PEER, to: MacAddr::BROADCAST }));
        cache.wait_connection(PEER, 7);
        let mut asked = 1;
        while let Some(at) = cache.deadline() {
            let (asks, lost) = cache.on_timer(at, &mut counters);
            asked += asks.len();
            if let Some(waiting) = lost.first() {
                assert_eq!(waiting.connections, [7]);
                assert_eq!(at, Instant::ZERO + Duration::from_secs(3));
            }
        }
        assert_eq!(asked, 3);
    }

    /// RFC 1122 2.3.2.1: entries that are out of date are asked again by unicast, and flushed
    #[test]
    fn a_known_neighbour_is_asked_again_when_used_late_and_forgotten_when_silent() {
        let (mut cache, mut counters) = cache(8);
        cache.learn(Instant::ZERO, PEER, MAC, MakeEntry::Always, &mut counters);
        let soon = cache.look_up(Instant::ZERO + Duration::from_secs(59), PEER, &mut counters);
        assert_eq!(soon.known.unwrap().mac, MAC);
        assert!(soon.ask.is_none() && cache.deadline().is_none());
        let late = Instant::ZERO + Duration::from_secs(61);
        let answer = cache.look_up(late, PEER, &mut counters);
        assert_eq!(answer.known.unwrap().mac, MAC);
        assert_eq!(answer.ask, Some(Ask { ip: PEER, to: MAC }));
        assert!(cache.look_up(late, PEER, &mut counters).ask.is_none());
        let gone = cache.look_up(Instant::ZERO + Duration::from_secs(95), PEER, &mut counters);
        assert_eq!(gone.known, None);
        assert_eq!(gone.ask, Some(Ask { ip: PEER, to: MacAddr::BROADCAST }));
    }

    #[test]
    fn a_flood_of_senders_and_searches_stays_within_bounds() {
        let (mut cache, mut counters) = cache(16);
        for i in 0..1000u32 {
            let (a, b) = (Ipv4Addr::from_bits(0x0a00_0000 + i), Ipv4Addr::from_bits(0x0b00_0000 + i));
            let now = Instant::from_nanos(u64::from(i));
            cache.learn(now, a, MAC, MakeEntry::Always, &mut counters);
            cache.look_up(now, b, &mut counters);
        }
        assert!(cache.entries.len() <= 16 + SOUGHT, "{}", cache.entries.len());
        assert_eq!(cache.sought.len(), SOUGHT);
        assert!(counters.get(Counter::DropNeighbourCache) >= 900);
    }

    #[test]
    fn impossible_neighbours_are_not_learned() {
        let (mut cache, mut counters) = cache(8);
        for (ip, mac) in [(PEER, MacAddr::BROADCAST), (Ipv4Addr::BROADCAST, MAC), (PEER, MacAddr([0; 6]))] {
            cache.learn(Instant::ZERO, ip, mac, MakeEntry::Always, &mut counters);
        }
        assert!(cache.entries.is_empty());
    }
}
