//! DHCPv6 messages (RFC 8415 8, 21): writing of this client's, and parsing of untrusted replies.

use crate::base::{DNS_SERVERS, MacAddr};
use alloc::vec::Vec;
use core::net::Ipv6Addr;

const CLIENT_ID: u16 = 1;
const SERVER_ID: u16 = 2;
const IA_NA: u16 = 3;
const IA_ADDRESS: u16 = 5;
const REQUESTED: u16 = 6;
const PREFERENCE: u16 = 7;
const ELAPSED: u16 = 8;
const STATUS: u16 = 13;
const DNS: u16 = 23;
const REFRESH_TIME: u16 = 32;

/// The most options of a message, or of an option.
const MAX_OPTIONS: usize = 64;
/// The longest server identifier (RFC 8415 11.1).
const MAX_ID: usize = 130;
/// The id of the requested identity association.
const IA_NUMBER: u32 = 1;

/// The kind of a client's message, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RequestKind {
    Solicit = 1,
    Request = 3,
    Renew = 5,
    Rebind = 6,
    Decline = 9,
    Inform = 11,
}

/// A message to servers.
#[derive(Clone, Debug)]
pub(super) struct ClientMessage<'a> {
    pub kind: RequestKind,
    pub transaction: u32,
    pub mac: MacAddr,
    pub server: Option<&'a [u8]>,
    pub address: Option<Ipv6Addr>,
    /// Hundredths of a second since this exchange began.
    pub elapsed: u16,
}

impl ClientMessage<'_> {
    /// Returns the message's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        out.extend_from_slice(&(u32::from(self.kind as u8) << 24 | self.transaction).to_be_bytes());
        push(&mut out, CLIENT_ID, &client_id(self.mac));
        if let Some(server) = self.server {
            push(&mut out, SERVER_ID, server);
        }
        push(&mut out, ELAPSED, &self.elapsed.to_be_bytes());
        if self.kind != RequestKind::Inform {
            let mut set = Vec::from(IA_NUMBER.to_be_bytes());
            set.extend_from_slice(&[0; 8]);
            if let Some(address) = self.address {
                // No preferred lifetimes.
                push(&mut set, IA_ADDRESS, &[&address.octets()[..], &[0; 8]].concat());
            }
            push(&mut out, IA_NA, &set);
        }
        if self.kind != RequestKind::Decline {
            push(&mut out, REQUESTED, &[DNS.to_be_bytes(), REFRESH_TIME.to_be_bytes()].concat());
        }
        out
    }
}

/// Returns the client's identifier (RFC 8415 11.4), which contains its hardware address.
fn client_id(mac: MacAddr) -> [u8; 10] {
    let [a, b, c, d, e, f] = mac.0;
    [0, 3, 0, 1, a, b, c, d, e, f]
}

fn push(out: &mut Vec<u8>, option: u16, value: &[u8]) {
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&(value.len() as u16).to_be_bytes());
    out.extend_from_slice(value);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyKind {
    Advertise,
    Reply,
}

/// An address that a server leases, all times in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeasedAddress {
    pub ip: Ipv6Addr,
    pub preferred: u32,
    pub valid: u32,
    pub renew: u32,
    pub rebind: u32,
}

/// The status of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Success,
    /// The server does not know the binding (RFC 8415 21.13: NoBinding).
    Unknown,
    /// Any other: the server assigns no address.
    Refused,
}

/// A server's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub kind: ReplyKind,
    pub transaction: u32,
    pub server: Vec<u8>,
    pub preference: u8,
    pub leased: Option<LeasedAddress>,
    pub status: Status,
    pub dns: [Option<Ipv6Addr>; DNS_SERVERS],
    /// Seconds after which the settings must be refreshed.
    pub refresh: Option<u32>,
}

impl Reply {
    /// Parses a message; returns `None` if it is malformed, not from a server, or not for the client with this address.
    pub fn parse(bytes: &[u8], mac: MacAddr) -> Option<Self> {
        let (&[kind, a, b, c], options) = bytes.split_first_chunk::<4>()?;
        let kind = match kind {
            2 => ReplyKind::Advertise,
            7 => ReplyKind::Reply,
            _ => return None,
        };
        let mut reply = Self {
            kind,
            transaction: u32::from_be_bytes([0, a, b, c]),
            server: Vec::new(),
            preference: 0,
            leased: None,
            status: Status::Success,
            dns: [None; DNS_SERVERS],
            refresh: None,
        };
        let mut is_ours = false;
        each_option(options, |option, value| {
            match option {
                CLIENT_ID => is_ours = value == client_id(mac),
                SERVER_ID if value.len() <= MAX_ID => reply.server = Vec::from(value),
                PREFERENCE => reply.preference = *value.first()?,
                STATUS => reply.note(value)?,
                IA_NA => reply.take_set(value)?,
                REFRESH_TIME => reply.refresh = word(value, 0),
                DNS => {
                    for (slot, &server) in reply.dns.iter_mut().zip(value.as_chunks::<16>().0) {
                        *slot = Some(Ipv6Addr::from(server));
                    }
                }
                _ => {}
            }
            Some(())
        })?;
        (is_ours && !reply.server.is_empty()).then_some(reply)
    }

    fn note(&mut self, value: &[u8]) -> Option<()> {
        let status = match *value.first_chunk::<2>()? {
            [0, 0] => return Some(()),
            [0, 3] => Status::Unknown,
            _ => Status::Refused,
        };
        self.status = status;
        Some(())
    }

    fn take_set(&mut self, value: &[u8]) -> Option<()> {
        let (renew, rebind) = (word(value, 4)?, word(value, 8)?);
        // An association with contradictory times is ignored (RFC 8415 21.4).
        if word(value, 0)? != IA_NUMBER || (rebind != 0 && renew > rebind) {
            return Some(());
        }
        each_option(value.get(12..)?, |option, value| {
            match option {
                STATUS => self.note(value)?,
                IA_ADDRESS => {
                    let ip = Ipv6Addr::from(*value.first_chunk::<16>()?);
                    let (preferred, valid) = (word(value, 16)?, word(value, 20)?);
                    let sane = preferred <= valid && crate::base::is_unicast6(ip);
                    if sane && self.leased.is_none() {
                        self.leased = Some(LeasedAddress { ip, preferred, valid, renew, rebind });
                    }
                }
                _ => {}
            }
            Some(())
        })
    }
}

/// Calls `see` with each option; returns `None` if one is malformed or there are too many.
fn each_option(mut options: &[u8], mut see: impl FnMut(u16, &[u8]) -> Option<()>) -> Option<()> {
    for _ in 0..MAX_OPTIONS {
        if options.is_empty() {
            return Some(());
        }
        let (&[a, b, c, d], rest) = options.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes([c, d])))?;
        see(u16::from_be_bytes([a, b]), value)?;
        options = rest;
    }
    None
}

fn word(value: &[u8], at: usize) -> Option<u32> {
    value.get(at..)?.first_chunk::<4>().map(|&word| u32::from_be_bytes(word))
}
