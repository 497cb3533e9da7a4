//! A DHCPv6 client (RFC 8415) as a state machine, for links whose routers advertise a server: it requests one address
//! (IA_NA) if they advertise addresses, otherwise only settings.
//!
//! ```text
//!   Idle ──"addresses"──> Soliciting ──best offer──> Requesting ──reply──> Bound ──T1──> Renewing ──T2──> Rebinding
//!     │                       ^  refused, or no answer │                    ^               │ reply          │
//!     │                       └────────────────────────┘                    └───────────────┴────────────────┘
//!     └──"settings"──> Informing ──reply──> Informed ──a day──> Informing
//! ```
//!
//! The stack owns the UDP port and sends the messages of [`Client::poll`] to all servers on the link. Like the other
//! clients here it has no random initial delay (RFC 8415 18.2.1 requires up to a second).

mod message;

#[cfg(test)]
mod tests;

use crate::base::{DNS_SERVERS, Duration, Instant, MacAddr};
use crate::ip::Dhcp6Offer;
use alloc::vec::Vec;
use core::net::Ipv6Addr;
use message::{ClientMessage, LeasedAddress, Reply, ReplyKind, RequestKind, Status};

/// The client's port.
pub(crate) const CLIENT_PORT: u16 = 546;
/// The servers' port.
pub(crate) const SERVER_PORT: u16 = 547;
/// All servers and relays on the link.
pub(crate) const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

/// Times between messages (RFC 8415 7.6): the first, and the longest.
struct Pace {
    first: Duration,
    longest: Duration,
}

const SOLICIT: Pace = Pace { first: Duration::from_secs(1), longest: Duration::from_secs(3600) };
const REQUEST: Pace = Pace { first: Duration::from_secs(1), longest: Duration::from_secs(30) };
const RENEW: Pace = Pace { first: Duration::from_secs(10), longest: Duration::from_secs(600) };
const INFORM: Pace = Pace { first: Duration::from_secs(1), longest: Duration::from_secs(3600) };
/// The requests to an unresponsive server (REQ_MAX_RC).
const REQUESTS: u8 = 10;
/// The default lifetime of settings, and the shortest (RFC 8415 21.23), in seconds.
const REFRESH: u32 = 86_400;
const REFRESH_LEAST: u32 = 600;
/// The least time between renewals in seconds, for any values of the server.
const LEAST_RENEW: u32 = 30;

/// The result of the client's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// An address is leased or renewed for these seconds, with name servers.
    Gained {
        ip: Ipv6Addr,
        preferred: u32,
        valid: u32,
        dns: [Option<Ipv6Addr>; DNS_SERVERS],
    },
    Lost(Ipv6Addr),
    /// Only name servers.
    Settings([Option<Ipv6Addr>; DNS_SERVERS]),
}

#[derive(Clone, Debug)]
struct Lease {
    ip: Ipv6Addr,
    server: Vec<u8>,
    rebind_at: Instant,
    expires_at: Instant,
}

#[derive(Clone, Debug)]
enum State {
    Idle,
    Soliciting { best: Option<(u8, Vec<u8>, Ipv6Addr)> },
    Requesting { server: Vec<u8>, ip: Ipv6Addr },
    Bound(Lease),
    Renewing(Lease),
    Rebinding(Lease),
    Declining { server: Vec<u8>, ip: Ipv6Addr },
    Informing,
    Informed,
}

/// The client of one interface.
#[derive(Debug)]
pub(crate) struct Client {
    mac: MacAddr,
    state: State,
    transaction: u32,
    attempts: u8,
    /// The last time between two messages.
    pause: Duration,
    due: Option<Instant>,
    began: Instant,
    random: u64,
}

impl Client {
    /// Returns a client that waits for router advertisements.
    pub fn new(mac: MacAddr, seed: u64) -> Self {
        let (state, began) = (State::Idle, Instant::ZERO);
        let pause = Duration::ZERO;
        Self { mac, state, transaction: 0, attempts: 0, pause, due: None, began, random: seed }
    }

    fn random(&mut self) -> u64 {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let a = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let b = (a ^ (a >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        b ^ (b >> 31)
    }

    /// Processes a router's advertisement of DHCPv6.
    pub fn offer(&mut self, now: Instant, offered: Dhcp6Offer) {
        match (offered, &self.state) {
            (Dhcp6Offer::Addresses, State::Idle | State::Informing | State::Informed) => self.solicit(now),
            (Dhcp6Offer::Settings, State::Idle) => self.enter(State::Informing, now),
            _ => {}
        }
    }

    fn solicit(&mut self, at: Instant) {
        self.enter(State::Soliciting { best: None }, at);
    }

    fn enter(&mut self, state: State, at: Instant) {
        self.state = state;
        self.attempts = 0;
        self.transaction = self.random() as u32 & 0xff_ffff;
        self.due = Some(at);
    }

    /// Returns the time of the next call of `poll`.
    pub fn deadline(&self) -> Option<Instant> {
        self.due
    }

    /// Processes the time: sends a due message, and ends an expired lease.
    pub fn poll(&mut self, now: Instant) -> (Option<Vec<u8>>, Option<Change>) {
        if self.due.is_none_or(|due| now < due) {
            return (None, None);
        }
        let mut change = None;
        match core::mem::replace(&mut self.state, State::Idle) {
            // The client has collected offers for the first delay; it takes the best one (RFC 8415 18.2.1).
            State::Soliciting { best: Some((_, server, ip)) } => {
                self.enter(State::Requesting { server, ip }, now);
            }
            State::Requesting { .. } if self.attempts >= REQUESTS => self.solicit(now),
            State::Declining { .. } if self.attempts > 0 => self.solicit(now),
            State::Bound(lease) => self.enter(State::Renewing(lease), now),
            State::Renewing(lease) if now >= lease.rebind_at => self.enter(State::Rebinding(lease), now),
            State::Rebinding(lease) if now >= lease.expires_at => {
                change = Some(Change::Lost(lease.ip));
                self.solicit(now);
            }
            State::Informed => self.enter(State::Informing, now),
            other => self.state = other,
        }
        let (pace, end) = match &self.state {
            State::Soliciting { .. } => (SOLICIT, None),
            State::Requesting { .. } | State::Declining { .. } => (REQUEST, None),
            State::Renewing(lease) => (RENEW, Some(lease.rebind_at)),
            State::Rebinding(lease) => (RENEW, Some(lease.expires_at)),
            State::Informing => (INFORM, None),
            State::Idle | State::Bound(_) | State::Informed => return (None, change),
        };
        if self.attempts == 0 {
            // The exchange begins with its first message, which is later than it was due if the interface had no
            // address yet.
            self.began = now;
        }
        let bytes = self.message(now);
        self.pause = self.next_pause(&pace);
        self.attempts = self.attempts.saturating_add(1);
        let next = now + self.pause;
        self.due = Some(end.map_or(next, |end| next.min(end)));
        (bytes, change)
    }

    /// Returns twice the previous delay, plus or minus a tenth (RFC 8415 15).
    fn next_pause(&mut self, pace: &Pace) -> Duration {
        let base = if self.attempts == 0 { pace.first } else { self.pause.times(2).min(pace.longest) };
        let tenth = base.as_nanos() / 10;
        // Offers are collected for at least the first delay.
        let spread = if self.attempts == 0 { tenth } else { tenth * 2 };
        let least = base.as_nanos() - (spread - tenth);
        Duration::from_nanos(least + self.random() % (spread + 1))
    }

    fn message(&self, now: Instant) -> Option<Vec<u8>> {
        let (kind, server, address) = match &self.state {
            State::Soliciting { .. } => (RequestKind::Solicit, None, None),
            State::Requesting { server, ip } => (RequestKind::Request, Some(server), Some(*ip)),
            State::Declining { server, ip } => (RequestKind::Decline, Some(server), Some(*ip)),
            State::Renewing(lease) => (RequestKind::Renew, Some(&lease.server), Some(lease.ip)),
            State::Rebinding(lease) => (RequestKind::Rebind, None, Some(lease.ip)),
            State::Informing => (RequestKind::Inform, None, None),
            State::Idle | State::Bound(_) | State::Informed => return None,
        };
        let elapsed = (now.since(self.began).as_millis() / 10).min(u16::MAX.into()) as u16;
        let server = server.map(Vec::as_slice);
        let ask =
            ClientMessage { kind, transaction: self.transaction, mac: self.mac, server, address, elapsed };
        Some(ask.bytes())
    }

    /// Processes a server's message. Returns `Err` if it is malformed or not for this client in its state.
    pub fn receive(&mut self, now: Instant, bytes: &[u8]) -> Result<Option<Change>, NotForUs> {
        let reply = Reply::parse(bytes, self.mac).ok_or(NotForUs)?;
        if reply.transaction != self.transaction {
            return Err(NotForUs);
        }
        match (core::mem::replace(&mut self.state, State::Idle), reply.kind) {
            (State::Soliciting { best }, ReplyKind::Advertise) => {
                Ok(self.consider(now, best, &reply).map(|()| None)?)
            }
            (State::Requesting { server, .. }, ReplyKind::Reply) if reply.server == server => {
                match (reply.status, reply.leased) {
                    (Status::Success, Some(leased)) if leased.valid > 0 => {
                        Ok(Some(self.bind(now, leased, &reply)))
                    }
                    _ => {
                        // With a delay: a server that rejects its own offer would otherwise cause a message storm.
                        self.solicit(now + SOLICIT.first);
                        Ok(None)
                    }
                }
            }
            (State::Renewing(lease), ReplyKind::Reply) if reply.server == lease.server => {
                Ok(self.extend(now, lease, &reply))
            }
            (State::Rebinding(lease), ReplyKind::Reply) => Ok(self.extend(now, lease, &reply)),
            (State::Informing, ReplyKind::Reply) => {
                self.state = State::Informed;
                let seconds = reply.refresh.unwrap_or(REFRESH).max(REFRESH_LEAST);
                self.due = Some(now + Duration::from_secs(seconds.into()));
                Ok(Some(Change::Settings(reply.dns)))
            }
            (state, _) => {
                self.state = state;
                Err(NotForUs)
            }
        }
    }

    /// Stores an offer if it is the best so far. Takes it at once if its preference is 255, or if the time to collect
    /// offers is over.
    fn consider(
        &mut self,
        now: Instant,
        best: Option<(u8, Vec<u8>, Ipv6Addr)>,
        reply: &Reply,
    ) -> Result<(), NotForUs> {
        let leased = reply.leased.filter(|leased| reply.status == Status::Success && leased.valid > 0);
        let Some(leased) = leased else {
            self.state = State::Soliciting { best };
            return Err(NotForUs);
        };
        if reply.preference == u8::MAX || self.attempts > 1 {
            self.enter(State::Requesting { server: reply.server.clone(), ip: leased.ip }, now);
            return Ok(());
        }
        let better = best.as_ref().is_none_or(|(preference, ..)| reply.preference > *preference);
        let offer = (reply.preference, reply.server.clone(), leased.ip);
        self.state = State::Soliciting { best: if better { Some(offer) } else { best } };
        Ok(())
    }

    fn extend(&mut self, now: Instant, lease: Lease, reply: &Reply) -> Option<Change> {
        match (reply.status, reply.leased) {
            (Status::Success, Some(leased)) if leased.ip == lease.ip && leased.valid > 0 => {
                Some(self.bind(now, leased, reply))
            }
            (Status::Success, Some(leased)) if leased.ip == lease.ip => {
                self.solicit(now);
                Some(Change::Lost(lease.ip))
            }
            (Status::Unknown, _) => {
                // The server has lost the binding: the client requests the address again (RFC 8415 18.2.10.1).
                self.enter(State::Requesting { server: reply.server.clone(), ip: lease.ip }, now);
                Some(Change::Lost(lease.ip))
            }
            _ => {
                // Without information about the address, the client repeats the message until the lease ends.
                self.state =
                    if now >= lease.rebind_at { State::Rebinding(lease) } else { State::Renewing(lease) };
                None
            }
        }
    }

    fn bind(&mut self, now: Instant, leased: LeasedAddress, reply: &Reply) -> Change {
        let LeasedAddress { ip, preferred, valid, .. } = leased;
        // T1 and T2 from the server, otherwise half and four fifths of the preferred lifetime (RFC 8415 14.2).
        let base = if preferred == 0 { valid } else { preferred };
        let renew = if leased.renew != 0 { leased.renew } else { base / 2 };
        let rebind = if leased.rebind != 0 { leased.rebind } else { (u64::from(base) * 4 / 5) as u32 };
        let renew = renew.max(LEAST_RENEW).min(valid);
        let rebind = rebind.max(renew).min(valid);
        let at = |seconds: u32| match seconds {
            u32::MAX => Instant::from_nanos(u64::MAX),
            seconds => now + Duration::from_secs(seconds.into()),
        };
        let server = reply.server.clone();
        self.state = State::Bound(Lease { ip, server, rebind_at: at(rebind), expires_at: at(valid) });
        self.due = (renew != u32::MAX).then(|| at(renew));
        self.attempts = 0;
        Change::Gained { ip, preferred, valid, dns: reply.dns }
    }

    /// Declines a leased address because another host uses it, and solicits another one.
    pub fn decline(&mut self, now: Instant, ip: Ipv6Addr) {
        if let State::Bound(lease) | State::Renewing(lease) | State::Rebinding(lease) = &self.state
            && lease.ip == ip
        {
            let server = lease.server.clone();
            self.enter(State::Declining { server, ip }, now);
        }
    }
}

/// The error for a message that is malformed or not for this client in its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotForUs;
