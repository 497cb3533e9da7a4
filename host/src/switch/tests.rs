//! Tests of the switch: forwarding, ownership of addresses, and the filter towards the host.

use super::fabric::{Address, Fabric, HostAccess, Source, Targets};
use super::frame::{Frame, Mac};
use etherparse::{ArpHardwareId, ArpOperation, ArpPacket, EtherType, PacketBuilder, icmpv6};
use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

const ROUTER: Mac = [0x52, 0x55, 10, 0, 2, 2];
const BROADCAST: Mac = [0xff; 6];
const CACHE: usize = 0;
const THIEF: usize = 1;
const DHCP: usize = 2;
const ABSENT: usize = 3;
const MACS: [Mac; 4] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 3], [2, 0, 0, 0, 0, 4]];
const CACHE_IP: [u8; 4] = [10, 0, 2, 16];
const THIEF_IP: [u8; 4] = [10, 0, 2, 17];
const HOST: [u8; 4] = [10, 0, 2, 2];
const OUTSIDE: [u8; 4] = [192, 0, 2, 1];
const SYN: bool = true;

const NOWHERE: Targets = Targets { uplink: false, ports: 0 };
const UPLINK: Targets = Targets { uplink: true, ports: 0 };

fn to(port: usize) -> Targets {
    Targets { uplink: false, ports: 1 << port }
}

fn fabric(host: HostAccess) -> Fabric {
    let mut fabric = Fabric::new(MACS.to_vec(), host);
    assert!(fabric.declare(MACS[CACHE], Address::Fixed(CACHE_IP.into())));
    assert!(fabric.declare(MACS[THIEF], Address::Fixed(THIEF_IP.into())));
    assert!(fabric.declare(MACS[DHCP], Address::Dhcp));
    assert!(!fabric.declare(ROUTER, Address::Dhcp));
    fabric
}

fn send(fabric: &mut Fabric, port: usize, bytes: &[u8]) -> Targets {
    fabric.forward(Source::Port(port), bytes, Instant::now())
}

fn arp(source: Mac, sender_mac: Mac, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let (hardware, protocol) = (ArpHardwareId::ETHERNET, EtherType::IPV4);
    let packet =
        ArpPacket::new(hardware, protocol, ArpOperation::REQUEST, &sender_mac, &sender, &[0; 6], &target);
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(source, BROADCAST).arp(packet.unwrap()).write(&mut bytes).unwrap();
    bytes
}

fn udp(source: Mac, destination: Mac, from: ([u8; 4], u16), to: ([u8; 4], u16), data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let packet = PacketBuilder::ethernet2(source, destination).ipv4(from.0, to.0, 64).udp(from.1, to.1);
    packet.write(&mut bytes, data).unwrap();
    bytes
}

fn tcp(source: Mac, destination: Mac, from: [u8; 4], to: ([u8; 4], u16), syn: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let packet = PacketBuilder::ethernet2(source, destination).ipv4(from, to.0, 64).tcp(4000, to.1, 1, 1000);
    let packet = if syn { packet.syn() } else { packet.ack(1) };
    packet.write(&mut bytes, b"data").unwrap();
    bytes
}

fn advertisement(source: Mac, from: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    let mut bytes = Vec::new();
    let header = icmpv6::NeighborAdvertisementHeader { router: false, solicited: false, r#override: true };
    let packet = PacketBuilder::ethernet2(source, [0x33, 0x33, 0, 0, 0, 1])
        .ipv6(from.octets(), Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).octets(), 255)
        .icmpv6(etherparse::Icmpv6Type::NeighborAdvertisement(header));
    packet.write(&mut bytes, &target.octets()).unwrap();
    bytes
}

/// Returns an acknowledgement of a DHCP server (RFC 2131 2).
fn lease(mac: Mac, ip: [u8; 4]) -> Vec<u8> {
    let mut message = vec![0; 240];
    message[..4].copy_from_slice(&[2, 1, 6, 0]);
    message[16..20].copy_from_slice(&ip);
    message[28..34].copy_from_slice(&mac);
    message[236..].copy_from_slice(&[99, 130, 83, 99]);
    message.extend([54, 4, 10, 0, 2, 2, 53, 1, 5, 255]);
    udp(ROUTER, BROADCAST, (HOST, 67), ([255; 4], 68), &message)
}

#[test]
fn a_unicast_frame_goes_to_its_receiver_only() {
    let mut fabric = fabric(HostAccess::Open);
    let between = tcp(MACS[CACHE], MACS[THIEF], CACHE_IP, (THIEF_IP, 80), SYN);
    assert_eq!(send(&mut fabric, CACHE, &between), to(THIEF));
    let out = tcp(MACS[CACHE], ROUTER, CACHE_IP, (OUTSIDE, 80), SYN);
    assert_eq!(send(&mut fabric, CACHE, &out), UPLINK);
    let now = Instant::now();
    let back = tcp(ROUTER, MACS[CACHE], OUTSIDE, (CACHE_IP, 4000), !SYN);
    assert_eq!(fabric.forward(Source::Uplink, &back, now), to(CACHE));
    let unowned = tcp(ROUTER, [2, 9, 9, 9, 9, 9], OUTSIDE, (CACHE_IP, 4000), !SYN);
    assert_eq!(fabric.forward(Source::Uplink, &unowned, now), NOWHERE);
    let asked = arp(MACS[CACHE], MACS[CACHE], CACHE_IP, THIEF_IP);
    assert_eq!(send(&mut fabric, CACHE, &asked), Targets { uplink: true, ports: 0b1110 });
}

#[test]
fn a_switch_has_the_addresses_that_no_other_port_has() {
    let mut fabric = fabric(HostAccess::Open);
    assert!(fabric.declare(MACS[ABSENT], Address::Switch));
    let (client, ip) = ([2, 7, 7, 7, 7, 7], [10, 0, 2, 40]);
    let back = tcp(ROUTER, client, OUTSIDE, (ip, 4000), !SYN);
    let now = Instant::now();
    assert_eq!(fabric.forward(Source::Uplink, &back, now), NOWHERE, "no one has used the address");
    let out = tcp(client, ROUTER, ip, (OUTSIDE, 80), SYN);
    assert_eq!(send(&mut fabric, ABSENT, &out), UPLINK);
    assert_eq!(fabric.forward(Source::Uplink, &back, now), to(ABSENT));
    let between = tcp(MACS[CACHE], client, CACHE_IP, (ip, 80), SYN);
    assert_eq!(send(&mut fabric, CACHE, &between), to(ABSENT));
    assert_eq!(send(&mut fabric, ABSENT, &tcp(client, MACS[CACHE], ip, (CACHE_IP, 4000), !SYN)), to(CACHE));
    fabric.forward(Source::Uplink, &arp(ROUTER, ROUTER, HOST, ip), now);
    fabric.forward(Source::Uplink, &lease(MACS[DHCP], [10, 0, 2, 15]), now);
    for (name, frame) in [
        ("a port's hardware address", tcp(MACS[CACHE], ROUTER, ip, (OUTSIDE, 80), SYN)),
        ("a port's address", tcp(client, ROUTER, CACHE_IP, (OUTSIDE, 80), SYN)),
        ("a leased address", tcp(client, ROUTER, [10, 0, 2, 15], (OUTSIDE, 80), SYN)),
        ("the router's address", arp(client, client, HOST, ip)),
        ("ARP for a port", arp(client, client, CACHE_IP, HOST)),
    ] {
        assert_eq!(send(&mut fabric, ABSENT, &frame), NOWHERE, "{name}");
    }
    // The addresses behind a switch are its own, and have a limit.
    assert_eq!(send(&mut fabric, CACHE, &tcp(client, ROUTER, CACHE_IP, (OUTSIDE, 80), SYN)), NOWHERE);
    let number_to_mac = |number: u16| [2, 8, 0, 0, (number >> 8) as u8, number as u8];
    let is_sent = |fabric: &mut Fabric, number| {
        send(fabric, ABSENT, &tcp(number_to_mac(number), ROUTER, ip, (OUTSIDE, 80), SYN)) == UPLINK
    };
    let sent = (0..2000).filter(|number| is_sent(&mut fabric, *number)).count();
    assert_eq!(sent, 1023);
    // The switch is started again.
    fabric.declare(MACS[ABSENT], Address::Switch);
    assert_eq!(fabric.forward(Source::Uplink, &back, now), to(ABSENT));
    // Its next cell is none.
    fabric.declare(MACS[ABSENT], Address::Fixed(ip.into()));
    assert_eq!(send(&mut fabric, ABSENT, &out), NOWHERE);
    assert_eq!(fabric.forward(Source::Uplink, &back, now), NOWHERE);
}

#[test]
fn only_its_owner_can_use_an_address() {
    let mut fabric = fabric(HostAccess::Open);
    let thief = MACS[THIEF];
    let stolen = [
        arp(thief, thief, CACHE_IP, CACHE_IP),
        arp(thief, MACS[CACHE], CACHE_IP, HOST),
        arp(MACS[CACHE], MACS[CACHE], CACHE_IP, HOST),
        tcp(thief, ROUTER, CACHE_IP, (OUTSIDE, 80), SYN),
        tcp(MACS[CACHE], ROUTER, CACHE_IP, (OUTSIDE, 80), SYN),
        udp(thief, ROUTER, ([10, 0, 2, 99], 1), (OUTSIDE, 2), b"an address without an owner"),
        udp(thief, MACS[CACHE], ([0; 4], 1), (CACHE_IP, 2), b"no address"),
    ];
    for frame in &stolen {
        assert_eq!(send(&mut fabric, THIEF, frame), NOWHERE, "{:?}", Frame::parse(frame));
    }
    assert_eq!(fabric.counters[THIEF].foreign_address, stolen.len() as u64);
    // A probe for a duplicate address is always allowed.
    assert_ne!(send(&mut fabric, THIEF, &arp(thief, thief, [0; 4], CACHE_IP)), NOWHERE);
    assert_ne!(send(&mut fabric, THIEF, &arp(thief, thief, THIEF_IP, CACHE_IP)), NOWHERE);
    // The end of a cell revokes its address; a new declaration grants it again.
    fabric.declare(MACS[CACHE], Address::None);
    let own = tcp(MACS[CACHE], ROUTER, CACHE_IP, (OUTSIDE, 80), SYN);
    assert_eq!(send(&mut fabric, CACHE, &own), NOWHERE);
    fabric.declare(MACS[CACHE], Address::Fixed(CACHE_IP.into()));
    assert_eq!(send(&mut fabric, CACHE, &own), UPLINK);
}

#[test]
fn leases_are_learnt_from_the_uplink_only() {
    let mut fabric = fabric(HostAccess::Open);
    let (mac, ip) = (MACS[DHCP], [10, 0, 2, 128]);
    let own = udp(mac, ROUTER, (ip, 1), (OUTSIDE, 2), b"");
    let discover = udp(mac, BROADCAST, ([0; 4], 68), ([255; 4], 67), b"");
    assert!(send(&mut fabric, DHCP, &discover).uplink);
    assert_eq!(send(&mut fabric, DHCP, &own), NOWHERE);
    // The switch ignores acknowledgements from a neighbour.
    let mut forged = lease(mac, ip);
    forged[6..12].copy_from_slice(&MACS[THIEF]);
    assert_eq!(send(&mut fabric, THIEF, &forged), NOWHERE);
    assert_eq!(send(&mut fabric, DHCP, &own), NOWHERE);
    let now = Instant::now();
    // A lease of another cell's fixed address has no effect, nor has one to a cell with a fixed address.
    fabric.forward(Source::Uplink, &lease(mac, CACHE_IP), now);
    assert_eq!(send(&mut fabric, DHCP, &udp(mac, ROUTER, (CACHE_IP, 1), (OUTSIDE, 2), b"")), NOWHERE);
    fabric.forward(Source::Uplink, &lease(MACS[THIEF], ip), now);
    assert_eq!(send(&mut fabric, THIEF, &udp(MACS[THIEF], ROUTER, (ip, 1), (OUTSIDE, 2), b"")), NOWHERE);
    assert_ne!(fabric.forward(Source::Uplink, &lease(mac, ip), now), NOWHERE);
    assert_eq!(send(&mut fabric, DHCP, &own), UPLINK);
    // A new lease to another cell, or a declaration by the operator, revokes the first lease.
    fabric.declare(MACS[THIEF], Address::Dhcp);
    fabric.forward(Source::Uplink, &lease(MACS[THIEF], ip), now);
    assert_eq!(send(&mut fabric, DHCP, &own), NOWHERE);
    assert_eq!(send(&mut fabric, THIEF, &udp(MACS[THIEF], ROUTER, (ip, 1), (OUTSIDE, 2), b"")), UPLINK);
    fabric.declare(MACS[ABSENT], Address::Fixed(ip.into()));
    assert_eq!(send(&mut fabric, THIEF, &udp(MACS[THIEF], ROUTER, (ip, 1), (OUTSIDE, 2), b"")), NOWHERE);
    assert_eq!(send(&mut fabric, ABSENT, &udp(MACS[ABSENT], ROUTER, (ip, 1), (OUTSIDE, 2), b"")), UPLINK);
}

#[test]
fn an_ipv6_address_belongs_to_its_first_user_and_a_router_s_to_no_port() {
    let mut fabric = fabric(HostAccess::Open);
    let [cache, thief, router, other]: [Ipv6Addr; 4] =
        ["fe80::c", "fe80::7", "fe80::2", "fe80::99"].map(|ip| ip.parse().unwrap());
    assert_ne!(send(&mut fabric, CACHE, &advertisement(MACS[CACHE], cache, cache)), NOWHERE);
    assert_ne!(send(&mut fabric, THIEF, &advertisement(MACS[THIEF], thief, thief)), NOWHERE);
    assert_eq!(send(&mut fabric, THIEF, &advertisement(MACS[THIEF], cache, cache)), NOWHERE);
    assert_eq!(send(&mut fabric, THIEF, &advertisement(MACS[THIEF], thief, cache)), NOWHERE);
    assert_eq!(send(&mut fabric, THIEF, &advertisement(MACS[THIEF], thief, router)), NOWHERE);
    fabric.forward(Source::Uplink, &advertisement(ROUTER, other, other), Instant::now());
    assert_eq!(send(&mut fabric, THIEF, &advertisement(MACS[THIEF], thief, other)), NOWHERE);
    // A forged router advertisement.
    let mut router_advertisement = advertisement(MACS[THIEF], thief, thief);
    router_advertisement[54] = 134;
    assert_eq!(send(&mut fabric, THIEF, &router_advertisement), NOWHERE);
    // The next cell on the device has other addresses.
    fabric.declare(MACS[CACHE], Address::Dhcp);
    assert_ne!(send(&mut fabric, THIEF, &advertisement(MACS[THIEF], thief, cache)), NOWHERE);
    let many = (1..200_u16).filter(|number| {
        let ip = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, *number);
        send(&mut fabric, DHCP, &advertisement(MACS[DHCP], ip, ip)) != NOWHERE
    });
    assert_eq!(many.count(), 64);
}

#[test]
fn each_declaration_frees_the_ipv6_addresses_of_the_port_s_earlier_cell() {
    let mut fabric = fabric(HostAccess::Open);
    let address = |number| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, number);
    let uses = |fabric: &mut Fabric, port: usize, number| {
        send(fabric, port, &advertisement(MACS[port], address(number), address(number))) != NOWHERE
    };
    // A cell's addresses differ at each start; the declaration is the same.
    for number in 0x100..0x200 {
        assert!(fabric.declare(MACS[DHCP], Address::Dhcp));
        assert!(uses(&mut fabric, DHCP, number), "{number:#x}");
    }
    assert!(uses(&mut fabric, CACHE, 0x100));
    // Another port gets the address of a cell that has ended.
    fabric.declare(MACS[ABSENT], Address::Fixed(CACHE_IP.into()));
    assert!(uses(&mut fabric, THIEF, 0x100));
}

#[test]
fn an_unchanged_declaration_keeps_the_lease() {
    let mut fabric = fabric(HostAccess::Open);
    let (mac, ip) = (MACS[DHCP], [10, 0, 2, 128]);
    fabric.forward(Source::Uplink, &lease(mac, ip), Instant::now());
    fabric.declare(mac, Address::Dhcp);
    assert_eq!(send(&mut fabric, DHCP, &udp(mac, ROUTER, (ip, 1), (OUTSIDE, 2), b"")), UPLINK);
}

#[test]
fn a_device_without_a_cell_sends_nothing() {
    let mut fabric = fabric(HostAccess::Open);
    let ip = "fe80::1234".parse().unwrap();
    assert_eq!(send(&mut fabric, ABSENT, &advertisement(MACS[ABSENT], ip, ip)), NOWHERE);
    assert_eq!(
        send(&mut fabric, ABSENT, &udp(MACS[ABSENT], BROADCAST, ([0; 4], 68), ([255; 4], 67), b"")),
        NOWHERE
    );
    let vlan = [&BROADCAST[..], &MACS[CACHE], &[0x81, 0, 0, 1, 8, 0], &[0x45; 40]].concat();
    assert_eq!(send(&mut fabric, CACHE, &vlan), NOWHERE);
}

#[test]
fn a_cell_can_answer_the_host_but_not_connect_to_it() {
    let mut fabric = fabric(HostAccess::Closed);
    let mac = MACS[CACHE];
    let tcp_to = |ip, port, syn| tcp(mac, ROUTER, CACHE_IP, (ip, port), syn);
    let udp_to = |ip: [u8; 4], port| udp(mac, ROUTER, (CACHE_IP, 7000), (ip, port), b"");
    for ip in [HOST, [10, 0, 2, 200], [10, 0, 2, 3], [127, 0, 0, 1], [0; 4], THIEF_IP, [255; 4]] {
        assert_eq!(send(&mut fabric, CACHE, &tcp_to(ip, 9000, SYN)), NOWHERE, "{ip:?}");
        assert_eq!(send(&mut fabric, CACHE, &udp_to(ip, 9000)), NOWHERE, "{ip:?}");
        assert_eq!(send(&mut fabric, CACHE, &tcp_to(ip, 9000, !SYN)), UPLINK, "{ip:?}");
    }
    assert_eq!(fabric.counters[CACHE].to_host, 14);
    // DNS, DHCP, and addresses outside.
    assert_eq!(send(&mut fabric, CACHE, &udp_to([10, 0, 2, 3], 53)), UPLINK);
    assert_eq!(send(&mut fabric, CACHE, &tcp_to([10, 0, 2, 3], 53, SYN)), UPLINK);
    assert_eq!(send(&mut fabric, CACHE, &udp_to(HOST, 53)), NOWHERE);
    assert_eq!(send(&mut fabric, CACHE, &udp_to(HOST, 67)), UPLINK);
    assert_eq!(send(&mut fabric, CACHE, &tcp_to(OUTSIDE, 443, SYN)), UPLINK);
    assert_eq!(send(&mut fabric, CACHE, &udp_to(OUTSIDE, 443)), UPLINK);
    // A published port: the host's datagram first, then the answer, to that peer from that port.
    let now = Instant::now();
    let asked = udp(ROUTER, mac, (HOST, 5555), (CACHE_IP, 7000), b"");
    assert_eq!(fabric.forward(Source::Uplink, &asked, now), to(CACHE));
    assert_eq!(fabric.forward(Source::Port(CACHE), &udp_to(HOST, 5555), now), UPLINK);
    assert_eq!(fabric.forward(Source::Port(CACHE), &udp_to(HOST, 5556), now), NOWHERE);
    let other = udp(MACS[THIEF], ROUTER, (THIEF_IP, 7000), (HOST, 5555), b"");
    assert_eq!(fabric.forward(Source::Port(THIEF), &other, now), NOWHERE);
    let later = now + Duration::from_secs(600);
    assert_eq!(fabric.forward(Source::Port(CACHE), &udp_to(HOST, 5555), later), NOWHERE);
}

#[test]
fn no_fragment_opens_a_connection_to_the_host() {
    let mut fabric = fabric(HostAccess::Closed);
    for (first, len) in [(0x2000_u16, 8), (0x0001, 40)] {
        // A TCP header in two parts (RFC 1858), with the flags in the second.
        let mut frame = tcp(MACS[CACHE], ROUTER, CACHE_IP, (HOST, 9000), SYN);
        frame[20..22].copy_from_slice(&first.to_be_bytes());
        frame[16..18].copy_from_slice(&(20 + len.min(24) as u16).to_be_bytes());
        assert_eq!(send(&mut fabric, CACHE, &frame), NOWHERE);
    }
}

#[test]
fn with_host_access_cells_can_connect_to_the_host() {
    let mut fabric = fabric(HostAccess::Open);
    assert_eq!(send(&mut fabric, CACHE, &tcp(MACS[CACHE], ROUTER, CACHE_IP, (HOST, 9000), SYN)), UPLINK);
    assert_eq!(send(&mut fabric, CACHE, &udp(MACS[CACHE], ROUTER, (CACHE_IP, 1), (HOST, 9000), b"")), UPLINK);
}

proptest! {
    /// For arbitrary frames of a cell, only those with its own addresses leave its port.
    #[test]
    fn no_frame_leaves_a_port_with_another_s_address(
        mut bytes in prop_oneof![
            Just(tcp(MACS[THIEF], MACS[CACHE], CACHE_IP, (CACHE_IP, 80), SYN)),
            Just(arp(MACS[THIEF], MACS[THIEF], CACHE_IP, HOST)),
            proptest::collection::vec(any::<u8>(), 0..100),
        ],
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
    ) {
        for (at, value) in changes {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
        }
        let mut fabric = fabric(HostAccess::Closed);
        if send(&mut fabric, THIEF, &bytes) != NOWHERE {
            prop_assert_eq!(&bytes[6..12], &MACS[THIEF][..]);
            match bytes[12..14] {
                [8, 6] => prop_assert!([THIEF_IP, [0; 4]].contains(&bytes[28..32].try_into().unwrap())),
                [8, 0] => prop_assert!(
                    bytes[26..30] == THIEF_IP || bytes[26..30] == Ipv4Addr::UNSPECIFIED.octets()
                ),
                ref kind => prop_assert_eq!(kind, &[0x86, 0xdd]),
            }
        }
    }

    #[test]
    fn no_frame_from_the_uplink_causes_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        fabric(HostAccess::Closed).forward(Source::Uplink, &bytes, Instant::now());
    }
}
