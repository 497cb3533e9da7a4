//! ICMPv6 (RFC 4443): echo, errors in both directions, and the entry of neighbour discovery and listener queries. As in
//! [`icmp`], the transport validates the quote of an error.

use super::icmp::{ErrorKind, HEADER_LEN, IcmpError};
use super::ipv6::MIN_LINK_MTU;
use super::packet::Packet;
use super::{icmp, ipv6, ndp};
use crate::base::{Counter, Flow, Sum};
use core::net::{IpAddr, Ipv6Addr};
use etherparse::{IpNumber, Ipv6HeaderSlice};
use isola_iobuf::{IoBuf, IoBufMut};

const UNREACHABLE: u8 = 1;
const TOO_BIG: u8 = 2;
const TIME_EXCEEDED: u8 = 3;
const PARAMETER_PROBLEM: u8 = 4;
const ECHO_REQUEST: u8 = 128;
const LISTENER_QUERY: u8 = 130;

const PORT_UNREACHABLE: u8 = 4;

/// Returns whether messages of this type quote a packet.
pub(crate) const fn is_error(message_type: u8) -> bool {
    message_type < 128
}

/// Returns whether messages of this type belong to neighbour discovery.
pub(crate) const fn is_about_neighbours(message_type: u8) -> bool {
    matches!(message_type, 133..=137)
}

/// A received message that requires an action.
pub(crate) enum Message {
    /// An echo request: identifier and sequence number, and the data to send back.
    Echo { identity: [u8; 4], data: IoBuf },
    /// An error about a packet that this stack apparently sent.
    Error(IcmpError),
    /// A neighbour discovery message.
    Neighbours(ndp::Message),
    /// A multicast listener query, with the encoded maximum response delay.
    Query { within_ms: u16 },
}

/// Parses a message that arrived with this hop limit.
pub(crate) fn parse(
    mut message: IoBuf,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    hops: u8,
) -> Result<Message, Counter> {
    let (from, to) = (IpAddr::V6(source), IpAddr::V6(destination));
    let mut sum = Sum::pseudo_header(from, to, IpNumber::IPV6_ICMP.0, message.len());
    sum.add(&message);
    if sum.checksum() != 0 {
        return Err(Counter::DropIcmpMalformed);
    }
    let Some((&[kind, code, _, _, a, b, c, d], rest)) = message.split_first_chunk::<HEADER_LEN>() else {
        return Err(Counter::DropIcmpMalformed);
    };
    match (kind, code) {
        (ECHO_REQUEST, 0) => {
            message.advance(HEADER_LEN);
            Ok(Message::Echo { identity: [a, b, c, d], data: message })
        }
        (UNREACHABLE | TOO_BIG | TIME_EXCEEDED | PARAMETER_PROBLEM, code) => {
            let kind = match (kind, code) {
                // No link may have a smaller MTU (RFC 8201 4).
                (TOO_BIG, _) => match u32::from_be_bytes([a, b, c, d]) {
                    mtu if (mtu as usize) < MIN_LINK_MTU => return Err(Counter::DropIcmpMalformed),
                    mtu => ErrorKind::TooBig { mtu },
                },
                (UNREACHABLE, PORT_UNREACHABLE) => ErrorKind::PortUnreachable,
                (UNREACHABLE, _) | (PARAMETER_PROBLEM, ipv6::PROBLEM_NEXT_HEADER) => ErrorKind::Unreachable,
                _ => return Err(Counter::DropIcmpIgnored),
            };
            let quote = parse_quote(rest).ok_or(Counter::DropIcmpMalformed)?;
            Ok(Message::Error(IcmpError { kind, protocol: quote.0, flow: quote.1, sequence: quote.2 }))
        }
        (LISTENER_QUERY, 0) if hops == 1 && source.is_unicast_link_local() => {
            Ok(Message::Query { within_ms: u16::from_be_bytes([a, b]) })
        }
        (ndp::ROUTER_ADVERTISEMENT | ndp::NEIGHBOUR_SOLICITATION | ndp::NEIGHBOUR_ADVERTISEMENT, _) => {
            if hops != ndp::HOPS {
                return Err(Counter::DropNdpInvalid);
            }
            ndp::parse(&message).map(Message::Neighbours).ok_or(Counter::DropNdpInvalid)
        }
        _ => Err(Counter::DropIcmpIgnored),
    }
}

/// Parses the quoted packet: IPv6 headers and at least eight bytes of its payload.
fn parse_quote(quote: &[u8]) -> Option<(IpNumber, Flow, u32)> {
    let header = Ipv6HeaderSlice::from_slice(quote).ok()?;
    let (protocol, at) = ipv6::find_transport(quote)?;
    let (&[a, b, c, d, e, f, g, h], _) = quote.get(at..)?.split_first_chunk::<8>()?;
    let flow = Flow::new(
        header.source_addr().into(),
        u16::from_be_bytes([a, b]),
        header.destination_addr().into(),
        u16::from_be_bytes([c, d]),
    );
    Some((protocol, flow, u32::from_be_bytes([e, f, g, h])))
}

/// The defect of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Icmp6ErrorKind {
    /// Its destination port is unbound.
    Port,
    /// The byte at `pointer` is invalid.
    Problem { code: u8, pointer: u32 },
    /// Its other fragments did not arrive in time.
    ReassemblyTime,
}

/// Returns the error about a packet, with as much of it as fits in the minimum MTU (RFC 4443 2.4 c).
pub(crate) fn error_packet(
    head: IoBufMut,
    (own, sender): (Ipv6Addr, Ipv6Addr),
    kind_of_error: Icmp6ErrorKind,
    mut whole: IoBuf,
) -> Option<Packet> {
    let (kind, code, pointer) = match kind_of_error {
        Icmp6ErrorKind::Port => (UNREACHABLE, PORT_UNREACHABLE, 0),
        Icmp6ErrorKind::Problem { code, pointer } => (PARAMETER_PROBLEM, code, pointer),
        Icmp6ErrorKind::ReassemblyTime => (TIME_EXCEEDED, 1, 0),
    };
    let [a, b, c, d] = pointer.to_be_bytes();
    whole.truncate(MIN_LINK_MTU - ipv6::HEADER_LEN - HEADER_LEN);
    icmp::finish(head, [kind, code, 0, 0, a, b, c, d], (own.into(), sender.into()), whole)
}

/// Returns whether an error may be sent about a packet (RFC 4443 2.4 e): not about an error or a redirect, nor to an
/// address that identifies no single host.
pub(crate) fn may_cause_error(packet: &[u8], source: Ipv6Addr) -> bool {
    let about_error = match ipv6::find_transport(packet) {
        Some((IpNumber::IPV6_ICMP, at)) => {
            packet.get(at).is_none_or(|&kind| is_error(kind) || kind == ndp::REDIRECT)
        }
        _ => false,
    };
    !about_error && !source.is_unspecified() && !source.is_multicast()
}
