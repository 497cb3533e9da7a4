//! Configuration of an interface's IPv6 addresses, networks, routers and name servers: stateless address
//! autoconfiguration (RFC 4862, RFC 8106) as a state machine. Its input are messages and time, its output messages and
//! [`Ipv6Settings`].
//!
//! ```text
//!   link-local ──DAD──> valid                 router solicitation ──> advertisement ─┬─> routers
//!   prefix in an advertisement ──> address ──DAD──> preferred ──> deprecated ──> gone  ├─> prefixes
//!   fixed address ──DAD──> valid                                                      └─> MTU, name servers
//! ```
//!
//! The interface id of an address is unpredictable for others, and differs between networks (RFC 7217). If duplicate
//! address detection (DAD) finds another owner of an address, another address replaces it, up to three times; a fixed
//! address is then not used.
//!
//! There are no random initial delays: RFC 4861 6.3.7 and RFC 4862 5.4.2 suggest them for rooms of machines that get
//! power together. Router solicitation runs during the check of the link-local address.
//!
//! Bounds: [`IPV6_ADDRESSES`], [`IPV6_PREFIXES`] and [`IPV6_ROUTERS`]; excess entries are counted.

mod lifetime;

use crate::base::{
    Counter, Counters, DNS_SERVERS, Duration, IPV6_ADDRESSES, IPV6_PREFIXES, IPV6_ROUTERS, Instant,
    Ipv6Address, Ipv6Config, Ipv6Prefix, Ipv6Settings, MacAddr, Secret, is_unicast6, solicited_node,
};
use crate::ip::{
    Flag, MIN_LINK_MTU, PrefixInfo, ReportReason, RouterAdvert, listener_report, report_delay_ms,
};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::Ipv6Addr;
use lifetime::{Lifetime, end_of};
use siphasher::sip::SipHasher24;

/// The duration of duplicate address detection (RFC 4861 10: RETRANS_TIMER; one probe, RFC 4862 5.1).
const DAD: Duration = Duration::from_secs(1);
/// The most further addresses for a prefix after conflicts (RFC 7217 7).
const DAD_RETRIES: u8 = 3;
/// The time to the second router solicitation; it doubles (RFC 7559 2) ...
const SOLICIT_FIRST: Duration = Duration::from_secs(4);
/// ... up to this.
const SOLICIT_LAST: Duration = Duration::from_secs(3600);
/// The time to the second report of a new group, as the first may be lost (RFC 3810 9.11).
const REPORT_AGAIN: Duration = Duration::from_secs(1);
/// The link-local prefix.
const LINK_LOCAL: Ipv6Prefix = Ipv6Prefix { ip: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), len: 64 };

/// A message to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outgoing {
    /// A probe of duplicate address detection.
    Probe { target: Ipv6Addr },
    /// A router solicitation.
    FindRouters { source: Option<Ipv6Addr> },
    /// A report of multicast groups.
    Report { source: Option<Ipv6Addr>, report: Vec<u8> },
}

/// The origin of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// Derived from a prefix, after this number of conflicts.
    Made { prefix: Ipv6Prefix, retries: u8 },
    /// Fixed.
    Given,
    /// Leased by DHCPv6.
    Leased,
}

/// The state of duplicate address detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Uniqueness {
    ToAsk,
    Asked { until: Instant },
    Checked,
}

#[derive(Clone, Copy, Debug)]
struct OwnAddress {
    ip: Ipv6Addr,
    origin: Origin,
    uniqueness: Uniqueness,
    lifetime: Lifetime,
}

/// The IPv6 autoconfiguration of an interface.
#[derive(Debug)]
pub(crate) struct Autoconf {
    mac: MacAddr,
    hasher: SipHasher24,
    /// The fixed address, if there is one; routers are not solicited then.
    given: Option<Ipv6Config>,
    addresses: Vec<OwnAddress>,
    prefixes: Vec<(Ipv6Prefix, Instant)>,
    routers: Vec<(Ipv6Addr, Instant)>,
    dns: Vec<(Ipv6Addr, Instant)>,
    /// Name servers from DHCPv6.
    leased_dns: [Option<Ipv6Addr>; DNS_SERVERS],
    mtu: Option<u16>,
    hop_limit: u8,
    /// The time of the next router solicitation, and the delay after it.
    solicit: Option<(Instant, Duration)>,
    /// The time of the next report of groups, and its reason.
    report: Option<(Instant, ReportReason)>,
    outbox: VecDeque<Outgoing>,
    /// The time of the next call of `poll`.
    due: Option<Instant>,
}

impl Autoconf {
    /// Returns the state of an interface that begins with its link-local address now.
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
            leased_dns: [None; DNS_SERVERS],
            mtu: None,
            hop_limit: crate::base::HOP_LIMIT,
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

    /// Returns the interface id for a network (RFC 7217 5).
    fn interface_id(&self, prefix: Ipv6Prefix, retries: u8) -> u64 {
        let mut bytes = [0; 15];
        bytes[..8].copy_from_slice(&((prefix.ip.to_bits() >> 64) as u64).to_be_bytes());
        bytes[8..14].copy_from_slice(&self.mac.0);
        bytes[14] = retries;
        let mut id = self.hasher.hash(&bytes);
        // Reserved interface ids (RFC 5453): the subnet-router anycast address, and reserved anycast addresses.
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
        self.addresses.push(OwnAddress { ip, origin, uniqueness: Uniqueness::ToAsk, lifetime });
        Room::Left
    }

    /// Returns the time of the next call of `poll`.
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

    /// Processes the time. Must be called until it returns no message; the settings may have changed then.
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

    /// Begins and ends checks of uniqueness.
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
            // Before the probes, so that a snooping switch forwards the answers (RFC 4862 5.4.2).
            let report = self.report_of(ReportReason::Joined);
            self.outbox.push_front(report);
            self.report = Some((now + REPORT_AGAIN, ReportReason::Joined));
        }
    }

    fn report_of(&self, reason: ReportReason) -> Outgoing {
        let report = listener_report(self.addresses.iter().map(|own| own.ip), reason);
        Outgoing::Report { source: self.link_local(), report }
    }

    fn push_report(&mut self, reason: ReportReason) {
        let report = self.report_of(reason);
        self.outbox.push_back(report);
    }

    /// Returns the link-local address, once its uniqueness was verified.
    pub fn link_local(&self) -> Option<Ipv6Addr> {
        let usable =
            |own: &&OwnAddress| own.uniqueness == Uniqueness::Checked && own.ip.is_unicast_link_local();
        self.addresses.iter().find(usable).map(|own| own.ip)
    }

    /// Processes a query of multicast groups: one report answers all queries until then.
    pub fn on_query(&mut self, now: Instant, within_ms: u16) {
        self.due = Some(now);
        let spread = report_delay_ms(within_ms).min(10_000);
        // A time that differs between machines, so that answers do not coincide.
        let part = self.hasher.hash(&now.as_nanos().to_be_bytes()) % (spread + 1);
        let at = now + Duration::from_millis(part);
        if self.report.is_none_or(|(before, _)| at < before) {
            let reason = self.report.map_or(ReportReason::Asked, |(_, reason)| reason);
            self.report = Some((at, reason));
        }
    }

    /// Returns whether a group is the solicited-node group of a tentative address.
    pub fn checks_in(&self, group: Ipv6Addr) -> bool {
        self.addresses.iter().any(|own| own.is_tentative() && solicited_node(own.ip) == group)
    }

    /// Processes another node's claim of `ip`: a tentative address is removed. Returns the consequence.
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
        if own.origin == Origin::Leased { Conflict::OfLease } else { Conflict::Mended }
    }

    /// Removes a neighbour from the routers, as it reports that it is none (RFC 4861 7.2.5).
    pub fn on_no_router(&mut self, ip: Ipv6Addr) {
        self.due = Some(Instant::ZERO);
        self.routers.retain(|&(router, _)| router != ip);
    }

    /// Returns whether the settings come from routers.
    pub fn asks_routers(&self) -> bool {
        self.given.is_none()
    }

    /// Processes a router advertisement (RFC 4861 6.3.4, RFC 4862 5.5.3).
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
            // Excess name servers are ignored: a few are enough.
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
        let made =
            |own: &OwnAddress| matches!(own.origin, Origin::Made { prefix: of, .. } if of.contains(info.ip));
        if let Some(own) = self.addresses.iter_mut().find(|own| made(own)) {
            own.lifetime.renew(now, info.preferred, info.valid);
        } else if info.valid != 0
            && self.make(prefix, 0, Lifetime::new(now, info.preferred, info.valid)) == Room::None
        {
            counters.bump(Counter::DropNdpTable);
        }
    }

    /// Adds or renews an address that a DHCPv6 server leases.
    pub fn add_lease(
        &mut self,
        now: Instant,
        ip: Ipv6Addr,
        (preferred, valid): (u32, u32),
        counters: &mut Counters,
    ) {
        self.due = Some(now);
        let lifetime = Lifetime::new(now, preferred, valid);
        let lent = self.addresses.iter_mut().find(|own| own.ip == ip && own.origin == Origin::Leased);
        if let Some(own) = lent {
            own.lifetime = lifetime;
        } else if self.add(ip, Origin::Leased, lifetime) == Room::None {
            counters.bump(Counter::DropNdpTable);
        }
    }

    /// Removes an address whose lease has ended.
    pub fn remove_lease(&mut self, ip: Ipv6Addr) {
        self.due = Some(Instant::ZERO);
        self.addresses.retain(|own| own.ip != ip || own.origin != Origin::Leased);
    }

    /// Stores the name servers of a DHCPv6 server.
    pub fn set_leased_dns(&mut self, dns: [Option<Ipv6Addr>; DNS_SERVERS]) {
        self.due = Some(Instant::ZERO);
        self.leased_dns = dns;
    }

    /// Returns the current settings.
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
        let leased = self.leased_dns.into_iter().flatten();
        fill(&mut settings.dns, self.dns.iter().map(|&(server, _)| server).chain(leased));
        settings
    }
}

impl OwnAddress {
    fn is_tentative(&self) -> bool {
        self.uniqueness != Uniqueness::Checked
    }
}

/// The consequence of an address conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// The address is not being checked here.
    None,
    /// Another address replaces it, or none.
    Mended,
    /// The leasing server must be notified.
    OfLease,
}

/// Whether there was room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Left,
    None,
}

/// Stores `what` for `seconds` from now; zero removes it.
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
