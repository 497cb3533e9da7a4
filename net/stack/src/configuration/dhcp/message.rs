//! DHCP messages (RFC 2131 2, RFC 2132): writing of this client's, and parsing of untrusted replies.

use crate::base::{DNS_SERVERS, MacAddr};
use alloc::vec::Vec;
use core::net::Ipv4Addr;

/// Length of the fixed part of a message, up to the magic cookie.
const FIXED_LEN: usize = 236;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// The least length of a message, with padding (RFC 951).
const MIN_LEN: usize = 300;

const PAD: u8 = 0;
const SUBNET_MASK: u8 = 1;
const ROUTER: u8 = 3;
const DNS: u8 = 6;
const REQUESTED_ADDRESS: u8 = 50;
const LEASE_TIME: u8 = 51;
const MESSAGE_TYPE: u8 = 53;
const SERVER_ID: u8 = 54;
const PARAMETERS: u8 = 55;
const MAX_MESSAGE: u8 = 57;
const RENEWAL_TIME: u8 = 58;
const REBINDING_TIME: u8 = 59;
const END: u8 = 255;

/// A client's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClientMessage {
    pub kind: RequestKind,
    pub transaction: u32,
    pub mac: MacAddr,
    /// Seconds since the exchange began.
    pub seconds: u16,
    /// The client's current address; unspecified if it has none.
    pub current: Ipv4Addr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// DHCPDISCOVER.
    Discover,
    /// DHCPREQUEST for an offered address.
    Take { address: Ipv4Addr, server: Ipv4Addr },
    /// DHCPREQUEST that renews or rebinds the current address.
    Keep,
    /// DHCPDECLINE: another host uses the granted address.
    Decline { address: Ipv4Addr, server: Ipv4Addr },
}

impl ClientMessage {
    /// Returns the message's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(MIN_LEN);
        // BOOTREQUEST, Ethernet, address length, hops.
        out.extend_from_slice(&[1, 1, 6, 0]);
        out.extend_from_slice(&self.transaction.to_be_bytes());
        out.extend_from_slice(&self.seconds.to_be_bytes());
        // An interface without an address accepts only broadcasts.
        let flags: u16 = if self.current.is_unspecified() { 0x8000 } else { 0 };
        out.extend_from_slice(&flags.to_be_bytes());
        out.extend_from_slice(&self.current.octets());
        out.resize(28, 0);
        out.extend_from_slice(&self.mac.0);
        out.resize(FIXED_LEN, 0);
        out.extend_from_slice(&COOKIE);
        let kind = match self.kind {
            RequestKind::Discover => 1,
            RequestKind::Take { .. } | RequestKind::Keep => 3,
            RequestKind::Decline { .. } => 4,
        };
        out.extend_from_slice(&[MESSAGE_TYPE, 1, kind]);
        if let RequestKind::Take { address, server } | RequestKind::Decline { address, server } = self.kind {
            for (option, value) in [(REQUESTED_ADDRESS, address), (SERVER_ID, server)] {
                out.extend_from_slice(&[option, 4]);
                out.extend_from_slice(&value.octets());
            }
        }
        out.extend_from_slice(&[MAX_MESSAGE, 2, 0x02, 0x40]);
        out.extend_from_slice(&[
            PARAMETERS,
            6,
            SUBNET_MASK,
            ROUTER,
            DNS,
            LEASE_TIME,
            RENEWAL_TIME,
            REBINDING_TIME,
        ]);
        out.push(END);
        out.resize(out.len().max(MIN_LEN), PAD);
        out
    }
}

/// A server's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub kind: ReplyKind,
    pub transaction: u32,
    pub mac: MacAddr,
    /// The offered or granted address.
    pub address: Ipv4Addr,
    pub server: Option<Ipv4Addr>,
    pub prefix_len: Option<u8>,
    pub router: Option<Ipv4Addr>,
    pub dns: [Option<Ipv4Addr>; DNS_SERVERS],
    /// Seconds.
    pub lease: Option<u32>,
    pub renewal: Option<u32>,
    pub rebinding: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyKind {
    Offer,
    Ack,
    Nak,
}

impl Reply {
    /// Parses a message; returns `None` if it is malformed or not from a server.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (fixed, rest) = bytes.split_at_checked(FIXED_LEN)?;
        let (cookie, mut options) = rest.split_first_chunk::<4>()?;
        // BOOTREPLY on Ethernet.
        if *cookie != COOKIE || !fixed.starts_with(&[2, 1, 6]) {
            return None;
        }
        let word = |at: usize| fixed.get(at..)?.first_chunk::<4>().copied();
        let mut kind = None;
        let mut reply = Self {
            kind: ReplyKind::Nak,
            transaction: u32::from_be_bytes(word(4)?),
            mac: MacAddr(*fixed.get(28..)?.first_chunk()?),
            address: Ipv4Addr::from(word(16)?),
            server: None,
            prefix_len: None,
            router: None,
            dns: [None; DNS_SERVERS],
            lease: None,
            renewal: None,
            rebinding: None,
        };
        while let Some((&option, rest)) = options.split_first() {
            if option == PAD {
                options = rest;
                continue;
            }
            if option == END {
                break;
            }
            let (&len, rest) = rest.split_first()?;
            let (value, rest) = rest.split_at_checked(usize::from(len))?;
            options = rest;
            if option == MESSAGE_TYPE {
                kind = match value {
                    [2] => Some(ReplyKind::Offer),
                    [5] => Some(ReplyKind::Ack),
                    [6] => Some(ReplyKind::Nak),
                    _ => return None,
                };
            } else {
                reply.take_option(option, value);
            }
        }
        reply.kind = kind?;
        Some(reply)
    }

    fn take_option(&mut self, option: u8, value: &[u8]) {
        let (words, _) = value.as_chunks::<4>();
        let Some(&first) = words.first() else { return };
        let (number, address) = (u32::from_be_bytes(first), Ipv4Addr::from(first));
        match option {
            SUBNET_MASK => {
                // A valid mask consists of ones followed by zeros.
                let ones = number.leading_ones();
                self.prefix_len = (number.checked_shl(ones).unwrap_or(0) == 0).then_some(ones as u8);
            }
            ROUTER => self.router = Some(address),
            DNS => {
                for (slot, &server) in self.dns.iter_mut().zip(words) {
                    *slot = Some(Ipv4Addr::from(server));
                }
            }
            SERVER_ID => self.server = Some(address),
            LEASE_TIME => self.lease = Some(number),
            RENEWAL_TIME => self.renewal = Some(number),
            REBINDING_TIME => self.rebinding = Some(number),
            _ => {}
        }
    }
}
