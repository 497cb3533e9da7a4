//! The server side of DHCP for one client at a time (RFC 2131): each client has one address, which is the server's only
//! offer.

use crate::Prefix;
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use core::time::Duration;
use isola_switch::frame::Mac;

/// How long a client may use its address before it asks again.
const LEASE: Duration = Duration::from_secs(3600);

/// The length of the fixed part of a message, to the options' magic number.
const FIXED: usize = 236;
const MAGIC: [u8; 4] = [99, 130, 83, 99];

/// Types of messages (RFC 2132 9.6).
mod kind {
    pub const DISCOVER: u8 = 1;
    pub const OFFER: u8 = 2;
    pub const REQUEST: u8 = 3;
    pub const ACK: u8 = 5;
    pub const NAK: u8 = 6;
    pub const INFORM: u8 = 8;
}

/// Options (RFC 2132).
mod option {
    pub const PAD: u8 = 0;
    pub const MASK: u8 = 1;
    pub const ROUTER: u8 = 3;
    pub const DNS: u8 = 6;
    pub const REQUESTED: u8 = 50;
    pub const LEASE: u8 = 51;
    pub const KIND: u8 = 53;
    pub const SERVER: u8 = 54;
    pub const END: u8 = 255;
}

/// A message of a client.
struct Message<'a> {
    fixed: &'a [u8; FIXED],
    options: &'a [u8],
}

impl<'a> Message<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (fixed, rest) = bytes.split_first_chunk::<FIXED>()?;
        let (magic, options) = rest.split_first_chunk::<4>()?;
        // A request, from Ethernet.
        (*magic == MAGIC && fixed[..3] == [1, 1, 6]).then_some(Self { fixed, options })
    }

    fn hardware_address(&self) -> &[u8] {
        &self.fixed[28..34]
    }

    fn current_address(&self) -> Ipv4Addr {
        Ipv4Addr::from([self.fixed[12], self.fixed[13], self.fixed[14], self.fixed[15]])
    }

    /// Returns the first value of an option.
    fn option(&self, wanted: u8) -> Option<&'a [u8]> {
        let mut rest = self.options;
        loop {
            match *rest {
                [option::PAD, ..] => rest = rest.get(1..)?,
                [option::END, ..] | [] | [_] => return None,
                [kind, len, ..] => {
                    let (value, later) = rest.get(2..)?.split_at_checked(usize::from(len))?;
                    if kind == wanted {
                        return Some(value);
                    }
                    rest = later;
                }
            }
        }
    }

    fn address(&self, wanted: u8) -> Option<Ipv4Addr> {
        Some(Ipv4Addr::from(*<&[u8; 4]>::try_from(self.option(wanted)?).ok()?))
    }
}

/// Returns the server's answer to a client's message, both without their headers of UDP; `None` if there is none.
pub(crate) fn answer(
    message: &[u8],
    mac: Mac,
    lease: Ipv4Addr,
    prefix: Prefix,
    dns: &[Option<Ipv4Addr>],
) -> Option<Vec<u8>> {
    let message = Message::parse(message)?;
    if message.hardware_address() != mac {
        return None;
    }
    let server = prefix.gateway();
    let is_for_us = message.address(option::SERVER).is_none_or(|named| named == server);
    let answer = match message.option(option::KIND)? {
        [kind::DISCOVER] => kind::OFFER,
        [kind::REQUEST] if is_for_us => {
            let current = Some(message.current_address()).filter(|ip| !ip.is_unspecified());
            let wanted = message.address(option::REQUESTED).or(current);
            if wanted == Some(lease) { kind::ACK } else { kind::NAK }
        }
        [kind::INFORM] => kind::ACK,
        _ => return None,
    };
    let is_inform = message.option(option::KIND) == Some(&[kind::INFORM]);
    let mut reply = Vec::with_capacity(300);
    reply.extend_from_slice(message.fixed);
    reply[0] = 2;
    // Hops, seconds, and the addresses of client, next server and relay.
    reply[3] = 0;
    reply[8..10].fill(0);
    reply[16..28].fill(0);
    reply[44..].fill(0);
    if answer == kind::NAK || is_inform {
        reply[12..16].copy_from_slice(if is_inform { &message.fixed[12..16] } else { &[0; 4] });
    } else {
        reply[16..20].copy_from_slice(&lease.octets());
    }
    reply.extend_from_slice(&MAGIC);
    let mut put = |kind: u8, value: &[u8]| {
        reply.extend_from_slice(&[kind, value.len() as u8]);
        reply.extend_from_slice(value);
    };
    put(option::KIND, &[answer]);
    put(option::SERVER, &server.octets());
    if answer != kind::NAK {
        if !is_inform {
            put(option::LEASE, &(LEASE.as_secs() as u32).to_be_bytes());
        }
        put(option::MASK, &prefix.mask().octets());
        put(option::ROUTER, &server.octets());
        let dns: Vec<u8> = dns.iter().flatten().flat_map(|ip| ip.octets()).collect();
        if !dns.is_empty() {
            put(option::DNS, &dns);
        }
    }
    reply.push(option::END);
    // Some clients expect the length of BOOTP messages (RFC 1542 2.1).
    reply.resize(reply.len().max(300), 0);
    Some(reply)
}
