//! Checks of the frames that a stack sends, by a crate that the stack does not use to build them.

use etherparse::{NetSlice, SlicedPacket, TransportSlice};

/// Panics unless the frame is well-formed in every field that this network uses, checksums included.
pub fn frame(bytes: &[u8], mtu: usize) {
    assert!(bytes.len() <= 14 + mtu, "a frame of {} bytes on a link for {mtu}", bytes.len());
    let packet = SlicedPacket::from_ethernet(bytes).expect("a well-formed frame");
    match &packet.net {
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum(), "IPv4 checksum");
            assert_eq!(usize::from(header.total_len), bytes.len() - 14, "IPv4 length");
        }
        Some(NetSlice::Ipv6(ip)) => {
            assert_eq!(usize::from(ip.header().payload_length()), bytes.len() - 54, "IPv6 length");
        }
        _ => return,
    }
    let Some(transport) = &packet.transport else { return };
    assert_eq!(checksum(transport, packet.net.as_ref()), Some(()), "checksum of {transport:?}");
}

/// Returns whether a frame has a TCP segment or a UDP datagram with a correct checksum.
pub fn is_summed(bytes: &[u8]) -> bool {
    let Ok(packet) = SlicedPacket::from_ethernet(bytes) else { return false };
    match &packet.transport {
        Some(transport @ (TransportSlice::Tcp(_) | TransportSlice::Udp(_))) => {
            checksum(transport, packet.net.as_ref()) == Some(())
        }
        _ => false,
    }
}

/// Returns `Some` if the transport's checksum is correct.
fn checksum(transport: &TransportSlice<'_>, net: Option<&NetSlice<'_>>) -> Option<()> {
    let (stored, sum) = match (transport, net?) {
        (TransportSlice::Tcp(tcp), NetSlice::Ipv4(ip)) => {
            (tcp.checksum(), tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination()).ok()?)
        }
        (TransportSlice::Tcp(tcp), NetSlice::Ipv6(ip)) => {
            (tcp.checksum(), tcp.calc_checksum_ipv6(ip.header().source(), ip.header().destination()).ok()?)
        }
        (TransportSlice::Udp(udp), NetSlice::Ipv4(ip)) => {
            let (source, destination) = (ip.header().source(), ip.header().destination());
            let sum = udp.to_header().calc_checksum_ipv4_raw(source, destination, udp.payload());
            (udp.checksum(), sum.ok()?)
        }
        (TransportSlice::Udp(udp), NetSlice::Ipv6(ip)) => {
            let (source, destination) = (ip.header().source(), ip.header().destination());
            let sum = udp.to_header().calc_checksum_ipv6_raw(source, destination, udp.payload());
            (udp.checksum(), sum.ok()?)
        }
        (TransportSlice::Icmpv4(icmp), _) => {
            (icmp.checksum(), icmp.icmp_type().calc_checksum(icmp.payload()))
        }
        (TransportSlice::Icmpv6(icmp), NetSlice::Ipv6(ip)) => {
            let header = ip.header();
            return icmp.is_checksum_valid(header.source(), header.destination()).then_some(());
        }
        _ => return None,
    };
    (stored == sum).then_some(())
}
