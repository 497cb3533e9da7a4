//! Peers that exploit the protocol: their cost is bounded memory, and other peers remain served.
//!
//! Each test runs such a peer for thousands of segments, measures the memory that the stack allocates meanwhile, and
//! checks before, during and after that another connection is served.

use isola_iobuf::{Chain, IoBuf, IoBufMut};
use isola_net_sim::{Peer, PeerConnection, Segment, host_config, host_ip};
use isola_net_stack::{Counter, Duration, Event, RxChecksum, SendError};
use isola_proves::proves;
use proptest::prelude::*;

/// Size of a device's receive buffer, in bytes: the memory that a frame of any length pins.
const BUFFER: usize = 2048;
const MSS: usize = 1000;

/// Returns a stack with a listener, a well-behaved connection and a misbehaving one.
fn guests() -> (Peer, PeerConnection, PeerConnection) {
    let mut peer = Peer::listening();
    let good = peer.connect(5000, Some(MSS as u16), None);
    let bad = peer.connect(4000, Some(MSS as u16), Some(7));
    (peer, good, bad)
}

/// Checks that a request on the well-behaved connection is answered at once.
fn served(peer: &mut Peer, good: &mut PeerConnection) {
    peer.events();
    peer.send_data(good, b"question");
    assert_eq!(peer.read(good.conn), b"question");
    peer.write(good.conn, b"answer");
    let answers = peer.segments();
    assert!(answers.iter().any(|segment| segment.to == good.from && segment.payload == b"answer"));
    good.ack = good.ack.wrapping_add(6);
    peer.send(good.segment());
    peer.segments();
}

/// Sends a segment like a device, in a buffer for the longest frame.
fn send_in_buffer(peer: &mut Peer, segment: &Segment) {
    let mut frame = IoBufMut::with_room(0, BUFFER);
    frame.append_slice(&segment.frame(host_ip(2), host_ip(1))).expect("a segment that fits");
    peer.stack.receive(peer.now, frame.freeze(), RxChecksum::Unverified);
}

/// Returns the number of bytes that remain allocated after `act`.
fn bytes_kept(act: impl FnOnce()) -> u64 {
    u64::try_from(allocation_counter::measure(act).bytes_current.max(0)).unwrap_or(0)
}

#[proves("RFC 9293 3.8.6.1", "data for a peer that does not read is queued up to the send limit")]
#[test]
fn a_peer_that_does_not_read_uses_one_bounded_send_queue() {
    let (mut peer, mut good, bad) = guests();
    peer.stack.set_send_limit(bad.conn, 50_000);
    peer.send(bad.segment().window(0));
    let data = IoBuf::from(vec![1; MSS]);
    let kept = bytes_kept(|| {
        let mut refused = 0;
        for round in 0..2_000 {
            let mut chain = Chain::from(data.clone());
            if matches!(peer.stack.send(bad.conn, &mut chain), Err(SendError::NoSpace { .. })) {
                refused += 1;
            }
            if round % 100 == 0 {
                peer.pass(Duration::from_secs(1));
                peer.segments();
                peer.send(bad.segment().window(0));
                served(&mut peer, &mut good);
            }
        }
        assert_eq!(refused, 1_950);
    });
    assert_eq!(peer.stack.connection_stats(bad.conn).map(|stats| stats.unacked), Some(50_000));
    assert!(kept < 64 << 10, "{kept} bytes beside the application's data");
}

#[proves(
    "RFC 5681 3.1",
    "the window grows by the acknowledged bytes, at most a segment per ACK, not by the number of ACKs"
)]
#[test]
fn acknowledging_single_bytes_does_not_grow_the_window_faster() {
    let (mut peer, mut good, mut bad) = guests();
    peer.write(bad.conn, &[1; 5 * MSS]);
    assert_eq!(peer.segments().len(), 5);
    let before = peer.stack.connection_stats(bad.conn).unwrap().congestion_window;
    for _ in 0..2 * MSS {
        bad.ack += 1;
        peer.send(bad.segment());
    }
    let after = peer.stack.connection_stats(bad.conn).unwrap().congestion_window;
    assert!(after <= before + 2 * MSS as u32, "{before} became {after} by two segments");
    served(&mut peer, &mut good);
}

#[proves("RFC 9293 3.10.7.4", "an ACK of data that was not sent is answered and dropped")]
#[test]
fn acknowledgements_of_unsent_data_are_dropped() {
    let (mut peer, mut good, bad) = guests();
    peer.stack.set_send_limit(bad.conn, 100_000);
    let mut sent = 0;
    for _ in 0..500 {
        let mut data = Chain::from(IoBuf::from(vec![1; 50_000]));
        let _ = peer.stack.send_some(bad.conn, &mut data);
        let segments = peer.segments();
        sent += segments.iter().map(|segment| segment.payload.len() as u32).sum::<u32>();
        // Acknowledges more than was sent, then all that was sent, whether it arrived or not.
        let all = Segment { ack: Some(bad.ack.wrapping_add(sent)), ..bad.segment().window(u16::MAX) };
        peer.send(Segment { ack: all.ack.map(|ack| ack.wrapping_add(1)), ..all.clone() });
        peer.send(all);
        assert!(peer.stack.connection_stats(bad.conn).unwrap().unacked <= 100_000);
        peer.segments().iter().for_each(|segment| sent += segment.payload.len() as u32);
    }
    assert!(sent > 1_000_000, "{sent} bytes");
    assert_eq!(peer.stack.counters().get(Counter::DropTcpAck), 500);
    served(&mut peer, &mut good);
}

#[test]
fn small_pieces_beyond_gaps_pin_a_bounded_number_of_buffers() {
    let (mut peer, mut good, bad) = guests();
    let kept = bytes_kept(|| {
        for i in 0..5_000u32 {
            let segment = Segment { seq: bad.seq + 2 + 2 * i, ..bad.segment() }.payload(b"x");
            send_in_buffer(&mut peer, &segment);
            peer.segments();
            if i % 1_000 == 0 {
                served(&mut peer, &mut good);
            }
        }
    });
    // 256 pieces are stored, as entire buffers or as copies.
    assert!(kept < 256 * (BUFFER as u64 + 256) + (64 << 10), "{kept} bytes");
    assert!(peer.stack.counters().get(Counter::DropTcpReassembly) >= 4_000);
}

#[test]
fn overlapping_pieces_pin_bounded_memory() {
    let (mut peer, mut good, bad) = guests();
    let kept = bytes_kept(|| {
        for i in 0..5_000u32 {
            // Each segment covers most of the previous one, with other bytes.
            let start = 1 + (i * 7) % 3_000;
            let segment = Segment { seq: bad.seq + start, ..bad.segment() };
            send_in_buffer(&mut peer, &segment.payload(&vec![i as u8; 1 + i as usize % MSS]));
            peer.segments();
        }
    });
    assert!(kept < 256 * (BUFFER as u64 + 256) + (64 << 10), "{kept} bytes");
    served(&mut peer, &mut good);
    // The stream continues when the gap is filled.
    peer.send(bad.segment().payload(b"!"));
    assert_eq!(peer.read(bad.conn).first(), Some(&b'!'));
}

#[test]
fn unread_single_bytes_pin_bounded_memory() {
    let (mut peer, mut good, mut bad) = guests();
    let kept = bytes_kept(|| {
        for i in 0..20_000 {
            send_in_buffer(&mut peer, &bad.segment().payload(b"x"));
            bad.seq += 1;
            peer.segments();
            if i % 5_000 == 0 {
                served(&mut peer, &mut good);
            }
        }
    });
    // 40 MB of buffers were received.
    assert!(kept < 2 << 20, "{kept} bytes");
    assert_eq!(peer.read(bad.conn).len(), 20_000);
}

#[proves("RFC 5961 7", "the answers to a flood are limited, and the legitimate peer is not affected")]
#[test]
fn a_flood_of_resets_ends_no_connection_and_is_answered_at_a_limited_rate() {
    let mut config = host_config(1);
    config.limits.challenges_per_second = 10;
    let mut peer = Peer::new(config);
    peer.stack.listen(80, 16).unwrap();
    let mut good = peer.connect(5000, Some(MSS as u16), None);
    let mut answers = 0;
    let kept = bytes_kept(|| {
        for i in 1..20_000u32 {
            let seq = good.seq.wrapping_add(i.wrapping_mul(0x9e37_79b9) | 1);
            peer.send(Segment::new(good.from, 80, seq, None).flags(if i % 2 == 0 { "R" } else { "S" }));
            answers += peer.segments().len();
        }
    });
    assert!(answers <= 10, "{answers} answers at one time");
    assert!(kept < 16 << 10, "{kept} bytes");
    served(&mut peer, &mut good);
}

#[proves("RFC 5961 7", "two sides that each reject the other's ACK do not answer each other for ever")]
#[test]
fn a_storm_of_acknowledgements_ends() {
    let mut config = host_config(1);
    config.limits.challenges_per_second = 10;
    let mut peer = Peer::new(config);
    peer.stack.listen(80, 16).unwrap();
    let mut good = peer.connect(5000, Some(MSS as u16), None);
    let bad = peer.connect(4000, Some(MSS as u16), None);
    let wrong = Segment { seq: bad.seq.wrapping_sub(100), ..bad.segment() };
    peer.send(wrong.clone());
    let mut answers = 0;
    // Each answer is answered.
    while !peer.segments().is_empty() {
        answers += 1;
        peer.send(wrong.clone());
        assert!(answers <= 10, "the storm does not end");
    }
    served(&mut peer, &mut good);
}

#[test]
fn idle_connections_are_bounded_and_their_slots_are_reused() {
    let mut config = host_config(1);
    config.tcp.max_connections = 64;
    let mut peer = Peer::new(config);
    peer.stack.listen(80, 1_000).unwrap();
    let mut good = peer.connect(5000, Some(MSS as u16), None);
    let kept = bytes_kept(|| {
        for from in 6_000..8_000 {
            peer.send(Segment::new(from, 80, 1, None).flags("S"));
            let Some(answer) = peer.segments().pop() else { continue };
            peer.send(Segment::new(from, 80, 2, Some(answer.seq.wrapping_add(1))));
        }
    });
    assert_eq!(peer.stack.occupancy().connections, 64);
    assert!(kept < 1 << 20, "{kept} bytes for 64 connections and half-open handshakes");
    for event in peer.events() {
        if let Event::Accepted { conn, .. } = event {
            peer.stack.abort(peer.now, conn);
        }
    }
    peer.frames();
    served(&mut peer, &mut good);
    assert_eq!(peer.stack.occupancy().connections, 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[proves("RFC 9293 3.8.6", "no new data is sent beyond the furthest window edge that the peer announced")]
    #[test]
    fn a_window_that_changes_abruptly_is_never_exceeded(
        steps in prop::collection::vec((0u16..6_000, 0u32..4_000, 0u64..400), 1..60),
    ) {
        let (mut peer, mut good, mut bad) = guests();
        // From here on the peer's window has a scale of 7.
        let mut edge = bad.ack.wrapping_add(60_000 << 7);
        let (first, mut furthest) = (bad.ack, 0u32);
        for (window, acked, millis) in steps {
            let _ = peer.stack.send_some(bad.conn, &mut Chain::from(IoBuf::from(vec![1; 20_000])));
            for segment in peer.segments() {
                let end = segment.seq.wrapping_add(segment.payload.len() as u32);
                // One more byte is a zero-window probe.
                prop_assert!((edge.wrapping_sub(end) as i32) >= -1, "{end} is beyond {edge}");
                furthest = furthest.max(end.wrapping_sub(first));
            }
            let ack = bad.ack.wrapping_sub(first).saturating_add(acked).min(furthest);
            bad.ack = first.wrapping_add(ack);
            peer.send(bad.segment().window(window));
            let announced = bad.ack.wrapping_add(u32::from(window) << 7);
            if (announced.wrapping_sub(edge) as i32) > 0 {
                edge = announced;
            }
            peer.pass(Duration::from_millis(millis));
        }
        peer.segments();
        served(&mut peer, &mut good);
    }
}

#[test]
fn blocks_all_around_the_sequence_space_are_processed_once() {
    const QUARTER: u32 = 1 << 30;
    for permitted in ["without SACK", "with SACK"] {
        let mut peer = Peer::listening();
        let mut good = peer.connect(5000, Some(MSS as u16), None);
        let mut syn = Segment::new(4000, 80, 1_000_000, None).flags("S").options(Some(MSS as u16), Some(7));
        syn.sack_permitted = permitted == "with SACK";
        let bad = peer.connect_with(syn);
        let end = bad.ack;
        let around = (end.wrapping_add(QUARTER), end.wrapping_sub(QUARTER).wrapping_sub(1));
        for blocks in [[(end.wrapping_sub(QUARTER), end), around], [around, (end.wrapping_sub(QUARTER), end)]]
        {
            peer.send(bad.segment().sack(&blocks));
        }
        peer.write(bad.conn, &[1; 5 * MSS]);
        assert_eq!(peer.segments().len(), 5);
        let end = end.wrapping_add(5 * MSS as u32);
        let around = (end.wrapping_add(QUARTER), end.wrapping_sub(QUARTER).wrapping_sub(1));
        for blocks in [[(bad.ack, end), around], [around, (bad.ack, end)]] {
            peer.send(bad.segment().sack(&blocks));
        }
        served(&mut peer, &mut good);
    }
}

#[proves("RFC 2018 5", "a block marks the segments in it; a block of unsent data marks none")]
#[test]
fn blocks_of_unsent_data_are_ignored() {
    const QUARTER: u32 = 1 << 30;
    let mut peer = Peer::listening();
    let syn = Segment::new(4000, 80, 1_000_000, None).flags("S").options(Some(MSS as u16), Some(7));
    let connection = peer.connect_with(syn.sack_permitted());
    peer.write(connection.conn, &[1; 5 * MSS]);
    assert_eq!(peer.segments().len(), 5);
    let (len, end) = (MSS as u32, connection.ack.wrapping_add(5 * MSS as u32));
    let window = |peer: &Peer| peer.stack.connection_stats(connection.conn).unwrap().congestion_window;
    let before = window(&peer);
    let never = [
        // Beyond the sent data, before it, all around the sequence space, and empty.
        (end.wrapping_add(1), end.wrapping_add(4 * len)),
        (connection.ack.wrapping_sub(4 * len), connection.ack.wrapping_sub(len)),
        (end.wrapping_add(QUARTER), end.wrapping_sub(QUARTER).wrapping_sub(1)),
        (connection.ack.wrapping_add(len), connection.ack.wrapping_add(len)),
    ];
    for block in never.into_iter().cycle().take(12) {
        peer.send(connection.segment().sack(&[block]));
        peer.silent();
    }
    assert_eq!(window(&peer), before, "nothing is deemed lost");
    // The first segment is lost, and the others arrive: only the first is retransmitted.
    peer.send(connection.segment().sack(&[(connection.ack.wrapping_add(len), end)]));
    let again = peer.segments();
    assert_eq!(again.iter().map(|segment| segment.seq).collect::<Vec<_>>(), [connection.ack]);
}
