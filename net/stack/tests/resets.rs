//! Resets and forgeries on established connections (RFC 9293, RFC 5961).

use isola_net_sim::{Peer, PeerConnection, Segment, host_config};
use isola_net_stack::{Counter, Event, FailReason};
use isola_proves::proves;

fn connected() -> (Peer, PeerConnection) {
    let mut peer = Peer::listening();
    let connection = peer.connect(4000, Some(1460), None);
    (peer, connection)
}

#[proves(
    "RFC 9293 3.10.7.4",
    "a reset at exactly the next expected number ends the connection, and an event reports it"
)]
#[test]
fn a_reset_with_the_exact_number_ends_the_connection() {
    let (mut peer, mut connection) = connected();
    peer.send_data(&mut connection, b"unread");
    peer.segments();
    peer.send(Segment::new(4000, 80, connection.seq, None).flags("R"));
    assert_eq!(peer.events(), [Event::Failed(connection.conn, FailReason::Reset)]);
    peer.silent();
    assert_eq!(peer.stack.read(connection.conn), None);
    assert_eq!(peer.stack.occupancy().connections, 0);
    assert_eq!(peer.stack.next_deadline(), None);
}

#[proves("RFC 5961 3.2", "a reset elsewhere in the window is answered with a challenge ACK")]
#[proves("RFC 5961 3.2", "a reset outside of the window is dropped")]
#[test]
fn a_reset_elsewhere_in_the_window_is_challenged_and_one_outside_ignored() {
    let (mut peer, connection) = connected();
    peer.send(Segment::new(4000, 80, connection.seq + 100, None).flags("R"));
    let challenge = peer.segment();
    assert_eq!(
        (challenge.seq, challenge.ack, challenge.flags.as_str()),
        (connection.ack, Some(connection.seq), "")
    );
    peer.send(Segment::new(4000, 80, connection.seq - 1, None).flags("R"));
    peer.send(Segment::new(4000, 80, connection.seq + (1 << 30), None).flags("R"));
    peer.silent();
    assert_eq!(peer.stack.counters().get(Counter::DropTcpReset), 3);
    // A peer that has really reset the connection answers the challenge with the exact sequence number.
    peer.send(Segment::new(4000, 80, challenge.ack.unwrap(), None).flags("R"));
    assert_eq!(peer.events(), [Event::Failed(connection.conn, FailReason::Reset)]);
}

#[proves(
    "RFC 5961 4.2",
    "a SYN on a synchronised connection is answered with a challenge ACK, at any sequence number"
)]
#[test]
fn a_syn_on_an_established_connection_is_challenged() {
    let (mut peer, connection) = connected();
    for seq in [connection.seq, connection.seq + 50, connection.seq + (1 << 30)] {
        peer.send(Segment::new(4000, 80, seq, None).flags("S"));
        let challenge = peer.segment();
        assert_eq!((challenge.ack, challenge.flags.as_str()), (Some(connection.seq), ""));
    }
    assert_eq!(peer.events(), []);
    assert_eq!(peer.stack.occupancy().connections, 1);
}

#[proves(
    "RFC 5961 5.2",
    "data is dropped and answered with an ACK if its ACK number was never sent, or is older than the largest window"
)]
#[test]
fn invalid_acknowledgements_are_challenged_and_their_data_dropped() {
    let (mut peer, mut connection) = connected();
    let largest = u32::from(connection.segment().window);
    for ack in [connection.ack + 1, connection.ack.wrapping_sub(largest + 1)] {
        peer.send(Segment::new(4000, 80, connection.seq, Some(ack)).payload(b"forged"));
        assert_eq!(peer.segment().ack, Some(connection.seq));
    }
    assert_eq!(peer.events(), []);
    assert_eq!(peer.stack.counters().get(Counter::DropTcpAck), 2);
    // The oldest acknowledgement that can still be in flight; it acknowledges nothing new.
    let oldest = connection.ack.wrapping_sub(largest);
    peer.send(Segment::new(4000, 80, connection.seq, Some(oldest)).payload(b"late"));
    connection.seq += 4;
    assert_eq!(peer.segment().ack, Some(connection.seq));
    assert_eq!(peer.read(connection.conn), b"late");
}

#[proves("RFC 9293 3.10.7.4", "a segment without ACK on a synchronised connection is dropped")]
#[test]
fn segments_without_acknowledgement_are_dropped() {
    let (mut peer, connection) = connected();
    peer.send(Segment::new(4000, 80, connection.seq, None).payload(b"data"));
    peer.silent();
    assert_eq!(peer.events(), []);
}

#[proves("RFC 5961 7", "a connection answers ten forged segments a second, independent of the others")]
#[test]
fn challenges_of_one_connection_are_limited() {
    let (mut peer, connection) = connected();
    let flood = |peer: &mut Peer| {
        let forge = |i| Segment::new(4000, 80, connection.seq + 1 + i, None).flags("R");
        let mut answers = 0;
        for i in 0..100 {
            peer.send(forge(i));
            answers += peer.segments().len();
        }
        answers
    };
    assert_eq!(flood(&mut peer), 10);
    let other = peer.connect(4001, None, None);
    peer.send(Segment::new(4001, 80, other.seq + 1, None).flags("R"));
    peer.segment();
    peer.now += isola_net_stack::Duration::from_secs(1);
    assert_eq!(flood(&mut peer), 10);
}

#[proves("RFC 5961 7", "challenge ACKs are limited in their rate")]
#[test]
fn challenges_of_all_connections_are_limited() {
    let mut config = host_config(1);
    config.limits.challenges_per_second = 5;
    let mut peer = Peer::new(config);
    peer.stack.listen(80, 1).unwrap();
    let connection = peer.connect(4000, None, None);
    let mut answers = 0;
    for i in 0..100 {
        peer.send(Segment::new(4000, 80, connection.seq + 1 + i, None).flags("R"));
        answers += peer.segments().len();
    }
    assert_eq!(answers, 5);
    assert_eq!(peer.stack.counters().get(Counter::ChallengeRate), 95);
}

#[test]
fn resets_for_unknown_flows_are_limited() {
    let mut config = host_config(1);
    config.limits.resets_per_second = 5;
    let mut peer = Peer::new(config);
    for port in 0..100 {
        peer.send(Segment::new(4000, 9000 + port, 1, None).flags("S"));
    }
    assert_eq!(peer.segments().len(), 5);
    assert_eq!(peer.stack.counters().get(Counter::ResetRate), 95);
}

#[proves("RFC 9293 3.10.7.4", "a reset in CLOSING or LAST-ACK ends the connection")]
#[test]
fn a_reset_in_last_ack_closes_without_failure() {
    let (mut peer, connection) = connected();
    peer.send(connection.segment().flags("F"));
    peer.events();
    peer.segments();
    peer.stack.shutdown(connection.conn);
    peer.segment();
    peer.send(Segment::new(4000, 80, connection.seq + 1, None).flags("R"));
    assert_eq!(peer.events(), [Event::Closed(connection.conn)]);
    assert_eq!(peer.stack.occupancy().connections, 0);
}

#[test]
fn ids_of_ended_connections_have_no_effect() {
    let (mut peer, connection) = connected();
    peer.send(Segment::new(4000, 80, connection.seq, None).flags("R"));
    peer.events();
    let next = peer.connect(4001, None, None);
    assert_eq!(next.conn.index(), connection.conn.index(), "the slot is reused");
    peer.stack.abort(peer.now, connection.conn);
    peer.stack.close(peer.now, connection.conn);
    peer.stack.shutdown(connection.conn);
    peer.stack.set_window(connection.conn, 0);
    let mut data = isola_iobuf::Chain::from(isola_iobuf::IoBuf::from_static(b"x"));
    assert!(peer.stack.send(connection.conn, &mut data).is_err());
    assert_eq!(peer.stack.connection_stats(connection.conn), None);
    peer.silent();
    assert_eq!(peer.stack.occupancy().connections, 1);
}

#[test]
fn the_loss_of_an_address_fails_its_connections() {
    let (mut peer, connection) = connected();
    let own = peer.stack.ipv4().unwrap();
    peer.stack.set_ipv4(peer.now, Some(own));
    assert_eq!(peer.events(), [], "the same address changes nothing");
    let other = isola_net_stack::Ipv4Config::new([10, 0, 0, 77].into(), 16, None);
    peer.stack.set_ipv4(peer.now, Some(other));
    assert_eq!(
        peer.events(),
        [Event::AddressChanged(Some(other)), Event::Failed(connection.conn, FailReason::AddressLost)]
    );
    assert_eq!(peer.stack.occupancy().connections, 0);
}

#[proves(
    "RFC 9293 3.8.4",
    "keep-alives are sent only to an idle connection, and end it only when several are unanswered"
)]
#[test]
fn a_silent_peer_is_probed_if_requested_and_then_given_up() {
    use isola_net_stack::{Duration, KeepAlive};
    let mut config = host_config(1);
    config.tcp.keep_alive =
        Some(KeepAlive { idle: Duration::from_secs(100), interval: Duration::from_secs(10), probes: 3 });
    let mut peer = Peer::new(config);
    peer.stack.listen(80, 1).unwrap();
    let connection = peer.connect(4000, None, None);
    assert_eq!(peer.next_timer(), Duration::from_secs(100));
    let probe = peer.segment();
    assert_eq!((probe.seq, probe.payload.len()), (connection.ack.wrapping_sub(1), 0));
    peer.send(connection.segment());
    assert_eq!(peer.next_timer(), Duration::from_secs(100), "an answer restarts the timer");
    peer.segment();
    for _ in 0..2 {
        assert_eq!(peer.next_timer(), Duration::from_secs(10));
        peer.segment();
    }
    peer.next_timer();
    assert_eq!(peer.events(), [Event::Failed(connection.conn, FailReason::TimedOut)]);
}

#[proves("RFC 9293 3.8.4", "keep-alives are off by default, and are set for each connection")]
#[test]
fn keep_alive_is_set_for_each_connection() {
    use isola_net_stack::{Duration, KeepAlive};
    let (mut peer, connection) = connected();
    assert_eq!(peer.stack.next_deadline(), None, "off by default");
    let (idle, interval) = (Duration::from_secs(5), Duration::from_secs(1));
    peer.stack.set_keep_alive(connection.conn, Some(KeepAlive { idle, interval, probes: 1 }));
    assert_eq!(peer.next_timer(), idle);
    peer.segment();
    peer.stack.set_keep_alive(connection.conn, None);
    assert_eq!(peer.stack.next_deadline(), None, "off again");
}

#[proves("RFC 9293 3.8.4", "a keep-alive of the peer is answered")]
#[test]
fn a_peers_keep_alive_probe_is_answered() {
    let (mut peer, connection) = connected();
    peer.send(Segment::new(4000, 80, connection.seq - 1, Some(connection.ack)));
    assert_eq!(peer.segment().ack, Some(connection.seq));
}
