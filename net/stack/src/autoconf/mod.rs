//! How an interface comes by its IPv6 addresses, networks, routers and name servers: stateless address
//! autoconfiguration (RFC 4862, RFC 8106) as a state machine of its own. Messages and time go in, messages and
//! [`Ipv6Settings`] come out.
//!
//! ```text
//!   link-local ──DAD──> valid                 router solicitation ──> advertisement ─┬─> routers
//!   prefix in an advertisement ──> address ──DAD──> preferred ──> deprecated ──> gone  ├─> prefixes
//!   given address ──DAD──> valid                                                      └─> MTU, name servers
//! ```
//!
//! An address ends in a number that only this machine can foresee, and that differs from network to network
//! (RFC 7217). An address that somebody else has (duplicate address detection, DAD) is replaced by another,
//! three times; a given one is not used.
//!
//! Nothing waits at random before it begins, as RFC 4861 6.3.7 and RFC 4862 5.4.2 suggest for rooms full of
//! machines that get power together, and routers are looked for while the link-local address is checked.
//!
//! Bounds: [`IPV6_ADDRESSES`], [`IPV6_PREFIXES`] and [`IPV6_ROUTERS`]; what does not fit is counted.

mod lifetime;

use crate::address::{DNS_SERVERS, MacAddr};
use crate::address6::{
    IPV6_ADDRESSES, IPV6_PREFIXES, IPV6_ROUTERS, Ipv6Address, Ipv6Config, Ipv6Prefix, Ipv6Settings,
    is_unicast6, solicited_node,
};
use crate::config::Secret;
use crate::counters::{Counter, Counters};
use crate::ipv6::MIN_LINK_MTU;
use crate::mld;
use crate::ndp::{Flag, PrefixInfo, RouterAdvert};
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::Ipv6Addr;
use lifetime::{Lifetime, end_of};
use siphasher::sip::SipHasher24;

/// How long an address is asked about before it is used (RFC 4861 10: RETRANS_TIMER; one question, RFC 4862 5.1).
const DAD: Duration = Duration::from_secs(1);
/// Addresses that are tried for one prefix, after the first turned out to be somebody's (RFC 7217 7).
const DAD_RETRIES: u8 = 3;
/// Time to the second router solicitation; it doubles (RFC 7559 2) ...
const SOLICIT_FIRST: Duration = Duration::from_secs(4);
/// ... up to this.
const SOLICIT_LAST: Duration = Duration::from_secs(3600);
/// How long a new group is told once more, as the first report may be lost (RFC 3810 9.11).
const REPORT_AGAIN: Duration = Duration::from_secs(1);
/// The prefix of addresses that hold on the link alone.
const LINK_LOCAL: Ipv6Prefix = Ipv6Prefix { ip: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), len: 64 };

/// A message to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outgoing {
    /// "Has anybody this address?"
    Probe { target: Ipv6Addr },
    /// "Which routers are there?"
    FindRouters { source: Option<Ipv6Addr> },
    /// Which groups are listened to.
    Report { source: Option<Ipv6Addr>, report: Vec<u8> },
}

/// Where an address comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// Made from a prefix; so many before it were somebody else's.
    Made { prefix: Ipv6Prefix, retries: u8 },
    /// Given.
    Given,
    /// Lent by DHCPv6.
    Lent,
}

/// How sure it is that nobody else has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Uniqueness {
    ToAsk,
    Asked { until: Instant },
    Checked,
}

#[derive(Clone, Copy, Debug)]
struct Own {
    ip: Ipv6Addr,
    origin: Origin,
    uniqueness: Uniqueness,
    lifetime: Lifetime,
}

/// What a host knows of the IPv6 side of its link.
#[derive(Debug)]
pub(crate) struct Autoconf {
    mac: MacAddr,
    hasher: SipHasher24,
    /// `Some` where the address is given, and routers are not asked.
    given: Option<Ipv6Config>,
    addresses: Vec<Own>,
    prefixes: Vec<(Ipv6Prefix, Instant)>,
    routers: Vec<(Ipv6Addr, Instant)>,
    dns: Vec<(Ipv6Addr, Instant)>,
    /// Name servers that DHCPv6 told of.
    told_dns: [Option<Ipv6Addr>; DNS_SERVERS],
    mtu: Option<u16>,
    hop_limit: u8,
    /// When routers are asked for again, and how long to wait then.
    solicit: Option<(Instant, Duration)>,
    /// When the groups are told again, and why.
    report: Option<(Instant, mld::Reason)>,
    outbox: VecDeque<Outgoing>,
    /// When `poll` has something to do next.
    due: Option<Instant>,
}

impl Autoconf {
    /// A host that begins with its link-local address now.
    pub fn new(mac: MacAddr, secret: &Secret, given: Option<Ipv6Config>, now: Instant) -> Self {
        let (a, b) = secret.keys(5);
        let mut autoconf = Self {
            mac,
            hasher: SipHasher24::new_with_keys(a, b),
            given,
            addresses: Vec::new(),
            prefixes: Vec::new(),
            routers: Vec::new(),
            dns: Vec::new(),
            told_dns: [None; DNS_SERVERS],
            mtu: None,
            hop_limit: crate::ip::HOP_LIMIT,
            solicit: given.is_none().then_some((now, SOLICIT_FIRST)),
            report: None,
            outbox: VecDeque::new(),
            due: Some(now),
        };
        autoconf.make(LINK_LOCAL, 0, Lifetime::FOREVER);
        if let Some(given) = given {
            autoconf.add(given.address, Origin::Given, Lifetime::FOREVER);
        }
        autoconf
    }

    /// The interface's number on a network (RFC 7217 5).
    fn interface_id(&self, prefix: Ipv6Prefix, retries: u8) -> u64 {
        let mut bytes = [0; 15];
        bytes[..8].copy_from_slice(&((prefix.ip.to_bits() >> 64) as u64).to_be_bytes());
        bytes[8..14].copy_from_slice(&self.mac.0);
        bytes[14] = retries;
        let mut id = self.hasher.hash(&bytes);
        // Numbers that mean something else (RFC 5453): all routers, and reserved anycast addresses.
        while id == 0 || id >> 7 == 0xfdff_ffff_ffff_ff80 >> 7 || id >> 24 == 0x0000_0002_005e_fffe {
            id = self.hasher.hash(&id.to_be_bytes());
        }
        id
    }

    fn make(&mut self, prefix: Ipv6Prefix, retries: u8, lifetime: Lifetime) -> Room {
        let network = prefix.ip.to_bits() & !u128::from(u64::MAX);
        let ip = Ipv6Addr::from_bits(network | u128::from(self.interface_id(prefix, retries)));
        self.add(ip, Origin::Made { prefix, retries }, lifetime)
    }

    fn add(&mut self, ip: Ipv6Addr, origin: Origin, lifetime: Lifetime) -> Room {
        if self.addresses.len() >= IPV6_ADDRESSES || self.addresses.iter().any(|own| own.ip == ip) {
            return Room::None;
        }
        self.addresses.push(Own { ip, origin, uniqueness: Uniqueness::ToAsk, lifetime });
        Room::Left
    }

    /// When `poll` has something to do next.
    pub fn deadline(&self) -> Option<Instant> {
        self.due
    }

    fn next_due(&self) -> Option<Instant> {
        if !self.outbox.is_empty() || self.addresses.iter().any(|own| own.uniqueness == Uniqueness::ToAsk) {
            return Some(Instant::ZERO);
        }
        let checks = self.addresses.iter().filter_map(|own| match own.uniqueness {
            Uniqueness::Asked { until } => Some(until),
            _ => None,
        });
        let lifetimes = self.addresses.iter().filter_map(|own| own.lifetime.next_change());
        let prefixes = self.prefixes.iter().map(|&(_, until)| until);
        let routers = self.routers.iter().chain(&self.dns).map(|&(_, until)| until);
        let ends = prefixes.chain(routers).filter(|&until| until != lifetime::NEVER);
        let others = [self.solicit.map(|(at, _)| at), self.report.map(|(at, _)| at)];
        checks.chain(lifetimes).chain(ends).chain(others.into_iter().flatten()).min()
    }

    /// Acts on the time. Call until it returns no message; the settings may have changed then.
    pub fn poll(&mut self, now: Instant) -> Option<Outgoing> {
        if let Some(outgoing) = self.outbox.pop_front() {
            return Some(outgoing);
        }
        self.expire(now);
        self.check(now);
        if let Some((at, pause)) = self.solicit
            && now >= at
        {
            self.solicit = Some((now + pause, pause.times(2).min(SOLICIT_LAST)));
            self.outbox.push_back(Outgoing::FindRouters { source: self.link_local() });
        }
        if let Some((at, reason)) = self.report
            && now >= at
        {
            self.report = None;
            self.push_report(reason);
        }
        let outgoing = self.outbox.pop_front();
        if outgoing.is_none() {
            self.due = self.next_due();
        }
        outgoing
    }

    fn expire(&mut self, now: Instant) {
        self.prefixes.retain(|&(_, until)| now < until);
        self.routers.retain(|&(_, until)| now < until);
        self.dns.retain(|&(_, until)| now < until);
        self.addresses.retain_mut(|own| own.lifetime.pass(now));
    }

    /// Begins and ends the checks of uniqueness.
    fn check(&mut self, now: Instant) {
        let mut joined = false;
        for own in &mut self.addresses {
            match own.uniqueness {
                Uniqueness::ToAsk => {
                    own.uniqueness = Uniqueness::Asked { until: now + DAD };
                    self.outbox.push_back(Outgoing::Probe { target: own.ip });
                    joined = true;
                }
                Uniqueness::Asked { until } if now >= until => own.uniqueness = Uniqueness::Checked,
                Uniqueness::Asked { .. } | Uniqueness::Checked => {}
            }
        }
        if joined {
            // Before the questions, so that a switch that snoops lets the answers through (RFC 4862 5.4.2).
            let report = self.report_of(mld::Reason::Joined);
            self.outbox.push_front(report);
            self.report = Some((now + REPORT_AGAIN, mld::Reason::Joined));
        }
    }

    fn report_of(&self, reason: mld::Reason) -> Outgoing {
        let report = mld::report(self.addresses.iter().map(|own| own.ip), reason);
        Outgoing::Report { source: self.link_local(), report }
    }

    fn push_report(&mut self, reason: mld::Reason) {
        let report = self.report_of(reason);
        self.outbox.push_back(report);
    }

    /// The address for messages about the link, once it is known to be unique.
    pub fn link_local(&self) -> Option<Ipv6Addr> {
        let usable = |own: &&Own| own.uniqueness == Uniqueness::Checked && own.ip.is_unicast_link_local();
        self.addresses.iter().find(usable).map(|own| own.ip)
    }

    /// Somebody asks which groups are listened to: answered once for all that ask by then.
    pub fn on_query(&mut self, now: Instant, within_ms: u16) {
        self.due = Some(now);
        let spread = mld::delay_ms(within_ms).min(10_000);
        // A moment that differs from machine to machine, so that answers do not meet.
        let part = self.hasher.hash(&now.as_nanos().to_be_bytes()) % (spread + 1);
        let at = now + Duration::from_millis(part);
        if self.report.is_none_or(|(before, _)| at < before) {
            let reason = self.report.map_or(mld::Reason::Asked, |(_, reason)| reason);
            self.report = Some((at, reason));
        }
    }

    /// Whether a group is one in which an address is looked for that is still being checked.
    pub fn checks_in(&self, group: Ipv6Addr) -> bool {
        self.addresses.iter().any(|own| own.is_tentative() && solicited_node(own.ip) == group)
    }

    /// Somebody has `ip`, or is about to take it: where it is still being checked here, it is not ours.
    /// Returns whether it was.
    pub fn on_conflict(&mut self, ip: Ipv6Addr) -> Conflict {
        let Some(at) = self.addresses.iter().position(|own| own.ip == ip && own.is_tentative()) else {
            return Conflict::None;
        };
        self.due = Some(Instant::ZERO);
        let own = self.addresses.remove(at);
        if let Origin::Made { prefix, retries } = own.origin
            && retries < DAD_RETRIES
        {
            self.make(prefix, retries + 1, own.lifetime);
        }
        if own.origin == Origin::Lent { Conflict::OfLoan } else { Conflict::Mended }
    }

    /// A neighbour says that it is no router, or not any more (RFC 4861 7.2.5).
    pub fn on_no_router(&mut self, ip: Ipv6Addr) {
        self.due = Some(Instant::ZERO);
        self.routers.retain(|&(router, _)| router != ip);
    }

    /// Whether routers decide on what is used.
    pub fn asks_routers(&self) -> bool {
        self.given.is_none()
    }

    /// A router told of itself and its networks (RFC 4861 6.3.4, RFC 4862 5.5.3).
    pub fn on_router(
        &mut self,
        now: Instant,
        from: Ipv6Addr,
        advert: &RouterAdvert,
        counters: &mut Counters,
    ) {
        if self.given.is_some() {
            return;
        }
        self.due = Some(now);
        if advert.hop_limit != 0 {
            self.hop_limit = advert.hop_limit;
        }
        let lifetime = u32::from(advert.router_lifetime);
        if keep(&mut self.routers, IPV6_ROUTERS, from, lifetime, now) == Room::None {
            counters.bump(Counter::DropNdpTable);
        }
        if lifetime != 0 {
            self.solicit = None;
        }
        if let Some(mtu) = advert.mtu.and_then(|mtu| u16::try_from(mtu).ok())
            && usize::from(mtu) >= MIN_LINK_MTU
        {
            self.mtu = Some(mtu);
        }
        for server in advert.dns.into_iter().flatten().filter(|&server| is_unicast6(server)) {
            // More than fit are no loss: a few name servers are enough.
            let _ = keep(&mut self.dns, DNS_SERVERS, server, advert.dns_lifetime, now);
        }
        advert.prefixes.iter().flatten().for_each(|prefix| self.on_prefix(now, prefix, counters));
    }

    fn on_prefix(&mut self, now: Instant, info: &PrefixInfo, counters: &mut Counters) {
        let prefix = Ipv6Prefix { ip: info.ip, len: info.len };
        if !is_unicast6(info.ip) || info.ip.is_unicast_link_local() || info.len == 0 {
            return;
        }
        if info.on_link == Flag::Set {
            let same = |known: &Ipv6Prefix| known.len == prefix.len && known.contains(prefix.ip);
            if let Some(at) = self.prefixes.iter().position(|(known, _)| same(known)) {
                self.prefixes.remove(at);
            }
            if keep(&mut self.prefixes, IPV6_PREFIXES, prefix, info.valid, now) == Room::None {
                counters.bump(Counter::DropNdpTable);
            }
        }
        if info.autonomous == Flag::Clear || info.preferred > info.valid || info.len != 64 {
            return;
        }
        let made = |own: &Own| matches!(own.origin, Origin::Made { prefix: of, .. } if of.contains(info.ip));
        if let Some(own) = self.addresses.iter_mut().find(|own| made(own)) {
            own.lifetime.renew(now, info.preferred, info.valid);
        } else if info.valid != 0
            && self.make(prefix, 0, Lifetime::new(now, info.preferred, info.valid)) == Room::None
        {
            counters.bump(Counter::DropNdpTable);
        }
    }

    /// A DHCPv6 server lends an address, or lends it on.
    pub fn lend(
        &mut self,
        now: Instant,
        ip: Ipv6Addr,
        (preferred, valid): (u32, u32),
        counters: &mut Counters,
    ) {
        self.due = Some(now);
        let lifetime = Lifetime::new(now, preferred, valid);
        let lent = self.addresses.iter_mut().find(|own| own.ip == ip && own.origin == Origin::Lent);
        if let Some(own) = lent {
            own.lifetime = lifetime;
        } else if self.add(ip, Origin::Lent, lifetime) == Room::None {
            counters.bump(Counter::DropNdpTable);
        }
    }

    /// An address is lent no more.
    pub fn take_back(&mut self, ip: Ipv6Addr) {
        self.due = Some(Instant::ZERO);
        self.addresses.retain(|own| own.ip != ip || own.origin != Origin::Lent);
    }

    /// Takes in the name servers that a DHCPv6 server told of.
    pub fn tell_dns(&mut self, dns: [Option<Ipv6Addr>; DNS_SERVERS]) {
        self.due = Some(Instant::ZERO);
        self.told_dns = dns;
    }

    /// What the interface is to use now.
    pub fn settings(&self, now: Instant) -> Ipv6Settings {
        let mut settings = Ipv6Settings { mtu: self.mtu, hop_limit: self.hop_limit, ..Ipv6Settings::NONE };
        let usable = self.addresses.iter().filter(|own| own.uniqueness == Uniqueness::Checked);
        fill(
            &mut settings.addresses,
            usable.map(|own| Ipv6Address { ip: own.ip, preference: own.lifetime.preference(now) }),
        );
        if let Some(given) = self.given {
            let fixed = Ipv6Settings::fixed(given);
            (settings.prefixes, settings.routers, settings.dns) = (fixed.prefixes, fixed.routers, fixed.dns);
            return settings;
        }
        fill(&mut settings.prefixes, self.prefixes.iter().map(|&(prefix, _)| prefix));
        fill(&mut settings.routers, self.routers.iter().map(|&(router, _)| router));
        let told = self.told_dns.into_iter().flatten();
        fill(&mut settings.dns, self.dns.iter().map(|&(server, _)| server).chain(told));
        settings
    }
}

impl Own {
    fn is_tentative(&self) -> bool {
        self.uniqueness != Uniqueness::Checked
    }
}

/// What came of a conflict about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// The address is not being checked here.
    None,
    /// Another address takes its place, or none.
    Mended,
    /// The server that lent it is to be told.
    OfLoan,
}

/// Whether something fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Left,
    None,
}

/// Notes that `what` holds for so many seconds from now; for none, it is forgotten.
fn keep<T: PartialEq>(
    list: &mut Vec<(T, Instant)>,
    most: usize,
    what: T,
    seconds: u32,
    now: Instant,
) -> Room {
    let until = end_of(now, seconds);
    let at = list.iter().position(|(known, _)| *known == what);
    match at {
        Some(at) if seconds == 0 => drop(list.remove(at)),
        Some(at) => list[at].1 = until,
        None if seconds == 0 => {}
        None if list.len() >= most => return Room::None,
        None => list.push((what, until)),
    }
    Room::Left
}

fn fill<T: PartialEq + Copy>(slots: &mut [Option<T>], values: impl Iterator<Item = T>) {
    let mut slots = slots.iter_mut();
    for value in values {
        match slots.next() {
            Some(slot) => *slot = Some(value),
            None => return,
        }
    }
}
