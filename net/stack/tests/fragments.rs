//! Fragmented packets, and paths with a smaller MTU than the link.

use etherparse::{IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, NetSlice, SlicedPacket, TransportSlice};
use isola_iobuf::IoBuf;
use isola_net_sim::{Peer, Segment, host_config, host_config6, host_ip, host_ip6, host_mac, share, steering};
use isola_net_stack::{
    Addressing, Config, Counter, Duration, Event, Ipv6Addressing, SendToError, UdpId, datagram_port,
};
use isola_proves::proves;
use std::net::{IpAddr, SocketAddr};

/// Returns a stack with IPv4, IPv6 and a socket on port 53.
fn peer(config: Config) -> (Peer, UdpId) {
    let mut peer = Peer::new(config);
    peer.pass(Duration::from_secs(3));
    peer.stack.learn(peer.now, host_ip6(2), host_mac(2));
    peer.stack.learn(peer.now, host_ip(2), host_mac(2));
    let socket = peer.stack.udp_bind(53).unwrap();
    peer.frames();
    peer.events();
    (peer, socket)
}

/// Returns the header and data of a datagram, without a checksum over IPv4 and with one over IPv6.
fn datagram(six: bool, data: &[u8]) -> Vec<u8> {
    let header = etherparse::UdpHeader {
        source_port: 900,
        destination_port: 53,
        length: 8 + data.len() as u16,
        checksum: 0,
    };
    let (a, b) = (host_ip6(2).octets(), host_ip6(1).octets());
    let checksum = if six { header.calc_checksum_ipv6_raw(a, b, data).unwrap() } else { 0 };
    [&etherparse::UdpHeader { checksum, ..header }.to_bytes()[..], data].concat()
}

/// Returns a frame with the fragment `from..to` of `whole`.
fn part(six: bool, id: u16, whole: &[u8], from: usize, to: usize) -> Vec<u8> {
    raw(six, id, from, to < whole.len(), &whole[from..to])
}

fn raw(six: bool, id: u16, offset: usize, more: bool, data: &[u8]) -> Vec<u8> {
    let mut frame = [&host_mac(1).0[..], &host_mac(2).0].concat();
    if six {
        let header = Ipv6Header {
            traffic_class: 0,
            flow_label: Ipv6FlowLabel::ZERO,
            payload_length: data.len() as u16 + 8,
            next_header: IpNumber::IPV6_FRAGMENTATION_HEADER,
            hop_limit: 64,
            source: host_ip6(2).octets(),
            destination: host_ip6(1).octets(),
        };
        frame.extend_from_slice(&[0x86, 0xdd]);
        frame.extend_from_slice(&header.to_bytes());
        let place = offset as u16 | u16::from(more);
        frame.extend_from_slice(&[17, 0]);
        frame.extend_from_slice(&place.to_be_bytes());
        frame.extend_from_slice(&u32::from(id).to_be_bytes());
    } else {
        let (a, b) = (host_ip(2).octets(), host_ip(1).octets());
        let mut header = Ipv4Header::new(data.len() as u16, 64, IpNumber::UDP, a, b).unwrap();
        header.identification = id;
        header.dont_fragment = false;
        header.more_fragments = more;
        header.fragment_offset = (offset as u16 / 8).try_into().unwrap();
        header.header_checksum = header.calc_header_checksum();
        frame.extend_from_slice(&[8, 0]);
        frame.extend_from_slice(&header.to_bytes());
    }
    frame.extend_from_slice(data);
    frame
}

fn count(peer: &Peer, counter: Counter) -> u64 {
    peer.stack.counters().get(counter)
}

#[proves("RFC 791 3.2", "the fragments of a packet are reassembled in any order.")]
#[proves("RFC 8200 4.5", "the same over IPv6.")]
#[test]
fn fragments_are_reassembled_in_any_order() {
    let data: Vec<u8> = (0..3000u32).map(|i| (i * 7) as u8).collect();
    for six in [false, true] {
        let (mut peer, socket) = peer(host_config6(1));
        let whole = datagram(six, &data);
        let cuts = [(0, 1000), (1000, 2000), (2000, whole.len())];
        let orders = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [1, 0, 2], [0, 2, 1], [2, 0, 1]];
        for (id, order) in orders.into_iter().enumerate() {
            for at in order {
                assert!(peer.stack.udp_receive(socket).is_none());
                peer.send_frame(part(six, id as u16, &whole, cuts[at].0, cuts[at].1));
            }
            let got = peer.stack.udp_receive(socket).unwrap();
            assert_eq!((&*got.payload, got.remote.port()), (&data[..], 900));
        }
        assert_eq!(count(&peer, Counter::Reassembled), 6);
        peer.pass(Duration::from_secs(100));
        assert_eq!(count(&peer, Counter::DropFragmentTime), 0);
    }
}

#[proves("RFC 5722 4", "overlapping fragments discard their packet, including later fragments.")]
#[proves("RFC 8200 4.5", "a duplicate fragment is ignored.")]
#[test]
fn overlapping_fragments_discard_their_packet() {
    for six in [false, true] {
        let (mut peer, socket) = peer(host_config6(1));
        let whole = datagram(six, &[1; 2000]);
        peer.send_frame(part(six, 1, &whole, 0, 800));
        peer.send_frame(part(six, 1, &whole, 0, 800));
        assert_eq!(count(&peer, Counter::DropFragmentRepeated), 1);
        peer.send_frame(part(six, 1, &whole, 792, 1600));
        peer.send_frame(part(six, 1, &whole, 800, 1600));
        peer.send_frame(part(six, 1, &whole, 1600, whole.len()));
        assert_eq!(count(&peer, Counter::DropFragmentOverlap), 3);
        // The end of a packet cannot change, neither to before received fragments nor to behind the announced end.
        peer.send_frame(part(six, 2, &whole, 1600, whole.len()));
        peer.send_frame(raw(six, 2, 2400, true, &[0; 8]));
        peer.send_frame(part(six, 3, &whole, 800, 1600));
        peer.send_frame(raw(six, 3, 8, false, &[0; 8]));
        assert_eq!(count(&peer, Counter::DropFragmentOverlap), 5);
        // A fragment must not overlap the following one either.
        peer.send_frame(part(six, 4, &whole, 800, 1600));
        peer.send_frame(part(six, 4, &whole, 0, 808));
        assert_eq!(count(&peer, Counter::DropFragmentOverlap), 6);
        assert!(peer.stack.udp_receive(socket).is_none());
    }
}

#[proves("RFC 7112 5", "a first fragment without the entire transport header is dropped.")]
#[proves(
    "RFC 8200 4.5",
    "fragments except the last are multiples of eight bytes, and packets have at most 65,535 bytes."
)]
#[test]
fn invalid_fragments_are_dropped() {
    for six in [false, true] {
        let (mut peer, _) = peer(host_config6(1));
        peer.send_frame(raw(six, 1, 0, true, &[0; 12]));
        peer.send_frame(raw(six, 2, 65_528, false, &[0; 8]));
        peer.send_frame(raw(six, 3, 8, false, &[]));
        assert_eq!(count(&peer, Counter::DropFragmentMalformed), 3);
        peer.send_frame(raw(six, 4, 0, true, &[]));
        assert_eq!(count(&peer, Counter::DropFragmentMalformed), 4);
        let mut tcp = raw(six, 5, 0, true, &[0; 16]);
        let protocol = if six { 54 } else { 23 };
        tcp[protocol] = 6;
        if !six {
            let mut header = Ipv4Header::from_slice(&tcp[14..]).unwrap().0;
            header.header_checksum = header.calc_header_checksum();
            tcp[14..34].copy_from_slice(&header.to_bytes());
        }
        peer.send_frame(tcp);
        assert_eq!(count(&peer, Counter::DropFragmentTiny), 1);
    }
}

#[proves(
    "RFC 8200 4.5",
    "after 60 seconds the fragments are dropped, and the sender is notified if the first one had arrived."
)]
#[test]
fn incomplete_packets_expire_after_a_minute() {
    for six in [false, true] {
        let (mut peer, socket) = peer(host_config6(1));
        let whole = datagram(six, &[1; 2000]);
        peer.send_frame(part(six, 1, &whole, 0, 1000));
        peer.pass(Duration::from_secs(59));
        assert_eq!(peer.frames().len(), 0);
        peer.pass(Duration::from_secs(2));
        peer.send_frame(part(six, 1, &whole, 1000, whole.len()));
        assert!(peer.stack.udp_receive(socket).is_none());
        assert_eq!(count(&peer, Counter::DropFragmentTime), 1);
        let is_notified = peer.data_frames().iter().any(|frame| frame.get(54..56) == Some(&[3, 1]));
        assert_eq!(is_notified, six);
    }
}

#[test]
fn floods_of_fragments_use_bounded_memory() {
    let mut config = host_config6(1);
    config.limits.fragmented_packets = 8;
    config.limits.fragment_bytes = 100_000;
    let (mut peer, socket) = peer(config);
    for id in 0..1000 {
        peer.send_frame(raw(true, id, 0, true, &[0; 1024]));
    }
    assert_eq!(count(&peer, Counter::DropFragmentLimit), 992);
    for offset in 1..65 {
        peer.send_frame(raw(true, 2000, offset * 16, true, &[0; 8]));
    }
    assert_eq!(count(&peer, Counter::DropFragmentLimit), 993);
    peer.send_frame(raw(true, 2000, 65 * 16, true, &[0; 8]));
    assert_eq!(count(&peer, Counter::DropFragmentLimit), 994, "too many fragments of one packet");
    for id in 3000..3008 {
        for part in 0..40 {
            peer.send_frame(raw(true, id, part * 1024, true, &[0; 1024]));
        }
    }
    // Other packets are reassembled in the meantime.
    let whole = datagram(true, &[7; 2000]);
    peer.send_frame(part(true, 1, &whole, 0, 1000));
    peer.send_frame(part(true, 1, &whole, 1000, whole.len()));
    assert_eq!(&*peer.stack.udp_receive(socket).unwrap().payload, &[7; 2000]);
}

/// The reassembled packet may belong to another core than its fragments; the layer above steers it again.
#[test]
fn a_reassembled_packet_is_steered_to_its_core() {
    let config = Config { core: share(0, 4), ..host_config6(1) };
    let (mut first, _) = peer(config);
    let whole = datagram(true, &[7; 2000]);
    for (from, to) in [(0, 1000), (1000, whole.len())] {
        let frame = part(true, 1, &whole, from, to);
        assert_eq!((steering(4).core_of_frame(&frame), datagram_port(&frame)), (0, None));
        first.send_frame(frame);
    }
    let frame = first.stack.take_reassembled().unwrap();
    assert!(first.stack.take_reassembled().is_none());
    assert_eq!(datagram_port(&frame), Some(53));
    let mut config = Config { core: share(3, 4), addressing: Addressing::Unset, ..host_config6(1) };
    config.ipv6 = Ipv6Addressing::Unset;
    let mut other = Peer::new(config);
    other.stack.set_ipv6(other.now, first.stack.ipv6());
    let socket = other.stack.udp_bind(53).unwrap();
    other.send_frame(frame.to_vec());
    assert_eq!(&*other.stack.udp_receive(socket).unwrap().payload, &[7; 2000]);
}

/// Returns a router's packet-too-big message that quotes `quote`.
fn too_big(mtu: u32, quote: &[u8]) -> Vec<u8> {
    let six = quote[12] == 0x86;
    let mut bytes = Vec::new();
    let link = etherparse::PacketBuilder::ethernet2(host_mac(2).0, host_mac(1).0);
    if six {
        let mtu = etherparse::Icmpv6Type::PacketTooBig { mtu };
        let network = link.ipv6(host_ip6(2).octets(), host_ip6(1).octets(), 64);
        network.icmpv6(mtu).write(&mut bytes, &quote[14..]).unwrap();
    } else {
        let mtu = etherparse::icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: mtu as u16 };
        let network = link.ipv4(host_ip(2).octets(), host_ip(1).octets(), 64);
        let message = etherparse::Icmpv4Type::DestinationUnreachable(mtu);
        network.icmpv4(message).write(&mut bytes, &quote[14..42]).unwrap();
    }
    bytes
}

#[proves("RFC 1191 6.4", "a datagram longer than the path MTU is rejected.")]
#[proves("RFC 8201 4", "the path MTU expires after ten minutes.")]
#[test]
fn datagrams_are_limited_by_the_path_mtu() {
    for (ip, overhead) in [(IpAddr::from(host_ip(2)), 28), (host_ip6(2).into(), 48)] {
        let (mut peer, socket) = peer(host_config6(1));
        let to = SocketAddr::new(ip, 9);
        let send = |peer: &mut Peer, len: usize| {
            peer.stack.udp_send_to(peer.now, socket, to, IoBuf::from(vec![0; len]))
        };
        send(&mut peer, 1500 - overhead).unwrap();
        let sent = peer.frames().remove(0);
        assert_eq!(datagram_port(&too_big(1300, &sent)), Some(53), "steered to the socket's core");
        peer.send_frame(too_big(1300, &sent));
        let most = 1300 - overhead;
        assert_eq!(send(&mut peer, most + 1), Err(SendToError::TooLong(most)));
        send(&mut peer, most).unwrap();
        // The path MTU has a lower bound.
        let (mtu, least) = if overhead == 28 { (68, 576) } else { (1280, 1280) };
        peer.send_frame(too_big(mtu, &sent));
        let least = least - overhead;
        assert_eq!(send(&mut peer, least + 1), Err(SendToError::TooLong(least)));
        send(&mut peer, least).unwrap();
        peer.pass(Duration::from_secs(600));
        send(&mut peer, 1500 - overhead).unwrap();
    }
}

#[proves("RFC 5927 4.1", "a message about an unsent datagram is ignored.")]
#[proves(
    "RFC 8899 4.6.1",
    "a message is accepted if it quotes a recent datagram, with its addresses, ports and length."
)]
#[test]
fn a_message_that_quotes_no_recent_datagram_is_ignored() {
    for (ip, overhead) in [(IpAddr::from(host_ip(2)), 28), (host_ip6(2).into(), 48)] {
        let (mut peer, socket) = peer(host_config6(1));
        let to = SocketAddr::new(ip, 9);
        let longest = IoBuf::from(vec![0; 1500 - overhead]);
        peer.stack.udp_send_to(peer.now, socket, to, longest.clone()).unwrap();
        let sent = peer.frames().remove(0);
        let datagram = if overhead == 28 { 34 } else { 54 };
        // Another port, another port of the remote host, another length.
        for at in [datagram + 1, datagram + 3, datagram + 5] {
            let mut forged = sent.clone();
            forged[at] ^= 1;
            peer.send_frame(too_big(1300, &forged));
        }
        assert_eq!(count(&peer, Counter::DropIcmpUnrelated), 3);
        // A short datagram cannot have exceeded the MTU of the message.
        peer.stack.udp_send_to(peer.now, socket, to, IoBuf::from_static(&[0; 500])).unwrap();
        let short = peer.frames().remove(0);
        peer.send_frame(too_big(1300, &short));
        assert_eq!(count(&peer, Counter::DropIcmpUnrelated), 4);
        peer.pass(Duration::from_secs(11));
        peer.send_frame(too_big(1300, &sent));
        assert_eq!(count(&peer, Counter::DropIcmpUnrelated), 5);
        assert_eq!(count(&peer, Counter::PathMtuLearned), 0);
        peer.stack.udp_send_to(peer.now, socket, to, longest).unwrap();
    }
}

#[proves("RFC 8201 4", "a message with less than the minimum MTU is ignored.")]
#[test]
fn an_mtu_below_the_minimum_is_ignored() {
    let (mut peer, socket) = peer(host_config6(1));
    let to = SocketAddr::new(host_ip6(2).into(), 9);
    peer.stack.udp_send_to(peer.now, socket, to, IoBuf::from(vec![0; 1400])).unwrap();
    let sent = peer.frames().remove(0);
    peer.send_frame(too_big(1279, &sent));
    assert_eq!((count(&peer, Counter::DropIcmpMalformed), count(&peer, Counter::PathMtuLearned)), (1, 0));
    peer.send_frame(too_big(1280, &sent));
    assert_eq!(count(&peer, Counter::PathMtuLearned), 1);
}

#[proves("RFC 8201 5.4", "a new connection uses the path MTU that an earlier one learned.")]
#[test]
fn a_new_connection_uses_the_learned_path_mtu() {
    let (mut peer, _) = peer(host_config6(1));
    peer.stack.listen(80, 4).unwrap();
    let connect = |peer: &mut Peer, from: u16| {
        let syn = Segment::new(from, 80, 1000, None).flags("S").options(Some(1440), None);
        peer.send_frame(syn.frame(host_ip6(2), host_ip6(1)));
        let answer = peer.segment();
        let last = Segment::new(from, 80, 1001, Some(answer.seq.wrapping_add(1)));
        peer.send_frame(last.frame(host_ip6(2), host_ip6(1)));
        let Some(Event::Accepted { conn, .. }) = peer.events().pop() else { panic!("a connection") };
        peer.write(conn, &[0; 4000]);
        conn
    };
    connect(&mut peer, 4000);
    let frames = peer.frames();
    assert_eq!(frames[0].len(), 1514);
    peer.send_frame(too_big(1400, &frames[0]));
    assert!(peer.frames().iter().all(|frame| frame.len() <= 1414));
    connect(&mut peer, 4001);
    assert!(peer.frames().iter().all(|frame| frame.len() <= 1414));
    assert_eq!(count(&peer, Counter::PathMtuLearned), 1);
}

#[proves(
    "RFC 5927 7.2",
    "a path MTU learned by a forged message about a datagram does not affect connections."
)]
#[test]
fn connections_ignore_the_path_mtu_of_datagrams() {
    let (mut peer, socket) = peer(host_config6(1));
    peer.stack.listen(80, 4).unwrap();
    let to = SocketAddr::new(host_ip6(2).into(), 9);
    peer.stack.udp_send_to(peer.now, socket, to, IoBuf::from(vec![0; 1400])).unwrap();
    let sent = peer.frames().remove(0);
    peer.send_frame(too_big(1280, &sent));
    assert_eq!(count(&peer, Counter::PathMtuLearned), 1);
    let syn = Segment::new(4000, 80, 1000, None).flags("S").options(Some(1440), None);
    peer.send_frame(syn.frame(host_ip6(2), host_ip6(1)));
    let answer = peer.segment();
    let last = Segment::new(4000, 80, 1001, Some(answer.seq.wrapping_add(1)));
    peer.send_frame(last.frame(host_ip6(2), host_ip6(1)));
    let Some(Event::Accepted { conn, .. }) = peer.events().pop() else { panic!("a connection") };
    peer.write(conn, &[0; 4000]);
    assert_eq!(peer.frames()[0].len(), 1514);
}

#[proves("RFC 8899 4.3", "on a path that drops long packets silently, shorter ones are used.")]
#[test]
fn a_path_mtu_black_hole_is_detected_without_icmp() {
    for six in [false, true] {
        let (mut peer, _) = peer(host_config6(1));
        let remote: IpAddr = if six { host_ip6(2).into() } else { host_ip(2).into() };
        let conn = peer.stack.connect(peer.now, SocketAddr::new(remote, 80)).unwrap();
        let syn = peer.segment();
        let own: IpAddr = if six { host_ip6(1).into() } else { host_ip(1).into() };
        let answer = Segment::new(80, syn.from, 9, Some(syn.seq.wrapping_add(1))).flags("S");
        peer.send_frame(answer.options(Some(1440), None).frame(remote, own));
        peer.write(conn, &[0; 5000]);
        let mut lengths = Vec::new();
        for _ in 0..5 {
            let sent = peer.data_frames();
            let ip_len = |frame: &Vec<u8>| {
                let packet = SlicedPacket::from_ethernet(frame).unwrap();
                let carries = matches!(packet.transport, Some(TransportSlice::Tcp(_)));
                carries.then_some(match packet.net {
                    Some(NetSlice::Ipv4(_) | NetSlice::Ipv6(_)) => frame.len() - 14,
                    _ => 0,
                })
            };
            lengths.push(sent.iter().filter_map(ip_len).max().unwrap());
            peer.next_timer();
        }
        assert_eq!(lengths[0].max(lengths[1]), if six { 1500 } else { 1480 });
        let least = *lengths.last().unwrap();
        assert!(least <= if six { 1280 } else { 1200 }, "{lengths:?}");
        assert!(count(&peer, Counter::PathMtuGuessed) > 0);
    }
}

#[test]
fn a_stack_without_ipv6_sends_nothing_over_ipv6() {
    let mut peer = Peer::new(host_config(1));
    assert!(peer.stack.ipv6().is_empty());
    peer.pass(Duration::from_secs(1000));
    assert_eq!(peer.frames().len(), 0);
}
