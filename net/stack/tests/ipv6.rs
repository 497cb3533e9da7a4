//! IPv6 as neighbours see it: the search for neighbours, errors, and TCP and UDP above it.

mod link6;

use etherparse::{IpNumber, PacketBuilder};
use isola_iobuf::IoBuf;
use isola_net_sim::{Peer, Segment, host_config6, host_ip6, host_mac};
use isola_net_stack::{Counter, Duration, Event, FailReason, SendToError, flow_of};
use isola_proves::proves;
use link6::*;
use std::net::{Ipv6Addr, SocketAddr};

#[proves("RFC 4861 7.2.4", "a question for an address of ours is answered, solicited and overriding.")]
#[proves("RFC 4861 7.2.4", "who checks an address is answered for all.")]
#[test]
fn questions_for_our_address_are_answered() {
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

#[proves("RFC 4861 7.2.2", "packets wait for the answer to a question in the neighbour's group.")]
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

#[proves("RFC 4861 7.3.1", "a connection that gets on confirms its neighbour, which is not asked again.")]
#[test]
fn a_busy_connections_neighbour_is_not_asked() {
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
    // One that was idle for long is not taken for confirmed.
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
    "an echo request is answered from the address that it was sent to, or one of ours for a group."
)]
#[proves("RFC 4443 2.4", "answers are limited in their rate.")]
#[test]
fn an_echo_request_comes_back() {
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
    assert_eq!((frames.len(), peer.frames().len()), (2, 4), "three, and as many after a pause");
    assert_eq!(peer.stack.counters().get(Counter::DropIcmpRate), 6);
}

#[proves("RFC 4443 3.1", "a closed port is told to the sender.")]
#[proves("RFC 4443 3.4", "an unknown transport and a routing header are told to the sender.")]
#[proves("RFC 4443 2.4", "no error is answered by an error, nor a packet for a group.")]
#[test]
fn senders_hear_what_is_wrong() {
    let mut peer = peer();
    let mut told = |frame: Vec<u8>| {
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
    assert_eq!(told(datagram.clone()), Some((1, 4, 0, 8 + 40 + 12)));
    assert_eq!(told(ip6(host_ip6(2), host_ip6(1), 64, IpNumber(200), &[0; 8])), Some((4, 1, 6, 56)));
    let mut padded = datagram.clone();
    padded.extend_from_slice(&[0; 9]);
    assert_eq!(told(padded), Some((1, 4, 0, 8 + 40 + 12)), "without what the link padded");
    let route = [6, 0, 0, 1, 0, 0, 0, 0];
    let mut source_routed = ip6(host_ip6(2), host_ip6(1), 64, IpNumber::IPV6_ROUTE_HEADER, &route);
    source_routed.extend_from_slice(&[0; 9]);
    assert_eq!(told(source_routed), Some((4, 0, 42, 56)));
    let long = ip6(host_ip6(2), host_ip6(1), 64, IpNumber(200), &[0; 1400]);
    assert_eq!(told(long), Some((4, 1, 6, 1240)), "as much as surely gets through");
    assert_eq!(told(ip6(host_ip6(2), ALL_NODES, 64, IpNumber(200), &[0; 8])), None);
    let error = [&[1, 4, 0, 0, 0, 0, 0, 0][..], &datagram[14..]].concat();
    let error = icmp6(host_ip6(2), host_ip6(1), 64, &error);
    let routed_error =
        ip6(host_ip6(2), host_ip6(1), 64, IpNumber::IPV6_ROUTE_HEADER, &[58, 0, 0, 1, 0, 0, 0, 0, 1, 4]);
    assert_eq!((told(error), told(routed_error)), (None, None));
}

#[proves("RFC 3810 6.2", "a query is answered within the time that it gives, once.")]
#[test]
fn a_query_for_listeners_is_answered_within_its_time() {
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
fn datagrams_come_and_go() {
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
fn connections_are_made_in_both_directions() {
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
fn a_flow_over_ipv6_is_known_by_its_segments_and_by_what_quotes_them() {
    let segment = Segment::new(4000, 80, 1, None).flags("S");
    let there = segment.frame(host_ip6(2), host_ip6(1));
    let back = Segment::new(80, 4000, 1, None).frame(host_ip6(1), host_ip6(2));
    let flow = isola_net_stack::Flow::new(host_ip6(1).into(), 80, host_ip6(2).into(), 4000);
    assert_eq!(flow_of(&there), Some(flow));
    let error = [&[1, 4, 0, 0, 0, 0, 0, 0][..], &back[14..]].concat();
    assert_eq!(flow_of(&icmp6(host_ip6(2), host_ip6(1), 64, &error)), Some(flow));
    assert_eq!(flow_of(&icmp6(host_ip6(2), host_ip6(1), 255, &solicitation(host_ip6(1), None))), None);
}

#[proves(
    "RFC 4861 6.3.6",
    "where a router is silent, what waits for it goes by the next one; where all are, it fails."
)]
#[test]
fn connections_go_by_the_next_router_where_one_is_silent() {
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
    let asked_for = |peer: &mut Peer| read(&peer.frames()[0]).unwrap().3[8..24].to_vec();
    let (mut peer, _) = ready();
    assert_eq!(asked_for(&mut peer), routers[0].octets());
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

#[proves("RFC 4861 6.3.6", "what waited for a silent router goes by the next one.")]
#[test]
fn datagrams_go_by_the_next_router_where_one_is_silent() {
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
    // Where none answers they are lost, and counted.
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

#[proves("RFC 1122 4.1.3.5", "an answer comes from the address that was asked, where it is one of ours.")]
#[test]
fn a_datagram_is_answered_from_the_address_that_was_asked() {
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
