//! The neighbour cache for ARP (RFC 826) and neighbour discovery (RFC 4861 7.3).
//!
//! The cache is a table without I/O: it returns requests to send, and [`Interface`](super::Interface) sends them.
//!
//! ```text
//!   sought ──answer──> reachable ──time──> stale ──used──> delayed ──5 s──> asked ──3 s──> removed
//!     │ 3 s               ^ ^                │ claimed        │ progress       │ answer
//!     └─> failed          │ └────────────────┼────────────────┴────────────────┘
//!                         └──────────────────┘ (a claim that changes the address makes it stale)
//! ```
//!
//! An entry is either *known* or *sought*. A sought entry has a bounded queue of packets, and the numbers of waiting
//! connections; three requests at intervals of a second without an answer end the search. A known entry stays in use
//! when its confirmation has expired: first for a delay in which the transport may confirm it, then with unicast
//! requests. The state advances only on use, so an idle neighbour needs no timer.
//!
//! **Bounds** (RFC 6583) limit entries, searches, and packets per search. If there is no room, an unused entry is
//! dropped before a used one, and the oldest search without a waiting connection before one with a connection.

mod advert;
mod check;

pub(crate) use advert::{Advert, Strength};

use crate::base::{Counter, Counters, Duration, Evidence, Instant, Limits, MacAddr, is_unicast, is_unicast6};
use crate::ip::packet::Packet;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use check::{Check, RequestDue};
use core::net::IpAddr;

/// The time for which a confirmed IPv4 neighbour counts as reachable.
const REACHABLE_V4: Duration = Duration::from_secs(60);
/// The same for an IPv6 neighbour, unless a router advertises another (RFC 4861 10: REACHABLE_TIME).
pub(crate) const REACHABLE_V6: Duration = Duration::from_secs(30);
/// The interval of requests for an address (RFC 1122 2.3.2.1: at most one a second; RETRANS_TIMER).
const RETRY: Duration = Duration::from_secs(1);
/// The requests before a search ends, and before a known neighbour is removed (MAX_UNICAST_SOLICIT).
const ATTEMPTS: u8 = 3;
/// The most concurrent searches.
const SOUGHT: usize = 64;

/// A known neighbour's address, and the time until which it may be used without another look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownNeighbour {
    pub mac: MacAddr,
    pub valid_until: Instant,
}

/// A request that the cache wants sent: for `ip`, to its previous hardware address or to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResolutionRequest {
    pub ip: IpAddr,
    pub to: Option<MacAddr>,
}

/// The result of a look-up.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The address, and a request that verifies it.
    Known(KnownNeighbour, Option<ResolutionRequest>),
    /// The address is being sought, with the request if one is due.
    Sought(Option<ResolutionRequest>),
    /// The neighbour was known, but did not answer; its entry was removed. The next look-up begins a search.
    Silent,
    /// There is no room for another search.
    Full,
}

/// Packets and connections that waited for an address that was found, or whose search failed.
#[derive(Default)]
pub(crate) struct Waiting {
    pub packets: VecDeque<Packet>,
    pub connections: Vec<u32>,
}

enum State {
    Known { mac: MacAddr, reachable_until: Instant, check: Check, reported_at: Instant },
    Sought { attempts: u8, retry_at: Instant, waiting: Waiting },
}

struct Entry {
    state: State,
    /// The time of the last look-up; an entry without one is dropped first.
    wanted: Option<Instant>,
}

/// Neighbours by address.
pub(crate) struct NeighbourCache {
    entries: BTreeMap<IpAddr, Entry>,
    /// The sought addresses, the oldest search first.
    sought: Vec<IpAddr>,
    capacity: usize,
    queue: usize,
    reachable_v6: Duration,
    /// Changes with every change of an address: cached results are then invalid.
    pub epoch: u32,
}

impl NeighbourCache {
    pub fn new(limits: &Limits) -> Self {
        Self {
            entries: BTreeMap::new(),
            sought: Vec::new(),
            capacity: limits.neighbours.max(1),
            queue: limits.neighbour_queue,
            reachable_v6: REACHABLE_V6,
            epoch: 0,
        }
    }

    /// Sets the time for which a confirmed IPv6 neighbour counts as reachable.
    pub fn set_reachable_v6(&mut self, time: Duration) {
        self.reachable_v6 = time;
    }

    fn reachable_until(&self, now: Instant, ip: IpAddr, evidence: Evidence) -> Instant {
        match (evidence, ip) {
            (Evidence::Claimed, _) => now,
            (Evidence::Confirmed, IpAddr::V4(_)) => now + REACHABLE_V4,
            (Evidence::Confirmed, IpAddr::V6(_)) => now + self.reachable_v6,
        }
    }

    /// Looks up an address, and starts or continues the search for it.
    pub fn look_up(&mut self, now: Instant, ip: IpAddr, counters: &mut Counters) -> Answer {
        if let Some(entry) = self.entries.get_mut(&ip) {
            entry.wanted = Some(now);
            match &mut entry.state {
                State::Sought { .. } => return Answer::Sought(None),
                State::Known { mac, reachable_until, .. } if now < *reachable_until => {
                    return Answer::Known(KnownNeighbour { mac: *mac, valid_until: *reachable_until }, None);
                }
                State::Known { mac, check, .. } => {
                    let mac = *mac;
                    if let Some((valid_until, asked)) = check.go_on(now) {
                        let ask =
                            (asked == RequestDue::Now).then_some(ResolutionRequest { ip, to: Some(mac) });
                        return Answer::Known(KnownNeighbour { mac, valid_until }, ask);
                    }
                }
            }
            self.forget(ip);
            return Answer::Silent;
        }
        if self.sought.len() >= SOUGHT && !self.end_oldest_search(counters) {
            counters.bump(Counter::DropNeighbourQueue);
            return Answer::Full;
        }
        self.make_room(counters);
        let state = State::Sought { attempts: 1, retry_at: now + RETRY, waiting: Waiting::default() };
        self.entries.insert(ip, Entry { state, wanted: Some(now) });
        self.sought.push(ip);
        Answer::Sought(Some(ResolutionRequest { ip, to: None }))
    }

    /// Stores a packet until the sought address is known.
    pub fn wait_packet(&mut self, ip: IpAddr, packet: Packet, counters: &mut Counters) {
        match self.entries.get_mut(&ip).map(|entry| &mut entry.state) {
            Some(State::Sought { waiting, .. }) if waiting.packets.len() < self.queue => {
                waiting.packets.push_back(packet);
            }
            _ => counters.bump(Counter::DropNeighbourQueue),
        }
    }

    /// Records a connection that waits for the end of a search.
    pub fn wait_connection(&mut self, ip: IpAddr, connection: u32) {
        if let Some(Entry { state: State::Sought { waiting, .. }, .. }) = self.entries.get_mut(&ip) {
            waiting.connections.push(connection);
        }
    }

    /// Removes a connection from all searches, before its number is reused.
    #[cold]
    pub fn forget_connection(&mut self, connection: u32) {
        for ip in &self.sought {
            if let Some(Entry { state: State::Sought { waiting, .. }, .. }) = self.entries.get_mut(ip) {
                waiting.connections.retain(|&other| other != connection);
            }
        }
    }

    /// Records that `mac` answers for `ip`; returns the waiting packets and connections.
    ///
    /// `make` decides whether an address without an entry gets one.
    pub fn learn(
        &mut self,
        now: Instant,
        (ip, mac): (IpAddr, MacAddr),
        evidence: Evidence,
        make: MakeEntry,
        counters: &mut Counters,
    ) -> LearnOutcome {
        let possible = match ip {
            IpAddr::V4(ip) => is_unicast(ip),
            IpAddr::V6(ip) => is_unicast6(ip),
        };
        if !mac.is_unicast() || !possible {
            return LearnOutcome::Nothing;
        }
        let reachable_until = self.reachable_until(now, ip, evidence);
        let known = State::Known { mac, reachable_until, check: Check::NotBegun, reported_at: now };
        let Some(entry) = self.entries.get_mut(&ip) else {
            if make == MakeEntry::IfPresent {
                return LearnOutcome::Nothing;
            }
            self.make_room(counters);
            self.entries.insert(ip, Entry { state: known, wanted: None });
            return LearnOutcome::Fresh(Waiting::default());
        };
        match &mut entry.state {
            State::Known { mac: before, reachable_until, check, reported_at } if *before == mac => {
                if evidence == Evidence::Claimed {
                    return LearnOutcome::Nothing;
                }
                // Pure confirmations are forwarded to other cores at intervals, as these may have asked, too.
                let is_news = now >= *reachable_until || now >= *reported_at + RETRY;
                (*reachable_until, *check) = (now + (known.reachable_until().since(now)), Check::NotBegun);
                if is_news {
                    *reported_at = now;
                    return LearnOutcome::Fresh(Waiting::default());
                }
                LearnOutcome::Nothing
            }
            state @ State::Known { .. } => {
                *state = known;
                self.epoch = self.epoch.wrapping_add(1);
                LearnOutcome::Fresh(Waiting::default())
            }
            state @ State::Sought { .. } => {
                let State::Sought { waiting, .. } = core::mem::replace(state, known) else {
                    return LearnOutcome::Nothing;
                };
                self.sought.retain(|&sought| sought != ip);
                LearnOutcome::Fresh(waiting)
            }
        }
    }

    /// Returns the known hardware address of a neighbour.
    pub fn mac_of(&self, ip: IpAddr) -> Option<MacAddr> {
        match self.entries.get(&ip)?.state {
            State::Known { mac, .. } => Some(mac),
            State::Sought { .. } => None,
        }
    }

    /// Confirms a neighbour, as the transport received an answer through it (RFC 4861 7.3.1).
    pub fn confirm(&mut self, now: Instant, ip: IpAddr) {
        let until = self.reachable_until(now, ip, Evidence::Confirmed);
        if let Some(Entry { state: State::Known { reachable_until, check, .. }, .. }) =
            self.entries.get_mut(&ip)
        {
            (*reachable_until, *check) = (until, Check::NotBegun);
        }
    }

    /// Removes all entries of one family after a change of its network. Waiting packets are dropped and counted.
    pub fn clear(&mut self, family: Family, counters: &mut Counters) -> Vec<u32> {
        let is_meant = |ip: &IpAddr| ip.is_ipv4() == (family == Family::V4);
        let mut connections = Vec::new();
        let (gone, kept) = core::mem::take(&mut self.sought).into_iter().partition(is_meant);
        self.sought = kept;
        let gone: Vec<IpAddr> = gone;
        for ip in gone {
            connections.extend(self.give_up(ip, counters).connections);
        }
        self.entries.retain(|ip, _| !is_meant(ip));
        self.epoch = self.epoch.wrapping_add(1);
        connections
    }

    /// Returns the time of the next call of `on_timer`.
    pub fn deadline(&self) -> Option<Instant> {
        let retry_at = |ip: &IpAddr| match self.entries.get(ip)?.state {
            State::Sought { retry_at, .. } => Some(retry_at),
            State::Known { .. } => None,
        };
        self.sought.iter().filter_map(retry_at).min()
    }

    /// Returns whether any neighbour is sought.
    #[inline]
    pub fn is_searching(&self) -> bool {
        !self.sought.is_empty()
    }

    /// Repeats requests, and ends searches without an answer. Returns the requests to send, and the packets and
    /// connections that waited for failed searches.
    pub fn on_timer(&mut self, now: Instant) -> (Vec<ResolutionRequest>, Vec<(IpAddr, Waiting)>) {
        let (mut asks, mut lost) = (Vec::new(), Vec::new());
        for ip in core::mem::take(&mut self.sought) {
            let Some(entry) = self.entries.get_mut(&ip) else { continue };
            let State::Sought { attempts, retry_at, .. } = &mut entry.state else { continue };
            if now >= *retry_at && *attempts >= ATTEMPTS {
                lost.push((ip, self.end(ip)));
                continue;
            }
            if now >= *retry_at {
                *attempts += 1;
                *retry_at = now + RETRY;
                asks.push(ResolutionRequest { ip, to: None });
            }
            self.sought.push(ip);
        }
        (asks, lost)
    }

    /// Ends a search; returns the waiting packets and connections.
    fn end(&mut self, ip: IpAddr) -> Waiting {
        match self.entries.remove(&ip).map(|entry| entry.state) {
            Some(State::Sought { waiting, .. }) => waiting,
            _ => Waiting::default(),
        }
    }

    /// Ends a search, and counts its dropped packets.
    fn give_up(&mut self, ip: IpAddr, counters: &mut Counters) -> Waiting {
        let waiting = self.end(ip);
        counters.add(Counter::DropNeighbourSilent, waiting.packets.len() as u64);
        waiting
    }

    fn forget(&mut self, ip: IpAddr) {
        self.entries.remove(&ip);
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Ends the oldest search without a waiting connection. Returns whether there was one.
    fn end_oldest_search(&mut self, counters: &mut Counters) -> bool {
        let entries = &self.entries;
        let only_packets = |ip: &IpAddr| match entries.get(ip).map(|entry| &entry.state) {
            Some(State::Sought { waiting, .. }) => waiting.connections.is_empty(),
            _ => true,
        };
        let Some(at) = self.sought.iter().position(only_packets) else { return false };
        let ip = self.sought.remove(at);
        self.give_up(ip, counters);
        true
    }

    /// If the cache is full, removes the least recently used known neighbour.
    fn make_room(&mut self, counters: &mut Counters) {
        if self.entries.len() < self.capacity + self.sought.len() {
            return;
        }
        let known = self.entries.iter().filter(|(_, entry)| matches!(entry.state, State::Known { .. }));
        if let Some(ip) = known.min_by_key(|(_, entry)| entry.wanted).map(|(&ip, _)| ip) {
            self.forget(ip);
            counters.bump(Counter::DropNeighbourCache);
        }
    }
}

impl State {
    fn reachable_until(&self) -> Instant {
        match self {
            Self::Known { reachable_until, .. } => *reachable_until,
            Self::Sought { .. } => Instant::ZERO,
        }
    }
}

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

/// Whether an address without an entry gets one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MakeEntry {
    IfPresent,
    Always,
}

/// The result of `learn`.
pub(crate) enum LearnOutcome {
    /// Nothing new.
    Nothing,
    /// A new, changed or renewed neighbour, and the packets and connections that waited for it.
    Fresh(Waiting),
}

#[cfg(test)]
mod tests;
