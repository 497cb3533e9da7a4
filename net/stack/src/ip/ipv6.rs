//! IPv6 headers (RFC 8200): validation of received ones with their extensions, and creation without extensions.
//!
//! Extension headers are parsed once, at most [`MAX_HEADERS`] of them. Unknown options are handled by their two highest
//! bits. Routing headers with segments left are rejected (RFC 5095). Parsing ends at a transport header, at a fragment,
//! or without a next header.

use super::fragments::{Fragment, PacketId};
use super::packet::{Fragmentation, IpPacket, Refusal};
use crate::base::Counter;
use core::net::{IpAddr, Ipv6Addr};
use etherparse::{IpNumber, Ipv6FragmentHeaderSlice, Ipv6HeaderSlice, Ipv6RawExtHeaderSlice};
use isola_iobuf::{IoBuf, IoBufMut};

/// Length of the header without extensions.
pub(crate) const HEADER_LEN: usize = 40;
/// The minimum MTU of an IPv6 link (RFC 8200 5).
pub(crate) const MIN_LINK_MTU: usize = 1280;
/// The most extension headers of a packet: no known use needs more.
const MAX_HEADERS: usize = 8;
/// The most options of an extension header.
const MAX_OPTIONS: usize = 32;
/// The offset of the next header's number in the fixed header.
const NEXT_HEADER_AT: usize = 6;

/// Parameter problem: an invalid header field.
pub(crate) const PROBLEM_FIELD: u8 = 0;
/// Parameter problem: an unknown next header.
pub(crate) const PROBLEM_NEXT_HEADER: u8 = 1;
/// Parameter problem: an unknown option.
const PROBLEM_OPTION: u8 = 2;

/// A received packet or fragment.
pub(crate) enum Parsed {
    /// A packet, the offset of its transport's protocol number, and whether it has a fragment header.
    Whole(IpPacket, usize, Fragmentation),
    /// A fragment of a packet.
    Fragment(Fragment),
}

/// Validates the headers and removes the link's padding. Returns a rejected packet, which the error quotes.
pub(crate) fn parse(mut packet: IoBuf) -> Result<Parsed, (Refusal, IoBuf)> {
    let walked = match walk(&packet) {
        Ok(walked) => walked,
        Err(refusal) => return Err((refusal, packet)),
    };
    let ParsedHeaders { source, destination, hops, len, next, next_header_at, headers_len, fragment, came } =
        walked;
    let (source, destination) = (IpAddr::V6(source), IpAddr::V6(destination));
    packet.truncate(len);
    Ok(match fragment {
        None => {
            let packet = IpPacket { source, destination, protocol: next, hops, whole: packet, headers_len };
            Parsed::Whole(packet, next_header_at, came)
        }
        Some(Part { identification, offset, more, data_at }) => Parsed::Fragment(Fragment {
            id: PacketId { source, destination, identification, protocol: 0 },
            next,
            offset,
            more,
            headers_len,
            next_header_at,
            data_at,
            whole: packet,
        }),
    })
}

/// The result of parsing a packet's headers.
struct ParsedHeaders {
    source: Ipv6Addr,
    destination: Ipv6Addr,
    hops: u8,
    /// Length of the packet without padding.
    len: usize,
    /// The protocol after the headers, and the offset of its number.
    next: IpNumber,
    next_header_at: usize,
    headers_len: usize,
    fragment: Option<Part>,
    came: Fragmentation,
}

/// The contents of a fragment header.
struct Part {
    identification: u32,
    offset: usize,
    more: bool,
    data_at: usize,
}

fn walk(packet: &[u8]) -> Result<ParsedHeaders, Refusal> {
    const MALFORMED: Refusal = Refusal::Drop(Counter::DropIpv6Malformed);
    let header = Ipv6HeaderSlice::from_slice(packet).map_err(|_| MALFORMED)?;
    let len = HEADER_LEN + usize::from(header.payload_length());
    let (source, destination) = (header.source_addr(), header.destination_addr());
    let (hops, mut next) = (header.hop_limit(), header.next_header());
    let packet = packet.get(..len).ok_or(MALFORMED)?;
    let (mut at, mut next_header_at, mut came) = (HEADER_LEN, NEXT_HEADER_AT, Fragmentation::None);
    let found = |next, next_header_at, headers_len, fragment, came| ParsedHeaders {
        source,
        destination,
        hops,
        len,
        next,
        next_header_at,
        headers_len,
        fragment,
        came,
    };
    for _ in 0..=MAX_HEADERS {
        match next {
            // Hop-by-hop options must be the first header (RFC 8200 4.1).
            IpNumber::IPV6_HEADER_HOP_BY_HOP if next_header_at != NEXT_HEADER_AT => {
                return Err(problem(Counter::DropIpv6Extension, PROBLEM_NEXT_HEADER, next_header_at));
            }
            IpNumber::IPV6_HEADER_HOP_BY_HOP
            | IpNumber::IPV6_DESTINATION_OPTIONS
            | IpNumber::IPV6_ROUTE_HEADER => {
                let extension = packet.get(at..).ok_or(MALFORMED)?;
                let extension = Ipv6RawExtHeaderSlice::from_slice(extension).map_err(|_| MALFORMED)?;
                if next == IpNumber::IPV6_ROUTE_HEADER {
                    // A host does not forward packets: with segments left, all types are rejected.
                    if let [_, left, ..] = *extension.payload()
                        && left != 0
                    {
                        return Err(problem(Counter::DropIpv6Routing, PROBLEM_FIELD, at + 2));
                    }
                } else {
                    check_options(extension.payload(), at + 2, destination)?;
                }
                (next_header_at, next) = (at, extension.next_header());
                at += extension.slice().len();
            }
            IpNumber::IPV6_FRAGMENTATION_HEADER => {
                let extension = packet.get(at..).ok_or(MALFORMED)?;
                let extension = Ipv6FragmentHeaderSlice::from_slice(extension).map_err(|_| MALFORMED)?;
                came = Fragmentation::Present;
                let (offset, more) = (extension.fragment_offset(), extension.more_fragments());
                if offset.value() != 0 || more {
                    let part = Part {
                        identification: extension.identification(),
                        offset: usize::from(offset.value()) * 8,
                        more,
                        data_at: at + extension.slice().len(),
                    };
                    return Ok(found(extension.next_header(), next_header_at, at, Some(part), came));
                }
                // A packet in one fragment is a whole one (RFC 6946).
                (next_header_at, next) = (at, extension.next_header());
                at += extension.slice().len();
            }
            IpNumber::IPV6_NO_NEXT_HEADER => return Err(Counter::DropIpv6Protocol.into()),
            _ => return Ok(found(next, next_header_at, at, None, came)),
        }
    }
    Err(Counter::DropIpv6Extension.into())
}

fn problem(counter: Counter, code: u8, at: usize) -> Refusal {
    Refusal::Problem { counter, code, pointer: at as u32 }
}

/// Checks the options of a hop-by-hop or destination header, which begin `at` bytes into the packet.
fn check_options(mut options: &[u8], mut at: usize, destination: Ipv6Addr) -> Result<(), Refusal> {
    const PAD1: u8 = 0;
    const PADN: u8 = 1;
    const ROUTER_ALERT: u8 = 5;
    for _ in 0..MAX_OPTIONS {
        let Some((&kind, rest)) = options.split_first() else { return Ok(()) };
        if kind == PAD1 {
            (options, at) = (rest, at + 1);
            continue;
        }
        let (&len, rest) = rest.split_first().ok_or(Counter::DropIpv6Malformed)?;
        let rest = rest.get(usize::from(len)..).ok_or(Counter::DropIpv6Malformed)?;
        if !matches!(kind, PADN | ROUTER_ALERT) {
            // The two highest bits of an unknown option specify its handling (RFC 8200 4.2).
            let counter = Counter::DropIpv6Extension;
            match kind >> 6 {
                0 => {}
                2 => return Err(problem(counter, PROBLEM_OPTION, at)),
                3 if !destination.is_multicast() => return Err(problem(counter, PROBLEM_OPTION, at)),
                _ => return Err(counter.into()),
            }
        }
        (options, at) = (rest, at + 2 + usize::from(len));
    }
    Err(Counter::DropIpv6Extension.into())
}

/// Returns the transport protocol of a packet and the offset of its header, for code that only reads the ports; `None`
/// for fragments and packets without a transport.
pub(crate) fn find_transport(packet: &[u8]) -> Option<(IpNumber, usize)> {
    let header = Ipv6HeaderSlice::from_slice(packet).ok()?;
    let (mut next, mut at) = (header.next_header(), HEADER_LEN);
    for _ in 0..=MAX_HEADERS {
        match next {
            IpNumber::IPV6_HEADER_HOP_BY_HOP
            | IpNumber::IPV6_DESTINATION_OPTIONS
            | IpNumber::IPV6_ROUTE_HEADER => {
                let extension = Ipv6RawExtHeaderSlice::from_slice(packet.get(at..)?).ok()?;
                (next, at) = (extension.next_header(), at + extension.slice().len());
            }
            IpNumber::IPV6_FRAGMENTATION_HEADER => {
                let extension = Ipv6FragmentHeaderSlice::from_slice(packet.get(at..)?).ok()?;
                if extension.is_fragmenting_payload() {
                    return None;
                }
                (next, at) = (extension.next_header(), at + extension.slice().len());
            }
            protocol => return Some((protocol, at)),
        }
    }
    None
}

/// Prepends a header to `head`, which `payload_len` further bytes follow.
///
/// Returns `None` if the packet would be longer than IPv6 allows, or the buffer has no room.
pub(crate) fn prepend(
    head: &mut IoBufMut,
    payload_len: usize,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    next: IpNumber,
    hops: u8,
) -> Option<()> {
    let len = u16::try_from(head.len() + payload_len).ok()?;
    let bytes: &mut [u8; HEADER_LEN] = head.prepend(HEADER_LEN)?.try_into().ok()?;
    *bytes = header(source, destination, next, hops);
    bytes[4..6].copy_from_slice(&len.to_be_bytes());
    Some(())
}

/// Returns a header whose length is zero.
#[inline]
pub(crate) fn header(source: Ipv6Addr, destination: Ipv6Addr, next: IpNumber, hops: u8) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    bytes[0] = 0x60;
    bytes[6] = next.0;
    bytes[7] = hops;
    bytes[8..24].copy_from_slice(&source.octets());
    bytes[24..40].copy_from_slice(&destination.octets());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use isola_proves::proves;

    fn packet(next: u8, payload: &[u8]) -> IoBuf {
        let mut bytes = Vec::from([0x60, 0, 0, 0, 0, payload.len() as u8, next, 64]);
        bytes.extend_from_slice(&Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2).octets());
        bytes.extend_from_slice(&Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).octets());
        bytes.extend_from_slice(payload);
        IoBuf::from(bytes)
    }

    fn transport(next: u8, payload: &[u8]) -> Result<(u8, usize), Refusal> {
        let whole = packet(next, payload);
        let looked = find_transport(&whole);
        parse(whole).map_err(|(refusal, _)| refusal).map(|parsed| match parsed {
            Parsed::Whole(packet, ..) => {
                assert_eq!(looked, Some((packet.protocol, packet.headers_len)));
                (packet.protocol.0, packet.headers_len)
            }
            Parsed::Fragment(fragment) => {
                assert_eq!(looked, None);
                (44, fragment.headers_len)
            }
        })
    }

    #[test]
    fn another_crate_parses_created_headers() {
        let mut head = IoBufMut::with_room(HEADER_LEN, 8);
        head.append_slice(b"abcd").unwrap();
        let (a, b) = (Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED);
        prepend(&mut head, 3, a, b, IpNumber::UDP, 64).unwrap();
        let header = Ipv6HeaderSlice::from_slice(&head).unwrap().to_header();
        assert_eq!((header.payload_length, header.hop_limit, header.next_header), (7, 64, IpNumber::UDP));
        assert_eq!((header.source_addr(), header.destination_addr()), (a, b));
        assert_eq!(head[..4], [0x60, 0, 0, 0], "no traffic class and no flow label");
    }

    #[proves(
        "RFC 8200 4.1",
        "extension headers are taken in any order, hop-by-hop options only as the first."
    )]
    #[test]
    fn extension_headers_are_parsed_and_hop_by_hop_options_come_first() {
        assert_eq!(transport(6, &[0; 20]), Ok((6, 40)));
        assert_eq!(transport(0, &[6, 0, 5, 2, 0, 0, 1, 0]), Ok((6, 48)));
        let two = [60, 0, 1, 4, 0, 0, 0, 0, 17, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(transport(0, &two), Ok((17, 64)));
        let late = [0, 0, 1, 4, 0, 0, 0, 0, 6, 0, 1, 4, 0, 0, 0, 0];
        let refusal = Refusal::Problem { counter: Counter::DropIpv6Extension, code: 1, pointer: 40 };
        assert_eq!(transport(60, &late), Err(refusal));
    }

    #[proves(
        "RFC 8200 4.2",
        "an unknown option is skipped, or the packet is dropped, or its sender is notified."
    )]
    #[test]
    fn unknown_options_are_handled_by_their_highest_bits() {
        let option = |kind: u8| transport(60, &[6, 0, kind, 4, 0, 0, 0, 0]);
        assert_eq!(option(0x1e), Ok((6, 48)));
        assert_eq!(option(0x5e), Err(Refusal::Drop(Counter::DropIpv6Extension)));
        let problem = Refusal::Problem { counter: Counter::DropIpv6Extension, code: 2, pointer: 42 };
        assert_eq!(option(0x9e), Err(problem));
        assert_eq!(option(0xde), Err(problem));
        let padded = [6, 1, 1, 2, 0, 0, 0x9e, 0, 1, 6, 0, 0, 0, 0, 0, 0];
        let behind = Refusal::Problem { counter: Counter::DropIpv6Extension, code: 2, pointer: 46 };
        assert_eq!(transport(60, &padded), Err(behind));
        assert_eq!(transport(60, &[6, 0, 1, 9, 0, 0, 0, 0]), Err(Counter::DropIpv6Malformed.into()));
    }

    #[proves(
        "RFC 5095 3",
        "a type 0 routing header with segments left is refused as an unknown one, without ignored."
    )]
    #[test]
    fn routing_headers_with_segments_left_are_rejected() {
        let problem = Refusal::Problem { counter: Counter::DropIpv6Routing, code: 0, pointer: 42 };
        assert_eq!(transport(43, &[6, 0, 0, 1, 0, 0, 0, 0]), Err(problem));
        assert_eq!(transport(43, &[6, 0, 0, 0, 0, 0, 0, 0]), Ok((6, 48)));
    }

    #[proves("RFC 6946 4", "a fragment that is the whole packet is treated as one.")]
    #[test]
    fn a_packet_in_one_fragment_is_whole() {
        assert_eq!(transport(44, &[6, 0, 0, 0, 1, 2, 3, 4]), Ok((6, 48)));
        assert_eq!(transport(44, &[6, 0, 0, 1, 1, 2, 3, 4]), Ok((44, 40)));
        assert_eq!(transport(44, &[6, 0, 1, 0, 1, 2, 3, 4]), Ok((44, 40)));
    }

    #[test]
    fn endless_and_truncated_header_chains_are_rejected() {
        let long: Vec<u8> = [60, 0, 1, 4, 0, 0, 0, 0].repeat(20);
        assert_eq!(transport(60, &long), Err(Counter::DropIpv6Extension.into()));
        assert_eq!(transport(60, &[6, 1, 1, 4, 0, 0, 0, 0]), Err(Counter::DropIpv6Malformed.into()));
        assert_eq!(transport(44, &[6, 0, 0]), Err(Counter::DropIpv6Malformed.into()));
        assert_eq!(transport(59, &[]), Err(Counter::DropIpv6Protocol.into()));
        let mut short = packet(6, &[0; 20]);
        short.truncate(50);
        assert!(parse(short).is_err());
    }
}
