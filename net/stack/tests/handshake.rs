//! Handshakes of connections.

use isola_net_sim::{Peer, Segment, host_config, host_ip, host_mac};
use isola_net_stack::{ConnectError, Counter, Duration, Event, FailReason, ListenError, Owner};
use isola_proves::proves;
use std::net::{Ipv4Addr, SocketAddr};

fn server() -> SocketAddr {
    SocketAddr::from((host_ip(2), 80))
}

#[proves(
    "RFC 9293 3.10.7.2",
    "a SYN for a listener is answered with SYN and ACK, and the last ACK establishes the connection"
)]
#[proves(
    "RFC 9293 3.7.1",
    "the MSS option is sent with a SYN-ACK, and the peer's option limits our segments"
)]
#[proves("RFC 7323 2.2", "the window scale option is sent in answer to one")]
#[test]
fn a_listener_answers_with_its_options_and_accepts() {
    let mut peer = Peer::listening();
    peer.send(Segment::new(4000, 80, 77, None).flags("S").options(Some(1200), Some(2)));
    let answer = peer.segment();
    assert_eq!((answer.flags.as_str(), answer.ack, answer.mss), ("S", Some(78), Some(1460)));
    // A window of 4 MiB needs a scale of 7, because 65,535 << 6 is slightly less.
    assert_eq!((answer.scale, answer.window), (Some(7), 65_535));
    assert_eq!(peer.events(), [], "no event before the handshake is complete");
    peer.send(Segment::new(4000, 80, 78, Some(answer.seq + 1)));
    let [Event::Accepted { conn, .. }] = peer.events()[..] else { panic!("accepted") };
    let stats = peer.stack.connection_stats(conn).unwrap();
    assert_eq!((stats.mss, stats.peer_window), (1200, 60_000 << 2));
    assert_eq!(peer.stack.remote_addr(conn), Some((host_ip(2), 4000).into()));
    assert_eq!(peer.stack.local_addr(conn), Some((host_ip(1), 80).into()));
}

#[proves("RFC 9293 3.7.1", "without an MSS option segments have at most 536 bytes")]
#[proves("RFC 7323 2.2", "no window scale option is sent in answer to a SYN without one")]
#[test]
fn a_peer_without_options_gets_no_options_and_small_segments() {
    let mut peer = Peer::listening();
    peer.send(Segment::new(4000, 80, 77, None).flags("S"));
    let answer = peer.segment();
    assert_eq!(answer.scale, None);
    peer.send(Segment::new(4000, 80, 78, Some(answer.seq + 1)));
    let [Event::Accepted { conn, .. }] = peer.events()[..] else { panic!("accepted") };
    let stats = peer.stack.connection_stats(conn).unwrap();
    assert_eq!((stats.mss, stats.peer_window), (536, 60_000));
}

#[test]
fn a_tiny_segment_size_is_raised_to_the_minimum() {
    let mut peer = Peer::listening();
    let connection = peer.connect(4000, Some(1), None);
    assert_eq!(peer.stack.connection_stats(connection.conn).unwrap().mss, 64);
}

#[proves("RFC 9293 3.10.7.4", "data and FIN in the last segment of a handshake are processed")]
#[test]
fn the_last_segment_of_a_handshake_may_have_data_and_fin() {
    let mut peer = Peer::listening();
    peer.send(Segment::new(4000, 80, 77, None).flags("S"));
    let answer = peer.segment();
    peer.send(Segment::new(4000, 80, 78, Some(answer.seq + 1)).flags("FP").payload(b"get"));
    let events = peer.events();
    let [Event::Accepted { conn, .. }, Event::Readable(_), Event::PeerClosed(_)] = events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(peer.read(conn), b"get");
    assert_eq!(peer.segment().ack, Some(78 + 3 + 1));
}

#[proves("RFC 6298 5.5", "the timeout of a SYN-ACK doubles each time")]
#[proves("RFC 9293 3.8.3", "a handshake is given up after R2")]
#[test]
fn a_syn_ack_is_retransmitted_with_doubled_timeouts_and_then_given_up() {
    let mut peer = Peer::listening();
    peer.send(Segment::new(4000, 80, 77, None).flags("S"));
    let first = peer.segment();
    for seconds in [1, 2, 4, 8, 16] {
        assert_eq!(peer.next_timer(), Duration::from_secs(seconds));
        assert_eq!(peer.segment(), first);
    }
    peer.next_timer();
    peer.silent();
    assert_eq!(peer.stack.occupancy().half_open, 0);
    assert_eq!(peer.stack.next_deadline(), None);
}

#[proves("RFC 9293 3.5", "an old duplicate SYN does not confuse a handshake")]
#[test]
fn a_repeated_syn_gets_the_same_answer() {
    let mut peer = Peer::listening();
    let syn = Segment::new(4000, 80, 77, None).flags("S");
    peer.send(syn.clone());
    let first = peer.segment();
    peer.send(syn);
    assert_eq!(peer.segment(), first);
    assert_eq!(peer.stack.occupancy().half_open, 1);
}

#[proves("RFC 9293 3.10.7.4", "in SYN-RECEIVED an unacceptable ACK is answered with a reset of its number")]
#[test]
fn a_wrong_acknowledgement_in_a_handshake_is_reset_and_the_right_one_still_accepted() {
    let mut peer = Peer::listening();
    peer.send(Segment::new(4000, 80, 77, None).flags("S"));
    let answer = peer.segment();
    for wrong in [answer.seq, answer.seq.wrapping_add(2)] {
        peer.send(Segment::new(4000, 80, 78, Some(wrong)));
        let reset = peer.segment();
        assert_eq!((reset.flags.as_str(), reset.seq, reset.ack), ("R", wrong, None));
    }
    peer.send(Segment::new(4000, 80, 78, Some(answer.seq + 1)));
    assert!(matches!(peer.events()[..], [Event::Accepted { .. }]));
}

#[proves("RFC 9293 3.10.7.4", "a reset in SYN-RECEIVED returns to LISTEN without an event")]
#[proves("RFC 5961 3.2", "only a reset with exactly the next expected number is accepted")]
#[test]
fn only_a_reset_with_the_exact_number_ends_a_half_open_handshake() {
    let mut peer = Peer::listening();
    peer.send(Segment::new(4000, 80, 77, None).flags("S"));
    peer.segment();
    let counted = |peer: &Peer| {
        let counters = peer.stack.counters();
        (counters.get(Counter::DropTcpReset), counters.get(Counter::TcpResetsIn))
    };
    peer.send(Segment::new(4000, 80, 79, None).flags("R"));
    assert_eq!(peer.stack.occupancy().half_open, 1);
    assert_eq!(counted(&peer), (1, 0));
    peer.send(Segment::new(4000, 80, 78, None).flags("R"));
    assert_eq!(peer.stack.occupancy().half_open, 0);
    assert_eq!(counted(&peer), (1, 1));
    peer.silent();
    assert_eq!(peer.events(), []);
}

#[test]
fn each_segment_of_a_handshake_belongs_to_the_owner_of_its_listener() {
    let mut peer = Peer::fast();
    let listener = peer.stack.listen(80, 16).unwrap();
    peer.stack.set_listener_owner(listener, Owner(7));
    peer.send(Segment::new(4000, 80, 77, None).flags("S"));
    assert_eq!(peer.stack.owner(), Owner(7));
    peer.segment();
    peer.send(Segment::new(4000, 81, 5, None).flags("R"));
    assert_eq!(peer.stack.owner(), Owner::UNKNOWN);
    // Not the next expected number.
    peer.send(Segment::new(4000, 80, 79, None).flags("R"));
    assert_eq!(peer.stack.owner(), Owner(7));
}

#[proves(
    "RFC 9293 3.10.7.1",
    "a segment without a connection is answered with a reset, unless it is a reset"
)]
#[proves("RFC 9293 3.5.2", "a reset takes its number from the ACK, or is zero and acknowledges the segment")]
#[test]
fn segments_without_a_connection_are_reset() {
    let mut peer = Peer::listening();
    peer.send(Segment::new(4000, 81, 5, None).flags("S").payload(b"xy"));
    let reset = peer.segment();
    assert_eq!((reset.flags.as_str(), reset.seq, reset.ack), ("R", 0, Some(8)));
    peer.send(Segment::new(4000, 80, 5, Some(99)));
    let reset = peer.segment();
    assert_eq!((reset.flags.as_str(), reset.seq, reset.ack), ("R", 99, None));
    peer.send(Segment::new(4000, 81, 5, None).flags("R"));
    peer.silent();
}

#[proves("RFC 9293 3.10.1", "an active OPEN sends a SYN")]
#[proves("RFC 9293 3.7.1", "the MSS option is sent with a SYN")]
#[proves(
    "RFC 9293 3.10.7.3",
    "a SYN-ACK that acknowledges the SYN establishes the connection and is acknowledged"
)]
#[proves("RFC 7323 2.2", "the window of a segment with SYN is not scaled")]
#[test]
fn connecting_sends_a_syn_with_options_and_completes_the_handshake() {
    let mut peer = Peer::fast();
    let conn = peer.stack.connect(peer.now, server()).unwrap();
    let syn = peer.segment();
    assert_eq!((syn.flags.as_str(), syn.ack, syn.mss, syn.scale), ("S", None, Some(1460), Some(7)));
    peer.send(
        Segment::new(80, syn.from, 9, Some(syn.seq + 1)).flags("S").options(Some(1000), Some(3)).window(500),
    );
    assert_eq!(peer.events(), [Event::Connected(conn)]);
    let ack = peer.segment();
    assert_eq!((ack.flags.as_str(), ack.seq, ack.ack), ("", syn.seq + 1, Some(10)));
    let stats = peer.stack.connection_stats(conn).unwrap();
    // The window of a segment with SYN is not scaled.
    assert_eq!((stats.mss, stats.peer_window), (1000, 500));
}

#[proves("RFC 9293 3.10.2", "SEND in SYN-SENT queues data until the connection is established")]
#[proves("RFC 9293 3.10.4", "CLOSE in SYN-SENT or before all is sent waits for the queued data")]
#[test]
fn data_queued_before_the_handshake_follows_it_at_once() {
    let mut peer = Peer::fast();
    let conn = peer.stack.connect(peer.now, server()).unwrap();
    peer.write(conn, b"early");
    peer.stack.shutdown(conn);
    let syn = peer.segment();
    assert!(syn.payload.is_empty());
    peer.send(Segment::new(80, syn.from, 9, Some(syn.seq + 1)).flags("S"));
    let data = peer.segment();
    assert_eq!((data.payload.as_slice(), data.flags.as_str()), (&b"early"[..], "FP"));
}

#[proves("RFC 9293 3.10.7.3", "a reset in SYN-SENT is accepted only if it acknowledges the SYN")]
#[test]
fn a_refused_connection_fails_and_a_forged_refusal_does_not() {
    let mut peer = Peer::fast();
    let conn = peer.stack.connect(peer.now, server()).unwrap();
    let syn = peer.segment();
    peer.send(Segment::new(80, syn.from, 0, Some(syn.seq)).flags("R"));
    peer.send(Segment::new(80, syn.from, 0, None).flags("R"));
    assert_eq!(peer.events(), []);
    peer.silent();
    peer.send(Segment::new(80, syn.from, 0, Some(syn.seq + 1)).flags("R"));
    assert_eq!(peer.events(), [Event::Failed(conn, FailReason::Refused)]);
    assert_eq!(peer.stack.occupancy().connections, 0);
    peer.silent();
}

#[proves("RFC 9293 3.10.7.3", "an unacceptable ACK in SYN-SENT is answered with a reset")]
#[test]
fn an_answer_to_another_syn_is_reset() {
    let mut peer = Peer::fast();
    peer.stack.connect(peer.now, server()).unwrap();
    let syn = peer.segment();
    peer.send(Segment::new(80, syn.from, 9, Some(syn.seq + 2)).flags("S"));
    let reset = peer.segment();
    assert_eq!((reset.flags.as_str(), reset.seq), ("R", syn.seq + 2));
    assert_eq!(peer.events(), []);
}

#[proves("RFC 6298 2.1", "the first timeout is one second")]
#[proves("RFC 6298 5.5", "the timeout of a SYN doubles each time")]
#[proves("RFC 9293 3.8.3", "a SYN is given up after R2, and an event reports it")]
#[test]
fn a_syn_is_retransmitted_with_doubled_timeouts_and_then_the_connection_fails() {
    let mut peer = Peer::fast();
    let conn = peer.stack.connect(peer.now, server()).unwrap();
    let syn = peer.segment();
    for seconds in [1, 2, 4, 8, 16] {
        assert_eq!(peer.next_timer(), Duration::from_secs(seconds));
        let again = peer.segment();
        assert_ne!(again.timestamps, syn.timestamps, "the clock has advanced");
        assert_eq!(Segment { timestamps: syn.timestamps, ..again }, syn);
    }
    assert_eq!(peer.next_timer(), Duration::from_secs(32));
    assert_eq!(peer.events(), [Event::Failed(conn, FailReason::TimedOut)]);
    peer.silent();
}

#[proves("RFC 6298 5.7", "after a lost SYN the timeout is three seconds")]
#[test]
fn after_a_lost_syn_the_first_timeout_is_three_seconds() {
    let mut peer = Peer::fast();
    let conn = peer.stack.connect(peer.now, server()).unwrap();
    peer.segment();
    peer.next_timer();
    let syn = peer.segment();
    peer.send(Segment::new(80, syn.from, 9, Some(syn.seq + 1)).flags("S"));
    assert_eq!(peer.stack.connection_stats(conn).unwrap().rto, Duration::from_secs(3));
}

#[proves("RFC 9293 3.5", "a simultaneous open makes one connection")]
#[proves("RFC 9293 3.10.7.3", "a SYN without ACK in SYN-SENT is answered with SYN and ACK")]
#[test]
fn two_syns_that_cross_make_one_connection() {
    let mut peer = Peer::fast();
    let conn = peer.stack.connect(peer.now, server()).unwrap();
    let syn = peer.segment();
    peer.send(Segment::new(80, syn.from, 500, None).flags("S").options(Some(900), Some(1)));
    let answer = peer.segment();
    assert_eq!((answer.flags.as_str(), answer.seq, answer.ack), ("S", syn.seq, Some(501)));
    assert_eq!(peer.events(), []);
    // The peer answers our SYN with a SYN-ACK too.
    peer.send(Segment::new(80, syn.from, 500, Some(syn.seq + 1)).flags("S").options(Some(900), Some(1)));
    assert_eq!(peer.events(), [Event::Connected(conn)]);
    peer.write(conn, b"x");
    assert_eq!(peer.segment().payload, b"x");
    let mut seq = 501;
    peer.send(Segment::new(80, syn.from, seq, Some(syn.seq + 2)).payload(b"hello"));
    seq += 5;
    assert_eq!(peer.read(conn), b"hello");
    assert_eq!(peer.segment().ack, Some(seq));
}

#[proves("RFC 9293 3.5", "a simultaneous open is completed by an ACK")]
#[test]
fn an_acknowledgement_completes_a_simultaneous_open() {
    let mut peer = Peer::fast();
    let conn = peer.stack.connect(peer.now, server()).unwrap();
    let syn = peer.segment();
    peer.send(Segment::new(80, syn.from, 500, None).flags("S"));
    peer.segment();
    // An acknowledgement without SYN completes the handshake as well.
    peer.send(Segment::new(80, syn.from, 501, Some(syn.seq + 1)));
    assert_eq!(peer.events(), [Event::Connected(conn)]);
}

#[proves("RFC 1122 4.2.3.10", "an OPEN to a broadcast or multicast address is refused")]
#[test]
fn connections_to_invalid_addresses_are_rejected_at_once() {
    let mut peer = Peer::fast();
    for ip in [host_ip(1), Ipv4Addr::BROADCAST, Ipv4Addr::new(10, 0, 255, 255), Ipv4Addr::new(224, 0, 0, 1)] {
        assert_eq!(peer.stack.connect(peer.now, (ip, 80).into()), Err(ConnectError::NoRoute), "{ip}");
    }
    assert_eq!(peer.stack.connect(peer.now, (host_ip(2), 0).into()), Err(ConnectError::NoRoute));
    let v6 = "[2001:db8::1]:80".parse().unwrap();
    assert_eq!(peer.stack.connect(peer.now, v6), Err(ConnectError::NoRoute));
    peer.stack.set_ipv4(peer.now, None);
    assert_eq!(peer.stack.connect(peer.now, server()), Err(ConnectError::NoAddress));
}

#[proves("RFC 9293 3.10.1", "an OPEN of a port that is in use is an error")]
#[test]
fn a_port_has_one_listener_until_it_is_closed() {
    let mut peer = Peer::fast();
    let listener = peer.stack.listen(80, 1).unwrap();
    assert_eq!(peer.stack.listen(80, 1), Err(ListenError::PortInUse(80)));
    assert_eq!(peer.stack.listen(0, 1), Err(ListenError::PortZero));
    peer.stack.unlisten(peer.now, listener);
    peer.stack.listen(80, 1).unwrap();
}

#[proves("RFC 9293 3.10.4", "CLOSE of a listening port ends its waiting connections")]
#[test]
fn closing_a_listener_resets_its_waiting_connections() {
    let mut peer = Peer::fast();
    let listener = peer.stack.listen(80, 8).unwrap();
    peer.send(Segment::new(4000, 80, 77, None).flags("S"));
    let answer = peer.segment();
    peer.send(Segment::new(4000, 80, 78, Some(answer.seq + 1)));
    peer.send(Segment::new(4001, 80, 77, None).flags("S"));
    let half_open = peer.segment();
    peer.stack.unlisten(peer.now, listener);
    assert_eq!(peer.segment().flags, "R");
    assert_eq!(peer.events(), []);
    peer.send(Segment::new(4001, 80, 78, Some(half_open.seq + 1)));
    assert_eq!(peer.segment().flags, "R");
    let occupancy = peer.stack.occupancy();
    assert_eq!((occupancy.connections, occupancy.half_open), (0, 0));
}

#[test]
fn a_full_backlog_delays_handshakes_until_a_connection_is_accepted() {
    let mut config = host_config(1);
    config.tcp.max_connections = 100;
    let mut peer = Peer::new(config);
    peer.stack.listen(80, 2).unwrap();
    let mut answers = Vec::new();
    for from in 0..3 {
        peer.send(Segment::new(4000 + from, 80, 77, None).flags("S"));
        answers.push(peer.segment());
    }
    for (from, answer) in answers.iter().enumerate() {
        peer.send(Segment::new(4000 + from as u16, 80, 78, Some(answer.seq + 1)));
    }
    assert_eq!(peer.stack.counters().get(Counter::DropTcpBacklog), 1);
    peer.send(Segment::new(5000, 80, 77, None).flags("S"));
    peer.silent();
    assert_eq!(peer.events().len(), 2);
    // The third client repeats its acknowledgement after the retransmission of our SYN-ACK.
    peer.next_timer();
    assert_eq!(peer.segment(), answers[2]);
    peer.send(Segment::new(4002, 80, 78, Some(answers[2].seq + 1)));
    assert!(matches!(peer.events()[..], [Event::Accepted { .. }]));
}

#[test]
fn a_connection_that_is_reset_before_it_is_accepted_causes_no_event() {
    let mut peer = Peer::fast();
    peer.stack.listen(80, 1).unwrap();
    for from in 4000..4010 {
        peer.send(Segment::new(from, 80, 77, None).flags("S"));
        let answer = peer.segment();
        peer.send(Segment::new(from, 80, 78, Some(answer.seq + 1)));
        peer.send(Segment::new(from, 80, 78, None).flags("R"));
    }
    assert_eq!(peer.events(), []);
    assert_eq!(peer.stack.occupancy().connections, 0);
    assert_eq!(peer.stack.counters().get(Counter::TcpAccepted), 10, "the backlog of one had room each time");
}

#[proves(
    "RFC 1122 4.2.3.9",
    "an error fails the attempt that caused it, and not another one that reuses its slot."
)]
#[test]
fn a_failed_neighbour_resolution_fails_only_its_waiting_connections() {
    let mut peer = Peer::fast();
    let abandoned = peer.stack.connect(peer.now, (host_ip(9), 80).into()).unwrap();
    assert_eq!(peer.frames().len(), 1, "the ARP request");
    peer.stack.abort(peer.now, abandoned);
    peer.stack.connect(peer.now, (host_ip(2), 80).into()).unwrap();
    assert_eq!(peer.segment().flags, "S");
    peer.pass(Duration::from_secs(10));
    assert_eq!(peer.events(), []);
    assert_eq!(peer.stack.occupancy().connections, 1);
}

#[test]
fn a_segment_without_syn_and_ack_to_a_listener_is_counted_and_not_answered() {
    let mut peer = Peer::listening();
    peer.send(Segment::new(4000, 80, 77, None).flags("F"));
    peer.silent();
    assert_eq!(peer.stack.counters().get(Counter::DropTcpFlags), 1);
}

#[test]
fn a_syn_from_port_0_or_from_the_own_address_is_not_answered() {
    let mut peer = Peer::listening();
    peer.send(Segment::new(0, 80, 77, None).flags("S"));
    let syn = Segment::new(4000, 80, 77, None).flags("S");
    peer.send_frame(syn.frame(host_ip(1), host_ip(1)));
    peer.silent();
    assert_eq!(peer.stack.occupancy().half_open, 0);
}

#[test]
fn a_frame_from_the_own_hardware_address_brings_no_data() {
    let mut peer = Peer::listening();
    let connection = peer.connect(4000, None, None);
    let mut frame = connection.segment().payload(b"x").frame(host_ip(2), host_ip(1));
    frame[6..12].copy_from_slice(&host_mac(1).0);
    peer.send_frame(frame);
    assert_eq!(peer.read(connection.conn), b"");
}
