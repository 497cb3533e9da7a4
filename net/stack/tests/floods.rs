//! Floods of input fill bounded tables and queues, and existing connections continue to work.

use isola_net_sim::{Peer, Segment, host_config, host_ip, host_mac};
use isola_net_stack::{Counter, Duration, Event};
use isola_proves::proves;
use std::net::Ipv4Addr;

/// Returns a SYN from one of many addresses, through one neighbour.
fn syn(number: u32) -> Vec<u8> {
    let source = Ipv4Addr::from_bits(0x0a00_0100 + number);
    let mut frame = Segment::new(4000, 80, number, None).flags("S").frame(source, host_ip(1));
    frame[6..12].copy_from_slice(&host_mac(200).0);
    frame
}

#[proves("RFC 4987 3.6", "a flood of SYNs fills a bounded table, and legitimate clients still connect")]
#[test]
fn a_syn_flood_uses_only_half_open_entries_and_clients_still_connect() {
    let mut config = host_config(1);
    config.tcp.max_half_open = 100;
    let mut peer = Peer::new(config);
    peer.stack.listen(80, 16).unwrap();
    let mut connection = peer.connect(5000, None, None);
    for number in 0..10_000 {
        peer.send_frame(syn(number));
        // Legitimate clients, before the table is full and after.
        if number % 1000 == 50 {
            peer.frames();
            let mut other = peer.connect(6000 + number as u16, None, None);
            peer.send_data(&mut other, b"hello");
            assert_eq!(peer.read(other.conn), b"hello");
            peer.stack.abort(peer.now, other.conn);
        }
        peer.frames();
    }
    let occupancy = peer.stack.occupancy();
    assert_eq!((occupancy.half_open, occupancy.connections), (100, 1));
    let counters = peer.stack.counters();
    assert_eq!(counters.get(Counter::TcpCookiesOut), 9_900 + 9);
    assert_eq!((counters.get(Counter::TcpCookiesIn), counters.get(Counter::TcpAccepted)), (9, 11));
    // A connection from before the flood still works.
    peer.send_data(&mut connection, b"still here");
    assert_eq!(peer.read(connection.conn), b"still here");
    peer.segment();
    // After the flood the table empties, and new handshakes get entries again.
    peer.pass(Duration::from_secs(100));
    peer.segments();
    assert_eq!(peer.stack.occupancy().half_open, 0);
    peer.events();
    peer.connect(7000, None, None);
    assert_eq!(peer.stack.counters().get(Counter::TcpCookiesIn), 9);
}

#[proves("RFC 4987 3.6", "acknowledgements with guessed cookies open no connections")]
#[test]
fn a_flood_of_guessed_cookies_opens_no_connections() {
    let mut config = host_config(1);
    config.tcp.max_half_open = 1;
    config.limits.resets_per_second = 5;
    let mut peer = Peer::new(config);
    peer.stack.listen(80, 16).unwrap();
    (0..2).for_each(|number| peer.send_frame(syn(number)));
    for guess in 0..10_000u32 {
        peer.send(Segment::new(4000, 80, 1, Some(guess.wrapping_mul(0x9e37_79b9))));
        peer.frames();
    }
    let occupancy = peer.stack.occupancy();
    assert_eq!((occupancy.half_open, occupancy.connections), (1, 0));
    assert_eq!(peer.stack.counters().get(Counter::TcpCookiesWrong), 10_000);
    assert_eq!(peer.stack.counters().get(Counter::TcpResetsOut), 5);
}

#[test]
fn a_full_connection_table_rejects_connections_and_recovers() {
    let mut config = host_config(1);
    config.tcp.max_connections = 5;
    let mut peer = Peer::new(config);
    peer.stack.listen(80, 100).unwrap();
    let connections: Vec<_> = (0..5).map(|from| peer.connect(4000 + from, None, None)).collect();
    peer.send(Segment::new(5000, 80, 7, None).flags("S"));
    let answer = peer.segment();
    let last = Segment::new(5000, 80, 8, Some(answer.seq.wrapping_add(1)));
    peer.send(last.clone());
    assert_eq!(peer.events(), []);
    assert_eq!(peer.stack.counters().get(Counter::DropTcpTableFull), 1);
    assert!(peer.stack.connect(peer.now, (host_ip(2), 99).into()).is_err());
    peer.stack.abort(peer.now, connections[0].conn);
    peer.segments();
    peer.send(last);
    assert!(matches!(peer.events()[..], [Event::Accepted { .. }]));
}

#[test]
fn thousands_of_connections_leave_only_bounded_time_wait_entries() {
    let mut config = host_config(1);
    config.tcp.max_time_wait = 50;
    let mut peer = Peer::new(config);
    peer.stack.listen(80, 100).unwrap();
    for round in 0..2_000u16 {
        let mut connection = peer.connect(10_000 + round, None, None);
        peer.send_data(&mut connection, b"ping");
        assert_eq!(peer.read(connection.conn), b"ping");
        peer.write(connection.conn, b"pong");
        peer.stack.close(peer.now, connection.conn);
        assert_eq!(peer.segment().payload, b"pong");
        connection.ack += 5;
        peer.send(connection.segment().flags("F"));
        peer.segment();
    }
    let occupancy = peer.stack.occupancy();
    assert_eq!((occupancy.connections, occupancy.half_open, occupancy.time_wait), (0, 0, 50));
}

#[test]
fn untransmitted_answers_fill_a_bounded_queue() {
    let mut config = host_config(1);
    config.limits.transmit_queue = 64;
    config.limits.resets_per_second = 1_000_000;
    let mut peer = Peer::new(config);
    for port in 0..10_000 {
        peer.send(Segment::new(4000, 10_000 + port, 1, None).flags("S"));
    }
    assert_eq!(peer.frames().len(), 64);
    assert_eq!(peer.stack.counters().get(Counter::DropTransmitQueue), 10_000 - 64);
}

#[test]
fn untaken_events_of_a_connection_are_merged_by_kind() {
    let mut peer = Peer::listening();
    let mut connection = peer.connect(4000, None, None);
    for _ in 0..1000 {
        peer.send_data(&mut connection, b"x");
    }
    assert_eq!(peer.events(), [Event::Readable(connection.conn)]);
}
