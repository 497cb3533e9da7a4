//! Every reason for a drop below TCP can be provoked, and is counted.

use crate::link6::*;
use etherparse::{IpNumber, PacketBuilder};
use isola_iobuf::IoBuf;
use isola_net_sim::{Peer, host_config6, host_ip, host_ip6, host_mac};
use isola_net_stack::{Addressing, Config, Counter, Duration, Event, Ipv4Config, Ipv6Addressing};
use isola_proves::proves;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// Small tables, and no route to other networks.
fn config() -> Config {
    let mut config = host_config6(1);
    config.addressing = Addressing::Static(Ipv4Config::new(host_ip(1), 24, None));
    config.limits.neighbours = 2;
    config.limits.neighbour_queue = 1;
    config.limits.transmit_queue = 4;
    config.limits.udp_datagrams = 1;
    config.limits.icmp_per_second = 3;
    config.limits.fragmented_packets = 1;
    config
}

fn udp4(source: Ipv4Addr, destination: Ipv4Addr, ports: (u16, u16)) -> Vec<u8> {
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(host_mac(2).0, host_mac(1).0)
        .ipv4(source.octets(), destination.octets(), 64)
        .udp(ports.0, ports.1)
        .write(&mut bytes, b"x")
        .unwrap();
    bytes
}

fn ping4(source: Ipv4Addr) -> Vec<u8> {
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(host_mac(2).0, host_mac(1).0)
        .ipv4(source.octets(), host_ip(1).octets(), 64)
        .icmpv4_echo_request(1, 2)
        .write(&mut bytes, b"x")
        .unwrap();
    bytes
}

/// An ICMPv4 message that is neither a request nor an error.
fn pong4() -> Vec<u8> {
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(host_mac(2).0, host_mac(1).0)
        .ipv4(host_ip(2).octets(), host_ip(1).octets(), 64)
        .icmpv4_echo_reply(1, 2)
        .write(&mut bytes, b"x")
        .unwrap();
    bytes
}

/// An ICMPv4 error about a datagram that this stack could have sent.
fn refusal4() -> Vec<u8> {
    let quoted = udp4(host_ip(1), host_ip(2), (9, 7)).split_off(14);
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(host_mac(2).0, host_mac(1).0)
        .ipv4(host_ip(2).octets(), host_ip(1).octets(), 64)
        .icmpv4_raw(3, 3, [0; 4])
        .write(&mut bytes, &quoted)
        .unwrap();
    bytes
}

#[proves("RFC 5927 3", "a flood of forged errors about datagrams is limited")]
#[test]
fn errors_about_datagrams_are_limited() {
    let mut peer = Peer::new(config());
    let refusals = |peer: &mut Peer| {
        let events = peer.events();
        events.iter().filter(|event| matches!(event, Event::DatagramRefused { port: 9, .. })).count()
    };
    (0..1_000).for_each(|_| peer.send_frame(refusal4()));
    assert_eq!(refusals(&mut peer), 3);
    peer.pass(Duration::from_secs(2));
    (0..1_000).for_each(|_| peer.send_frame(refusal4()));
    assert_eq!(refusals(&mut peer), 3);
    assert_eq!(peer.stack.counters().get(Counter::DropIcmpRate), 2 * 997);
}

fn changed(mut frame: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    frame[at] = value;
    frame
}

/// A frame with a fragment of an IPv6 packet.
fn part(id: u8, offset: u16, more: bool, data: &[u8]) -> Vec<u8> {
    let place = (offset | u16::from(more)).to_be_bytes();
    let header = [&[17, 0][..], &place, &[0, 0, 0, id]].concat();
    let payload = [&header[..], data].concat();
    ip6(host_ip6(2), host_ip6(1), 64, IpNumber::IPV6_FRAGMENTATION_HEADER, &payload)
}

/// Returns the counters that `provoke` increases.
fn counted(config: Config, provoke: impl FnOnce(&mut Peer)) -> Vec<Counter> {
    let mut peer = Peer::new(config);
    peer.pass(Duration::from_secs(3));
    peer.frames();
    let before = peer.stack.counters().clone();
    provoke(&mut peer);
    let counters = peer.stack.counters();
    Counter::ALL.iter().copied().filter(|&reason| counters.get(reason) > before.get(reason)).collect()
}

/// Checks that this frame alone is dropped for this reason and no other. Returns the reason.
fn frame_is(frame: Vec<u8>, reason: Counter) -> Counter {
    let reasons = counted(config(), |peer| {
        peer.stack.udp_bind(53).unwrap();
        peer.send_frame(frame);
    });
    let drops: Vec<_> = reasons.into_iter().filter(|reason| reason.name().starts_with("drop_")).collect();
    assert_eq!(drops, [reason]);
    reason
}

#[test]
fn every_drop_reason_below_tcp_can_be_provoked() {
    use Counter as C;
    let good4 = || udp4(host_ip(2), host_ip(1), (900, 53));
    let datagram = |len: u8| [3, 132, 0, 53, 0, len, 0, 1, b'x'];
    let good6 = |next: u8, payload: &[u8]| ip6(host_ip6(2), host_ip6(1), 64, IpNumber(next), payload);
    let echo = [128, 0, 0, 0, 0, 0, 0, 0];
    let mut arp = [&host_mac(1).0[..], &host_mac(2).0, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
    arp.extend_from_slice(&host_mac(2).0);
    arp.extend_from_slice(&[host_ip(2).octets(), [0; 4], [0, 0, 10, 0], [0, 9, 0, 0]].concat());
    let quote = [&[1, 0, 0, 0, 0, 0, 0, 0][..], &good6(6, &[0; 20])[14..]].concat();
    let mut seen = vec![
        frame_is(vec![0; 13], C::DropEthernetShort),
        frame_is(changed(good4(), 5, 9), C::DropEthernetAddress),
        frame_is(changed(good4(), 12, 0x88), C::DropEtherType),
        frame_is(arp[..40].to_vec(), C::DropArpMalformed),
        frame_is(arp, C::DropArpNotForUs),
        frame_is(changed(good4(), 14, 0x65), C::DropIpv4Malformed),
        frame_is(changed(good4(), 22, 9), C::DropIpv4Checksum),
        frame_is(udp4(Ipv4Addr::LOCALHOST, host_ip(1), (900, 53)), C::DropIpv4Source),
        frame_is(udp4(host_ip(2), host_ip(9), (900, 53)), C::DropIpv4Address),
        frame_is(changed(ip4_other(), 0, 2), C::DropIpv4Protocol),
        frame_is(good6(6, &[0; 20])[..50].to_vec(), C::DropIpv6Malformed),
        frame_is(good6(60, &[6, 0, 0x5e, 4, 0, 0, 0, 0]), C::DropIpv6Extension),
        frame_is(good6(43, &[6, 0, 0, 1, 0, 0, 0, 0]), C::DropIpv6Routing),
        frame_is(ip6(group(host_ip6(2)), host_ip6(1), 64, IpNumber::UDP, &datagram(9)), C::DropIpv6Source),
        frame_is(icmp6(host_ip6(2), group(host_ip6(9)), 64, &echo), C::DropIpv6Address),
        frame_is(good6(59, &[]), C::DropIpv6Protocol),
        frame_is(icmp6(host_ip6(2), host_ip6(1), 64, &solicitation(host_ip6(1), Some(2))), C::DropNdpInvalid),
        frame_is(good6(58, &echo), C::DropIcmpMalformed),
        frame_is(pong4(), C::DropIcmpIgnored),
        frame_is(icmp6(host_ip6(2), host_ip6(1), 64, &quote), C::DropIcmpUnrelated),
        frame_is(good6(17, &datagram(20)), C::DropUdpMalformed),
        frame_is(good6(17, &datagram(9)), C::DropUdpChecksum),
        frame_is(udp4(host_ip(2), host_ip(1), (900, 99)), C::DropUdpPort),
        frame_is(part(1, 8, true, &[0; 7]), C::DropFragmentMalformed),
        frame_is(changed(part(1, 0, true, &[0; 16]), 54, 6), C::DropFragmentTiny),
        frame_is(ping4(Ipv4Addr::new(192, 0, 2, 1)), C::DropNoRoute),
    ];
    seen.extend(counted(Config { addressing: Addressing::Unset, ..config() }, |peer| {
        peer.send_frame(good4())
    }));
    seen.extend(counted(Config { addressing: Addressing::Dhcp, ..config() }, |peer| {
        peer.send_frame(udp4(host_ip(2), host_ip(1), (67, 68)));
    }));
    seen.extend(counted(Config { ipv6: Ipv6Addressing::Auto, ..config() }, |peer| {
        for number in 0..9 {
            let from = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 1, number);
            peer.send_frame(icmp6(from, ALL_NODES, 255, &router(1800, 0, &[])));
        }
    }));
    seen.extend(counted(config(), |peer| {
        let socket = peer.stack.udp_bind(53).unwrap();
        (0..2).for_each(|_| peer.send_frame(good4()));
        // A third neighbour, more requests than the rate limit allows, more waiting packets than the queue holds, and a
        // neighbour that does not answer.
        for number in 3..6 {
            let asked = solicitation(host_ip6(1), Some(number));
            peer.send_frame(icmp6(host_ip6(number), host_ip6(1), 255, &asked));
        }
        (0..9).for_each(|_| peer.send_frame(icmp6(host_ip6(3), host_ip6(1), 64, &echo)));
        peer.frames();
        for _ in 0..2 {
            let to = SocketAddr::new(host_ip(7).into(), 9);
            peer.stack.udp_send_to(peer.now, socket, to, IoBuf::from_static(b"x")).unwrap();
        }
        peer.pass(Duration::from_secs(4));
    }));
    seen.extend(counted(config(), |peer| {
        peer.send_frame(part(1, 0, true, &[0; 16]));
        peer.send_frame(part(1, 0, true, &[0; 16]));
        peer.send_frame(part(1, 8, true, &[0; 16]));
        peer.send_frame(part(2, 0, true, &[0; 16]));
        peer.send_frame(part(3, 0, true, &[0; 16]));
        peer.pass(Duration::from_secs(61));
    }));
    seen.extend(counted(config(), |peer| {
        for number in 3..10 {
            let asked = solicitation(host_ip6(1), Some(number));
            peer.send_frame(icmp6(host_ip6(number), host_ip6(1), 255, &asked));
        }
    }));
    let below_tcp = |reason: &&Counter| {
        let name = reason.name();
        // Drops of a device or of another core do not reach a stack.
        name.starts_with("drop_") && !name.starts_with("drop_tcp_") && reason.layer() != "device"
    };
    let missing: Vec<_> =
        Counter::ALL.iter().filter(below_tcp).filter(|reason| !seen.contains(reason)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// A packet of an unsupported protocol over IPv4.
fn ip4_other() -> Vec<u8> {
    let (a, b) = (host_ip(2).octets(), host_ip(1).octets());
    let header = etherparse::Ipv4Header::new(4, 64, IpNumber(200), a, b).unwrap();
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(host_mac(2).0, host_mac(1).0)
        .ip(etherparse::IpHeaders::Ipv4(header, Default::default()))
        .write(&mut bytes, IpNumber(200), &[0; 4])
        .unwrap();
    bytes
}
