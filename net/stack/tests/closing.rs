//! Ends of connections: FIN in every order, TIME-WAIT, close and abort.

use isola_iobuf::{Chain, IoBuf};
use isola_net_sim::{Peer, PeerConnection, Segment, host_config};
use isola_net_stack::{Counter, Duration, Event, SendError};
use isola_proves::proves;

fn connected() -> (Peer, PeerConnection) {
    let mut peer = Peer::listening();
    let connection = peer.connect(4000, Some(1460), None);
    (peer, connection)
}

fn fin(peer: &mut Peer, connection: &mut PeerConnection) {
    peer.send(connection.segment().flags("F"));
    connection.seq += 1;
}

#[proves("RFC 9293 3.6", "a FIN of the peer is acknowledged and reported, and the user may continue to send")]
#[proves("RFC 9293 3.10.4", "CLOSE in CLOSE-WAIT sends a FIN and enters LAST-ACK")]
#[test]
fn the_peer_closes_first_and_still_receives_data() {
    let (mut peer, mut connection) = connected();
    fin(&mut peer, &mut connection);
    assert_eq!(peer.events(), [Event::PeerClosed(connection.conn)]);
    assert!(peer.stack.is_at_end(connection.conn));
    assert_eq!(peer.segment().ack, Some(connection.seq));
    peer.write(connection.conn, b"late answer");
    assert_eq!(peer.segment().payload, b"late answer");
    connection.ack += 11;
    peer.send(connection.segment());
    peer.stack.shutdown(connection.conn);
    let end = peer.segment();
    assert_eq!(end.flags, "F");
    connection.ack += 1;
    peer.send(connection.segment());
    assert_eq!(peer.events(), [Event::Closed(connection.conn)]);
    let occupancy = peer.stack.occupancy();
    assert_eq!((occupancy.connections, occupancy.time_wait), (0, 0));
    peer.silent();
    assert_eq!(peer.stack.next_deadline(), None);
}

#[proves("RFC 9293 3.6", "after CLOSE the peer's data is received until its FIN")]
#[proves("RFC 9293 3.10.2", "SEND after CLOSE is an error")]
#[test]
fn this_side_closes_first_and_still_receives_data() {
    let (mut peer, mut connection) = connected();
    peer.write(connection.conn, b"last bytes");
    peer.stack.shutdown(connection.conn);
    let end = peer.segment();
    assert_eq!((end.payload.as_slice(), end.flags.as_str()), (&b"last bytes"[..], "FP"));
    let mut more = Chain::from(IoBuf::from_static(b"x"));
    assert_eq!(peer.stack.send(connection.conn, &mut more), Err(SendError::ShutDown));
    connection.ack += 11;
    peer.send(connection.segment());
    assert_eq!(peer.stack.next_deadline(), None, "a half-closed connection that is used has no time limit");
    for _ in 0..3 {
        peer.send_data(&mut connection, b"more");
    }
    assert_eq!(peer.read(connection.conn), b"moremoremore");
    peer.events();
    peer.segments();
    fin(&mut peer, &mut connection);
    assert_eq!(peer.events(), [Event::PeerClosed(connection.conn), Event::Closed(connection.conn)]);
    assert_eq!(peer.segment().ack, Some(connection.seq));
    assert_eq!(peer.stack.occupancy().time_wait, 1);
}

#[proves("RFC 9293 3.10.7.4", "a repeated FIN in TIME-WAIT is acknowledged and restarts TIME-WAIT")]
#[proves("RFC 9293 3.6", "TIME-WAIT lasts for twice the maximum segment lifetime")]
#[proves("RFC 1337 3", "a reset does not end TIME-WAIT")]
#[test]
fn time_wait_repeats_the_last_acknowledgement_and_expires() {
    let (mut peer, mut connection) = connected();
    peer.stack.shutdown(connection.conn);
    peer.segment();
    connection.ack += 1;
    peer.send(connection.segment().flags("F"));
    let last = peer.segment();
    peer.events();
    peer.pass(Duration::from_secs(40));
    peer.send(connection.segment().flags("F"));
    assert_eq!(peer.segment(), last);
    // Neither a reset (RFC 1337) nor an acknowledgement ends or restarts it.
    peer.send(Segment::new(4000, 80, connection.seq + 1, None).flags("R"));
    peer.send(Segment::new(4000, 80, connection.seq + 1, Some(connection.ack)));
    peer.silent();
    peer.pass(Duration::from_secs(59));
    assert_eq!(peer.stack.occupancy().time_wait, 1, "the repeated FIN restarted TIME-WAIT");
    peer.pass(Duration::from_secs(2));
    assert_eq!(peer.stack.occupancy().time_wait, 0);
    peer.send(connection.segment().flags("F"));
    assert_eq!(peer.segment().flags, "R");
}

#[proves("RFC 9293 3.6.1", "a SYN in TIME-WAIT with a larger number may open a new connection")]
#[proves("RFC 1122 4.2.2.13", "the new connection's initial number is beyond the old one's last")]
#[test]
fn a_new_connection_may_replace_time_wait() {
    let (mut peer, mut connection) = connected();
    peer.stack.shutdown(connection.conn);
    let end = peer.segment();
    connection.ack += 1;
    peer.send(connection.segment().flags("F"));
    peer.segment();
    peer.events();
    // An old SYN is answered with the last acknowledgement, a new one opens a connection.
    peer.send(Segment::new(4000, 80, connection.seq - 100, None).flags("S"));
    assert_eq!(peer.segment().ack, Some(connection.seq + 1));
    peer.send(Segment::new(4000, 80, connection.seq + 1000, None).flags("S"));
    let answer = peer.segment();
    assert_eq!((answer.flags.as_str(), answer.ack), ("S", Some(connection.seq + 1001)));
    assert!(answer.seq.wrapping_sub(end.seq) < 1 << 31, "beyond the old connection's numbers");
    peer.send(Segment::new(4000, 80, connection.seq + 1001, Some(answer.seq.wrapping_add(1))));
    assert!(matches!(peer.events()[..], [Event::Accepted { .. }]));
    assert_eq!(peer.stack.occupancy().time_wait, 0);
}

#[proves("RFC 9293 3.6", "a simultaneous close ends in TIME-WAIT on both sides")]
#[test]
fn a_simultaneous_close_ends_in_time_wait() {
    let (mut peer, mut connection) = connected();
    peer.stack.shutdown(connection.conn);
    let end = peer.segment();
    fin(&mut peer, &mut connection);
    assert_eq!(peer.segment().ack, Some(connection.seq));
    assert_eq!(peer.events(), [Event::PeerClosed(connection.conn)]);
    connection.ack = end.seq + 1;
    peer.send(connection.segment());
    assert_eq!(peer.events(), [Event::Closed(connection.conn)]);
    assert_eq!(peer.stack.occupancy().time_wait, 1);
}

#[proves("RFC 9293 3.10.3", "data received before the end can be read after it")]
#[test]
fn unread_data_remains_after_the_connections_end() {
    let (mut peer, mut connection) = connected();
    peer.stack.shutdown(connection.conn);
    peer.segment();
    connection.ack += 1;
    peer.send(connection.segment().flags("FP").payload(b"unread"));
    peer.segment();
    assert_eq!(peer.events(), [Event::Readable(connection.conn), Event::PeerClosed(connection.conn)]);
    assert!(!peer.stack.is_at_end(connection.conn));
    peer.pass(Duration::from_secs(100));
    peer.silent();
    assert_eq!(peer.read(connection.conn), b"unread");
    assert_eq!(peer.events(), [Event::Closed(connection.conn)]);
    assert_eq!(peer.stack.occupancy().connections, 0);
}

#[proves("RFC 9293 3.8.1", "a FIN is sent again until it is acknowledged")]
#[test]
fn a_fin_is_sent_again_until_it_is_acknowledged() {
    let (mut peer, connection) = connected();
    peer.stack.shutdown(connection.conn);
    let end = peer.segment();
    peer.next_timer();
    assert_eq!(peer.segment(), end);
    peer.next_timer();
    assert_eq!(peer.segment(), end);
}

#[proves("RFC 9293 3.10.7.4", "a FIN is processed when all data before it has arrived")]
#[test]
fn a_fin_beyond_a_gap_waits_for_the_data() {
    let (mut peer, connection) = connected();
    peer.send(Segment { seq: connection.seq + 4, ..connection.segment() }.flags("FP").payload(b"tail"));
    assert_eq!(peer.segment().ack, Some(connection.seq));
    assert_eq!(peer.events(), []);
    peer.send(connection.segment().payload(b"head"));
    assert_eq!(peer.events(), [Event::Readable(connection.conn), Event::PeerClosed(connection.conn)]);
    assert_eq!(peer.read(connection.conn), b"headtail");
    assert_eq!(peer.segment().ack, Some(connection.seq + 9));
}

#[proves("RFC 9293 3.10.7.4", "a FIN outside of the window is acknowledged and dropped")]
#[proves("RFC 9293 3.10.7.4", "a repeated FIN is acknowledged again")]
#[test]
fn a_repeated_fin_or_one_outside_the_window_changes_nothing() {
    let (mut peer, connection) = connected();
    // A FIN beyond or before the window is challenged.
    for far in [1 << 30, u32::MAX << 30] {
        peer.send(Segment { seq: connection.seq.wrapping_add(far), ..connection.segment() }.flags("F"));
        assert_eq!(peer.segment().ack, Some(connection.seq));
        assert_eq!(peer.events(), []);
    }
    let end = connection.segment().flags("F");
    peer.send(end.clone());
    assert_eq!(peer.segment().ack, Some(connection.seq + 1));
    assert_eq!(peer.events(), [Event::PeerClosed(connection.conn)]);
    for _ in 0..3 {
        peer.send(end.clone());
        assert_eq!(peer.segment().ack, Some(connection.seq + 1), "the first acknowledgement may be lost");
        assert_eq!(peer.events(), []);
    }
    // A FIN at a different sequence number than the first.
    peer.send(Segment { seq: connection.seq + 1, ..connection.segment() }.flags("F").payload(b"more"));
    peer.segments();
    assert_eq!((peer.events(), peer.read(connection.conn)), (vec![], vec![]));
}

#[proves("RFC 9293 3.10.7.4", "data beyond a FIN is ignored")]
#[test]
fn data_beyond_the_end_is_ignored() {
    let (mut peer, connection) = connected();
    peer.send(Segment { seq: connection.seq + 8, ..connection.segment() }.payload(b"junk"));
    peer.send(Segment { seq: connection.seq + 4, ..connection.segment() }.flags("F"));
    peer.send(connection.segment().payload(b"head"));
    peer.send(Segment { seq: connection.seq + 5, ..connection.segment() }.payload(b"more junk"));
    assert_eq!(peer.read(connection.conn), b"head");
    assert!(peer.stack.is_at_end(connection.conn));
    assert_eq!(peer.segments().last().unwrap().ack, Some(connection.seq + 5));
}

#[proves("RFC 9293 3.10.4", "CLOSE sends the queued data before the FIN")]
#[test]
fn close_sends_the_queued_data_and_completes_by_itself() {
    let (mut peer, mut connection) = connected();
    peer.write(connection.conn, b"bye");
    peer.stack.close(peer.now, connection.conn);
    let end = peer.segment();
    assert_eq!((end.payload.as_slice(), end.flags.as_str()), (&b"bye"[..], "FP"));
    assert_eq!(peer.stack.remote_addr(connection.conn), None, "the id is invalid");
    connection.ack += 4;
    peer.send(connection.segment());
    peer.send(connection.segment().flags("F"));
    assert_eq!(peer.segment().ack, Some(connection.seq + 1));
    assert_eq!(peer.events(), [], "no event follows");
    assert_eq!(peer.stack.occupancy().connections, 0);
}

#[proves("RFC 1122 4.2.2.13", "CLOSE with data unread sends a reset")]
#[test]
fn close_with_unread_data_resets_the_connection() {
    let (mut peer, mut connection) = connected();
    peer.send_data(&mut connection, b"never read");
    peer.stack.close(peer.now, connection.conn);
    let reset = peer.segment();
    assert_eq!((reset.flags.as_str(), reset.seq, reset.ack), ("R", connection.ack, Some(connection.seq)));
    assert_eq!(peer.events(), []);
}

#[proves("RFC 1122 4.2.2.13", "data for a closed connection is answered with a reset")]
#[test]
fn data_for_a_closed_connection_resets_it() {
    let (mut peer, mut connection) = connected();
    peer.stack.close(peer.now, connection.conn);
    peer.segment();
    peer.send_data(&mut connection, b"too late");
    assert_eq!(peer.segments().last().unwrap().flags, "R");
    assert_eq!(peer.stack.counters().get(Counter::DropTcpAfterClose), 1);
    assert_eq!(peer.stack.occupancy().connections, 0);
}

#[test]
fn a_closed_connection_gives_up_a_peer_that_sends_no_fin() {
    let (mut peer, mut connection) = connected();
    peer.stack.close(peer.now, connection.conn);
    peer.segment();
    connection.ack += 1;
    peer.send(connection.segment());
    assert_eq!(peer.next_timer(), Duration::from_secs(60));
    assert_eq!(peer.stack.occupancy().connections, 0);
    assert_eq!(peer.segment().flags, "R");
    assert_eq!(peer.events(), []);
}

#[test]
fn a_closed_connection_gives_up_a_peer_that_keeps_its_window_closed() {
    let (mut peer, connection) = connected();
    peer.send(connection.segment().window(0));
    peer.write(connection.conn, b"never accepted");
    peer.stack.close(peer.now, connection.conn);
    let mut probes = 0;
    while peer.stack.occupancy().connections > 0 {
        peer.next_timer();
        if peer.segments().iter().any(|segment| !segment.payload.is_empty()) {
            probes += 1;
            peer.send(connection.segment().window(0));
        }
        assert!(probes < 20, "the connection must end");
    }
    assert_eq!(probes, 10);
}

#[proves("RFC 9293 3.10.5", "ABORT sends a reset and drops the queued data")]
#[test]
fn abort_resets_at_once() {
    let (mut peer, connection) = connected();
    peer.write(connection.conn, b"unsent");
    peer.stack.abort(peer.now, connection.conn);
    let segments = peer.segments();
    assert_eq!(segments.len(), 1);
    assert_eq!((segments[0].flags.as_str(), segments[0].seq), ("R", connection.ack));
    assert_eq!(peer.events(), []);
    assert_eq!(peer.stack.occupancy().connections, 0);
}

#[test]
fn abort_of_an_ended_connection_sends_nothing() {
    let (mut peer, mut connection) = connected();
    peer.stack.shutdown(connection.conn);
    peer.segment();
    connection.ack += 1;
    peer.send(connection.segment().flags("FP").payload(b"unread"));
    peer.segment();
    peer.stack.abort(peer.now, connection.conn);
    peer.silent();
    assert_eq!(peer.events(), []);
    let occupancy = peer.stack.occupancy();
    assert_eq!((occupancy.connections, occupancy.time_wait), (0, 1));
}

#[test]
fn a_full_time_wait_table_evicts_the_oldest_entry() {
    let mut config = host_config(1);
    config.tcp.max_time_wait = 10;
    let mut peer = Peer::new(config);
    peer.stack.listen(80, 16).unwrap();
    for from in 0..25 {
        let mut connection = peer.connect(4000 + from, None, None);
        peer.stack.close(peer.now, connection.conn);
        peer.segment();
        connection.ack += 1;
        peer.send(connection.segment().flags("F"));
        peer.segment();
    }
    assert_eq!(peer.stack.occupancy().time_wait, 10);
    assert_eq!(peer.stack.counters().get(Counter::DropTcpTimeWait), 15);
    // Evicted entries are unknown, the others remain.
    peer.send(Segment::new(4000, 80, 1_000_001, Some(5)).flags("F"));
    assert_eq!(peer.segment().flags, "R");
    peer.send(Segment::new(4024, 80, 1_000_001, Some(5)).flags("F"));
    assert_eq!(peer.segment().flags, "");
}
