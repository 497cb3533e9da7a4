//! SACK blocks sent by the receiving side (RFC 2018, RFC 2883).

use isola_net_sim::{Peer, PeerConnection, Segment, host_config};
use isola_net_stack::{Config, Counter};
use isola_proves::proves;

fn connected_with(config: Config, timestamps: Option<(u32, u32)>) -> (Peer, PeerConnection) {
    let mut peer = Peer::new(config);
    peer.stack.listen(80, 1).unwrap();
    let mut syn =
        Segment::new(4000, 80, 1_000_000, None).flags("S").options(Some(1000), None).sack_permitted();
    syn.timestamps = timestamps;
    let connection = peer.connect_with(syn);
    (peer, connection)
}

fn connected() -> (Peer, PeerConnection) {
    connected_with(host_config(1), None)
}

/// A segment of `len` bytes, `offset` bytes ahead of the connection's next sequence number.
fn ahead(connection: &PeerConnection, offset: u32, len: usize) -> Segment {
    Segment { seq: connection.seq.wrapping_add(offset), ..connection.segment() }.payload(&vec![7; len])
}

/// Returns the SACK blocks of the next acknowledgement, relative to the connection's next sequence number.
fn blocks(peer: &mut Peer, connection: &PeerConnection) -> Vec<(u32, u32)> {
    let relative =
        |(start, end): (u32, u32)| (start.wrapping_sub(connection.seq), end.wrapping_sub(connection.seq));
    peer.segment().sack.into_iter().map(relative).collect()
}

#[proves("RFC 2018 2", "SACK is permitted only if the peer's SYN permits it, and blocks are sent only then.")]
#[test]
fn without_permission_no_blocks_are_sent() {
    let mut peer = Peer::listening();
    peer.send(Segment::new(4000, 80, 7, None).flags("S"));
    assert!(!peer.segment().sack_permitted);
    let connection = peer.connect(4001, None, None);
    peer.send(ahead(&connection, 10, 10));
    assert_eq!(peer.segment().sack, []);
    peer.send(Segment::new(4002, 80, 7, None).flags("S").sack_permitted());
    assert!(peer.segment().sack_permitted);
}

#[proves("RFC 2018 4", "every acknowledgement reports data stored beyond a gap.")]
#[proves("RFC 2018 4", "the first block is the run of the newest segment, the others follow by recency.")]
#[test]
fn data_beyond_a_gap_is_reported_with_the_newest_run_first() {
    let (mut peer, connection) = connected();
    let steps = [
        (10, vec![(10, 20)]),
        (30, vec![(30, 40), (10, 20)]),
        (50, vec![(50, 60), (30, 40), (10, 20)]),
        (70, vec![(70, 80), (50, 60), (30, 40), (10, 20)]),
        (20, vec![(10, 30 + 10), (70, 80), (50, 60)]),
    ];
    for (offset, expected) in steps {
        peer.send(ahead(&connection, offset, 10));
        assert_eq!(blocks(&mut peer, &connection), expected);
    }
    // Fills the gap up to 40.
    peer.send(ahead(&connection, 0, 10));
    let answer = peer.segment();
    assert_eq!(answer.ack, Some(connection.seq + 40));
    assert_eq!(
        answer.sack,
        [(connection.seq + 70, connection.seq + 80), (connection.seq + 50, connection.seq + 60)]
    );
    peer.send(ahead(&connection, 40, 40));
    let answer = peer.segment();
    assert_eq!((answer.ack, answer.sack), (Some(connection.seq + 80), vec![]));
}

#[proves("RFC 2018 3", "blocks and timestamps share the forty bytes.")]
#[test]
fn blocks_fit_beside_timestamps() {
    let (mut peer, connection) = connected_with(host_config(1), Some((5, 0)));
    for offset in [10, 30, 50, 70] {
        peer.send(ahead(&connection, offset, 10));
        let answer = peer.segment();
        assert!(answer.timestamps.is_some() && answer.sack.len() <= 3);
    }
}

#[proves("RFC 2018 3", "segments with data carry blocks too, and less data so that the packet fits.")]
#[test]
fn segments_with_data_leave_room_for_blocks() {
    let (mut peer, connection) = connected_with(host_config(1), Some((5, 0)));
    peer.send(ahead(&connection, 10, 10));
    peer.write(connection.conn, &[1; 1500]);
    let sent = peer.segments();
    assert_eq!(sent[0].sack, [(connection.seq + 10, connection.seq + 20)]);
    assert!(sent[0].payload.len() + 12 + 12 <= 1000);
    assert_eq!(sent.iter().map(|segment| segment.payload.len()).sum::<usize>(), 1500);
}

#[proves("RFC 2883 4.1", "a duplicate below the acknowledgement is the first block, once.")]
#[proves("RFC 2883 4.2", "a duplicate beyond the gap is followed by the run that contains it.")]
#[proves("RFC 2883 4.1.2", "of a partly duplicate segment, only the duplicate part is reported.")]
#[test]
fn a_duplicate_is_reported_once() {
    let (mut peer, mut connection) = connected();
    peer.send_data(&mut connection, &[7; 100]);
    peer.segments();
    let before = |start: u32, end: u32| (connection.seq - start, connection.seq - end);
    peer.send(Segment { seq: connection.seq - 100, ..connection.segment() }.payload(&[7; 40]));
    assert_eq!(peer.segment().sack, [before(100, 60)]);
    peer.send(ahead(&connection, 50, 20));
    assert_eq!(blocks(&mut peer, &connection), [(50, 70)]);
    peer.send(ahead(&connection, 55, 5));
    assert_eq!(blocks(&mut peer, &connection), [(55, 60), (50, 70)]);
    peer.send(Segment { seq: connection.seq - 10, ..connection.segment() }.payload(&[7; 20]));
    let answer = peer.segment();
    assert_eq!(answer.ack, Some(connection.seq + 10));
    assert_eq!(answer.sack, [before(10, 0), (connection.seq + 50, connection.seq + 70)]);
}

#[proves("RFC 2018 8", "data dropped for lack of room is not reported, so that it is retransmitted.")]
#[test]
fn dropped_data_is_not_reported() {
    let mut config = host_config(1);
    config.tcp.reassembly_pieces = 2;
    let (mut peer, connection) = connected_with(config, None);
    for offset in [10, 30, 50] {
        peer.send(ahead(&connection, offset, 10));
    }
    let last = peer.segments().pop().unwrap();
    assert_eq!(
        last.sack,
        [(connection.seq + 30, connection.seq + 40), (connection.seq + 10, connection.seq + 20)]
    );
    assert_eq!(peer.stack.counters().get(Counter::DropTcpReassembly), 1);
}
