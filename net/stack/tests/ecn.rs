//! Explicit congestion notification (RFC 3168).

use isola_net_sim::{Peer, PeerConnection, Segment, host_config, host_ip};
use isola_net_stack::{Counter, Duration, Ecn};
use isola_proves::proves;

const MSS: u32 = 1000;

fn syn() -> Segment {
    Segment::new(4000, 80, 1_000_000, None).flags("SEW").options(Some(MSS as u16), Some(7))
}

/// Returns a connection that negotiated ECN.
fn connected() -> (Peer, PeerConnection) {
    let mut peer = Peer::listening();
    let connection = peer.connect_with(syn());
    (peer, connection)
}

#[proves(
    "RFC 3168 6.1.1",
    "a SYN that requests ECN is answered with ECE alone; another SYN is answered without."
)]
#[test]
fn ecn_is_accepted_if_the_peer_requests_it() {
    let mut peer = Peer::listening();
    peer.send(syn());
    assert_eq!(peer.segment().flags, "SE");
    peer.send(Segment { from: 4001, ..syn() }.flags("S"));
    assert_eq!(peer.segment().flags, "S");
    let mut config = host_config(1);
    config.tcp.ecn = Ecn::Never;
    let mut peer = Peer::new(config);
    peer.stack.listen(80, 1).unwrap();
    peer.send(syn());
    assert_eq!(peer.segment().flags, "S");
}

#[proves(
    "RFC 3168 6.1.1",
    "our SYN requests ECN with ECE and CWR if configured, and ECN is used if the SYN-ACK agrees."
)]
#[proves("RFC 3168 6.1.1.1", "a retransmitted SYN does not request ECN.")]
#[test]
fn our_first_syn_requests_ecn_if_configured() {
    for (answer, markable) in [("SE", 2), ("S", 0), ("SEW", 0)] {
        let mut config = host_config(1);
        config.tcp.ecn = Ecn::Offered;
        let mut peer = Peer::new(config);
        let conn = peer.stack.connect(peer.now, (host_ip(2), 80).into()).unwrap();
        let syn = peer.segment();
        assert_eq!(syn.flags, "SEW");
        peer.next_timer();
        assert_eq!(peer.segment().flags, "S");
        peer.send(Segment::new(80, syn.from, 9, Some(syn.seq.wrapping_add(1))).flags(answer));
        peer.segments();
        peer.write(conn, b"data");
        assert_eq!(peer.segment().ecn, markable);
    }
    let mut peer = Peer::fast();
    peer.stack.connect(peer.now, (host_ip(2), 80).into()).unwrap();
    assert_eq!(peer.segment().flags, "S", "not requested by default");
}

#[proves("RFC 3168 6.1.5", "new data may be marked, retransmitted data may not.")]
#[proves("RFC 3168 6.1.4", "an acknowledgement without data may not be marked.")]
#[proves("RFC 3168 6.1.6", "a zero-window probe may not be marked.")]
#[test]
fn only_new_data_may_be_marked() {
    let (mut peer, mut connection) = connected();
    peer.send_data(&mut connection, b"hello");
    assert_eq!(peer.segment().ecn, 0);
    peer.write(connection.conn, &[1; 500]);
    assert_eq!(peer.segment().ecn, 2);
    peer.next_timer();
    assert_eq!(peer.segment().ecn, 0);
    connection.ack = connection.ack.wrapping_add(500);
    peer.send(connection.segment().window(0));
    peer.write(connection.conn, &[1; 500]);
    peer.next_timer();
    let probe = peer.segment();
    assert_eq!((probe.payload.len(), probe.ecn), (1, 0));
}

#[proves("RFC 3168 6.1.3", "ECE is set in every acknowledgement after a mark until the sender sets CWR.")]
#[test]
fn marks_are_echoed_until_the_sender_sets_cwr() {
    let (mut peer, mut connection) = connected();
    peer.send(Segment { ecn: 3, ..connection.segment() }.payload(b"marked"));
    connection.seq += 6;
    assert_eq!(peer.segment().flags, "E");
    peer.send_data(&mut connection, b"more");
    assert_eq!(peer.segment().flags, "E");
    peer.write(connection.conn, b"data echoes it too");
    assert_eq!(peer.segment().flags, "PE");
    peer.send(connection.segment().flags("W").payload(b"slowed"));
    connection.seq += 6;
    assert_eq!(peer.segment().flags, "");
    // CWR and another mark in the same segment.
    peer.send(Segment { ecn: 3, ..connection.segment() }.flags("W").payload(b"again"));
    assert_eq!(peer.segment().flags, "E");
}

#[proves(
    "RFC 3168 6.1.2",
    "ECE reduces the window like a loss, once per round trip, and the next new data has CWR."
)]
#[test]
fn an_echo_reduces_the_window_once_per_round_trip() {
    let (mut peer, mut connection) = connected();
    peer.write(connection.conn, &[1; 40 * MSS as usize]);
    assert_eq!(peer.segments().len(), 10);
    let window = |peer: &Peer, connection: &PeerConnection| {
        peer.stack.connection_stats(connection.conn).unwrap().congestion_window
    };
    connection.ack = connection.ack.wrapping_add(MSS);
    peer.send(connection.segment().flags("E"));
    let after = window(&peer, &connection);
    assert!(after < 8 * MSS, "{after}");
    for _ in 0..5 {
        connection.ack = connection.ack.wrapping_add(MSS);
        peer.send(connection.segment().flags("E"));
    }
    assert_eq!(peer.stack.counters().get(Counter::TcpMarks), 1);
    let next = peer.segments();
    assert!(next[0].flags.contains('W'), "{}", next[0].flags);
    assert!(next[1..].iter().all(|segment| !segment.flags.contains('W')));
    // Data sent after the reduction is marked as well.
    peer.now += Duration::from_millis(10);
    connection.ack = connection.ack.wrapping_add(5 * MSS);
    peer.send(connection.segment().flags("E"));
    assert_eq!(peer.stack.counters().get(Counter::TcpMarks), 2);
    assert_eq!(peer.stack.counters().get(Counter::TcpFastRetransmits), 0);
}

#[proves("RFC 3168 6.1.1", "without negotiation marks and their flags are ignored.")]
#[test]
fn without_negotiation_marks_are_ignored() {
    let mut peer = Peer::listening();
    let mut connection = peer.connect(4000, Some(MSS as u16), Some(7));
    peer.send(Segment { ecn: 3, ..connection.segment() }.payload(b"marked"));
    connection.seq += 6;
    assert_eq!(peer.segment().flags, "");
    peer.write(connection.conn, &[1; 5 * MSS as usize]);
    assert!(peer.segments().iter().all(|segment| segment.ecn == 0));
    connection.ack = connection.ack.wrapping_add(MSS);
    peer.send(connection.segment().flags("E"));
    assert_eq!(peer.stack.counters().get(Counter::TcpMarks), 0);
}

#[proves("RFC 4987 3.6", "a handshake with a SYN cookie does not negotiate ECN.")]
#[test]
fn a_handshake_with_a_cookie_does_not_negotiate_ecn() {
    let mut config = host_config(1);
    config.tcp.max_half_open = 1;
    let mut peer = Peer::new(config);
    peer.stack.listen(80, 16).unwrap();
    peer.send(syn());
    assert_eq!(peer.segment().flags, "SE");
    peer.send(Segment { from: 4001, ..syn() });
    assert_eq!(peer.segment().flags, "S");
}
