//! Reads the frames that a stack sends with a crate that the stack does not use for making them.

use etherparse::{NetSlice, SlicedPacket, TransportSlice};

/// Panics where a frame is not well-formed in every field that this network uses, checksums included.
pub fn frame(bytes: &[u8], mtu: usize) {
    assert!(bytes.len() <= 14 + mtu, "a frame of {} bytes on a link for {mtu}", bytes.len());
    let packet = SlicedPacket::from_ethernet(bytes).expect("a well-formed frame");
    let Some(NetSlice::Ipv4(ip)) = &packet.net else { return };
    let header = ip.header().to_header();
    assert_eq!(header.header_checksum, header.calc_header_checksum(), "IPv4 checksum");
    assert_eq!(usize::from(header.total_len), bytes.len() - 14, "IPv4 length");
    match &packet.transport {
        Some(TransportSlice::Tcp(tcp)) => {
            let sum = tcp.calc_checksum_ipv4(header.source, header.destination).expect("a short segment");
            assert_eq!(tcp.checksum(), sum, "TCP checksum");
        }
        Some(TransportSlice::Udp(udp)) => {
            let sum = udp
                .to_header()
                .calc_checksum_ipv4_raw(header.source, header.destination, udp.payload())
                .expect("a short datagram");
            assert_eq!(udp.checksum(), sum, "UDP checksum");
        }
        Some(TransportSlice::Icmpv4(icmp)) => {
            let sum = icmp.icmp_type().calc_checksum(icmp.payload());
            assert_eq!(icmp.checksum(), sum, "ICMP checksum");
        }
        _ => {}
    }
}
