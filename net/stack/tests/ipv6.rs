//! IPv6 as neighbours and routers see it: addresses, neighbours, errors, and TCP and UDP above it.

use etherparse::{
    IpNumber, Ipv6FlowLabel, Ipv6Header, NetSlice, PacketBuilder, SlicedPacket, TransportSlice,
};
use isola_iobuf::IoBuf;
use isola_net_sim::{Peer, Segment, host_config, host_config6, host_ip6, host_mac};
use isola_net_stack::{
    Config, Counter, Duration, Event, FailReason, Ipv6Addressing, Preference, SendToError, core_of_frame,
    flow_hash,
};
use std::net::{Ipv6Addr, SocketAddr};

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 254);

fn group(ip: Ipv6Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(0xff02_0000_0000_0000_0000_0001_ff00_0000 | (ip.to_bits() & 0xff_ffff))
}

fn mac_for(ip: Ipv6Addr) -> [u8; 6] {
    match ip.octets() {
        [0xff, .., a, b, c, d] => [0x33, 0x33, a, b, c, d],
        _ => host_mac(1).0,
    }
}

/// An ICMPv6 message in a frame; its checksum is filled in.
fn icmp6(source: Ipv6Addr, destination: Ipv6Addr, hops: u8, message: &[u8]) -> Vec<u8> {
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

fn ip6(source: Ipv6Addr, destination: Ipv6Addr, hops: u8, next: IpNumber, payload: &[u8]) -> Vec<u8> {
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

fn solicitation(target: Ipv6Addr, mac: Option<u8>) -> Vec<u8> {
    let mut message = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target.octets()].concat();
    if let Some(number) = mac {
        message.extend_from_slice(&[1, 1]);
        message.extend_from_slice(&host_mac(number).0);
    }
    message
}

fn advertisement(target: Ipv6Addr, flags: u8, number: u8) -> Vec<u8> {
    let link = [&[2, 1][..], &host_mac(number).0].concat();
    [&[136, 0, 0, 0, flags, 0, 0, 0][..], &target.octets(), &link].concat()
}

/// A router's message: lifetime, flags, and options.
fn router(lifetime: u16, flags: u8, options: &[u8]) -> Vec<u8> {
    let mut message = vec![134, 0, 0, 0, 55, flags];
    message.extend_from_slice(&lifetime.to_be_bytes());
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(options);
    message
}

fn prefix(network: &str, flags: u8, valid: u32, preferred: u32) -> Vec<u8> {
    let mut option = vec![3, 4, 64, flags];
    option.extend_from_slice(&valid.to_be_bytes());
    option.extend_from_slice(&preferred.to_be_bytes());
    option.extend_from_slice(&[0; 4]);
    option.extend_from_slice(&network.parse::<Ipv6Addr>().unwrap().octets());
    option
}

/// What a frame of the stack is: source, destination, hop limit, ICMPv6 message.
fn read(frame: &[u8]) -> Option<(Ipv6Addr, Ipv6Addr, u8, Vec<u8>)> {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(NetSlice::Ipv6(ip)) = packet.net else { return None };
    let Some(TransportSlice::Icmpv6(icmp)) = packet.transport else { return None };
    let header = ip.header();
    Some((header.source_addr(), header.destination_addr(), header.hop_limit(), icmp.slice().to_vec()))
}

/// The types of the ICMPv6 messages that the stack sends now.
fn kinds(peer: &mut Peer) -> Vec<u8> {
    peer.frames().iter().filter_map(|frame| read(frame)).map(|(_, _, _, message)| message[0]).collect()
}

/// A stack with fd00::1, checked, that knows fd00::2.
fn peer() -> Peer {
    ready(host_config6(1))
}

fn ready(config: Config) -> Peer {
    let mut peer = Peer::new(config);
    peer.pass(Duration::from_secs(3));
    peer.stack.learn(peer.now, host_ip6(2), host_mac(2));
    peer.frames();
    peer.events();
    peer
}

fn auto() -> Config {
    Config { ipv6: Ipv6Addressing::Auto, ..host_config(1) }
}

fn addresses(peer: &Peer) -> Vec<Ipv6Addr> {
    peer.stack.ipv6().addresses.iter().flatten().map(|own| own.ip).collect()
}

/// RFC 4862 5.4.2: an address is asked about from the unspecified address before it is used.
/// RFC 3810 6.1: the group in which an address is looked for is reported, with a router alert and one hop.
/// RFC 4861 6.3.7: routers are asked for.
#[test]
fn an_address_is_checked_before_it_is_used() {
    let mut peer = Peer::new(host_config(1));
    peer.stack = isola_net_stack::Stack::new(auto(), peer.now).unwrap();
    let frames = peer.frames();
    let messages: Vec<_> = frames.iter().filter_map(|frame| read(frame)).collect();
    let kinds: Vec<u8> = messages.iter().map(|message| message.3[0]).collect();
    assert_eq!(kinds, [143, 135, 133]);
    let (source, destination, hops, report) = &messages[0];
    assert_eq!((source.is_unspecified(), *hops, report[7]), (true, 1, 1));
    assert_eq!(*destination, "ff02::16".parse::<Ipv6Addr>().unwrap());
    let (source, destination, hops, question) = &messages[1];
    let target = Ipv6Addr::from(<[u8; 16]>::try_from(&question[8..24]).unwrap());
    assert!(source.is_unspecified() && target.is_unicast_link_local() && *hops == 255);
    assert_eq!((*destination, question.len()), (group(target), 24));
    assert!(addresses(&peer).is_empty());
    peer.pass(Duration::from_secs(1));
    assert_eq!(addresses(&peer), [target]);
    assert!(peer.events().contains(&Event::Ipv6Changed));
}

/// RFC 4862 5.4.3: an address that somebody else has or checks at the same time is not used.
/// RFC 7217 6: another one is made in its place, three times.
#[test]
fn an_address_of_somebody_else_is_not_used() {
    let mut peer = Peer::new(host_config(1));
    peer.stack = isola_net_stack::Stack::new(auto(), peer.now).unwrap();
    let mut tried = Vec::new();
    for round in 0..4 {
        let question = peer.frames().iter().filter_map(|f| read(f)).find(|m| m.3[0] == 135).unwrap().3;
        let target = Ipv6Addr::from(<[u8; 16]>::try_from(&question[8..24]).unwrap());
        assert!(!tried.contains(&target));
        tried.push(target);
        let frame = if round % 2 == 0 {
            icmp6(target, ALL_NODES, 255, &advertisement(target, 0x20, 9))
        } else {
            let mut frame = icmp6(Ipv6Addr::UNSPECIFIED, group(target), 255, &solicitation(target, None));
            frame[6..12].copy_from_slice(&host_mac(9).0);
            frame
        };
        peer.send_frame(frame);
    }
    peer.pass(Duration::from_secs(60));
    assert!(addresses(&peer).is_empty());
    assert_eq!(peer.stack.counters().get(Counter::AddressConflicts), 4);
}

/// RFC 4862 5.5.3: an address is made of an advertised prefix.
/// RFC 4861 6.3.4: the router, the prefix and the MTU are used.
/// RFC 8106 5.1: advertised name servers are used.
#[test]
fn a_router_gives_an_address_and_a_way_out() {
    let mut peer = ready(auto());
    let dns: Ipv6Addr = "2001:db8::53".parse().unwrap();
    let options = [
        prefix("2001:db8:1::", 0xc0, 86_400, 3600),
        vec![5, 1, 0, 0, 0, 0, 5, 220],
        [&[25, 3, 0, 0, 0, 0, 4, 0][..], &dns.octets()].concat(),
        [&[1, 1][..], &host_mac(254).0].concat(),
    ];
    peer.send_frame(icmp6(ROUTER, ALL_NODES, 255, &router(1800, 0, &options.concat())));
    assert_eq!(kinds(&mut peer), [143, 135]);
    peer.pass(Duration::from_secs(1));
    let settings = peer.stack.ipv6();
    assert_eq!(settings.routers[0], Some(ROUTER));
    assert_eq!((settings.dns[0], settings.mtu, settings.hop_limit), (Some(dns), Some(1500), 55));
    let made = settings.global().unwrap();
    assert_eq!(made.segments()[..4], [0x2001, 0xdb8, 1, 0]);
    // What is not on the link goes to the router, whose hardware address came along.
    let socket = peer.stack.udp_bind(1000).unwrap();
    peer.frames();
    let far = SocketAddr::new("2600::1".parse().unwrap(), 9);
    peer.stack.udp_send_to(peer.now, socket, far, IoBuf::from_static(b"x")).unwrap();
    let frame = peer.frames().remove(0);
    assert_eq!(frame[..6], host_mac(254).0);
    assert_eq!((frame[21], &frame[22..38]), (55, &made.octets()[..]));
    // After its time the address is only used by who has it, and then not at all.
    peer.pass(Duration::from_secs(3600));
    let own = peer.stack.ipv6().addresses.into_iter().flatten().find(|own| own.ip == made).unwrap();
    assert_eq!(own.preference, Preference::Deprecated);
    assert_eq!(peer.stack.ipv6().routers, [None; 4]);
    peer.pass(Duration::from_secs(90_000));
    assert_eq!(peer.stack.ipv6().global(), None);
}

/// RFC 4862 5.5.3: an advertisement cuts a valid lifetime to two hours, and not below.
#[test]
fn a_forged_advertisement_does_not_take_an_address_at_once() {
    let mut peer = ready(auto());
    let tell = |peer: &mut Peer, valid, preferred| {
        let options = prefix("2001:db8:1::", 0xc0, valid, preferred);
        peer.send_frame(icmp6(ROUTER, ALL_NODES, 255, &router(1800, 0, &options)));
        peer.pass(Duration::from_secs(2));
        peer.frames();
    };
    tell(&mut peer, 86_400, 3600);
    tell(&mut peer, 0, 0);
    assert!(peer.stack.ipv6().global().is_some());
    peer.pass(Duration::from_secs(7100));
    assert!(peer.stack.ipv6().global().is_some());
    tell(&mut peer, 60, 60);
    assert!(peer.stack.ipv6().global().is_some(), "less than two hours are left: ignored");
    peer.pass(Duration::from_secs(200));
    assert_eq!(peer.stack.ipv6().global(), None);
}

/// RFC 4861 6.1.2: an advertisement from afar, from no link-local address or malformed is not believed.
/// RFC 4861 7.1: the same of neighbours' messages.
#[test]
fn messages_that_passed_a_router_are_not_believed() {
    let mut peer = ready(auto());
    let good = router(1800, 0, &prefix("2001:db8:1::", 0xc0, 600, 600));
    peer.send_frame(icmp6(ROUTER, ALL_NODES, 254, &good));
    peer.send_frame(icmp6(host_ip6(9), ALL_NODES, 255, &good));
    peer.send_frame(icmp6(ROUTER, ALL_NODES, 255, &[&good[..], &[3, 0, 0, 0, 0, 0, 0, 0]].concat()));
    let own = addresses(&peer)[0];
    peer.send_frame(icmp6(host_ip6(9), own, 64, &solicitation(own, Some(9))));
    peer.pass(Duration::from_secs(5));
    assert_eq!(peer.stack.ipv6().routers, [None; 4]);
    assert_eq!(peer.stack.counters().get(Counter::DropNdpInvalid), 4);
}

/// RFC 6583 7.1: tables of routers, prefixes and addresses are bounded.
#[test]
fn a_flood_of_routers_and_prefixes_stays_within_bounds() {
    let mut peer = ready(auto());
    for i in 0..200u16 {
        let from = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 1, i);
        let options = prefix(&format!("2001:db8:{i:x}::"), 0xc0, 600, 600);
        peer.send_frame(icmp6(from, ALL_NODES, 255, &router(1800, 0, &options)));
    }
    peer.frames();
    peer.pass(Duration::from_secs(2));
    assert_eq!(addresses(&peer).len(), 8);
    assert!(peer.stack.ipv6().routers.iter().all(Option::is_some));
    assert!(peer.stack.counters().get(Counter::DropNdpTable) >= 3 * 190);
}

/// RFC 4861 7.2.4: a question for an address of ours is answered, solicited and overriding.
/// RFC 4861 7.2.4: who checks an address is answered for all.
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

/// RFC 4861 7.2.2: packets wait for the answer to a question in the neighbour's group.
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

/// RFC 4861 7.3.1: a connection that gets on confirms its neighbour, which is not asked again.
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

/// RFC 4443 4.2: an echo request is answered from the address that it was sent to, or one of ours for a group.
/// RFC 4443 2.4: answers are limited in their rate.
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

/// RFC 4443 3.1: a closed port is told to the sender.
/// RFC 4443 3.4: an unknown transport and a routing header are told to the sender.
/// RFC 4443 2.4: no error is answered by an error, nor a packet for a group.
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
    let route = [6, 0, 0, 1, 0, 0, 0, 0];
    let source_routed = ip6(host_ip6(2), host_ip6(1), 64, IpNumber::IPV6_ROUTE_HEADER, &route);
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

/// RFC 3810 6.2: a query is answered within the time that it gives, once.
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

/// RFC 8200 8.1: a datagram over IPv6 has a checksum.
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
fn a_flow_over_ipv6_has_one_core_in_both_directions() {
    let segment = Segment::new(4000, 80, 1, None).flags("S");
    let there = segment.frame(host_ip6(2), host_ip6(1));
    let back = Segment::new(80, 4000, 1, None).frame(host_ip6(1), host_ip6(2));
    assert!(flow_hash(&there).is_some());
    assert_eq!(flow_hash(&there), flow_hash(&back));
    assert_eq!(core_of_frame(&there, 64), core_of_frame(&back, 64));
    let flow = isola_net_stack::Flow::new(host_ip6(1).into(), 80, host_ip6(2).into(), 4000);
    assert_eq!(Some(isola_net_stack::hash_of_flow(&flow)), flow_hash(&there));
    let error = [&[1, 4, 0, 0, 0, 0, 0, 0][..], &back[14..]].concat();
    let error = icmp6(host_ip6(2), host_ip6(1), 64, &error);
    assert_eq!(flow_hash(&error), flow_hash(&there));
    assert_eq!(flow_hash(&icmp6(host_ip6(2), host_ip6(1), 255, &solicitation(host_ip6(1), None))), None);
}
