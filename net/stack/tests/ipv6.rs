//! IPv6 as seen by neighbours: neighbour discovery, errors, and TCP and UDP over IPv6.

use crate::link6::*;
use etherparse::{IpNumber, PacketBuilder};
use isola_iobuf::IoBuf;
use isola_net_sim::{Peer, Segment, host_config6, host_ip6, host_mac};
use isola_net_stack::{Counter, Duration, Event, FailReason, SendToError, flow_of};
use isola_proves::proves;
use std::net::{Ipv6Addr, SocketAddr};

#[proves(
    "RFC 4861 7.2.4",
    "a solicitation for our address is answered, with the flags solicited and override."
)]
#[proves("RFC 4861 7.2.4", "a duplicate address check is answered to all nodes.")]
#[test]
fn solicitations_for_our_address_are_answered() {
    let mut peer = peer();
    peer.send_frame(icmp6(host_ip6(3), group(host_ip6(1)), 255, &solicitation(host_ip6(1), Some(3))));
    let frames = peer.frames();
    let (source, destination, hops, message) = read(&frames[0]).unwrap();
    assert_eq!(frames[0][..6], host_mac(3).0);
    assert_eq!((source, destination, hops), (host_ip6(1), host_ip6(3), 255));
    assert_eq!((message[0], message[4]), (136, 0x60));
    assert_eq!(message[26..32], host_mac(1).0);
    let mut check = icmp6(Ipv6Addr::UNSPECIFIED, group(host_ip6(1)), 255, &solicitation(host_ip6(1), None));
    check[6..12].copy_from_slice(&host_mac(3).0);
    peer.send_frame(check);
    let (_, destination, _, message) = read(&peer.frames()[0]).unwrap();
    assert_eq!((destination, message[0], message[4]), (ALL_NODES, 136, 0x20));
    peer.send_frame(icmp6(host_ip6(3), group(host_ip6(1)), 255, &solicitation(host_ip6(9), Some(3))));
    assert_eq!(peer.frames().len(), 0);
}

#[proves("RFC 4861 7.2.2", "packets wait for the answer to a solicitation in the neighbour's group.")]
#[test]
fn packets_wait_for_their_neighbour() {
    let mut peer = peer();
    let socket = peer.stack.udp_bind(1000).unwrap();
    let to = SocketAddr::new(host_ip6(7).into(), 9);
    peer.stack.udp_send_to(peer.now, socket, to, IoBuf::from_static(b"x")).unwrap();
    let frames = peer.frames();
    let (source, destination, _, message) = read(&frames[0]).unwrap();
    assert_eq!((frames.len(), source, destination, message[0]), (1, host_ip6(1), group(host_ip6(7)), 135));
    peer.send_frame(icmp6(host_ip6(7), host_ip6(1), 255, &advertisement(host_ip6(7), 0x60, 7)));
    let frames = peer.frames();
    assert_eq!((frames.len(), &frames[0][..6]), (1, &host_mac(7).0[..]));
    let conn = peer.stack.connect(peer.now, SocketAddr::new(host_ip6(8).into(), 80)).unwrap();
    peer.frames();
    peer.pass(Duration::from_secs(4));
    assert_eq!(peer.events(), [Event::Failed(conn, FailReason::Unreachable)]);
}

#[proves("RFC 4861 7.3.1", "progress of a connection confirms its neighbour, which is not solicited again.")]
#[test]
fn progress_of_a_connection_confirms_its_neighbour() {
    let mut peer = peer();
    let mut seq = 1000;
    peer.stack.listen(80, 4).unwrap();
    peer.send_frame(Segment::new(4000, 80, seq, None).flags("S").frame(host_ip6(2), host_ip6(1)));
    let answer = Segment::read(&peer.frames()[0]).unwrap().2;
    seq += 1;
    peer.send_frame(
        Segment::new(4000, 80, seq, Some(answer.seq.wrapping_add(1))).frame(host_ip6(2), host_ip6(1)),
    );
    let Some(Event::Accepted { conn, .. }) = peer.events().pop() else { panic!("a connection") };
    for _ in 0..200 {
        let said = Segment::new(4000, 80, seq, Some(answer.seq.wrapping_add(1))).payload(b"hello");
        peer.send_frame(said.frame(host_ip6(2), host_ip6(1)));
        seq += 5;
        assert_eq!(peer.read(conn), b"hello");
        peer.pass(Duration::from_secs(1));
        assert_eq!(kinds(&mut peer), []);
    }
    // A long idle connection does not confirm its neighbour.
    peer.pass(Duration::from_secs(300));
    for second in 0..8 {
        peer.write(conn, b"anybody?");
        let asked = kinds(&mut peer).len();
        assert_eq!(asked, usize::from((5..8).contains(&second)), "{second}");
        peer.pass(Duration::from_secs(1));
    }
}

#[proves(
    "RFC 4443 4.2",
    "an echo request is answered from its destination, or from one of our addresses for a group."
)]
#[proves("RFC 4443 2.4", "answers are limited in their rate.")]
#[test]
fn an_echo_request_is_answered() {
    let mut config = host_config6(1);
    config.limits.icmp_per_second = 3;
    let mut peer = ready(config);
    let request = [&[128, 0, 0, 0, 0, 7, 0, 9][..], b"echo this"].concat();
    peer.send_frame(icmp6(host_ip6(2), host_ip6(1), 64, &request));
    peer.send_frame(icmp6(host_ip6(2), ALL_NODES, 64, &request));
    let frames = peer.frames();
    for frame in &frames {
        let (source, destination, hops, message) = read(frame).unwrap();
        assert_eq!((source, destination, hops), (host_ip6(1), host_ip6(2), 64));
        assert_eq!((message[0], &message[4..]), (129, &request[4..]));
    }
    for _ in 0..10 {
        peer.send_frame(icmp6(host_ip6(2), host_ip6(1), 64, &request));
    }
    assert_eq!((frames.len(), peer.frames().len()), (2, 1), "three at once");
    assert_eq!(peer.stack.counters().get(Counter::DropIcmpRate), 9);
}

#[proves("RFC 4443 3.1", "a closed port is reported to the sender.")]
#[proves("RFC 4443 3.4", "an unknown transport and a routing header are reported to the sender.")]
#[proves("RFC 4443 2.4", "neither an error nor a packet for a group is answered by an error.")]
#[test]
fn errors_are_reported_to_senders() {
    let mut peer = peer();
    let mut error_for = |frame: Vec<u8>| {
        peer.send_frame(frame);
        let frames = peer.frames();
        frames.first().map(|frame| read(frame).unwrap().3).map(|m| (m[0], m[1], m[7], m.len()))
    };
    let mut datagram = Vec::new();
    PacketBuilder::ethernet2(host_mac(2).0, host_mac(1).0)
        .ipv6(host_ip6(2).octets(), host_ip6(1).octets(), 64)
        .udp(900, 99)
        .write(&mut datagram, b"you?")
        .unwrap();
    assert_eq!(error_for(datagram.clone()), Some((1, 4, 0, 8 + 40 + 12)));
    assert_eq!(error_for(ip6(host_ip6(2), host_ip6(1), 64, IpNumber(200), &[0; 8])), Some((4, 1, 6, 56)));
    let mut padded = datagram.clone();
    padded.extend_from_slice(&[0; 9]);
    assert_eq!(error_for(padded), Some((1, 4, 0, 8 + 40 + 12)), "without padding of the link");
    let route = [6, 0, 0, 1, 0, 0, 0, 0];
    let mut source_routed = ip6(host_ip6(2), host_ip6(1), 64, IpNumber::IPV6_ROUTE_HEADER, &route);
    source_routed.extend_from_slice(&[0; 9]);
    assert_eq!(error_for(source_routed), Some((4, 0, 42, 56)));
    let long = ip6(host_ip6(2), host_ip6(1), 64, IpNumber(200), &[0; 1400]);
    assert_eq!(error_for(long), Some((4, 1, 6, 1240)), "limited to the minimum MTU");
    assert_eq!(error_for(ip6(host_ip6(2), ALL_NODES, 64, IpNumber(200), &[0; 8])), None);
    let error = [&[1, 4, 0, 0, 0, 0, 0, 0][..], &datagram[14..]].concat();
    let error = icmp6(host_ip6(2), host_ip6(1), 64, &error);
    let routed_error =
        ip6(host_ip6(2), host_ip6(1), 64, IpNumber::IPV6_ROUTE_HEADER, &[58, 0, 0, 1, 0, 0, 0, 0, 1, 4]);
    assert_eq!((error_for(error), error_for(routed_error)), (None, None));
}

#[proves("RFC 3810 6.2", "a query is answered once, within its maximum response time.")]
#[test]
fn a_listener_query_is_answered_once_within_its_time() {
    let mut peer = peer();
    let mut query = vec![130, 0, 0, 0, 3, 232, 0, 0];
    query.extend_from_slice(&[0; 20]);
    for _ in 0..5 {
        peer.send_frame(icmp6(ROUTER, ALL_NODES, 1, &query));
    }
    peer.pass(Duration::from_secs(1));
    let frames = peer.frames();
    assert_eq!(frames.len(), 1);
    let (source, _, hops, message) = read(&frames[0]).unwrap();
    assert!(source.is_unicast_link_local());
    assert_eq!((message[0], message[7], hops), (143, 2, 1));
    peer.pass(Duration::from_secs(60));
    assert_eq!(peer.frames().len(), 0);
}

#[proves("RFC 8200 8.1", "a datagram over IPv6 has a checksum.")]
#[test]
fn datagrams_are_received_and_sent() {
    let mut peer = peer();
    let socket = peer.stack.udp_bind(53).unwrap();
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(host_mac(2).0, host_mac(1).0)
        .ipv6(host_ip6(2).octets(), host_ip6(1).octets(), 64)
        .udp(900, 53)
        .write(&mut frame, b"one")
        .unwrap();
    let mut unsummed = frame.clone();
    unsummed[60..62].fill(0);
    peer.send_frame(frame);
    peer.send_frame(unsummed);
    let datagram = peer.stack.udp_receive(socket).unwrap();
    assert_eq!((&*datagram.payload, datagram.remote.ip()), (&b"one"[..], host_ip6(2).into()));
    assert!(peer.stack.udp_receive(socket).is_none());
    assert_eq!(peer.stack.counters().get(Counter::DropUdpChecksum), 1);
    let long = IoBuf::copy_from_slice(&[0; 1453]);
    let sent = peer.stack.udp_send_to(peer.now, socket, datagram.remote, long);
    assert_eq!(sent, Err(SendToError::TooLong(1452)));
    peer.stack.udp_send_to(peer.now, socket, datagram.remote, IoBuf::copy_from_slice(&[0; 1452])).unwrap();
    assert_eq!(peer.frames()[0].len(), 1514);
}

#[test]
fn a_connection_is_opened_over_ipv6() {
    let mut peer = peer();
    let remote = SocketAddr::new(host_ip6(2).into(), 80);
    let conn = peer.stack.connect(peer.now, remote).unwrap();
    let (source, _, syn) = Segment::read(&peer.frames()[0]).unwrap();
    assert_eq!((source, syn.mss), (host_ip6(1).into(), Some(1440)));
    let answer = Segment::new(80, syn.from, 9, Some(syn.seq.wrapping_add(1))).flags("S");
    peer.send_frame(answer.frame(host_ip6(2), host_ip6(1)));
    assert_eq!(peer.events(), [Event::Connected(conn)]);
    assert_eq!(peer.stack.remote_addr(conn), Some(remote));
}

#[test]
fn the_flow_of_an_ipv6_segment_is_found_in_frames_and_in_errors_that_quote_it() {
    let segment = Segment::new(4000, 80, 1, None).flags("S");
    let there = segment.frame(host_ip6(2), host_ip6(1));
    let back = Segment::new(80, 4000, 1, None).frame(host_ip6(1), host_ip6(2));
    let flow = isola_net_stack::Flow::new(host_ip6(1).into(), 80, host_ip6(2).into(), 4000);
    assert_eq!(flow_of(&there), Some(flow));
    let error = [&[1, 4, 0, 0, 0, 0, 0, 0][..], &back[14..]].concat();
    assert_eq!(flow_of(&icmp6(host_ip6(2), host_ip6(1), 64, &error)), Some(flow));
    assert_eq!(flow_of(&icmp6(host_ip6(2), host_ip6(1), 255, &solicitation(host_ip6(1), None))), None);
}

#[proves("RFC 4861 6.3.6", "if a router is silent, its connections use the next one; if all are, they fail.")]
#[test]
fn connections_use_the_next_router_if_one_is_silent() {
    let routers = [ROUTER, Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 253)];
    let remote = SocketAddr::new("2001:db8::1".parse().unwrap(), 80);
    let ready = || {
        let mut peer = peer();
        let mut settings = peer.stack.ipv6();
        settings.routers[..2].copy_from_slice(&routers.map(Some));
        peer.stack.set_ipv6(peer.now, settings);
        peer.events();
        let conn = peer.stack.connect(peer.now, remote).unwrap();
        (peer, conn)
    };
    let solicited = |peer: &mut Peer| read(&peer.frames()[0]).unwrap().3[8..24].to_vec();
    let (mut peer, _) = ready();
    assert_eq!(solicited(&mut peer), routers[0].octets());
    peer.pass(Duration::from_secs(3));
    assert_eq!(peer.events(), []);
    assert!(peer.frames().iter().any(|frame| read(frame).unwrap().3[8..24] == routers[1].octets()));
    peer.send_frame(icmp6(routers[1], host_ip6(1), 255, &advertisement(routers[1], 0xe0, 9)));
    let frames = peer.frames();
    assert_eq!((frames.len(), &frames[0][..6]), (1, &host_mac(9).0[..]));
    let (mut peer, conn) = ready();
    for _ in 0..7 {
        peer.frames();
        peer.pass(Duration::from_secs(1));
    }
    assert_eq!(peer.events(), [Event::Failed(conn, FailReason::Unreachable)]);
}

#[proves("RFC 4861 6.3.6", "packets that waited for a silent router are sent to the next one.")]
#[test]
fn datagrams_use_the_next_router_if_one_is_silent() {
    let routers = [ROUTER, Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 253)];
    let mut peer = peer();
    let mut settings = peer.stack.ipv6();
    settings.routers[..2].copy_from_slice(&routers.map(Some));
    peer.stack.set_ipv6(peer.now, settings);
    let socket = peer.stack.udp_bind(1000).unwrap();
    let to = SocketAddr::new("2001:db8::1".parse().unwrap(), 9);
    let dropped = |peer: &Peer| peer.stack.counters().get(Counter::DropNeighbourSilent);
    for word in [b"one", b"two"] {
        peer.stack.udp_send_to(peer.now, socket, to, IoBuf::from_static(word)).unwrap();
    }
    peer.pass(Duration::from_secs(3));
    peer.frames();
    peer.send_frame(icmp6(routers[1], host_ip6(1), 255, &advertisement(routers[1], 0xe0, 9)));
    let frames = peer.frames();
    assert!(frames.iter().all(|frame| frame[..6] == host_mac(9).0));
    assert!(frames.iter().map(|frame| &frame[62..]).eq([b"one", b"two"]) && dropped(&peer) == 0);
    // If no router answers, the datagrams are lost and counted.
    let mut peer = Peer::new(host_config6(1));
    peer.pass(Duration::from_secs(60));
    peer.frames();
    peer.stack.set_ipv6(peer.now, settings);
    let socket = peer.stack.udp_bind(1000).unwrap();
    peer.stack.udp_send_to(peer.now, socket, to, IoBuf::from_static(b"lost")).unwrap();
    for _ in 0..7 {
        peer.frames();
        peer.pass(Duration::from_secs(1));
    }
    assert_eq!(dropped(&peer), 1);
}

#[proves(
    "RFC 1122 4.1.3.5",
    "an answer has the request's destination as source, if that is one of our addresses."
)]
#[test]
fn a_datagram_is_answered_from_its_destination() {
    let mut peer = peer();
    let socket = peer.stack.udp_bind(53).unwrap();
    let link_local = addresses(&peer).into_iter().find(Ipv6Addr::is_unicast_link_local).unwrap();
    for (asked, answers) in [(link_local, link_local), (host_ip6(1), host_ip6(1)), (ALL_NODES, host_ip6(1))] {
        let mut datagram = Vec::new();
        PacketBuilder::ethernet2(host_mac(2).0, mac_for(asked))
            .ipv6(host_ip6(2).octets(), asked.octets(), 64)
            .udp(900, 53)
            .write(&mut datagram, b"?")
            .unwrap();
        peer.send_frame(datagram);
        let asked = peer.stack.udp_receive(socket).unwrap();
        peer.stack.udp_answer(peer.now, socket, &asked, IoBuf::from_static(b"!")).unwrap();
        assert_eq!(peer.frames()[0][22..38], answers.octets());
    }
}
