//! Frames longer than the link's limit: segmented by the device on transmission, and merged by it on reception.

use isola_iobuf::{Chain, IoBuf};
use isola_net_sim::{Peer, Segment, host_config, host_ip};
use isola_net_stack::{Config, Counter, Event, RxChecksum, TxChecksum, TxSegments};
use isola_proves::proves;

/// A stack at host 1 whose device computes checksums and segments frames.
fn offloading() -> Config {
    let tx_segments = TxSegments { ipv4: true, ipv6: true };
    Config { tx_checksum: TxChecksum::Device, tx_segments, ..host_config(1) }
}

fn listening(config: Config) -> Peer {
    let mut peer = Peer::new(config);
    peer.stack.listen(80, 16).expect("a free port");
    peer
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 % 251) as u8).collect()
}

/// Returns a segment's frame as a first part of `first` bytes and further parts of up to `part` bytes.
fn parts(segment: &Segment, first: usize, part: usize) -> (IoBuf, Chain) {
    let bytes = segment.frame(host_ip(2), host_ip(1));
    let (head, rest) = bytes.split_at(first);
    let mut chain = Chain::new();
    rest.chunks(part).for_each(|part| chain.push_back(IoBuf::copy_from_slice(part)));
    (IoBuf::copy_from_slice(head), chain)
}

#[test]
fn data_within_the_window_is_one_frame_for_the_device() {
    let mut peer = listening(offloading());
    let connection = peer.connect(4000, Some(1460), None);
    peer.write(connection.conn, &pattern(10_000));
    let frame = peer.stack.poll_transmit(peer.now).expect("a frame");
    assert_eq!((frame.payload.len(), frame.segment_len), (10_000, Some(1460)));
    assert!(peer.stack.poll_transmit(peer.now).is_none());
}

#[test]
fn a_frame_limited_by_the_window_has_whole_segments() {
    let mut peer = listening(offloading());
    let mut connection = peer.connect(4000, Some(1000), None);
    peer.write(connection.conn, &pattern(50_000));
    // The initial window is ten segments (RFC 6928).
    let segments = peer.segments();
    assert_eq!(segments.iter().map(|segment| segment.payload.len()).collect::<Vec<_>>(), [1000; 10]);
    // The device's segments equal those of a stack without segmentation offload.
    let data: Vec<u8> = segments.iter().flat_map(|segment| segment.payload.clone()).collect();
    assert!(data == pattern(10_000));
    connection.ack = connection.ack.wrapping_add(10_000);
    peer.send(connection.segment());
    assert!(peer.segments().iter().all(|segment| segment.payload.len() == 1000));
}

#[proves("RFC 3168 6.1.2", "CWR is set in one segment, the first with new data.")]
#[test]
fn the_segment_with_cwr_is_not_a_long_frame() {
    let mut peer = listening(offloading());
    let syn = Segment::new(4000, 80, 1_000_000, None).flags("SEW").options(Some(1000), Some(7));
    let mut connection = peer.connect_with(syn);
    peer.write(connection.conn, &pattern(50_000));
    peer.segments();
    connection.ack = connection.ack.wrapping_add(1_000);
    peer.send(connection.segment().flags("E"));
    connection.ack = connection.ack.wrapping_add(9_000);
    peer.send(connection.segment());
    let flags: Vec<String> = peer.segments().into_iter().map(|segment| segment.flags).collect();
    assert!(flags.len() > 3 && flags[0] == "W" && flags[1..].iter().all(String::is_empty), "{flags:?}");
}

#[test]
fn a_device_without_segmentation_gets_no_long_frames() {
    for config in [host_config(1), Config { tx_segments: TxSegments::default(), ..offloading() }] {
        let mut peer = listening(config);
        let connection = peer.connect(4000, Some(1460), None);
        peer.write(connection.conn, &pattern(10_000));
        while let Some(frame) = peer.stack.poll_transmit(peer.now) {
            assert!(frame.payload.len() <= 1460 && frame.segment_len.is_none());
        }
    }
}

#[test]
fn a_segment_in_several_buffers_is_not_copied() {
    let mut peer = listening(offloading());
    let connection = peer.connect(4000, None, None);
    let data = pattern(20_000);
    let (head, rest) = parts(&connection.segment().payload(&data), 2000, 2048);
    let places: Vec<*const u8> = rest.parts().map(|part| part.as_ptr()).collect();
    peer.stack.receive_long(peer.now, head, Box::new(rest), RxChecksum::Verified);
    assert_eq!(peer.events(), [Event::Readable(connection.conn)]);
    let pieces: Vec<IoBuf> = std::iter::from_fn(|| peer.stack.read(connection.conn)).collect();
    assert!(pieces.iter().flat_map(|piece| piece.to_vec()).eq(data.iter().copied()));
    assert!(pieces[1..].iter().map(|piece| piece.as_ptr()).eq(places), "bytes were copied");
    let answer = peer.segment();
    assert_eq!(answer.ack, Some(connection.seq.wrapping_add(20_000)));
    assert_eq!(peer.stack.counters().get(Counter::LongFramesCopied), 0);
}

#[test]
fn a_long_frame_may_end_the_stream() {
    let mut peer = listening(offloading());
    let connection = peer.connect(4000, None, None);
    let data = pattern(5_000);
    let (head, rest) = parts(&connection.segment().flags("F").payload(&data), 2000, 2048);
    peer.stack.receive_long(peer.now, head, Box::new(rest), RxChecksum::Verified);
    assert_eq!(peer.events(), [Event::Readable(connection.conn), Event::PeerClosed(connection.conn)]);
    assert!(peer.read(connection.conn) == data);
    assert_eq!(peer.stack.counters().get(Counter::LongFramesCopied), 1);
}

#[test]
fn the_checksum_of_an_unverified_long_frame_is_checked() {
    for (corrupt, arrives) in [(false, true), (true, false)] {
        let mut peer = listening(offloading());
        let connection = peer.connect(4000, None, None);
        let mut segment = connection.segment().payload(&pattern(5_000));
        let (head, rest) = parts(&segment, 2000, 2048);
        let rest = if corrupt {
            segment.payload[4_999] ^= 1;
            parts(&segment, 2000, 2048).1
        } else {
            rest
        };
        peer.stack.receive_long(peer.now, head, Box::new(rest), RxChecksum::Unverified);
        assert_eq!(peer.read(connection.conn).len(), if arrives { 5_000 } else { 0 });
    }
}

#[test]
fn a_partly_duplicate_long_frame_delivers_its_new_data() {
    let mut peer = listening(offloading());
    let mut connection = peer.connect(4000, None, None);
    let data = pattern(9_000);
    let whole = connection.segment().payload(&data);
    peer.send_data(&mut connection, &data[..4_000]);
    peer.events();
    let (head, rest) = parts(&whole, 2000, 2048);
    peer.stack.receive_long(peer.now, head, Box::new(rest), RxChecksum::Verified);
    assert!(peer.read(connection.conn) == data);
}

#[test]
fn a_padded_long_frame_is_trimmed_and_a_truncated_one_dropped() {
    for wrong in [-1_isize, 1] {
        let mut peer = listening(offloading());
        let connection = peer.connect(4000, None, None);
        let (head, mut rest) = parts(&connection.segment().payload(&pattern(5_000)), 2000, 2048);
        if wrong > 0 {
            rest.push_back(IoBuf::copy_from_slice(&[0; 1]));
        } else {
            let mut shorter = rest.split_to(rest.len() - 1).expect("enough bytes");
            std::mem::swap(&mut rest, &mut shorter);
        }
        peer.stack.receive_long(peer.now, head, Box::new(rest), RxChecksum::Verified);
        // Padding behind the packet is removed; a truncated packet is dropped.
        assert_eq!(peer.read(connection.conn).len(), if wrong > 0 { 5_000 } else { 0 });
    }
}
