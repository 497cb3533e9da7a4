//! Frames longer than the link's: cut by the device where they are sent, put together by it where they come.

use isola_iobuf::{Chain, IoBuf};
use isola_net_sim::{Peer, Segment, host_config, host_ip};
use isola_net_stack::{Config, Counter, Event, RxChecksum, TxChecksum, TxSegments};
use isola_proves::proves;

/// A stack at host 1 whose device sums and cuts.
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

/// The frame of a segment, in a first part of `first` bytes and further ones of up to `part`.
fn parts(segment: &Segment, first: usize, part: usize) -> (IoBuf, Chain) {
    let bytes = segment.frame(host_ip(2), host_ip(1));
    let (head, rest) = bytes.split_at(first);
    let mut chain = Chain::new();
    rest.chunks(part).for_each(|part| chain.push_back(IoBuf::copy_from_slice(part)));
    (IoBuf::copy_from_slice(head), chain)
}

#[test]
fn what_the_window_allows_goes_to_the_device_in_one_frame() {
    let mut peer = listening(offloading());
    let talk = peer.connect(4000, Some(1460), None);
    peer.write(talk.conn, &pattern(10_000));
    let frame = peer.stack.poll_transmit(peer.now).expect("a frame");
    assert_eq!((frame.payload.len(), frame.segment_len), (10_000, Some(1460)));
    assert!(peer.stack.poll_transmit(peer.now).is_none());
}

#[test]
fn of_more_than_the_window_allows_whole_segments_go() {
    let mut peer = listening(offloading());
    let mut talk = peer.connect(4000, Some(1000), None);
    peer.write(talk.conn, &pattern(50_000));
    // Ten segments at first (RFC 6928).
    let segments = peer.segments();
    assert_eq!(segments.iter().map(|segment| segment.payload.len()).collect::<Vec<_>>(), [1000; 10]);
    // The device's segments are those that a stack without it would send.
    let data: Vec<u8> = segments.iter().flat_map(|segment| segment.payload.clone()).collect();
    assert!(data == pattern(10_000));
    talk.ack = talk.ack.wrapping_add(10_000);
    peer.send(talk.segment());
    assert!(peer.segments().iter().all(|segment| segment.payload.len() == 1000));
}

#[proves("RFC 3168 6.1.2", "one segment says that the window was made smaller, the first with new data.")]
#[test]
fn what_tells_of_a_smaller_window_is_not_cut() {
    let mut peer = listening(offloading());
    let syn = Segment::new(4000, 80, 1_000_000, None).flags("SEW").options(Some(1000), Some(7));
    let mut talk = peer.connect_with(syn);
    peer.write(talk.conn, &pattern(50_000));
    peer.segments();
    talk.ack = talk.ack.wrapping_add(1_000);
    peer.send(talk.segment().flags("E"));
    talk.ack = talk.ack.wrapping_add(9_000);
    peer.send(talk.segment());
    let flags: Vec<String> = peer.segments().into_iter().map(|segment| segment.flags).collect();
    assert!(flags.len() > 3 && flags[0] == "W" && flags[1..].iter().all(String::is_empty), "{flags:?}");
}

#[test]
fn a_device_that_does_not_cut_gets_nothing_long() {
    for config in [host_config(1), Config { tx_segments: TxSegments::default(), ..offloading() }] {
        let mut peer = listening(config);
        let talk = peer.connect(4000, Some(1460), None);
        peer.write(talk.conn, &pattern(10_000));
        while let Some(frame) = peer.stack.poll_transmit(peer.now) {
            assert!(frame.payload.len() <= 1460 && frame.segment_len.is_none());
        }
    }
}

#[test]
fn a_segment_in_several_buffers_is_read_where_they_are() {
    let mut peer = listening(offloading());
    let talk = peer.connect(4000, None, None);
    let data = pattern(20_000);
    let (head, rest) = parts(&talk.segment().payload(&data), 2000, 2048);
    let places: Vec<*const u8> = rest.parts().map(|part| part.as_ptr()).collect();
    peer.stack.receive_long(peer.now, head, Box::new(rest), RxChecksum::Verified);
    assert_eq!(peer.events(), [Event::Readable(talk.conn)]);
    let pieces: Vec<IoBuf> = std::iter::from_fn(|| peer.stack.read(talk.conn)).collect();
    assert!(pieces.iter().flat_map(|piece| piece.to_vec()).eq(data.iter().copied()));
    assert!(pieces[1..].iter().map(|piece| piece.as_ptr()).eq(places), "bytes were copied");
    let answer = peer.segment();
    assert_eq!(answer.ack, Some(talk.seq.wrapping_add(20_000)));
    assert_eq!(peer.stack.counters().get(Counter::LongFramesCopied), 0);
}

#[test]
fn the_last_segment_of_a_stream_may_be_long_too() {
    let mut peer = listening(offloading());
    let talk = peer.connect(4000, None, None);
    let data = pattern(5_000);
    let (head, rest) = parts(&talk.segment().flags("F").payload(&data), 2000, 2048);
    peer.stack.receive_long(peer.now, head, Box::new(rest), RxChecksum::Verified);
    assert_eq!(peer.events(), [Event::Readable(talk.conn), Event::PeerClosed(talk.conn)]);
    assert!(peer.read(talk.conn) == data);
    assert_eq!(peer.stack.counters().get(Counter::LongFramesCopied), 1);
}

#[test]
fn a_long_segment_that_was_not_summed_is() {
    for (corrupt, arrives) in [(false, true), (true, false)] {
        let mut peer = listening(offloading());
        let talk = peer.connect(4000, None, None);
        let mut segment = talk.segment().payload(&pattern(5_000));
        let (head, rest) = parts(&segment, 2000, 2048);
        let rest = if corrupt {
            segment.payload[4_999] ^= 1;
            parts(&segment, 2000, 2048).1
        } else {
            rest
        };
        peer.stack.receive_long(peer.now, head, Box::new(rest), RxChecksum::Unverified);
        assert_eq!(peer.read(talk.conn).len(), if arrives { 5_000 } else { 0 });
    }
}

#[test]
fn a_long_segment_half_of_which_came_before_brings_the_other_half() {
    let mut peer = listening(offloading());
    let mut talk = peer.connect(4000, None, None);
    let data = pattern(9_000);
    let whole = talk.segment().payload(&data);
    peer.say(&mut talk, &data[..4_000]);
    peer.events();
    let (head, rest) = parts(&whole, 2000, 2048);
    peer.stack.receive_long(peer.now, head, Box::new(rest), RxChecksum::Verified);
    assert!(peer.read(talk.conn) == data);
}

#[test]
fn a_frame_shorter_or_longer_than_its_packet_says_brings_nothing() {
    for wrong in [-1_isize, 1] {
        let mut peer = listening(offloading());
        let talk = peer.connect(4000, None, None);
        let (head, mut rest) = parts(&talk.segment().payload(&pattern(5_000)), 2000, 2048);
        if wrong > 0 {
            rest.push_back(IoBuf::copy_from_slice(&[0; 1]));
        } else {
            let mut shorter = rest.split_to(rest.len() - 1).expect("so many bytes");
            std::mem::swap(&mut rest, &mut shorter);
        }
        peer.stack.receive_long(peer.now, head, Box::new(rest), RxChecksum::Verified);
        // What the link padded is cut off; of what is missing nothing is believed.
        assert_eq!(peer.read(talk.conn).len(), if wrong > 0 { 5_000 } else { 0 });
    }
}
