//! ICMP (RFC 792): answers echo requests, reports closed UDP ports, and processes errors.
//!
//! An error is accepted only if it quotes a packet that this stack sent. The transport decides on its effect, after a
//! check that the quoted sequence number belongs to data in flight (RFC 5927).

use super::packet::{IpPacket, Packet};
use crate::base::{Counter, Flow, Sum};
use core::net::IpAddr;
use etherparse::{IpNumber, Ipv4HeaderSlice};
use isola_iobuf::{Chain, IoBuf, IoBufMut};

/// Length of the header of all messages used here, in bytes.
pub(crate) const HEADER_LEN: usize = 8;

const ECHO_REPLY: u8 = 0;
/// The same of ICMPv6.
const ECHO_REPLY_V6: u8 = 129;
const UNREACHABLE: u8 = 3;
const SOURCE_QUENCH: u8 = 4;
const REDIRECT: u8 = 5;
const ECHO_REQUEST: u8 = 8;
const TIME_EXCEEDED: u8 = 11;
const PARAMETER_PROBLEM: u8 = 12;

const PORT_UNREACHABLE: u8 = 3;
const FRAGMENTATION_NEEDED: u8 = 4;

/// Returns whether messages of this type quote a packet.
pub(crate) const fn is_error(message_type: u8) -> bool {
    matches!(message_type, UNREACHABLE | SOURCE_QUENCH | REDIRECT | TIME_EXCEEDED | PARAMETER_PROBLEM)
}

/// A received message that requires an action.
pub(crate) enum Message {
    /// An echo request: identifier and sequence number, and the data to send back.
    Echo { identity: [u8; 4], data: IoBuf },
    /// An error about a packet that this stack apparently sent.
    Error(IcmpError),
}

/// The contents of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IcmpError {
    pub kind: ErrorKind,
    /// The transport of the quoted packet.
    pub protocol: IpNumber,
    /// The quoted packet's endpoints, from its sender's side.
    pub flow: Flow,
    /// The quoted transport header's second word: TCP's sequence number, UDP's length and checksum.
    pub sequence: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// The packet did not reach its destination.
    Unreachable,
    /// The destination has no socket at the port.
    PortUnreachable,
    /// The packet exceeds the MTU of a link of the path; the MTU is zero if the message has none.
    TooBig { mtu: u32 },
}

/// Parses a message.
pub(crate) fn parse(mut message: IoBuf) -> Result<Message, Counter> {
    let mut sum = Sum::default();
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
        (UNREACHABLE, code) => {
            let kind = match code {
                FRAGMENTATION_NEEDED => ErrorKind::TooBig { mtu: u16::from_be_bytes([c, d]).into() },
                PORT_UNREACHABLE => ErrorKind::PortUnreachable,
                _ => ErrorKind::Unreachable,
            };
            let quote = parse_quote(rest).ok_or(Counter::DropIcmpMalformed)?;
            Ok(Message::Error(IcmpError { kind, protocol: quote.0, flow: quote.1, sequence: quote.2 }))
        }
        _ => Err(Counter::DropIcmpIgnored),
    }
}

/// Parses the quoted packet: an IPv4 header and at least eight bytes of its payload.
fn parse_quote(quote: &[u8]) -> Option<(IpNumber, Flow, u32)> {
    let header = Ipv4HeaderSlice::from_slice(quote).ok()?;
    let (&[a, b, c, d, e, f, g, h], _) = quote.get(header.slice().len()..)?.split_first_chunk::<8>()?;
    let flow = Flow::new(
        header.source_addr().into(),
        u16::from_be_bytes([a, b]),
        header.destination_addr().into(),
        u16::from_be_bytes([c, d]),
    );
    Some((header.protocol(), flow, u32::from_be_bytes([e, f, g, h])))
}

/// Returns the reply to an echo request of either family: it sends back the received view of the data.
pub(crate) fn echo_reply(
    head: IoBufMut,
    own: IpAddr,
    asker: IpAddr,
    identity: [u8; 4],
    data: IoBuf,
) -> Option<Packet> {
    let [a, b, c, d] = identity;
    let kind = if own.is_ipv4() { ECHO_REPLY } else { ECHO_REPLY_V6 };
    finish(head, [kind, 0, 0, 0, a, b, c, d], (own, asker), data)
}

/// Returns the error for a datagram to an unbound port, with a quote of its header and eight bytes.
pub(crate) fn port_unreachable(head: IoBufMut, packet: IpPacket) -> Option<Packet> {
    let mut quote = packet.whole;
    quote.truncate(packet.headers_len + 8);
    let header = [UNREACHABLE, PORT_UNREACHABLE, 0, 0, 0, 0, 0, 0];
    finish(head, header, (packet.destination, packet.source), quote)
}

/// Computes the checksum of a message: ICMP between IPv4 addresses, ICMPv6 between IPv6 addresses.
pub(crate) fn finish(
    mut head: IoBufMut,
    mut header: [u8; HEADER_LEN],
    (source, destination): (IpAddr, IpAddr),
    payload: IoBuf,
) -> Option<Packet> {
    let (protocol, mut sum) = if source.is_ipv4() {
        (IpNumber::ICMP, Sum::default())
    } else {
        // The ICMPv6 checksum includes a pseudo-header (RFC 4443 2.3).
        let (protocol, len) = (IpNumber::IPV6_ICMP, HEADER_LEN + payload.len());
        (protocol, Sum::pseudo_header(source, destination, protocol.0, len))
    };
    sum.add(&header);
    sum.add(&payload);
    header[2..4].copy_from_slice(&sum.checksum().to_be_bytes());
    head.prepend(HEADER_LEN)?.copy_from_slice(&header);
    let payload = Chain::from(payload);
    Some(Packet { source, destination, protocol, head, payload, checksum_offset: None })
}
