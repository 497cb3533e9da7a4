//! A one-line description of a frame.

use super::CapturedFrame;
use etherparse::{ArpOperation, LaxNetSlice, LaxSlicedPacket, TransportSlice};
use isola_abi::query::Direction;
use std::net::{IpAddr, SocketAddr};

/// Describes a frame: its direction, its addresses, and its headers.
pub fn line(frame: &CapturedFrame) -> String {
    let direction = match frame.head.direction {
        Direction::In => "in ",
        Direction::Out => "out",
    };
    format!("{direction} {}, {} bytes", contents(&frame.bytes), frame.head.len_bytes)
}

fn contents(bytes: &[u8]) -> String {
    let Ok(packet) = LaxSlicedPacket::from_ethernet(bytes) else { return "no Ethernet frame".to_owned() };
    // The length according to the IP header, as a frame may be padded or truncated.
    let (source, destination, payload_len): (IpAddr, IpAddr, usize) = match &packet.net {
        Some(LaxNetSlice::Ipv4(ip)) => {
            let header = ip.header();
            let len = usize::from(header.total_len()).saturating_sub(header.slice().len());
            (header.source_addr().into(), header.destination_addr().into(), len)
        }
        Some(LaxNetSlice::Ipv6(ip)) => {
            let header = ip.header();
            (header.source_addr().into(), header.destination_addr().into(), header.payload_length().into())
        }
        Some(LaxNetSlice::Arp(arp)) => return self::arp(arp),
        None => return "Ethernet".to_owned(),
    };
    let ends = |from: u16, to: u16| {
        format!("{} > {}", SocketAddr::new(source, from), SocketAddr::new(destination, to))
    };
    match &packet.transport {
        Some(TransportSlice::Tcp(tcp)) => {
            let flags = [
                (tcp.syn(), 'S'),
                (tcp.fin(), 'F'),
                (tcp.rst(), 'R'),
                (tcp.psh(), 'P'),
                (tcp.ack(), '.'),
                (tcp.ece(), 'E'),
                (tcp.cwr(), 'W'),
            ];
            let flags: String = flags.iter().filter(|(set, _)| *set).map(|(_, letter)| *letter).collect();
            let acknowledged =
                if tcp.ack() { format!(" ack {}", tcp.acknowledgment_number()) } else { String::new() };
            format!(
                "{} TCP [{flags}] seq {}{acknowledged} win {} len {}",
                ends(tcp.source_port(), tcp.destination_port()),
                tcp.sequence_number(),
                tcp.window_size(),
                payload_len.saturating_sub(tcp.slice().len() - tcp.payload().len()),
            )
        }
        Some(TransportSlice::Udp(udp)) => format!("{} UDP", ends(udp.source_port(), udp.destination_port())),
        Some(TransportSlice::Icmpv4(icmp)) => {
            format!("{source} > {destination} ICMP type {} code {}", icmp.type_u8(), icmp.code_u8())
        }
        Some(TransportSlice::Icmpv6(icmp)) => {
            format!("{source} > {destination} ICMPv6 type {} code {}", icmp.type_u8(), icmp.code_u8())
        }
        Some(TransportSlice::Igmp(_)) => format!("{source} > {destination} IGMP"),
        None => format!("{source} > {destination} IP"),
    }
}

fn arp(arp: &etherparse::ArpPacketSlice<'_>) -> String {
    let address = |bytes: &[u8]| match <[u8; 4]>::try_from(bytes) {
        Ok(ip) => IpAddr::from(ip).to_string(),
        Err(_) => "?".to_owned(),
    };
    let (sender, target) = (address(arp.sender_protocol_addr()), address(arp.target_protocol_addr()));
    match arp.operation() {
        ArpOperation::REQUEST => format!("ARP who has {target}? tell {sender}"),
        ArpOperation::REPLY => format!("ARP {sender} is here, for {target}"),
        _ => format!("ARP {sender} > {target}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::PacketBuilder;
    use isola_abi::query::FrameHead;

    fn captured(bytes: Vec<u8>) -> CapturedFrame {
        let head =
            FrameHead { unix_ns: 0, direction: Direction::In, len_bytes: bytes.len() as u32, sum: None };
        CapturedFrame { head, bytes }
    }

    #[test]
    fn a_truncated_segment_has_the_same_description() {
        let mut bytes = Vec::new();
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
        builder.tcp(80, 4000, 7, 1000).psh().ack(9).write(&mut bytes, b"hello").unwrap();
        let text = "in  10.0.0.1:80 > 10.0.0.2:4000 TCP [P.] seq 7 ack 9 win 1000 len 5, 59 bytes";
        assert_eq!(line(&captured(bytes.clone())), text);
        let mut cut = captured(bytes);
        cut.bytes.truncate(54);
        assert_eq!(line(&cut), text);
    }

    #[test]
    fn every_frame_has_a_description() {
        let mut bytes = Vec::new();
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv6([1; 16], [2; 16], 64);
        builder.udp(53, 4000).write(&mut bytes, b"hello").unwrap();
        for len in 0..=bytes.len() {
            for byte in 0..len {
                let mut wrong = captured(bytes[..len].to_vec());
                wrong.bytes[byte] ^= 0xff;
                assert!(!line(&wrong).is_empty());
            }
        }
        assert!(line(&captured(bytes)).contains("]:4000 UDP"));
        assert_eq!(line(&captured(vec![1, 2, 3])), "in  no Ethernet frame, 3 bytes");
    }
}
