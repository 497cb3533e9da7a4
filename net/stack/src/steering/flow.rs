//! The flow of a received frame.
//!
//! Several stacks, one per core, can share an interface. Every frame of a flow must reach the same stack
//! ([`crate::Steering`]). An ICMP error belongs to the flow of the quoted packet. Frames without a flow (ARP, other
//! ICMP, fragments) or for the interface itself (DHCP) go to instance 0.

use crate::base::Flow;
use crate::configuration::{DHCP_CLIENT_PORT, DHCP_SERVER_PORT, DHCP6_CLIENT_PORT, DHCP6_SERVER_PORT};
use crate::ip::find_transport_v6;
use core::net::{IpAddr, Ipv4Addr};
use etherparse::{EtherType, Ethernet2HeaderSlice, IpNumber, Ipv4HeaderSlice, Ipv6HeaderSlice};

const TCP: u8 = IpNumber::TCP.0;

/// Returns the addresses and ports of a received TCP segment over IPv4 without options, as nearly all frames are, with
/// a single check. They are in the order in which they are hashed. `None` if the frame is of another kind.
#[inline]
pub(crate) fn fast_path_ends_of(frame: &[u8]) -> Option<&[u8; 12]> {
    let [0x08, 0x00, 0x45, _, _, _, _, _, f0, f1, _, TCP, _, _, ends @ ..] =
        frame.get(12..)?.first_chunk::<26>()?
    else {
        return None;
    };
    let whole = u16::from_be_bytes([*f0, *f1]) & 0x3fff == 0;
    whole.then_some(ends)
}

/// Returns the flow of such a frame.
#[inline]
pub fn fast_path_flow_of(frame: &[u8]) -> Option<Flow> {
    let [s0, s1, s2, s3, d0, d1, d2, d3, p0, p1, q0, q1] = *fast_path_ends_of(frame)?;
    let (source, destination) = (Ipv4Addr::new(s0, s1, s2, s3), Ipv4Addr::new(d0, d1, d2, d3));
    let (from, to) = (u16::from_be_bytes([p0, p1]), u16::from_be_bytes([q0, q1]));
    Some(Flow::new(destination.into(), to, source.into(), from))
}

/// Returns the TCP or UDP flow of a received Ethernet frame, from this end's side; `None` if it has none.
pub fn flow_of(frame: &[u8]) -> Option<Flow> {
    let header = Ethernet2HeaderSlice::from_slice(frame).ok()?;
    let packet = frame.get(header.slice().len()..)?;
    let read = match header.ether_type() {
        EtherType::IPV4 => read4,
        EtherType::IPV6 => read6,
        _ => return None,
    };
    match read(packet)? {
        FlowRelation::Flow(flow) => Some(flow),
        // The quoted packet was sent from here. Quotes within quotes are not followed, so there is no recursion.
        FlowRelation::Error(quoted) => match read(quoted)? {
            FlowRelation::Flow(flow) => Some(Flow { local: flow.remote, remote: flow.local }),
            FlowRelation::Error(_) => None,
        },
    }
}

/// Returns the local port of a UDP datagram in an Ethernet frame, or of the datagram that an ICMP error quotes, in
/// which it is the source port. `None` for other frames, fragments included.
pub fn datagram_port(frame: &[u8]) -> Option<u16> {
    let header = Ethernet2HeaderSlice::from_slice(frame).ok()?;
    let packet = frame.get(header.slice().len()..)?;
    let find = match header.ether_type() {
        EtherType::IPV4 => find_transport4,
        EtherType::IPV6 => find_transport_v6,
        _ => return None,
    };
    let (protocol, at) = find(packet)?;
    let payload = packet.get(at..)?;
    let is_error = match protocol {
        IpNumber::UDP => return ports(payload).map(|(_, destination)| destination),
        IpNumber::ICMP => crate::ip::is_icmp_error(*payload.first()?),
        IpNumber::IPV6_ICMP => crate::ip::is_icmp6_error(*payload.first()?),
        _ => false,
    };
    let quote = payload.get(crate::ip::ICMP_HEADER_LEN..).filter(|_| is_error)?;
    let (_, at) = find(quote).filter(|found| found.0 == IpNumber::UDP)?;
    ports(quote.get(at..)?).map(|(source, _)| source)
}

/// Returns whether a frame is a TCP segment, over IPv4 or IPv6, that opens no connection.
pub fn continues_connection(frame: &[u8]) -> bool {
    const FLAGS_AT: usize = 13;
    const SYN: u8 = 2;
    let segment = || {
        let header = Ethernet2HeaderSlice::from_slice(frame).ok()?;
        let packet = frame.get(header.slice().len()..)?;
        let (protocol, at) = match header.ether_type() {
            EtherType::IPV4 => find_transport4(packet)?,
            EtherType::IPV6 => find_transport_v6(packet)?,
            _ => return None,
        };
        packet.get(at..).filter(|_| protocol == IpNumber::TCP)
    };
    segment().and_then(|segment| segment.get(FLAGS_AT)).is_some_and(|flags| flags & SYN == 0)
}

/// Returns the protocol of an IPv4 packet and the offset of its header; `None` for fragments.
fn find_transport4(packet: &[u8]) -> Option<(IpNumber, usize)> {
    let header = Ipv4HeaderSlice::from_slice(packet).ok()?;
    (!header.is_fragmenting_payload()).then(|| (header.protocol(), header.slice().len()))
}

/// Returns source and destination port at the beginning of a transport header.
fn ports(header: &[u8]) -> Option<(u16, u16)> {
    let &[a, b, c, d] = header.first_chunk::<4>()?;
    Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
}

/// The relation of a packet to a flow.
enum FlowRelation<'a> {
    /// It comes from the flow's remote end.
    Flow(Flow),
    /// It is an error about this packet.
    Error(&'a [u8]),
}

fn read4(packet: &[u8]) -> Option<FlowRelation<'_>> {
    let header = Ipv4HeaderSlice::from_slice(packet).ok()?;
    // A quoted first fragment has ports; a real fragment goes to instance 0 with the others.
    if header.is_fragmenting_payload() {
        return None;
    }
    let payload = packet.get(header.slice().len()..)?;
    let ends = (IpAddr::V4(header.source_addr()), IpAddr::V4(header.destination_addr()));
    match header.protocol() {
        IpNumber::UDP if ports(payload)? == (DHCP_SERVER_PORT, DHCP_CLIENT_PORT) => None,
        IpNumber::TCP | IpNumber::UDP => flow(ends, payload),
        IpNumber::ICMP if crate::ip::is_icmp_error(*payload.first()?) => quote(payload),
        _ => None,
    }
}

fn read6(packet: &[u8]) -> Option<FlowRelation<'_>> {
    let (protocol, at) = find_transport_v6(packet)?;
    let header = Ipv6HeaderSlice::from_slice(packet).ok()?;
    let payload = packet.get(at..)?;
    let ends = (IpAddr::V6(header.source_addr()), IpAddr::V6(header.destination_addr()));
    match protocol {
        IpNumber::UDP if ports(payload)? == (DHCP6_SERVER_PORT, DHCP6_CLIENT_PORT) => None,
        IpNumber::TCP | IpNumber::UDP => flow(ends, payload),
        IpNumber::IPV6_ICMP if crate::ip::is_icmp6_error(*payload.first()?) => quote(payload),
        _ => None,
    }
}

fn flow((source, destination): (IpAddr, IpAddr), header: &[u8]) -> Option<FlowRelation<'static>> {
    let (from, to) = ports(header)?;
    Some(FlowRelation::Flow(Flow::new(destination, to, source, from)))
}

fn quote(message: &[u8]) -> Option<FlowRelation<'_>> {
    message.get(crate::ip::ICMP_HEADER_LEN..).map(FlowRelation::Error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use core::net::Ipv4Addr;
    use etherparse::PacketBuilder;

    fn frame(source: ([u8; 4], u16), destination: ([u8; 4], u16)) -> Vec<u8> {
        let mut bytes = Vec::new();
        PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4(source.0, destination.0, 64)
            .tcp(source.1, destination.1, 1, 1000)
            .write(&mut std::io::Cursor::new(&mut bytes), b"x")
            .unwrap();
        bytes
    }

    fn flow(remote: ([u8; 4], u16), local: ([u8; 4], u16)) -> Flow {
        Flow::new(Ipv4Addr::from(local.0).into(), local.1, Ipv4Addr::from(remote.0).into(), remote.1)
    }

    const A: ([u8; 4], u16) = ([10, 0, 0, 1], 80);
    const B: ([u8; 4], u16) = ([10, 0, 0, 2], 40_000);

    #[test]
    fn the_fast_and_the_general_check_find_the_same_flow() {
        let mut frame = frame(A, B);
        assert_eq!(flow_of(&frame), Some(flow(A, B)));
        assert_eq!(fast_path_flow_of(&frame), Some(flow(A, B)));
        // A fragment has no ports, or its ports cannot be distinguished from data.
        frame[20] = 0x20;
        assert_eq!((flow_of(&frame), fast_path_flow_of(&frame)), (None, None));
    }

    #[test]
    fn an_icmp_error_belongs_to_the_flow_that_it_quotes() {
        let inner = frame(A, B);
        let mut quote = Vec::from([3, 4, 0, 0, 0, 0, 5, 0]);
        quote.extend_from_slice(&inner[14..14 + 28]);
        let header =
            etherparse::Ipv4Header::new(quote.len() as u16, 64, IpNumber::ICMP, [192, 168, 0, 1], A.0)
                .unwrap();
        let mut outer = Vec::new();
        PacketBuilder::ethernet2([2; 6], [4; 6])
            .ip(etherparse::IpHeaders::Ipv4(header, Default::default()))
            .write(&mut std::io::Cursor::new(&mut outer), IpNumber::ICMP, &quote)
            .unwrap();
        assert_eq!(flow_of(&outer), Some(flow(B, A)), "the flow of the quoted packet's answers");
        assert_eq!(fast_path_flow_of(&outer), None);
    }

    #[test]
    fn dhcp_replies_belong_to_no_flow() {
        let udp = |ports: (u16, u16)| {
            let mut bytes = Vec::new();
            PacketBuilder::ethernet2([2; 6], [0xff; 6])
                .ipv4([10, 0, 0, 1], [255; 4], 64)
                .udp(ports.0, ports.1)
                .write(&mut std::io::Cursor::new(&mut bytes), b"x")
                .unwrap();
            bytes
        };
        assert_eq!(flow_of(&udp((67, 68))), None);
        assert_ne!(flow_of(&udp((68, 67))), None);
    }

    #[test]
    fn truncated_frames_belong_to_no_flow() {
        let whole = frame(A, B);
        for len in 0..38 {
            assert_eq!((flow_of(&whole[..len]), fast_path_flow_of(&whole[..len])), (None, None), "{len}");
        }
    }
}
