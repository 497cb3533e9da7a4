//! The timestamps option: negotiation, echo, and rejection of old segments (RFC 7323).

use isola_net_sim::{Peer, PeerConnection, Segment, host_ip};
use isola_net_stack::{Counter, Duration, Event};
use isola_proves::proves;

fn syn() -> Segment {
    Segment::new(4000, 80, 1_000_000, None).flags("S").options(Some(1460), Some(7)).timestamps(500, 0)
}

/// Returns a connection with timestamps, whose peer's clock has the value 500.
fn connected() -> (Peer, PeerConnection) {
    let mut peer = Peer::listening();
    let connection = peer.connect_with(syn());
    (peer, connection)
}

#[proves("RFC 7323 3.2", "the option is in the SYN-ACK to a SYN with it, and then in every segment.")]
#[proves("RFC 7323 4.2", "the echo is the latest received value.")]
#[proves("RFC 9293 3.7.1", "the options reduce the data of a segment.")]
#[test]
fn timestamps_are_in_every_segment_if_both_sides_offer_them() {
    let mut peer = Peer::listening();
    peer.send(syn());
    let answer = peer.segment();
    let (value, echo) = answer.timestamps.expect("the answer has the option");
    assert_eq!(echo, 500);
    peer.send(Segment::new(4000, 80, 1_000_001, Some(answer.seq.wrapping_add(1))).timestamps(501, value));
    let [Event::Accepted { conn, .. }] = peer.events()[..] else { panic!("accepted") };
    peer.now += Duration::from_secs(1);
    peer.write(conn, &[1; 3000]);
    let sent = peer.segments();
    assert_eq!(sent[0].payload.len(), 1460 - 12);
    for segment in sent {
        let (later, echo) = segment.timestamps.expect("every segment has the option");
        assert_eq!(echo, 501);
        assert!((950..1000).contains(&later.wrapping_sub(value)), "a clock of milliseconds");
    }
    assert_eq!(peer.stack.connection_stats(conn).unwrap().mss, 1448);
}

#[proves("RFC 7323 3.2", "a peer whose SYN has no option gets none.")]
#[test]
fn a_peer_without_timestamps_gets_no_timestamps() {
    let mut peer = Peer::listening();
    let connection = peer.connect(4000, Some(1460), None);
    peer.write(connection.conn, &[1; 2000]);
    let sent = peer.segments();
    assert!(sent.iter().all(|segment| segment.timestamps.is_none()));
    assert_eq!(sent[0].payload.len(), 1460);
}

#[proves("RFC 7323 2.2", "our SYN offers scaling.")]
#[proves("RFC 7323 3.2", "our SYN offers timestamps, and they are not used if the SYN-ACK has none.")]
#[proves("RFC 2018 2", "our SYN offers selective acknowledgements.")]
#[test]
fn our_syn_offers_scaling_timestamps_and_sack() {
    for (stamped, mss) in [(true, 1448), (false, 1460)] {
        let mut peer = Peer::fast();
        let conn = peer.stack.connect(peer.now, (host_ip(2), 80).into()).unwrap();
        let syn = peer.segment();
        assert!(syn.sack_permitted && syn.scale.is_some());
        let (value, echo) = syn.timestamps.unwrap();
        assert_eq!(echo, 0);
        let mut answer = Segment::new(80, syn.from, 9, Some(syn.seq.wrapping_add(1)))
            .flags("S")
            .options(Some(1460), Some(2));
        answer.timestamps = stamped.then_some((77, value));
        peer.send(answer);
        assert_eq!(peer.segment().timestamps.map(|(_, echo)| echo), stamped.then_some(77));
        assert_eq!(peer.stack.connection_stats(conn).unwrap().mss, mss);
    }
}

#[proves(
    "RFC 7323 5.4",
    "the clock has a random offset for each flow, and continues for the flow's next connection."
)]
#[test]
fn clocks_of_different_flows_are_unrelated_and_continue_over_connections() {
    let mut peer = Peer::listening();
    let value = |peer: &mut Peer, from: u16| {
        peer.send(Segment { from, ..syn() });
        peer.segment().timestamps.unwrap().0
    };
    let first = value(&mut peer, 4000);
    let second = value(&mut peer, 4001);
    assert!(first.wrapping_sub(second).min(second.wrapping_sub(first)) > 1000);
    // The next connection of the flow, after the peer has reset the first one.
    let isn = syn().seq;
    peer.send(Segment::new(4000, 80, isn.wrapping_add(1), None).flags("R"));
    peer.now += Duration::from_millis(1000);
    let next = value(&mut peer, 4000).wrapping_sub(first);
    assert!((950..=954).contains(&next), "{next} ticks of 2^20 ns in a second");
}

#[proves("RFC 7323 5.3", "a segment with a lower timestamp is dropped and answered.")]
#[test]
fn a_segment_with_an_old_timestamp_is_dropped_and_answered() {
    let (mut peer, mut connection) = connected();
    connection.timestamps = Some((600, 0));
    peer.send_data(&mut connection, b"new");
    assert_eq!(peer.segment().timestamps.unwrap().1, 600);
    peer.send(connection.segment().payload(b"old").timestamps(599, 0));
    assert_eq!(peer.segment().ack, Some(connection.seq));
    assert_eq!(peer.read(connection.conn), b"new");
    assert_eq!(peer.stack.counters().get(Counter::DropTcpOld), 1);
    // An equal timestamp is not old.
    peer.send_data(&mut connection, b"same");
    assert_eq!(peer.read(connection.conn), b"same");
}

#[proves("RFC 7323 5.5", "after 24 days of silence the peer's clock may have any value.")]
#[test]
fn after_24_days_a_lower_timestamp_is_accepted() {
    let (mut peer, mut connection) = connected();
    peer.now += Duration::from_secs(23 * 24 * 3600);
    peer.send(connection.segment().payload(b"x").timestamps(400, 0));
    peer.segment();
    assert_eq!(peer.stack.read(connection.conn), None);
    peer.now += Duration::from_secs(2 * 24 * 3600);
    connection.timestamps = Some((400, 0));
    peer.send_data(&mut connection, b"late");
    assert_eq!(peer.read(connection.conn), b"late");
    assert_eq!(peer.segment().timestamps.unwrap().1, 400);
}

#[proves(
    "RFC 7323 3.2",
    "a segment without the option is dropped if timestamps were negotiated; a reset is not."
)]
#[test]
fn a_segment_without_the_option_is_dropped_unless_it_is_a_reset() {
    let (mut peer, connection) = connected();
    let mut bare = connection.segment().payload(b"x");
    bare.timestamps = None;
    peer.send(bare);
    assert_eq!((peer.stack.read(connection.conn), peer.stack.counters().get(Counter::DropTcpOld)), (None, 1));
    peer.segment();
    peer.send(Segment::new(4000, 80, connection.seq, None).flags("R"));
    assert!(matches!(peer.events()[..], [Event::Failed(..)]));
}

#[proves("RFC 7323 5.2", "a reset is accepted with any timestamp.")]
#[test]
fn a_reset_with_an_old_timestamp_is_accepted() {
    let (mut peer, connection) = connected();
    peer.send(Segment::new(4000, 80, connection.seq, None).flags("R").timestamps(3, 0));
    assert!(matches!(peer.events()[..], [Event::Failed(..)]));
}

#[proves(
    "RFC 7323 4.3",
    "the echo is the timestamp of the first segment that an acknowledgement covers, and of none beyond a gap."
)]
#[test]
fn the_echo_is_the_timestamp_of_the_first_acknowledged_segment() {
    let (mut peer, mut connection) = connected();
    for round in 0..16 {
        connection.timestamps = Some((510 + round, 0));
        peer.send_data(&mut connection, b"warm");
        peer.segment();
    }
    // Two segments, one acknowledgement: it echoes the timestamp of the first.
    connection.timestamps = Some((600, 0));
    peer.send_data(&mut connection, b"one");
    peer.silent();
    connection.timestamps = Some((601, 0));
    peer.send_data(&mut connection, b"two");
    assert_eq!(peer.segment().timestamps.unwrap().1, 600);
    // A segment beyond a gap does not change the echo.
    let ahead =
        Segment { seq: connection.seq + 5, ..connection.segment() }.payload(b"beyond").timestamps(700, 0);
    peer.send(ahead);
    assert_eq!(peer.segment().timestamps.unwrap().1, 600);
    connection.timestamps = Some((701, 0));
    peer.send_data(&mut connection, b"gap..");
    assert_eq!(peer.segment().timestamps.unwrap().1, 701);
}

#[proves(
    "RFC 6191 2",
    "in TIME-WAIT a SYN with a higher timestamp opens a new connection, with any sequence number."
)]
#[test]
fn a_syn_with_a_higher_timestamp_replaces_time_wait() {
    for (clock, begins) in [(800, true), (499, false)] {
        let (mut peer, mut connection) = connected();
        peer.stack.close(peer.now, connection.conn);
        let fin = peer.segment();
        connection.ack = fin.seq.wrapping_add(1);
        peer.send(connection.segment().flags("F"));
        peer.segments();
        assert_eq!(peer.stack.occupancy().time_wait, 1);
        peer.send(Segment { seq: 5, ..syn() }.timestamps(clock, 0));
        assert_eq!(peer.segment().flags.contains('S'), begins);
    }
}
