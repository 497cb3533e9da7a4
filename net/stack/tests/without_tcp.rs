//! A stack of a program that does not use TCP. No test in this file may use TCP, as the tests share a program.

use etherparse::PacketBuilder;
use isola_iobuf::IoBuf;
use isola_net_sim::{Peer, Segment, host_config, host_ip, host_mac, share};
use isola_net_stack::{Bucket, Buckets, Config, Counter, Duration, Event, Instant, ListenError, Occupancy};

const PORT: u16 = 9000;

fn datagram(ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(host_mac(2).0, host_mac(1).0)
        .ipv4(host_ip(2).octets(), host_ip(1).octets(), 64)
        .udp(ports.0, ports.1)
        .write(&mut bytes, payload)
        .unwrap();
    bytes
}

fn count(peer: &Peer, counter: Counter) -> u64 {
    peer.stack.counters().get(counter)
}

#[test]
fn a_syn_is_refused_by_a_reset() {
    let mut peer = Peer::fast();
    peer.send(Segment::new(4000, 80, 1000, None).flags("S").options(Some(1460), Some(7)).timestamps(1, 0));
    let reset = peer.segment();
    assert_eq!((reset.from, reset.to, reset.flags.as_str()), (80, 4000, "R"));
    assert_eq!((reset.seq, reset.ack), (0, Some(1001)));
    assert_eq!((count(&peer, Counter::DropTcpPort), count(&peer, Counter::TcpResetsOut)), (1, 1));
    assert_eq!((peer.events(), peer.stack.next_deadline()), (vec![], None));
    assert_eq!(peer.stack.occupancy(), Occupancy::default());
}

#[test]
fn data_is_refused_by_a_reset_at_the_acknowledged_number_and_a_reset_is_not_answered() {
    let mut peer = Peer::fast();
    peer.send(Segment::new(4000, 80, 1000, Some(77)).payload(b"data"));
    let reset = peer.segment();
    assert_eq!((reset.seq, reset.ack, reset.flags.as_str()), (77, None, "R"));
    // Five sequence numbers behind the first: four of the data, one of FIN.
    peer.send(Segment::new(4000, 80, 1000, None).flags("F").payload(b"data"));
    assert_eq!(peer.segment().ack, Some(1005));
    peer.send(Segment::new(4000, 80, 1000, None).flags("R"));
    peer.silent();
    assert_eq!((count(&peer, Counter::DropTcpPort), count(&peer, Counter::TcpResetsOut)), (3, 2));
}

#[test]
fn damaged_segments_are_dropped_and_counted_by_their_defect() {
    let mut peer = Peer::fast();
    let good = Segment::new(4000, 80, 1000, None).flags("S").frame(host_ip(2), host_ip(1));
    let mut wrong_sum = good.clone();
    wrong_sum[14 + 20 + 16] ^= 1;
    peer.send_frame(wrong_sum);
    assert_eq!(count(&peer, Counter::DropTcpChecksum), 1);
    peer.send(Segment::new(4000, 80, 1000, None).flags("SF"));
    peer.send(Segment::new(0, 80, 1000, None).flags("S"));
    assert_eq!(count(&peer, Counter::DropTcpFlags), 2);
    peer.silent();
}

#[test]
fn the_rate_of_resets_is_limited() {
    let mut config = host_config(1);
    config.limits.resets_per_second = 10;
    let mut peer = Peer::new(config);
    for port in 0..100 {
        peer.send(Segment::new(4000 + port, 80, 1000, None).flags("S"));
    }
    let sent = peer.segments().len();
    assert!((10..20).contains(&sent), "{sent} resets");
    assert_eq!(count(&peer, Counter::ResetRate), 100 - sent as u64);
}

#[test]
fn datagrams_are_delivered_answered_and_refused() {
    let mut peer = Peer::fast();
    let socket = peer.stack.udp_bind(PORT).unwrap();
    peer.send_frame(datagram((5000, PORT), b"question"));
    assert_eq!(peer.events(), [Event::Datagram(socket)]);
    let asked = peer.stack.udp_receive(socket).unwrap();
    assert_eq!(&*asked.payload, b"question");
    peer.stack.udp_answer(peer.now, socket, &asked, IoBuf::copy_from_slice(b"answer")).unwrap();
    let frames = peer.data_frames();
    assert!(frames.len() == 1 && frames[0].ends_with(b"answer"));
    peer.send_frame(datagram((5000, PORT + 1), b"nobody"));
    assert_eq!(peer.data_frames().len(), 1, "an ICMP error");
    assert_eq!(count(&peer, Counter::DropUdpPort), 1);
}

#[test]
fn a_stack_without_tcp_does_not_listen_again() {
    let mut peer = Peer::fast();
    assert_eq!(peer.stack.listen_again(80, 16), Err(ListenError::NotInUse));
    assert!(ListenError::NotInUse.to_string().contains("use_tcp"));
}

#[test]
fn queries_timers_changes_of_address_and_moves_of_buckets_find_no_connection() {
    let first = Config { core: share(0, 2), ..host_config(1) };
    let second = Config { core: share(1, 2), ..host_config(1) };
    let (mut first, mut second) = (Peer::new(first), Peer::new(second));
    first.send(Segment::new(4000, 80, 1000, None).flags("S"));
    first.segments();
    assert_eq!(first.stack.connections(first.now).count(), 0);
    let all: Buckets = Bucket::all().collect();
    assert!(first.stack.connections_of(all).is_empty() && first.stack.room() > 0);
    second.stack.expect(all);
    let moved = first.stack.extract(first.now, all, &[]);
    assert_eq!(second.stack.insert(second.now, moved), []);
    drop(first.stack.extract(first.now, all, &[]));
    first.pass(Duration::from_secs(100));
    first.stack.set_ipv4(first.now, None);
    first.send(Segment::new(4000, 80, 1000, None).flags("S"));
    assert_eq!((first.segments().len(), count(&first, Counter::DropNoAddress)), (0, 1));
    assert_eq!(first.stack.next_deadline_before(Instant::NEVER), None);
}
