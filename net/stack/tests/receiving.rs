//! Received segments that are out of order, duplicate, overlapping, or outside the window.

use isola_iobuf::{IoBuf, IoBufMut};
use isola_net_sim::{Peer, PeerConnection, Segment, host_config};
use isola_net_stack::{Counter, Event, RxChecksum};
use isola_proves::proves;

fn connected() -> (Peer, PeerConnection) {
    let mut peer = Peer::listening();
    let connection = peer.connect(4000, Some(1460), None);
    (peer, connection)
}

/// Returns a segment `offset` bytes ahead of the connection's next sequence number.
fn ahead(connection: &PeerConnection, offset: u32, payload: &[u8]) -> Segment {
    Segment { seq: connection.seq.wrapping_add(offset), ..connection.segment() }.payload(payload)
}

#[proves("RFC 5681 4.2", "a segment out of order is acknowledged at once")]
#[proves("RFC 9293 3.10.7.4", "segments beyond a gap are stored until it is filled")]
#[test]
fn data_beyond_a_gap_is_stored_and_acknowledged_at_once() {
    let (mut peer, connection) = connected();
    for (offset, data) in [(6, b"ghi"), (3, b"def"), (12, b"mno")] {
        peer.send(ahead(&connection, offset, data));
        let duplicate = peer.segment();
        assert_eq!((duplicate.ack, duplicate.payload.len()), (Some(connection.seq), 0));
    }
    assert_eq!(peer.events(), []);
    peer.send(ahead(&connection, 0, b"abc"));
    assert_eq!(peer.events(), [Event::Readable(connection.conn)]);
    assert_eq!(peer.read(connection.conn), b"abcdefghi");
    assert_eq!(peer.segment().ack, Some(connection.seq + 9));
    peer.send(ahead(&connection, 9, b"jkl"));
    assert_eq!(peer.read(connection.conn), b"jklmno");
    assert_eq!(peer.stack.counters().get(Counter::TcpOutOfOrder), 3);
}

#[proves("RFC 9293 3.10.7.4", "segments are trimmed to their new data")]
#[test]
fn overlapping_segments_deliver_each_byte_once() {
    let (mut peer, connection) = connected();
    peer.send(ahead(&connection, 4, b"efgh"));
    peer.send(ahead(&connection, 2, b"cdefghij"));
    peer.send(ahead(&connection, 5, b"f"));
    peer.send(ahead(&connection, 0, b"abcdef"));
    assert_eq!(peer.read(connection.conn), b"abcdefghij");
    // Old and new data in one segment.
    peer.send(ahead(&connection, 7, b"hijklm"));
    assert_eq!(peer.read(connection.conn), b"klm");
    assert_eq!(peer.segments().last().unwrap().ack, Some(connection.seq + 13));
}

#[proves("RFC 9293 3.10.7.4", "a segment that is not acceptable is acknowledged and dropped")]
#[test]
fn old_duplicates_are_acknowledged_and_dropped() {
    let (mut peer, mut connection) = connected();
    let first = connection.segment().payload(b"first");
    peer.send_data(&mut connection, b"first");
    assert_eq!(peer.read(connection.conn), b"first");
    peer.segments();
    peer.send(first);
    assert_eq!(peer.segment().ack, Some(connection.seq));
    assert_eq!(peer.stack.read(connection.conn), None);
    assert_eq!(peer.stack.counters().get(Counter::DropTcpWindow), 1);
}

#[proves("RFC 9293 3.4", "arithmetic on sequence numbers is modulo 2**32")]
#[test]
fn sequence_numbers_may_wrap() {
    let mut peer = Peer::listening();
    peer.send(Segment::new(4000, 80, u32::MAX - 3, None).flags("S"));
    let answer = peer.segment();
    peer.send(Segment::new(4000, 80, u32::MAX - 2, Some(answer.seq.wrapping_add(1))));
    let [Event::Accepted { conn, .. }] = peer.events()[..] else { panic!("accepted") };
    let connection = PeerConnection {
        conn,
        from: 4000,
        to: 80,
        seq: u32::MAX - 2,
        ack: answer.seq.wrapping_add(1),
        timestamps: None,
    };
    peer.send(ahead(&connection, 6, b"ghi"));
    peer.send(ahead(&connection, 0, b"abcdef"));
    assert_eq!(peer.read(conn), b"abcdefghi");
    assert_eq!(peer.segments().last().unwrap().ack, Some(6));
}

#[proves("RFC 9293 3.10.7.4", "data beyond the window is cut off")]
#[test]
fn data_beyond_the_window_is_cut_off() {
    let mut config = host_config(1);
    config.tcp.receive_window = 10;
    let mut peer = Peer::new(config);
    peer.stack.listen(80, 1).unwrap();
    let connection = peer.connect(4000, None, None);
    peer.send(ahead(&connection, 5, b"fghijKLMNO"));
    peer.send(ahead(&connection, 10, b"KLMNO"));
    peer.send(ahead(&connection, 0, b"abcde"));
    assert_eq!(peer.read(connection.conn), b"abcdefghij");
}

#[test]
fn the_number_of_pieces_beyond_a_gap_is_bounded() {
    let mut config = host_config(1);
    config.tcp.reassembly_pieces = 8;
    let mut peer = Peer::new(config);
    peer.stack.listen(80, 1).unwrap();
    let connection = peer.connect(4000, None, None);
    for i in 0..100 {
        peer.send(ahead(&connection, 2 + 2 * i, b"x"));
    }
    assert_eq!(peer.stack.counters().get(Counter::DropTcpReassembly), 92);
    // Dropped pieces are retransmitted.
    for i in 0..202 {
        peer.send(ahead(&connection, i, b"x"));
    }
    assert_eq!(peer.read(connection.conn).len(), 202);
}

#[test]
fn a_payload_is_read_as_a_view_of_its_frame() {
    let (mut peer, connection) = connected();
    let bytes = connection.segment().payload(b"no copy").frame([10, 0, 0, 2], [10, 0, 0, 1]);
    let frame = IoBuf::from(bytes);
    let address = frame.as_ptr() as usize + frame.len() - 7;
    peer.stack.receive(peer.now, frame, RxChecksum::Unverified);
    let piece = peer.stack.read(connection.conn).unwrap();
    assert_eq!((&*piece, piece.as_ptr() as usize), (&b"no copy"[..], address));
}

#[test]
fn small_unread_segments_pin_bounded_memory() {
    let (mut peer, mut connection) = connected();
    for i in 0..4_000u32 {
        let bytes = connection.segment().payload(&[i as u8; 4]).frame([10, 0, 0, 2], [10, 0, 0, 1]);
        let mut frame = IoBufMut::with_room(0, 2048);
        frame.append_slice(&bytes).unwrap();
        peer.stack.receive(peer.now, frame.freeze(), RxChecksum::Unverified);
        connection.seq += 4;
    }
    // 8 MB of frames arrived; 512 KiB may stay as they are, the rest is compacted.
    assert!(peer.stack.counters().get(Counter::TcpCompactedBytes) >= 3_000 * 4);
    let mut pinned = 0;
    let mut count = 0u32;
    while let Some(piece) = peer.stack.read(connection.conn) {
        pinned += piece.storage_len();
        for four in piece.chunks(4) {
            assert_eq!(four, [count as u8; 4]);
            count += 1;
        }
    }
    assert_eq!(count, 4_000);
    assert!(pinned <= (512 << 10) + 2 * 16_000 + 8192, "{pinned}");
}

#[proves("RFC 9293 3.1", "a segment with a wrong checksum is dropped")]
#[test]
fn a_verified_checksum_is_not_checked_and_a_wrong_unverified_one_is_dropped() {
    let (mut peer, connection) = connected();
    let mut bytes = connection.segment().payload(b"data").frame([10, 0, 0, 2], [10, 0, 0, 1]);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    peer.send_frame(bytes.clone());
    assert_eq!(peer.stack.counters().get(Counter::DropTcpChecksum), 1);
    assert_eq!(peer.stack.read(connection.conn), None);
    peer.stack.receive(peer.now, IoBuf::from(bytes), RxChecksum::Verified);
    assert_eq!(peer.read(connection.conn), b"dat`");
}

#[test]
fn a_device_with_checksum_offload_gets_a_partial_checksum() {
    use isola_net_stack::TxChecksum;
    let mut config = host_config(1);
    config.tx_checksum = TxChecksum::Device;
    let mut stack = isola_net_stack::Stack::new(config, isola_net_stack::Instant::ZERO).unwrap();
    let now = isola_net_stack::Instant::ZERO;
    stack.learn(now, [10, 0, 0, 2], isola_net_sim::host_mac(2));
    while stack.poll_transmit(now).is_some() {}
    stack.connect(now, ([10, 0, 0, 2], 80).into()).unwrap();
    let frame = stack.poll_transmit(now).unwrap();
    let offload = frame.checksum.unwrap();
    assert_eq!((offload.start, offload.offset), (34, 16));
    let mut bytes = frame.to_vec();
    // Like a device: sums from `start` to the end, and stores the complement at `start + offset`.
    let sum: u32 = bytes[34..]
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)))
        .sum();
    let folded = (sum >> 16) + (sum & 0xffff);
    let value = !((folded >> 16) + (folded & 0xffff)) as u16;
    bytes[50..52].copy_from_slice(&value.to_be_bytes());
    isola_net_sim::check::frame(&bytes, 1500);
}
