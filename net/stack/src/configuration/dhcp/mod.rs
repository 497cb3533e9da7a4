//! A DHCP client (RFC 2131) as a state machine: its input are bytes and time, its output bytes and an address.
//!
//! ```text
//!   Selecting ──offer──> Requesting ──ack──> Bound ──T1──> Renewing ──T2──> Rebinding
//!      ^                     │nak              ^              │ack             │ack, or lease over
//!      └─────────────────────┴─────────────────┴──────────────┴────────────────┴──> ...
//! ```
//!
//! If another host uses the address, the client declines it, in any state with a lease, and starts again after ten
//! seconds.
//!
//! The stack owns the UDP port and sends the messages of [`Client::poll`]. There is no initial delay: RFC 2131 4.4.1
//! suggests one for rooms of machines that get power together; here the server is close, and a cell starts in
//! milliseconds.

mod message;

#[cfg(test)]
mod tests;

use crate::base::{Duration, Instant, Ipv4Config, MacAddr};
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use message::{ClientMessage, Reply, ReplyKind, RequestKind};

/// The client's port.
pub(crate) const CLIENT_PORT: u16 = 68;
/// The servers' port.
pub(crate) const SERVER_PORT: u16 = 67;

/// The time to the first retransmission; it doubles (RFC 2131 4.1).
const FIRST_RETRY: Duration = Duration::from_secs(4);
/// The longest time between retransmissions.
const LAST_RETRY: Duration = Duration::from_secs(64);
/// The requests for an offered address before the client discards the offer.
const REQUESTS: u8 = 4;
/// The least time between renewal attempts (RFC 2131 4.4.5).
const RENEW_RETRY: Duration = Duration::from_secs(60);
/// The delay after a decline (RFC 2131 3.1 5).
const AFTER_DECLINE: Duration = Duration::from_secs(10);
/// The shortest lease: a shorter one counts as this long, as it would cause too many renewals.
const MIN_LEASE: u32 = 60;
/// A lease without end.
const INFINITE: u32 = u32::MAX;

/// A message to send from [`CLIENT_PORT`] to [`SERVER_PORT`].
#[derive(Debug)]
pub(crate) struct Message {
    /// The server; `None` for a broadcast without a source address.
    pub server: Option<Ipv4Addr>,
    pub bytes: Vec<u8>,
}

/// A change of the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Gained(Ipv4Config),
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    config: Ipv4Config,
    server: Ipv4Addr,
    /// The time of rebinding (T2), and the end of the lease.
    rebind_at: Instant,
    expires_at: Instant,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Selecting,
    Requesting { address: Ipv4Addr, server: Ipv4Addr },
    Bound(Lease),
    Renewing(Lease),
    Rebinding(Lease),
    Declining { address: Ipv4Addr, server: Ipv4Addr },
}

/// The client of one interface.
#[derive(Debug)]
pub(crate) struct Client {
    mac: MacAddr,
    state: State,
    transaction: u32,
    /// Messages sent in this state.
    attempts: u8,
    /// The time of the next message; `None` for an infinite lease.
    due: Option<Instant>,
    began: Instant,
    random: u64,
}

impl Client {
    /// Returns a client whose first message is due at once.
    pub fn new(mac: MacAddr, seed: u64, now: Instant) -> Self {
        let mut client = Self {
            mac,
            state: State::Selecting,
            transaction: 0,
            attempts: 0,
            due: None,
            began: now,
            random: seed,
        };
        client.select(now);
        client
    }

    /// Returns the next number of a sequence that differs for each boot (SplitMix64).
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let a = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let b = (a ^ (a >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        b ^ (b >> 31)
    }

    fn select(&mut self, at: Instant) {
        self.enter(State::Selecting, at);
        self.transaction = self.random() as u32;
        self.began = at;
    }

    fn enter(&mut self, state: State, due: Instant) {
        self.state = state;
        self.attempts = 0;
        self.due = Some(due);
    }

    /// Returns the time of the next call of `poll`.
    pub fn deadline(&self) -> Option<Instant> {
        self.due
    }

    /// Processes the time: sends a due message, and ends an expired lease.
    pub fn poll(&mut self, now: Instant) -> (Option<Message>, Option<Change>) {
        let mut change = None;
        if self.due.is_none_or(|due| now < due) {
            return (None, None);
        }
        match self.state {
            State::Requesting { .. } if self.attempts >= REQUESTS => self.select(now),
            State::Declining { .. } if self.attempts > 0 => self.select(now),
            State::Bound(lease) => {
                self.transaction = self.random() as u32;
                self.began = now;
                self.enter(State::Renewing(lease), now);
            }
            _ => {}
        }
        if let State::Renewing(lease) = self.state
            && now >= lease.rebind_at
        {
            self.enter(State::Rebinding(lease), now);
        }
        if let State::Rebinding(lease) = self.state
            && now >= lease.expires_at
        {
            change = Some(Change::Lost);
            self.select(now);
        }
        let message = self.message(now);
        self.attempts = self.attempts.saturating_add(1);
        self.due = Some(self.next_due(now));
        (Some(message), change)
    }

    fn message(&self, now: Instant) -> Message {
        let none = Ipv4Addr::UNSPECIFIED;
        let (kind, current, server) = match self.state {
            State::Selecting => (RequestKind::Discover, none, None),
            State::Declining { address, server } => (RequestKind::Decline { address, server }, none, None),
            State::Requesting { address, server } => (RequestKind::Take { address, server }, none, None),
            State::Bound(lease) | State::Renewing(lease) => {
                (RequestKind::Keep, lease.config.address, Some(lease.server))
            }
            State::Rebinding(lease) => (RequestKind::Keep, lease.config.address, None),
        };
        let seconds = now.since(self.began).as_secs().min(u64::from(u16::MAX)) as u16;
        let ask = ClientMessage { kind, transaction: self.transaction, mac: self.mac, seconds, current };
        Message { server, bytes: ask.bytes() }
    }

    /// Returns the time of the retransmission of the current message.
    fn next_due(&mut self, now: Instant) -> Instant {
        match self.state {
            State::Selecting | State::Requesting { .. } => {
                let doublings = u32::from(self.attempts.saturating_sub(1)).min(6);
                let base = FIRST_RETRY.times(1 << doublings).min(LAST_RETRY);
                // Plus or minus a second, so that clients that started together diverge.
                let jitter = Duration::from_millis(self.random() % 2001);
                now + (base + jitter - Duration::from_secs(1))
            }
            State::Bound(lease) | State::Renewing(lease) => half_way(now, lease.rebind_at),
            State::Declining { .. } => now + AFTER_DECLINE,
            State::Rebinding(lease) => half_way(now, lease.expires_at),
        }
    }

    /// Processes a server's message. Returns `Err` if it is malformed or not for this client in its state.
    pub fn receive(&mut self, now: Instant, bytes: &[u8]) -> Result<Option<Change>, NotForUs> {
        let reply = Reply::parse(bytes).ok_or(NotForUs)?;
        if reply.transaction != self.transaction || reply.mac != self.mac {
            return Err(NotForUs);
        }
        match (self.state, reply.kind) {
            (State::Selecting, ReplyKind::Offer) => {
                let server = reply.server.ok_or(NotForUs)?;
                config_of(&reply).ok_or(NotForUs)?;
                self.enter(State::Requesting { address: reply.address, server }, now);
                Ok(None)
            }
            (State::Requesting { server, .. }, ReplyKind::Ack) if reply.server == Some(server) => {
                self.bind(now, &reply, server)
            }
            (State::Renewing(lease) | State::Rebinding(lease), ReplyKind::Ack) => {
                self.bind(now, &reply, reply.server.unwrap_or(lease.server))
            }
            (State::Requesting { server, .. }, ReplyKind::Nak) if reply.server == Some(server) => {
                // With a delay: a server that rejects its own offer would otherwise cause a message storm.
                self.select(now + Duration::from_secs(1));
                Ok(None)
            }
            (State::Renewing(_) | State::Rebinding(_), ReplyKind::Nak) => {
                self.select(now);
                Ok(Some(Change::Lost))
            }
            _ => Err(NotForUs),
        }
    }

    /// Declines the address because another host uses it, and starts again after a delay.
    pub fn decline(&mut self, now: Instant) -> Option<Change> {
        let (State::Bound(lease) | State::Renewing(lease) | State::Rebinding(lease)) = self.state else {
            return None;
        };
        self.enter(State::Declining { address: lease.config.address, server: lease.server }, now);
        Some(Change::Lost)
    }

    fn bind(&mut self, now: Instant, reply: &Reply, server: Ipv4Addr) -> Result<Option<Change>, NotForUs> {
        let config = config_of(reply).ok_or(NotForUs)?;
        let before = match self.state {
            State::Renewing(lease) | State::Rebinding(lease) => Some(lease.config),
            _ => None,
        };
        let seconds = reply.lease.ok_or(NotForUs)?.max(MIN_LEASE);
        // T1 and T2 from the server if they are valid, otherwise half and seven eighths (RFC 2131 4.4.5).
        let eighths = |count: u64| (u64::from(seconds) * count / 8) as u32;
        let rebind = reply.rebinding.filter(|&t2| t2 > 0 && t2 < seconds).unwrap_or(eighths(7));
        let renew = reply.renewal.filter(|&t1| t1 > 0 && t1 < rebind).unwrap_or(eighths(4).min(rebind));
        let at = |seconds: u32| now + Duration::from_secs(u64::from(seconds));
        let renew_at = (seconds != INFINITE).then(|| at(renew));
        let (rebind_at, expires_at) = (at(rebind), at(seconds));
        self.state = State::Bound(Lease { config, server, rebind_at, expires_at });
        self.due = renew_at;
        self.attempts = 0;
        Ok((before != Some(config)).then_some(Change::Gained(config)))
    }
}

/// The error for a message that is malformed or not for this client in its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotForUs;

/// Returns the time after half of the remaining time, at least a minute, at most all of it.
fn half_way(now: Instant, end: Instant) -> Instant {
    let left = end.since(now);
    now + left.divided_by(2).max(RENEW_RETRY.min(left))
}

/// Returns the configuration of an offer or a grant; `None` if it is invalid.
fn config_of(reply: &Reply) -> Option<Ipv4Config> {
    let config = Ipv4Config {
        address: reply.address,
        prefix_len: reply.prefix_len?,
        gateway: reply.router.filter(|&router| router != reply.address),
        dns: reply.dns,
    };
    config.is_valid().then_some(config)
}
