//! IPv4 headers (RFC 791): validation of received ones, and creation.
//!
//! Options are accepted and ignored. Received fragments are reassembled ([`fragments`](super::fragments)); the stack sends none:
//! TCP limits its segments to the path MTU (and sets DF), and a UDP datagram beyond the path MTU is rejected.

use super::fragments::{Fragment, PacketId};
use super::packet::IpPacket;
use crate::base::{Counter, HOP_LIMIT, Sum};
use core::net::{IpAddr, Ipv4Addr};
use etherparse::{IpNumber, Ipv4HeaderSlice};
use isola_iobuf::{IoBuf, IoBufMut};

/// Length of a header without options, as in all sent packets.
pub(crate) const HEADER_LEN: usize = 20;

/// The offset of the protocol number in the header.
const PROTOCOL_AT: usize = 9;

/// A received packet or fragment.
pub(crate) enum Parsed {
    Whole(IpPacket),
    Fragment(Fragment),
}

/// Validates the header and removes the link's padding.
pub(crate) fn parse(mut packet: IoBuf) -> Result<Parsed, Counter> {
    let header = Ipv4HeaderSlice::from_slice(&packet).map_err(|_| Counter::DropIpv4Malformed)?;
    let header_len = header.slice().len();
    let total_len = usize::from(header.total_len());
    if total_len < header_len || total_len > packet.len() {
        return Err(Counter::DropIpv4Malformed);
    }
    let mut sum = Sum::default();
    sum.add(header.slice());
    if sum.checksum() != 0 {
        return Err(Counter::DropIpv4Checksum);
    }
    let (source, destination) = (IpAddr::V4(header.source_addr()), IpAddr::V4(header.destination_addr()));
    let (protocol, hops) = (header.protocol(), header.ttl());
    if header.is_fragmenting_payload() {
        let (offset, more) = (usize::from(header.fragments_offset().value()) * 8, header.more_fragments());
        let identification = header.identification().into();
        let id = PacketId { source, destination, identification, protocol: protocol.0 };
        packet.truncate(total_len);
        return Ok(Parsed::Fragment(Fragment {
            id,
            next: protocol,
            offset,
            more,
            headers_len: header_len,
            next_header_at: PROTOCOL_AT,
            data_at: header_len,
            whole: packet,
        }));
    }
    packet.truncate(total_len);
    Ok(Parsed::Whole(IpPacket {
        source,
        destination,
        protocol,
        hops,
        whole: packet,
        headers_len: header_len,
    }))
}

/// Prepends a header to `head`, which `payload_len` further bytes follow.
///
/// Returns `None` if the packet would be longer than IPv4 allows, or the buffer has no room.
pub(crate) fn prepend(
    head: &mut IoBufMut,
    payload_len: usize,
    source: Ipv4Addr,
    destination: Ipv4Addr,
    protocol: IpNumber,
) -> Option<()> {
    let total_len = u16::try_from(HEADER_LEN + head.len() + payload_len).ok()?;
    let bytes: &mut [u8; HEADER_LEN] = head.prepend(HEADER_LEN)?.try_into().ok()?;
    *bytes = header(source, destination, protocol);
    bytes[2..4].copy_from_slice(&total_len.to_be_bytes());
    let mut sum = Sum::default();
    sum.add(bytes);
    bytes[10..12].copy_from_slice(&sum.checksum().to_be_bytes());
    Some(())
}

/// Returns a header whose length and checksum are zero.
#[inline]
pub(crate) const fn header(source: Ipv4Addr, destination: Ipv4Addr, protocol: IpNumber) -> [u8; HEADER_LEN] {
    let ([a, b, c, d], [e, f, g, h]) = (source.octets(), destination.octets());
    // No identification: a packet with DF (0x40) is never fragmented and needs none (RFC 6864 4.1).
    [0x45, 0, 0, 0, 0, 0, 0x40, 0, HOP_LIMIT, protocol.0, 0, 0, a, b, c, d, e, f, g, h]
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_proves::proves;

    fn packet() -> IoBufMut {
        let mut head = IoBufMut::with_room(HEADER_LEN, 8);
        head.append_slice(b"abcd").unwrap();
        let (a, b) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        prepend(&mut head, 0, a, b, IpNumber::UDP).unwrap();
        head
    }

    #[test]
    fn another_crate_parses_created_headers() {
        let head = packet();
        let header = Ipv4HeaderSlice::from_slice(&head).unwrap().to_header();
        assert_eq!(header.calc_header_checksum(), header.header_checksum);
        assert_eq!((header.total_len, header.time_to_live, header.dont_fragment), (24, 64, true));
    }

    #[proves("RFC 894 Frame", "padding of short frames is no part of the packet")]
    #[test]
    fn padding_is_removed() {
        let mut head = packet();
        head.append_slice(&[0; 4]).unwrap();
        let Ok(Parsed::Whole(packet)) = parse(head.freeze()) else { panic!("a packet") };
        assert_eq!(packet.protocol, IpNumber::UDP);
        assert_eq!(&*packet.into_payload(), b"abcd");
    }

    #[proves("RFC 791 3.1", "impossible lengths and versions are refused")]
    #[test]
    fn each_defect_has_its_counter() {
        let defect = |change: fn(&mut [u8])| {
            let mut head = packet();
            change(head.data_mut());
            parse(head.freeze()).err()
        };
        let resum = |bytes: &mut [u8]| {
            bytes[10..12].fill(0);
            let mut sum = Sum::default();
            sum.add(&bytes[..20]);
            bytes[10..12].copy_from_slice(&sum.checksum().to_be_bytes());
        };
        assert_eq!(defect(|_| {}), None);
        assert_eq!(defect(|bytes| bytes[0] = 0x65), Some(Counter::DropIpv4Malformed));
        assert_eq!(defect(|bytes| bytes[0] = 0x44), Some(Counter::DropIpv4Malformed));
        assert_eq!(defect(|bytes| bytes[3] = 19), Some(Counter::DropIpv4Malformed));
        assert_eq!(defect(|bytes| bytes[3] = 25), Some(Counter::DropIpv4Malformed));
        assert_eq!(defect(|bytes| bytes[12] = 11), Some(Counter::DropIpv4Checksum));
        let mut head = packet();
        head.data_mut()[6] = 0x20;
        resum(head.data_mut());
        assert!(matches!(parse(head.freeze()), Ok(Parsed::Fragment(_))));
    }
}
