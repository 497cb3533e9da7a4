//! Recovery from lost segments: timeouts, back-off, fast retransmit, NewReno.

use isola_net_sim::{Peer, PeerConnection, Segment};
use isola_net_stack::{Counter, Duration, Event, FailReason};
use isola_proves::proves;

const MSS: usize = 1000;

/// Returns a connection with a measured round trip of 100 ms, and `segments` full segments in flight.
fn in_flight(segments: usize) -> (Peer, PeerConnection, Vec<Segment>) {
    let mut peer = Peer::listening();
    let mut connection = peer.connect(4000, Some(MSS as u16), Some(7));
    peer.write(connection.conn, b"ping");
    peer.segment();
    peer.now += Duration::from_millis(100);
    connection.ack += 4;
    peer.send(connection.segment());
    let data: Vec<u8> = (0..segments * MSS).map(|i| (i / MSS) as u8).collect();
    peer.write(connection.conn, &data);
    let sent = peer.segments();
    assert_eq!(sent.len(), segments);
    (peer, connection, sent)
}

fn duplicate(peer: &mut Peer, connection: &PeerConnection) {
    peer.send(connection.segment());
}

#[proves("RFC 6298 2.3", "later measurements smooth the round trip and its variation")]
#[proves("RFC 6298 2.4", "the timeout has a minimum")]
#[test]
fn the_timeout_comes_from_the_measured_round_trip() {
    let (peer, connection, _) = in_flight(1);
    let stats = peer.stack.connection_stats(connection.conn).unwrap();
    // The handshake took no time: samples of 0 and 100 ms give 12.5 ms smoothed and a variation of 25 ms.
    assert_eq!(stats.smoothed_rtt, Some(Duration::from_micros(12_500)));
    assert_eq!(stats.rto, Duration::from_millis(200), "the minimum timeout");
}

#[proves("RFC 6298 5.4", "a timeout retransmits the earliest segment")]
#[proves("RFC 6298 5.5", "the timeout doubles")]
#[proves("RFC 6298 2.5", "the timeout has a maximum")]
#[proves("RFC 9293 3.8.3", "a connection that makes no progress is given up after R2")]
#[test]
fn timeouts_double_and_retransmit_the_first_segment_until_the_connection_fails() {
    let (mut peer, connection, sent) = in_flight(5);
    let mut expected = Duration::from_millis(200);
    for round in 0..10 {
        assert_eq!(peer.next_timer(), expected, "round {round}");
        expected = expected.times(2).min(Duration::from_secs(60));
        assert_eq!(peer.segment(), sent[0], "one segment per timeout");
    }
    peer.next_timer();
    assert_eq!(peer.events(), [Event::Failed(connection.conn, FailReason::TimedOut)]);
    assert_eq!(peer.segment().flags, "R");
    assert_eq!(peer.stack.counters().get(Counter::TcpTimedOut), 1);
}

#[test]
fn duplicates_do_not_keep_a_connection_without_progress_alive() {
    let (mut peer, connection, _) = in_flight(1);
    for _ in 0..11 {
        peer.next_timer();
        duplicate(&mut peer, &connection);
        peer.segments();
    }
    assert_eq!(peer.events(), [Event::Failed(connection.conn, FailReason::TimedOut)]);
}

#[proves("RFC 5681 3.1", "after a timeout the window is one segment and grows by slow start")]
#[proves("RFC 6298 5.2", "the timer stops when all is acknowledged")]
#[test]
fn after_a_timeout_the_rest_is_retransmitted_in_slow_start() {
    let (mut peer, mut connection, sent) = in_flight(6);
    peer.next_timer();
    assert_eq!(peer.segment(), sent[0]);
    connection.ack += MSS as u32;
    peer.send(connection.segment());
    assert_eq!(peer.segments(), sent[1..3]);
    // The rest had arrived after all: there is nothing more to send.
    connection.ack = sent[5].seq + MSS as u32;
    peer.send(connection.segment());
    peer.silent();
    assert_eq!(peer.stack.next_deadline(), None);
}

#[proves("RFC 6298 3", "retransmitted segments are not measured")]
#[proves("RFC 6298 5.7", "the backed-off timeout stays until a new measurement")]
#[test]
fn a_retransmitted_segment_is_not_measured_and_keeps_the_longer_timeout() {
    let (mut peer, mut connection, sent) = in_flight(1);
    peer.next_timer();
    assert_eq!(peer.segment(), sent[0]);
    peer.now += Duration::from_secs(3);
    let before = peer.stack.connection_stats(connection.conn).unwrap();
    connection.ack += MSS as u32;
    peer.send(connection.segment());
    let after = peer.stack.connection_stats(connection.conn).unwrap();
    assert_eq!((after.smoothed_rtt, after.rto), (before.smoothed_rtt, Duration::from_millis(400)));
    // The next segment is measured, and ends the back-off.
    peer.write(connection.conn, b"x");
    peer.segment();
    connection.ack += 1;
    peer.send(connection.segment());
    assert_eq!(peer.stack.connection_stats(connection.conn).unwrap().rto, Duration::from_millis(200));
}

#[test]
fn a_round_trip_is_measured_from_its_own_segment() {
    let (mut peer, mut connection, _) = in_flight(1);
    connection.ack += MSS as u32;
    peer.send(connection.segment());
    let before = peer.stack.connection_stats(connection.conn).unwrap().smoothed_rtt;
    peer.now += Duration::from_secs(30);
    // An acknowledgement of nothing that is being measured.
    peer.send(connection.segment().window(50_000));
    peer.write(connection.conn, b"x");
    peer.segment();
    connection.ack += 1;
    peer.send(connection.segment());
    let after = peer.stack.connection_stats(connection.conn).unwrap().smoothed_rtt;
    assert!(after < before, "a round trip of no time makes it shorter: {before:?}, {after:?}");
}

#[proves("RFC 5681 3.2", "three duplicate acknowledgements retransmit the lost segment")]
#[proves("RFC 6582 3.2", "a full acknowledgement deflates the window")]
#[test]
fn three_duplicates_retransmit_the_lost_segment_at_once() {
    let (mut peer, mut connection, sent) = in_flight(8);
    duplicate(&mut peer, &connection);
    duplicate(&mut peer, &connection);
    peer.silent();
    duplicate(&mut peer, &connection);
    assert_eq!(peer.segments(), sent[..1]);
    assert_eq!(peer.stack.counters().get(Counter::TcpFastRetransmits), 1);
    for _ in 0..4 {
        duplicate(&mut peer, &connection);
    }
    peer.silent();
    connection.ack += 8 * MSS as u32;
    peer.send(connection.segment());
    let stats = peer.stack.connection_stats(connection.conn).unwrap();
    assert_eq!(stats.congestion_window, 5_600, "seven tenths of the flight");
    assert_eq!(peer.stack.counters().get(Counter::TcpTimeouts), 0);
}

#[proves("RFC 3042 2", "each of the first two duplicates allows a new segment")]
#[test]
fn the_first_duplicates_allow_new_segments() {
    let (mut peer, connection, _) = in_flight(10);
    peer.write(connection.conn, &[9; 5 * MSS]);
    let before = peer.segments().len();
    duplicate(&mut peer, &connection);
    assert_eq!(peer.segments().len(), 1, "limited transmit, beyond {before}");
    duplicate(&mut peer, &connection);
    assert_eq!(peer.segments().len(), 1);
}

#[proves("RFC 6582 3.2", "a partial acknowledgement retransmits the next lost segment")]
#[test]
fn a_partial_acknowledgement_retransmits_the_next_lost_segment() {
    let (mut peer, mut connection, sent) = in_flight(8);
    (0..3).for_each(|_| duplicate(&mut peer, &connection));
    assert_eq!(peer.segments(), sent[..1]);
    // Segments 3 and 6 are lost too.
    connection.ack = sent[3].seq;
    peer.send(connection.segment());
    assert_eq!(peer.segments(), sent[3..4]);
    connection.ack = sent[6].seq;
    peer.send(connection.segment());
    assert_eq!(peer.segments(), sent[6..7]);
    connection.ack = sent[7].seq + MSS as u32;
    peer.send(connection.segment());
    peer.silent();
    assert_eq!(peer.stack.counters().get(Counter::TcpFastRetransmits), 1, "one loss event");
    assert_eq!(peer.stack.counters().get(Counter::TcpTimeouts), 0);
}

#[proves("RFC 5681 2", "a segment with data or another window is no duplicate acknowledgement")]
#[test]
fn acknowledgements_with_a_new_window_or_data_are_no_duplicates() {
    let (mut peer, mut connection, _) = in_flight(4);
    for window in [50_000, 50_001, 50_002, 50_003] {
        peer.send(connection.segment().window(window));
    }
    for _ in 0..4 {
        peer.send_data(&mut connection, b"data");
    }
    assert!(peer.segments().iter().all(|segment| segment.payload.is_empty()));
    assert_eq!(peer.stack.counters().get(Counter::TcpFastRetransmits), 0);
}

#[test]
fn retransmissions_are_views_of_the_applications_memory() {
    use isola_iobuf::{Chain, IoBuf};
    let mut peer = Peer::listening();
    let connection = peer.connect(4000, Some(1460), None);
    let data = IoBuf::copy_from_slice(&[5; 1000]);
    peer.stack.send(connection.conn, &mut Chain::from(data.clone())).unwrap();
    for _ in 0..3 {
        let frame = peer.stack.poll_transmit(peer.now).unwrap();
        assert_eq!(frame.payload.front().unwrap().as_ptr(), data.as_ptr());
        peer.next_timer();
    }
}

#[proves("RFC 1191 6.4", "a datagram-too-big message makes segments smaller")]
#[proves("RFC 5927 4.1", "an ICMP error that quotes data that is not in flight is ignored")]
#[test]
fn a_smaller_path_mtu_makes_smaller_segments() {
    use etherparse::{Icmpv4Type, PacketBuilder, icmpv4::DestUnreachableHeader};
    let (mut peer, _, sent) = in_flight(4);
    let error = |seq: u32| {
        let quoted = Segment { seq, ..sent[0].clone() };
        let quote = quoted.frame(isola_net_sim::host_ip(1), isola_net_sim::host_ip(2));
        let mut bytes = Vec::new();
        PacketBuilder::ethernet2([2, 0, 0, 0, 0, 254], isola_net_sim::host_mac(1).0)
            .ipv4([10, 0, 0, 254], [10, 0, 0, 1], 64)
            .icmpv4(Icmpv4Type::DestinationUnreachable(DestUnreachableHeader::FragmentationNeeded {
                next_hop_mtu: 640,
            }))
            .write(&mut bytes, &quote[14..14 + 28])
            .unwrap();
        bytes
    };
    // A forged error quotes data that is not in flight.
    peer.send_frame(error(sent[0].seq.wrapping_sub(5000)));
    peer.silent();
    assert_eq!(peer.stack.counters().get(Counter::DropIcmpUnrelated), 1);
    peer.send_frame(error(sent[0].seq));
    let again = peer.segments();
    assert_eq!(again[0].payload.len(), 600);
    assert!(again.iter().all(|segment| segment.payload.len() <= 600));
    let bytes: Vec<u8> = again.iter().flat_map(|segment| segment.payload.clone()).collect();
    assert!(bytes.iter().enumerate().all(|(i, &byte)| byte == (i / MSS) as u8));
}

#[proves(
    "RFC 6582 3.2",
    "duplicates of an acknowledgement of no more than the recovery point begin no recovery"
)]
#[test]
fn a_full_acknowledgement_and_its_duplicates_retransmit_no_later_data() {
    let (mut peer, mut connection, sent) = in_flight(8);
    (0..3).for_each(|_| duplicate(&mut peer, &connection));
    assert_eq!(peer.segments(), sent[..1]);
    // The recovery sends new data, beyond the recovery point.
    peer.write(connection.conn, &[9; 4 * MSS]);
    (0..4).for_each(|_| duplicate(&mut peer, &connection));
    let mut later = peer.segments();
    assert!(!later.is_empty());
    connection.ack = sent[7].seq + MSS as u32;
    peer.send(connection.segment());
    later.extend(peer.segments());
    (0..3).for_each(|_| duplicate(&mut peer, &connection));
    later.extend(peer.segments());
    let expected = (0..later.len()).map(|index| connection.ack + (index * MSS) as u32);
    assert_eq!(later.iter().map(|segment| segment.seq).collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    assert_eq!(peer.stack.counters().get(Counter::TcpFastRetransmits), 1);
}
