//! Thousands of connections that are opened, used and closed in all ways leave no table entry, timer or memory behind.

use isola_net_sim::{Peer, PeerConnection, Segment, host_config};
use isola_net_stack::Duration;

/// Connections per round.
const ROUND: u16 = 500;

/// The ways in which a connection ends.
const WAYS: [fn(&mut Peer, &mut PeerConnection); 6] = [
    peer_closes_first,
    this_side_closes_first,
    peer_resets,
    this_side_resets,
    data_is_left_unread,
    peer_falls_silent,
];

fn peer_closes_first(peer: &mut Peer, connection: &mut PeerConnection) {
    peer.send(connection.segment().flags("F"));
    connection.seq += 1;
    peer.stack.close(peer.now, connection.conn);
    peer.segments();
    connection.ack += 1;
    peer.send(connection.segment());
}

fn this_side_closes_first(peer: &mut Peer, connection: &mut PeerConnection) {
    peer.stack.close(peer.now, connection.conn);
    peer.segments();
    connection.ack += 1;
    peer.send(connection.segment().flags("F"));
    peer.segments();
}

fn peer_resets(peer: &mut Peer, connection: &mut PeerConnection) {
    peer.send(Segment::new(connection.from, 80, connection.seq, None).flags("R"));
}

fn this_side_resets(peer: &mut Peer, connection: &mut PeerConnection) {
    peer.stack.abort(peer.now, connection.conn);
    peer.segments();
}

fn data_is_left_unread(peer: &mut Peer, connection: &mut PeerConnection) {
    peer.send(Segment { seq: connection.seq + 1, ..connection.segment() }.payload(b"beyond a gap"));
    peer.send_data(connection, b"unread");
    peer.stack.close(peer.now, connection.conn);
    peer.segments();
}

fn peer_falls_silent(peer: &mut Peer, connection: &mut PeerConnection) {
    peer.write(connection.conn, &[1; 3000]);
    peer.stack.close(peer.now, connection.conn);
    peer.segments();
}

/// Opens, uses and ends connections, then lets all timers expire.
fn round(peer: &mut Peer) {
    for from in 0..ROUND {
        let mut connection = peer.connect(10_000 + from, Some(1000), Some(7));
        peer.send_data(&mut connection, b"question");
        assert_eq!(peer.read(connection.conn), b"question");
        peer.write(connection.conn, b"answer");
        peer.segments();
        connection.ack += 6;
        peer.send(connection.segment());
        let end = WAYS[usize::from(from) % WAYS.len()];
        end(peer, &mut connection);
        peer.events();
    }
    for _ in 0..20 {
        peer.pass(Duration::from_secs(60));
        peer.segments();
        peer.events();
    }
    let occupancy = peer.stack.occupancy();
    assert_eq!((occupancy.connections, occupancy.half_open, occupancy.time_wait), (0, 0, 0));
}

#[test]
fn connections_leave_nothing_behind_however_they_end() {
    let mut config = host_config(1);
    config.tcp.max_connections = 2 * usize::from(ROUND);
    let mut peer = Peer::new(config);
    peer.stack.listen(80, 16).unwrap();
    // The first round grows the tables to their final size.
    round(&mut peer);
    let more = allocation_counter::measure(|| (0..9).for_each(|_| round(&mut peer)));
    assert!(more.count_total > 1_000, "connections allocate memory");
    assert_eq!(more.bytes_current, 0, "{} allocations are left", more.count_current);
    assert_eq!(peer.stack.next_deadline(), None, "an idle stack has no timer");
}
