//! Messages of other machines on an IPv6 link, for tests.
#![allow(dead_code)] // Each test uses some of them.

use etherparse::{IpNumber, Ipv6FlowLabel, Ipv6Header, NetSlice, SlicedPacket, TransportSlice};
use isola_net_sim::{Peer, host_config, host_config6, host_ip6, host_mac};
use isola_net_stack::{Config, Duration, Ipv6Addressing};
use std::net::Ipv6Addr;

pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
pub const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 254);

pub fn group(ip: Ipv6Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(0xff02_0000_0000_0000_0000_0001_ff00_0000 | (ip.to_bits() & 0xff_ffff))
}

pub fn mac_for(ip: Ipv6Addr) -> [u8; 6] {
    match ip.octets() {
        [0xff, .., a, b, c, d] => [0x33, 0x33, a, b, c, d],
        _ => host_mac(1).0,
    }
}

/// Returns a frame with an ICMPv6 message, whose checksum is filled in.
pub fn icmp6(source: Ipv6Addr, destination: Ipv6Addr, hops: u8, message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    let mut sum: u32 = 58 + message.len() as u32;
    let bytes = [&source.octets()[..], &destination.octets()[..], &message[..]].concat();
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    message[2..4].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    ip6(source, destination, hops, IpNumber::IPV6_ICMP, &message)
}

pub fn ip6(source: Ipv6Addr, destination: Ipv6Addr, hops: u8, next: IpNumber, payload: &[u8]) -> Vec<u8> {
    let header = Ipv6Header {
        traffic_class: 0,
        flow_label: Ipv6FlowLabel::ZERO,
        payload_length: payload.len() as u16,
        next_header: next,
        hop_limit: hops,
        source: source.octets(),
        destination: destination.octets(),
    };
    let mut frame = [&mac_for(destination)[..], &host_mac(source.octets()[15]).0, &[0x86, 0xdd]].concat();
    frame.extend_from_slice(&header.to_bytes());
    frame.extend_from_slice(payload);
    frame
}

pub fn solicitation(target: Ipv6Addr, mac: Option<u8>) -> Vec<u8> {
    let mut message = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target.octets()].concat();
    if let Some(number) = mac {
        message.extend_from_slice(&[1, 1]);
        message.extend_from_slice(&host_mac(number).0);
    }
    message
}

pub fn advertisement(target: Ipv6Addr, flags: u8, number: u8) -> Vec<u8> {
    let link = [&[2, 1][..], &host_mac(number).0].concat();
    [&[136, 0, 0, 0, flags, 0, 0, 0][..], &target.octets(), &link].concat()
}

/// Returns a router advertisement: lifetime, flags, and options.
pub fn router(lifetime: u16, flags: u8, options: &[u8]) -> Vec<u8> {
    let mut message = vec![134, 0, 0, 0, 55, flags];
    message.extend_from_slice(&lifetime.to_be_bytes());
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(options);
    message
}

pub fn prefix(network: &str, flags: u8, valid: u32, preferred: u32) -> Vec<u8> {
    let mut option = vec![3, 4, 64, flags];
    option.extend_from_slice(&valid.to_be_bytes());
    option.extend_from_slice(&preferred.to_be_bytes());
    option.extend_from_slice(&[0; 4]);
    option.extend_from_slice(&network.parse::<Ipv6Addr>().unwrap().octets());
    option
}

/// Parses an ICMPv6 frame of the stack: source, destination, hop limit, and message.
pub fn read(frame: &[u8]) -> Option<(Ipv6Addr, Ipv6Addr, u8, Vec<u8>)> {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(NetSlice::Ipv6(ip)) = packet.net else { return None };
    let Some(TransportSlice::Icmpv6(icmp)) = packet.transport else { return None };
    let header = ip.header();
    Some((header.source_addr(), header.destination_addr(), header.hop_limit(), icmp.slice().to_vec()))
}

/// Returns the types of the ICMPv6 messages that the stack sends now.
pub fn kinds(peer: &mut Peer) -> Vec<u8> {
    peer.frames().iter().filter_map(|frame| read(frame)).map(|(_, _, _, message)| message[0]).collect()
}

/// Returns a stack with the checked address fd00::1 that knows the neighbour fd00::2.
pub fn peer() -> Peer {
    ready(host_config6(1))
}

pub fn ready(config: Config) -> Peer {
    let mut peer = Peer::new(config);
    peer.pass(Duration::from_secs(3));
    peer.stack.learn(peer.now, host_ip6(2), host_mac(2));
    peer.frames();
    peer.events();
    peer
}

pub fn auto() -> Config {
    Config { ipv6: Ipv6Addressing::Auto, ..host_config(1) }
}

pub fn addresses(peer: &Peer) -> Vec<Ipv6Addr> {
    peer.stack.ipv6().addresses.iter().flatten().map(|own| own.ip).collect()
}
