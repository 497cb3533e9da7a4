//! ARP, ICMP and UDP as seen by neighbours.

use etherparse::{
    ArpEthIpv4Packet, ArpOperation, ArpPacket, IcmpEchoHeader, Icmpv4Type, PacketBuilder, SlicedPacket,
    TransportSlice,
};
use isola_iobuf::{Chain, IoBuf};
use isola_net_sim::{Peer, host_config, host_ip, host_mac};
use isola_net_stack::{BindError, Counter, Duration, Event, FailReason, SendToError, Stack};
use isola_proves::proves;
use std::net::Ipv4Addr;

fn arp(operation: ArpOperation, sender: u8, target: Ipv4Addr, to: [u8; 6]) -> Vec<u8> {
    let packet = ArpPacket::from(ArpEthIpv4Packet {
        operation,
        sender_mac: host_mac(sender).0,
        sender_ipv4: host_ip(sender).octets(),
        target_mac: [0; 6],
        target_ipv4: target.octets(),
    });
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(host_mac(sender).0, to).arp(packet).write(&mut bytes).unwrap();
    bytes
}

fn udp(from: u8, ports: (u16, u16), to: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let mac = if to == host_ip(1) { host_mac(1).0 } else { [0xff; 6] };
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(host_mac(from).0, mac)
        .ipv4(host_ip(from).octets(), to.octets(), 64)
        .udp(ports.0, ports.1)
        .write(&mut bytes, payload)
        .unwrap();
    bytes
}

fn ping(from: u8, to: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(host_mac(from).0, host_mac(1).0)
        .ipv4(host_ip(from).octets(), to.octets(), 64)
        .icmpv4_echo_request(7, 9)
        .write(&mut bytes, payload)
        .unwrap();
    bytes
}

#[proves("RFC 826 Reception", "a request for the own address is answered to its sender, and others are not")]
#[proves("RFC 5227 2.3", "a new address is announced")]
#[test]
fn the_address_is_announced_and_requests_for_it_are_answered() {
    let config = host_config(1);
    let mut stack = Stack::new(config, Default::default()).unwrap();
    let announcement = stack.poll_transmit(Default::default()).unwrap().to_vec();
    assert_eq!(announcement[..6], [0xff; 6]);
    assert_eq!(announcement[28..32], host_ip(1).octets());
    assert_eq!(announcement[38..42], host_ip(1).octets());
    let mut peer = Peer::fast();
    peer.send_frame(arp(ArpOperation::REQUEST, 3, host_ip(1), [0xff; 6]));
    let frames = peer.frames();
    assert_eq!(frames.len(), 1);
    assert_eq!(frames[0][..6], host_mac(3).0);
    assert_eq!(frames[0][20..22], [0, 2]);
    assert_eq!(frames[0][22..28], host_mac(1).0);
    peer.send_frame(arp(ArpOperation::REQUEST, 3, host_ip(9), [0xff; 6]));
    assert_eq!(peer.frames().len(), 0);
    assert_eq!(peer.stack.counters().get(Counter::DropArpNotForUs), 1);
}

#[proves(
    "RFC 5227 2.4",
    "a conflicting claim of our address is answered by an announcement, at most every ten seconds."
)]
#[test]
fn our_address_is_defended_at_most_every_ten_seconds() {
    let mut peer = Peer::fast();
    let claim = |peer: &mut Peer| {
        let mut claim = arp(ArpOperation::REQUEST, 1, host_ip(9), [0xff; 6]);
        claim[6..12].copy_from_slice(&host_mac(7).0);
        claim[22..28].copy_from_slice(&host_mac(7).0);
        peer.send_frame(claim);
        peer.frames()
    };
    let frames = claim(&mut peer);
    assert_eq!((frames.len(), &frames[0][28..32]), (1, &host_ip(1).octets()[..]));
    assert_eq!(claim(&mut peer).len(), 0);
    peer.pass(Duration::from_secs(10));
    assert_eq!(claim(&mut peer).len(), 1);
    assert_eq!(peer.stack.counters().get(Counter::AddressConflicts), 3);
    assert!(peer.stack.ipv4().is_some(), "a static address is kept");
}

#[proves("RFC 5227 2.4", "only a claim from another hardware address is a conflict.")]
#[test]
fn our_own_announcement_is_no_conflict() {
    let mut peer = Peer::fast();
    let mut echo = arp(ArpOperation::REQUEST, 1, host_ip(1), [0xff; 6]);
    echo[6..12].copy_from_slice(&host_mac(7).0);
    peer.send_frame(echo);
    assert_eq!((peer.frames().len(), peer.stack.counters().get(Counter::AddressConflicts)), (0, 0));
}

#[proves("RFC 1122 2.3.2.2", "packets wait for the resolution of their address")]
#[test]
fn packets_wait_for_their_neighbour_and_are_sent_in_order() {
    let mut peer = Peer::fast();
    let socket = peer.stack.udp_bind(1000).unwrap();
    for i in 0..20u8 {
        peer.stack.udp_send_to(peer.now, socket, (host_ip(7), 9).into(), IoBuf::from(vec![i])).unwrap();
    }
    let frames = peer.frames();
    assert_eq!(frames.len(), 1, "one request for all");
    assert_eq!(peer.stack.counters().get(Counter::DropNeighbourQueue), 4);
    peer.send_frame(arp(ArpOperation::REPLY, 7, host_ip(1), host_mac(1).0));
    let payloads: Vec<u8> = peer.frames().iter().map(|frame| *frame.last().unwrap()).collect();
    assert_eq!(payloads, (0..16).collect::<Vec<u8>>());
}

#[proves("RFC 1122 2.3.2.1", "requests for one address are a second apart")]
#[test]
fn a_connection_waits_for_its_neighbour_and_fails_if_it_is_silent() {
    let mut peer = Peer::fast();
    let conn = peer.stack.connect(peer.now, (host_ip(7), 80).into()).unwrap();
    assert_eq!(peer.frames().len(), 1);
    peer.send_frame(arp(ArpOperation::REPLY, 7, host_ip(1), host_mac(1).0));
    assert_eq!(peer.segment().flags, "S");
    peer.stack.abort(peer.now, conn);
    let conn = peer.stack.connect(peer.now, (host_ip(8), 80).into()).unwrap();
    let mut requests = 0;
    for _ in 0..4 {
        requests += peer.frames().len();
        peer.pass(Duration::from_secs(1));
    }
    assert_eq!(requests, 3);
    assert_eq!(peer.events(), [Event::Failed(conn, FailReason::Unreachable)]);
}

#[test]
fn an_established_connection_whose_neighbour_falls_silent_times_out() {
    let mut peer = Peer::listening();
    let connection = peer.connect(4000, None, None);
    peer.pass(Duration::from_secs(1000));
    peer.write(connection.conn, b"anybody?");
    peer.frames();
    let mut events = Vec::new();
    while events.is_empty() {
        peer.next_timer();
        peer.frames();
        events = peer.events();
    }
    assert_eq!(events, [Event::Failed(connection.conn, FailReason::TimedOut)]);
    let waited = peer.now.since(Default::default());
    assert!(waited < Duration::from_secs(1400), "{waited:?}");
}

#[proves("RFC 1122 3.3.1.1", "a packet to another network is sent to a gateway")]
#[test]
fn packets_to_other_networks_are_sent_to_the_gateway() {
    let mut peer = Peer::fast();
    let socket = peer.stack.udp_bind(1000).unwrap();
    let far = Ipv4Addr::new(192, 0, 2, 1);
    peer.stack.udp_send_to(peer.now, socket, (far, 9).into(), IoBuf::from_static(b"x")).unwrap();
    assert_eq!(peer.frames()[0][38..42], host_ip(254).octets());
    peer.send_frame(arp(ArpOperation::REPLY, 254, host_ip(1), host_mac(1).0));
    let frames = peer.frames();
    assert_eq!(frames[0][..6], host_mac(254).0);
    assert_eq!(frames[0][30..34], far.octets());
    let mut config = host_config(1);
    config.addressing =
        isola_net_stack::Addressing::Static(isola_net_stack::Ipv4Config::new(host_ip(1), 16, None));
    let mut peer = Peer::new(config);
    let socket = peer.stack.udp_bind(1000).unwrap();
    let sent = peer.stack.udp_send_to(peer.now, socket, (far, 9).into(), IoBuf::from_static(b"x"));
    assert_eq!(sent, Err(SendToError::NoRoute));
}

#[proves("RFC 792 Echo", "an echo reply has the request's data")]
#[proves("RFC 1122 3.2.2.6", "an echo request to a broadcast address may be dropped")]
#[test]
fn an_echo_request_is_answered_with_its_data_within_the_rate_limit() {
    let mut config = host_config(1);
    config.limits.icmp_per_second = 10;
    let mut peer = Peer::new(config);
    peer.send_frame(ping(2, host_ip(1), b"echo this"));
    let frames = peer.frames();
    let packet = SlicedPacket::from_ethernet(&frames[0]).unwrap();
    let Some(TransportSlice::Icmpv4(icmp)) = packet.transport else { panic!("ICMP") };
    assert_eq!(icmp.icmp_type(), Icmpv4Type::EchoReply(IcmpEchoHeader { id: 7, seq: 9 }));
    assert_eq!(icmp.payload(), b"echo this");
    for _ in 0..100 {
        peer.send_frame(ping(2, host_ip(1), b"flood"));
    }
    assert_eq!(peer.frames().len(), 9);
    assert_eq!(peer.stack.counters().get(Counter::DropIcmpRate), 91);
    peer.send_frame(ping(2, Ipv4Addr::new(10, 0, 255, 255), b"smurf"));
    peer.pass(Duration::from_secs(10));
    assert_eq!(peer.frames().len(), 0);
}

#[proves("RFC 768 Interface", "a datagram is delivered with its source")]
#[proves("RFC 1122 4.1.3.5", "the specific destination address is delivered")]
#[test]
fn datagrams_arrive_with_their_sender_and_broadcasts_too() {
    let mut peer = Peer::fast();
    let socket = peer.stack.udp_bind(53).unwrap();
    peer.send_frame(udp(2, (900, 53), host_ip(1), b"one"));
    peer.send_frame(udp(3, (901, 53), Ipv4Addr::BROADCAST, b"two"));
    peer.send_frame(udp(3, (901, 53), Ipv4Addr::new(10, 0, 255, 255), b"three"));
    assert_eq!(peer.events(), [Event::Datagram(socket)]);
    let first = peer.stack.udp_receive(socket).unwrap();
    assert_eq!((&*first.payload, first.remote), (&b"one"[..], (host_ip(2), 900).into()));
    assert_eq!(peer.stack.udp_receive(socket).unwrap().local, Ipv4Addr::BROADCAST);
    assert_eq!(&*peer.stack.udp_receive(socket).unwrap().payload, b"three");
    assert!(peer.stack.udp_receive(socket).is_none());
}

#[test]
fn a_sent_datagram_is_a_view_of_the_applications_memory() {
    let mut peer = Peer::fast();
    let socket = peer.stack.udp_bind(53).unwrap();
    let data = IoBuf::copy_from_slice(&[1; 1000]);
    peer.stack.udp_send_to(peer.now, socket, (host_ip(2), 9).into(), data.clone()).unwrap();
    let frame = peer.stack.poll_transmit(peer.now).unwrap();
    assert_eq!(frame.payload.front().unwrap().as_ptr(), data.as_ptr());
    isola_net_sim::check::frame(&frame.to_vec(), 1500);
}

#[proves("RFC 1122 4.1.3.1", "a datagram for no port is answered with Port Unreachable")]
#[proves("RFC 1122 3.2.2", "no ICMP error is sent about a broadcast")]
#[proves("RFC 792 Unreachable", "an error quotes the header and 64 bits of the datagram")]
#[test]
fn a_datagram_for_a_closed_port_is_answered_with_an_error_unless_broadcast() {
    let mut peer = Peer::fast();
    peer.send_frame(udp(2, (900, 99), Ipv4Addr::BROADCAST, b"anyone?"));
    assert_eq!(peer.frames().len(), 0);
    peer.send_frame(udp(2, (900, 99), host_ip(1), b"you?"));
    let frames = peer.frames();
    let packet = SlicedPacket::from_ethernet(&frames[0]).unwrap();
    let Some(TransportSlice::Icmpv4(icmp)) = packet.transport else { panic!("ICMP") };
    assert!(matches!(icmp.icmp_type(), Icmpv4Type::DestinationUnreachable(_)));
    // The error quotes the header and eight bytes, which contain the ports.
    assert_eq!(icmp.payload().len(), 28);
    assert_eq!(icmp.payload()[20..24], [900u16.to_be_bytes(), 99u16.to_be_bytes()].concat());
    assert_eq!(peer.stack.counters().get(Counter::DropUdpPort), 2);
}

#[test]
fn a_sockets_queue_is_bounded_in_datagrams_and_in_memory() {
    let mut config = host_config(1);
    config.limits.udp_datagrams = 10;
    config.limits.udp_bytes = 20_000;
    let mut peer = Peer::new(config);
    let socket = peer.stack.udp_bind(53).unwrap();
    for _ in 0..25 {
        peer.send_frame(udp(2, (900, 53), host_ip(1), b"small"));
    }
    assert_eq!(peer.stack.counters().get(Counter::DropUdpQueueFull), 15);
    while peer.stack.udp_receive(socket).is_some() {}
    for _ in 0..25 {
        let mut frame = isola_iobuf::IoBufMut::with_room(0, 4096);
        frame.append_slice(&udp(2, (900, 53), host_ip(1), b"small in a large frame")).unwrap();
        peer.stack.receive(peer.now, frame.freeze(), isola_net_stack::RxChecksum::Unverified);
    }
    let taken = std::iter::from_fn(|| peer.stack.udp_receive(socket)).count();
    assert_eq!(taken, 4, "four frames of 4,096 bytes fit into 20,000");
}

#[test]
fn invalid_sockets_and_datagrams_are_rejected() {
    let mut peer = Peer::fast();
    let socket = peer.stack.udp_bind(53).unwrap();
    assert_eq!(peer.stack.udp_bind(53), Err(BindError::PortInUse(53)));
    let to = (host_ip(2), 9).into();
    let long = Chain::from(IoBuf::copy_from_slice(&[0; 1473]));
    assert_eq!(peer.stack.udp_send_to(peer.now, socket, to, long), Err(SendToError::TooLong(1472)));
    peer.stack.udp_close(socket);
    let sent = peer.stack.udp_send_to(peer.now, socket, to, IoBuf::from_static(b"x"));
    assert_eq!(sent, Err(SendToError::NoSocket));
    peer.stack.udp_bind(53).unwrap();
}

#[proves("RFC 1122 3.3.6", "a packet for one address in a broadcast frame is dropped")]
#[test]
fn a_unicast_packet_in_a_broadcast_frame_is_dropped() {
    let mut peer = Peer::listening();
    let mut frame = isola_net_sim::Segment::new(4000, 80, 1, None).flags("S").frame(host_ip(2), host_ip(1));
    frame[..6].fill(0xff);
    peer.send_frame(frame);
    peer.silent();
    assert_eq!(peer.stack.counters().get(Counter::DropIpv4Address), 1);
}

#[proves("RFC 1122 3.2.1.2", "a packet with a wrong header checksum is dropped")]
#[proves("RFC 1122 3.2.1.3", "a packet from an invalid source address is dropped")]
#[test]
fn frames_for_others_and_unknown_protocols_are_counted_by_reason() {
    let mut peer = Peer::fast();
    let good = udp(2, (900, 53), host_ip(1), b"x");
    let changed = |at: usize, value: u8| {
        let mut frame = good.clone();
        frame[at] = value;
        frame
    };
    peer.send_frame(changed(5, 9));
    peer.send_frame(changed(12, 0x86));
    peer.send_frame(good[..13].to_vec());
    peer.send_frame(good[..30].to_vec());
    peer.send_frame(changed(30, 11));
    let mut stranger = Vec::new();
    PacketBuilder::ethernet2(host_mac(2).0, host_mac(1).0)
        .ipv4([127, 0, 0, 1], host_ip(1).octets(), 64)
        .udp(1, 2)
        .write(&mut stranger, b"x")
        .unwrap();
    peer.send_frame(stranger);
    for counter in [
        Counter::DropEthernetAddress,
        Counter::DropEtherType,
        Counter::DropEthernetShort,
        Counter::DropIpv4Malformed,
        Counter::DropIpv4Checksum,
        Counter::DropIpv4Source,
    ] {
        assert_eq!(peer.stack.counters().get(counter), 1, "{counter:?}");
    }
}
