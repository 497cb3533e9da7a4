//! Peers that use the rules against this side: what they do costs bounded memory, and others stay served.
//!
//! Each test plays one of them for thousands of segments, counts what the stack has allocated meanwhile, and asks
//! another connection for an answer before, in between and after.

use isola_iobuf::{Chain, IoBuf, IoBufMut};
use isola_net_sim::{Peer, Segment, Talk, host_config, host_ip};
use isola_net_stack::{Counter, Duration, Event, RxChecksum, SendError};
use isola_proves::proves;
use proptest::prelude::*;

/// Bytes of a device's receive buffer: what a frame of any length keeps alive.
const BUFFER: usize = 2048;
const MSS: usize = 1000;

/// A stack with a listener, somebody who behaves, and somebody who does not.
fn guests() -> (Peer, Talk, Talk) {
    let mut peer = Peer::listening();
    let good = peer.connect(5000, Some(MSS as u16), None);
    let bad = peer.connect(4000, Some(MSS as u16), Some(7));
    (peer, good, bad)
}

/// The one who behaves asks and gets an answer at once.
fn served(peer: &mut Peer, good: &mut Talk) {
    peer.events();
    peer.say(good, b"question");
    assert_eq!(peer.read(good.conn), b"question");
    peer.write(good.conn, b"answer");
    let answers = peer.segments();
    assert!(answers.iter().any(|segment| segment.to == good.from && segment.payload == b"answer"));
    good.ack = good.ack.wrapping_add(6);
    peer.send(good.segment());
    peer.segments();
}

/// Sends a segment as a device hands it over: in a buffer for the longest frame.
fn send_in_buffer(peer: &mut Peer, segment: &Segment) {
    let mut frame = IoBufMut::with_room(0, BUFFER);
    frame.append_slice(&segment.frame(host_ip(2), host_ip(1))).expect("a segment that fits");
    peer.stack.receive(peer.now, frame.freeze(), RxChecksum::Unverified);
}

/// Bytes that `act` leaves allocated.
fn bytes_kept(act: impl FnOnce()) -> u64 {
    u64::try_from(allocation_counter::measure(act).bytes_current.max(0)).unwrap_or(0)
}

#[proves(
    "RFC 9293 3.8.6.1",
    "a peer that does not read is waited for, with what the application may queue and no more"
)]
#[test]
fn a_slow_reader_holds_what_one_connection_may_queue() {
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
    "the window grows by what is acknowledged, at most a segment an ACK, not by the number of ACKs"
)]
#[test]
fn acknowledging_byte_by_byte_does_not_make_the_sender_faster() {
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

#[proves("RFC 9293 3.10.7.4", "an ACK of what was not sent is answered and dropped")]
#[test]
fn acknowledging_ahead_brings_nothing_but_what_was_sent() {
    let (mut peer, mut good, bad) = guests();
    peer.stack.set_send_limit(bad.conn, 100_000);
    let mut sent = 0;
    for _ in 0..500 {
        let mut data = Chain::from(IoBuf::from(vec![1; 50_000]));
        let _ = peer.stack.send_some(bad.conn, &mut data);
        let segments = peer.segments();
        sent += segments.iter().map(|segment| segment.payload.len() as u32).sum::<u32>();
        // Beyond all that was sent, and then all of it, whether it arrived or not.
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
fn small_pieces_beyond_gaps_keep_a_bounded_number_of_buffers() {
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
    // 256 pieces are kept, whole buffers or copies of them.
    assert!(kept < 256 * (BUFFER as u64 + 256) + (64 << 10), "{kept} bytes");
    assert!(peer.stack.counters().get(Counter::DropTcpReassembly) >= 4_000);
}

#[test]
fn overlapping_pieces_are_kept_once() {
    let (mut peer, mut good, bad) = guests();
    let kept = bytes_kept(|| {
        for i in 0..5_000u32 {
            // Each covers most of the one before, with other bytes.
            let start = 1 + (i * 7) % 3_000;
            let segment = Segment { seq: bad.seq + start, ..bad.segment() };
            send_in_buffer(&mut peer, &segment.payload(&vec![i as u8; 1 + i as usize % MSS]));
            peer.segments();
        }
    });
    assert!(kept < 256 * (BUFFER as u64 + 256) + (64 << 10), "{kept} bytes");
    served(&mut peer, &mut good);
    // The stream goes on where the gap is filled.
    peer.send(bad.segment().payload(b"!"));
    assert_eq!(peer.read(bad.conn).first(), Some(&b'!'));
}

#[test]
fn a_flood_of_single_bytes_that_nobody_reads_does_not_keep_a_buffer_a_byte() {
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
    // 40 MB of buffers came in.
    assert!(kept < 2 << 20, "{kept} bytes");
    assert_eq!(peer.read(bad.conn).len(), 20_000);
}

#[proves(
    "RFC 5961 7",
    "whatever the flood, the answers are bounded, and who knows the numbers is not disturbed"
)]
#[test]
fn a_flood_of_resets_ends_nothing_and_is_answered_at_a_bounded_rate() {
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
    assert!(answers <= 10, "{answers} answers in no time");
    assert!(kept < 16 << 10, "{kept} bytes");
    served(&mut peer, &mut good);
}

#[proves("RFC 5961 7", "two sides that each think the other's ACK wrong do not answer each other for ever")]
#[test]
fn a_storm_of_acknowledgements_dies_down() {
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
        assert!(answers <= 10, "it does not die down");
    }
    served(&mut peer, &mut good);
}

#[test]
fn connections_that_only_open_are_bounded_and_their_places_come_back() {
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

    #[proves("RFC 9293 3.8.6", "whatever a peer does with its window, no new data goes beyond the furthest edge it told")]
    #[test]
    fn a_window_that_jumps_is_never_overrun(
        steps in prop::collection::vec((0u16..6_000, 0u32..4_000, 0u64..400), 1..60),
    ) {
        let (mut peer, mut good, mut bad) = guests();
        // The peer's window has a scale of 7 from here on.
        let mut edge = bad.ack.wrapping_add(60_000 << 7);
        let (first, mut furthest) = (bad.ack, 0u32);
        for (window, acked, millis) in steps {
            let _ = peer.stack.send_some(bad.conn, &mut Chain::from(IoBuf::from(vec![1; 20_000])));
            for segment in peer.segments() {
                let end = segment.seq.wrapping_add(segment.payload.len() as u32);
                // One byte more is a probe.
                prop_assert!((edge.wrapping_sub(end) as i32) >= -1, "{end} is beyond {edge}");
                furthest = furthest.max(end.wrapping_sub(first));
            }
            let ack = bad.ack.wrapping_sub(first).saturating_add(acked).min(furthest);
            bad.ack = first.wrapping_add(ack);
            peer.send(bad.segment().window(window));
            let told = bad.ack.wrapping_add(u32::from(window) << 7);
            if (told.wrapping_sub(edge) as i32) > 0 {
                edge = told;
            }
            peer.pass(Duration::from_millis(millis));
        }
        peer.segments();
        served(&mut peer, &mut good);
    }
}

#[test]
fn blocks_all_around_the_circle_are_gone_through_once() {
    const QUARTER: u32 = 1 << 30;
    for permitted in ["by a peer that never said that it reports", "by one that did"] {
        let mut peer = Peer::listening();
        let mut good = peer.connect(5000, Some(MSS as u16), None);
        let mut syn = Segment::new(4000, 80, 1_000_000, None).flags("S").options(Some(MSS as u16), Some(7));
        syn.sack_permitted = permitted == "by one that did";
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

#[proves("RFC 2018 5", "a block marks the segments that lie in it; one of what was never sent marks none")]
#[test]
fn blocks_of_what_was_never_sent_are_not_believed() {
    const QUARTER: u32 = 1 << 30;
    let mut peer = Peer::listening();
    let syn = Segment::new(4000, 80, 1_000_000, None).flags("S").options(Some(MSS as u16), Some(7));
    let talk = peer.connect_with(syn.sack_permitted());
    peer.write(talk.conn, &[1; 5 * MSS]);
    assert_eq!(peer.segments().len(), 5);
    let (len, end) = (MSS as u32, talk.ack.wrapping_add(5 * MSS as u32));
    let window = |peer: &Peer| peer.stack.connection_stats(talk.conn).unwrap().congestion_window;
    let before = window(&peer);
    let never = [
        // Beyond what was sent, before it, all around the circle, and of no length.
        (end.wrapping_add(1), end.wrapping_add(4 * len)),
        (talk.ack.wrapping_sub(4 * len), talk.ack.wrapping_sub(len)),
        (end.wrapping_add(QUARTER), end.wrapping_sub(QUARTER).wrapping_sub(1)),
        (talk.ack.wrapping_add(len), talk.ack.wrapping_add(len)),
    ];
    for block in never.into_iter().cycle().take(12) {
        peer.send(talk.segment().sack(&[block]));
        peer.silent();
    }
    assert_eq!(window(&peer), before, "nothing is taken for lost");
    // The first is lost, and the others arrive: it is sent again, and nothing else.
    peer.send(talk.segment().sack(&[(talk.ack.wrapping_add(len), end)]));
    let again = peer.segments();
    assert_eq!(again.iter().map(|segment| segment.seq).collect::<Vec<_>>(), [talk.ack]);
}
