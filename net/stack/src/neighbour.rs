//! The cache of who answers for which address: one for ARP (RFC 826) and neighbour discovery (RFC 4861 7.3).
//!
//! The cache is a pure table: what it wants sent it returns, and [`Interface`](crate::interface) sends it.
//!
//! ```text
//!   sought ──answer──> reachable ──time──> stale ──used──> delayed ──5 s──> asked ──3 s──> forgotten
//!     │ 3 s               ^ ^                │ claimed        │ progress       │ answer
//!     └─> given up        │ └────────────────┼────────────────┴────────────────┘
//!                         └──────────────────┘ (a claim that changes the address makes it stale)
//! ```
//!
//! An entry is either *known* or *sought*. A sought one keeps a bounded queue of packets and the numbers of the
//! connections that wait; three requests a second apart without an answer end the search. A known one that was
//! not confirmed for a while is used on: first for a moment in which the transport may confirm it, then with
//! requests to it alone. All of that happens only when it is used, so an idle neighbour needs no timer.
//!
//! **Bounds** (RFC 6583): so many entries, so many searches, so many packets a search. Where there is no room,
//! an entry that nobody used goes before one that is in use, and an old search for which only packets wait goes
//! before one that a connection waits for.

mod advert;
mod check;

pub(crate) use advert::{Advert, Strength};

use crate::address::{MacAddr, is_unicast};
use crate::address6::is_unicast6;
use crate::config::Limits;
use crate::counters::{Counter, Counters};
use crate::interface::Packet;
use crate::time::{Duration, Instant};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use check::{Asked, Check};
use core::net::IpAddr;

/// How long an IPv4 neighbour's address is used without being confirmed.
const REACHABLE_V4: Duration = Duration::from_secs(60);
/// The same for an IPv6 neighbour, where no router says otherwise (RFC 4861 10: REACHABLE_TIME).
pub(crate) const REACHABLE_V6: Duration = Duration::from_secs(30);
/// Time between two requests for the same address (RFC 1122 2.3.2.1: at most one a second; RETRANS_TIMER).
const RETRY: Duration = Duration::from_secs(1);
/// Requests before a search ends, and before a known neighbour is forgotten (MAX_UNICAST_SOLICIT).
const ATTEMPTS: u8 = 3;
/// Addresses sought at once.
const SOUGHT: usize = 64;

/// Why something is believed of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// It answered what it was asked: it hears us.
    Confirmed,
    /// It, or somebody, said so unasked: to be checked when it is used.
    Claimed,
}

/// A known neighbour's address and how long it may be used without another look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub mac: MacAddr,
    pub valid_until: Instant,
}

/// A request that the cache wants sent: about `ip`, to its old address or to everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub ip: IpAddr,
    pub to: Option<MacAddr>,
}

/// What a look into the cache gives.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The address, and a request that makes sure of it.
    Known(Known, Option<Ask>),
    /// It is being sought; the request for that, where it is due.
    Sought(Option<Ask>),
    /// It was known, but does not answer any more: forgotten. The next look begins a search.
    Silent,
    /// No further search fits.
    Full,
}

/// What waited for an address that became known or turned out to be nobody's.
#[derive(Default)]
pub(crate) struct Waiting {
    pub packets: VecDeque<Packet>,
    pub connections: Vec<u32>,
}

enum State {
    Known { mac: MacAddr, reachable_until: Instant, check: Check, told_at: Instant },
    Sought { attempts: u8, retry_at: Instant, waiting: Waiting },
}

struct Entry {
    state: State,
    /// When somebody here last wanted it; an entry that nobody ever wanted goes first.
    wanted: Option<Instant>,
}

/// Neighbours by address.
pub(crate) struct NeighbourCache {
    entries: BTreeMap<IpAddr, Entry>,
    /// The addresses whose entries are sought, the longest sought one first.
    sought: Vec<IpAddr>,
    capacity: usize,
    queue: usize,
    reachable_v6: Duration,
    /// Counts what changed: whoever keeps an answer looks again when this has moved.
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

    /// Sets how long an IPv6 neighbour counts as reachable.
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

    /// Looks an address up, and starts or carries on the search for it.
    pub fn look_up(&mut self, now: Instant, ip: IpAddr, counters: &mut Counters) -> Answer {
        if let Some(entry) = self.entries.get_mut(&ip) {
            entry.wanted = Some(now);
            match &mut entry.state {
                State::Sought { .. } => return Answer::Sought(None),
                State::Known { mac, reachable_until, .. } if now < *reachable_until => {
                    return Answer::Known(Known { mac: *mac, valid_until: *reachable_until }, None);
                }
                State::Known { mac, check, .. } => {
                    let mac = *mac;
                    if let Some((valid_until, asked)) = check.go_on(now) {
                        let ask = (asked == Asked::Now).then_some(Ask { ip, to: Some(mac) });
                        return Answer::Known(Known { mac, valid_until }, ask);
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
        Answer::Sought(Some(Ask { ip, to: None }))
    }

    /// Keeps a packet until the sought address is known.
    pub fn wait_packet(&mut self, ip: IpAddr, packet: Packet, counters: &mut Counters) {
        match self.entries.get_mut(&ip).map(|entry| &mut entry.state) {
            Some(State::Sought { waiting, .. }) if waiting.packets.len() < self.queue => {
                waiting.packets.push_back(packet);
            }
            _ => counters.bump(Counter::DropNeighbourQueue),
        }
    }

    /// Notes a connection that is to be told when the sought address is known or given up.
    pub fn wait_connection(&mut self, ip: IpAddr, connection: u32) {
        if let Some(Entry { state: State::Sought { waiting, .. }, .. }) = self.entries.get_mut(&ip) {
            waiting.connections.push(connection);
        }
    }

    /// A connection waits no more: its number may be another one's from now on.
    #[cold]
    pub fn forget_connection(&mut self, connection: u32) {
        for ip in &self.sought {
            if let Some(Entry { state: State::Sought { waiting, .. }, .. }) = self.entries.get_mut(ip) {
                waiting.connections.retain(|&other| other != connection);
            }
        }
    }

    /// Takes in that `mac` answers for `ip`; returns what waited for it.
    ///
    /// `make` says whether an address that nobody asked for gets an entry.
    pub fn learn(
        &mut self,
        now: Instant,
        (ip, mac): (IpAddr, MacAddr),
        evidence: Evidence,
        make: MakeEntry,
        counters: &mut Counters,
    ) -> Learned {
        let possible = match ip {
            IpAddr::V4(ip) => is_unicast(ip),
            IpAddr::V6(ip) => is_unicast6(ip),
        };
        if !mac.is_unicast() || !possible {
            return Learned::Nothing;
        }
        let reachable_until = self.reachable_until(now, ip, evidence);
        let known = State::Known { mac, reachable_until, check: Check::NotBegun, told_at: now };
        let Some(entry) = self.entries.get_mut(&ip) else {
            if make == MakeEntry::IfPresent {
                return Learned::Nothing;
            }
            self.make_room(counters);
            self.entries.insert(ip, Entry { state: known, wanted: None });
            return Learned::Fresh(Waiting::default());
        };
        match &mut entry.state {
            State::Known { mac: before, reachable_until, check, told_at } if *before == mac => {
                if evidence == Evidence::Claimed {
                    return Learned::Nothing;
                }
                // Answers that merely confirm are told to others now and then, as they may have asked too.
                let tell = now >= *reachable_until || now >= *told_at + RETRY;
                (*reachable_until, *check) = (now + (known.reachable_until().since(now)), Check::NotBegun);
                if tell {
                    *told_at = now;
                    return Learned::Fresh(Waiting::default());
                }
                Learned::Nothing
            }
            state @ State::Known { .. } => {
                *state = known;
                self.epoch = self.epoch.wrapping_add(1);
                Learned::Fresh(Waiting::default())
            }
            state @ State::Sought { .. } => {
                let State::Sought { waiting, .. } = core::mem::replace(state, known) else {
                    return Learned::Nothing;
                };
                self.sought.retain(|&sought| sought != ip);
                Learned::Fresh(waiting)
            }
        }
    }

    /// The hardware address that is known of a neighbour.
    pub fn mac_of(&self, ip: IpAddr) -> Option<MacAddr> {
        match self.entries.get(&ip)?.state {
            State::Known { mac, .. } => Some(mac),
            State::Sought { .. } => None,
        }
    }

    /// The transport heard from beyond the neighbour: it is there (RFC 4861 7.3.1).
    pub fn confirm(&mut self, now: Instant, ip: IpAddr) {
        let until = self.reachable_until(now, ip, Evidence::Confirmed);
        if let Some(Entry { state: State::Known { reachable_until, check, .. }, .. }) =
            self.entries.get_mut(&ip)
        {
            (*reachable_until, *check) = (until, Check::NotBegun);
        }
    }

    /// Forgets everything about one family, because its network changed. What waited is dropped and counted.
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

    /// When `on_timer` is due.
    pub fn deadline(&self) -> Option<Instant> {
        let retry_at = |ip: &IpAddr| match self.entries.get(ip)?.state {
            State::Sought { retry_at, .. } => Some(retry_at),
            State::Known { .. } => None,
        };
        self.sought.iter().filter_map(retry_at).min()
    }

    /// Whether a neighbour is sought.
    #[inline]
    pub fn is_searching(&self) -> bool {
        !self.sought.is_empty()
    }

    /// Asks again for what is sought, and ends searches without an answer: returns the requests to send and
    /// what waited for those given up.
    pub fn on_timer(&mut self, now: Instant) -> (Vec<Ask>, Vec<(IpAddr, Waiting)>) {
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
                asks.push(Ask { ip, to: None });
            }
            self.sought.push(ip);
        }
        (asks, lost)
    }

    /// Ends a search: returns what waited.
    fn end(&mut self, ip: IpAddr) -> Waiting {
        match self.entries.remove(&ip).map(|entry| entry.state) {
            Some(State::Sought { waiting, .. }) => waiting,
            _ => Waiting::default(),
        }
    }

    /// Ends a search, and counts the packets that are dropped with it.
    fn give_up(&mut self, ip: IpAddr, counters: &mut Counters) -> Waiting {
        let waiting = self.end(ip);
        counters.add(Counter::DropNeighbourSilent, waiting.packets.len() as u64);
        waiting
    }

    fn forget(&mut self, ip: IpAddr) {
        self.entries.remove(&ip);
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Ends the oldest search for which no connection waits. Returns whether there was one.
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

    /// Forgets the known neighbour that was not used for longest, where the cache is full.
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
mod tests;
