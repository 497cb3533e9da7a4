//! Which core a frame belongs to.
//!
//! Several stacks, one a core, can share one interface. Every frame of a flow must reach the same one, in
//! both directions and however the flow began, so the hash is *symmetric*: it is the same with the two ends
//! exchanged. An ICMP error is steered by the packet that it quotes. What belongs to no flow (ARP, other
//! ICMP, fragments) or is the interface's own business (DHCP) has no hash and goes to instance 0.
//!
//! The hash is not keyed: all instances, the steering and a connecting stack that chooses a port for its own
//! core must agree on it. A peer can thus choose which core serves it, as it can with a device's RSS.

use crate::address::Flow;
use crate::dhcp::{CLIENT_PORT, SERVER_PORT};
use crate::{dhcp6, ipv6};
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use etherparse::{EtherType, Ethernet2HeaderSlice, IpNumber, Ipv4HeaderSlice, Ipv6HeaderSlice};

/// The flow hash of an Ethernet frame's bytes; `None` where it belongs to no TCP or UDP flow.
pub fn flow_hash(frame: &[u8]) -> Option<u32> {
    let header = Ethernet2HeaderSlice::from_slice(frame).ok()?;
    let packet = frame.get(header.slice().len()..)?;
    match header.ether_type() {
        EtherType::IPV4 => ipv4_hash(packet, Quoting::Allowed),
        EtherType::IPV6 => ipv6_hash(packet, Quoting::Allowed),
        _ => None,
    }
}

/// The port of this end that a UDP datagram in an Ethernet frame is for, or that an ICMP error in it is about: the port
/// from which the datagram that it quotes was sent. `None` for anything else, fragments included.
pub fn datagram_port(frame: &[u8]) -> Option<u16> {
    let header = Ethernet2HeaderSlice::from_slice(frame).ok()?;
    let packet = frame.get(header.slice().len()..)?;
    let find = match header.ether_type() {
        EtherType::IPV4 => find_transport4,
        EtherType::IPV6 => ipv6::find_transport,
        _ => return None,
    };
    let (protocol, at) = find(packet)?;
    let payload = packet.get(at..)?;
    let is_error = match protocol {
        IpNumber::UDP => return ports(payload).map(|(_, destination)| destination),
        IpNumber::ICMP => crate::icmp::is_error(*payload.first()?),
        IpNumber::IPV6_ICMP => crate::icmp6::is_error(*payload.first()?),
        _ => false,
    };
    let quote = payload.get(crate::icmp::HEADER_LEN..).filter(|_| is_error)?;
    let (_, at) = find(quote).filter(|found| found.0 == IpNumber::UDP)?;
    ports(quote.get(at..)?).map(|(source, _)| source)
}

/// The protocol of an IPv4 packet and where its header begins; `None` for fragments.
fn find_transport4(packet: &[u8]) -> Option<(IpNumber, usize)> {
    let header = Ipv4HeaderSlice::from_slice(packet).ok()?;
    (!header.is_fragmenting_payload()).then(|| (header.protocol(), header.slice().len()))
}

/// The ports that a transport's header begins with: source and destination.
fn ports(header: &[u8]) -> Option<(u16, u16)> {
    let &[a, b, c, d] = header.first_chunk::<4>()?;
    Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
}

/// The instance, of `count`, that a frame is for.
pub fn core_of_frame(frame: &[u8], count: u16) -> u16 {
    flow_hash(frame).map_or(0, |hash| core_of_hash(hash, count))
}

/// The instance, of `count`, that serves the flows with this hash.
pub const fn core_of_hash(hash: u32, count: u16) -> u16 {
    ((hash as u64 * count as u64) >> 32) as u16
}

/// The hash that the frames of a flow have.
pub fn hash_of_flow(flow: &Flow) -> u32 {
    combine(end_of(flow.local), end_of(flow.remote))
}

/// Whether the packet may be an ICMP error that quotes another. A quoted one may not: no recursion.
#[derive(PartialEq)]
enum Quoting {
    Allowed,
    Within,
}

fn ipv4_hash(packet: &[u8], quoting: Quoting) -> Option<u32> {
    let header = Ipv4HeaderSlice::from_slice(packet).ok()?;
    let payload = packet.get(header.slice().len()..)?;
    // The first fragment of a quoted packet has its ports; a real fragment goes to instance 0 with the rest.
    if header.is_fragmenting_payload() {
        return None;
    }
    match header.protocol() {
        IpNumber::TCP | IpNumber::UDP => {
            let (ports, _) = payload.split_first_chunk::<4>()?;
            let [a, b, c, d] = *ports;
            let (source, destination) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            if header.protocol() == IpNumber::UDP && (source, destination) == (SERVER_PORT, CLIENT_PORT) {
                return None;
            }
            let source = end(u32::from_be_bytes(header.source()), source);
            let destination = end(u32::from_be_bytes(header.destination()), destination);
            Some(combine(source, destination))
        }
        IpNumber::ICMP if quoting == Quoting::Allowed && crate::icmp::is_error(*payload.first()?) => {
            ipv4_hash(payload.get(crate::icmp::HEADER_LEN..)?, Quoting::Within)
        }
        _ => None,
    }
}

fn ipv6_hash(packet: &[u8], quoting: Quoting) -> Option<u32> {
    let (protocol, at) = ipv6::find_transport(packet)?;
    let header = Ipv6HeaderSlice::from_slice(packet).ok()?;
    let payload = packet.get(at..)?;
    match protocol {
        IpNumber::TCP | IpNumber::UDP => {
            let (&[a, b, c, d], _) = payload.split_first_chunk::<4>()?;
            let ports = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            if protocol == IpNumber::UDP && ports == (dhcp6::SERVER_PORT, dhcp6::CLIENT_PORT) {
                return None;
            }
            let source = end6(header.source_addr(), ports.0);
            let destination = end6(header.destination_addr(), ports.1);
            Some(combine(source, destination))
        }
        IpNumber::IPV6_ICMP if quoting == Quoting::Allowed && crate::icmp6::is_error(*payload.first()?) => {
            ipv6_hash(payload.get(crate::icmp::HEADER_LEN..)?, Quoting::Within)
        }
        _ => None,
    }
}

fn end_of(address: SocketAddr) -> u64 {
    match address.ip() {
        IpAddr::V4(ip) => end(ip.to_bits(), address.port()),
        IpAddr::V6(ip) => end6(ip, address.port()),
    }
}

fn end6(ip: Ipv6Addr, port: u16) -> u64 {
    let bits = ip.to_bits();
    mix(mix(bits as u64) ^ (bits >> 64) as u64 ^ u64::from(port))
}

fn end(ip: u32, port: u16) -> u64 {
    mix(u64::from(ip) << 16 | u64::from(port))
}

/// Addition makes it symmetric.
fn combine(a: u64, b: u64) -> u32 {
    (mix(a.wrapping_add(b)) >> 32) as u32
}

/// Spreads every bit over all others: multiply by an odd constant, fold, twice.
const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value ^ (value >> 32)
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

    #[test]
    fn both_directions_and_the_flow_itself_have_one_hash() {
        let (a, b) = (([10, 0, 0, 1], 80), ([10, 0, 0, 2], 40_000));
        let there = flow_hash(&frame(a, b)).unwrap();
        assert_eq!(flow_hash(&frame(b, a)), Some(there));
        let flow = Flow::new(Ipv4Addr::from(a.0).into(), a.1, Ipv4Addr::from(b.0).into(), b.1);
        assert_eq!(hash_of_flow(&flow), there);
    }

    #[test]
    fn ports_spread_over_the_cores() {
        let mut share = [0u32; 3];
        for port in 0..3000 {
            let frame = frame(([10, 0, 0, 1], 80), ([10, 0, 0, 2], 10_000 + port));
            share[usize::from(core_of_frame(&frame, 3))] += 1;
        }
        assert!(share.iter().all(|&count| (800..1200).contains(&count)), "{share:?}");
    }

    #[test]
    fn an_icmp_error_goes_where_its_flow_goes() {
        let inner = frame(([10, 0, 0, 1], 80), ([10, 0, 0, 2], 40_000));
        let mut quote = Vec::from([3, 4, 0, 0, 0, 0, 5, 0]);
        quote.extend_from_slice(&inner[14..14 + 28]);
        let mut outer = Vec::new();
        PacketBuilder::ethernet2([2; 6], [4; 6])
            .ip(etherparse::IpHeaders::Ipv4(
                etherparse::Ipv4Header::new(
                    quote.len() as u16,
                    64,
                    IpNumber::ICMP,
                    [192, 168, 0, 1],
                    [10, 0, 0, 1],
                )
                .unwrap(),
                Default::default(),
            ))
            .write(&mut std::io::Cursor::new(&mut outer), IpNumber::ICMP, &quote)
            .unwrap();
        assert_eq!(flow_hash(&outer), flow_hash(&inner));
    }

    #[test]
    fn a_dhcp_servers_answers_go_to_the_first_instance() {
        let udp = |ports: (u16, u16)| {
            let mut bytes = Vec::new();
            PacketBuilder::ethernet2([2; 6], [0xff; 6])
                .ipv4([10, 0, 0, 1], [255; 4], 64)
                .udp(ports.0, ports.1)
                .write(&mut std::io::Cursor::new(&mut bytes), b"x")
                .unwrap();
            bytes
        };
        assert_eq!(flow_hash(&udp((67, 68))), None);
        assert_ne!(flow_hash(&udp((68, 67))), None);
    }

    #[test]
    fn truncated_frames_have_no_hash() {
        let whole = frame(([10, 0, 0, 1], 80), ([10, 0, 0, 2], 40_000));
        for len in 0..38 {
            assert_eq!(flow_hash(&whole[..len]), None, "{len}");
        }
        assert_eq!(core_of_frame(&whole[..20], 4), 0);
    }
}
