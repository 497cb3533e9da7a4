//! Losses with a peer that sends SACK: detection by time, proportional rate reduction, and undo of spurious recoveries
//! (RFC 8985, RFC 9937, RFC 3522).

use isola_net_sim::{Peer, PeerConnection, Segment};
use isola_net_stack::{Counter, Duration, Event};
use isola_proves::proves;
use proptest::prelude::*;

const MSS: u32 = 1000;
const RTT: Duration = Duration::from_millis(100);

/// Whether the connection uses timestamps.
#[derive(Clone, Copy, PartialEq)]
enum Clock {
    Stamped,
    None,
}

/// Returns a connection with a round trip of 100 ms, and `segments` full segments in flight.
fn in_flight(segments: u32, clock: Clock) -> (Peer, PeerConnection, Vec<Segment>) {
    let mut peer = Peer::listening();
    let mut syn = Segment::new(4000, 80, 1_000_000, None)
        .flags("S")
        .options(Some(MSS as u16), Some(7))
        .sack_permitted();
    if clock == Clock::Stamped {
        syn = syn.options(Some(MSS as u16 + 12), Some(7)).timestamps(1, 0);
    }
    peer.send(syn.clone());
    let answer = peer.segment();
    peer.now += RTT;
    let timestamps = answer.timestamps.map(|(value, _)| (2, value));
    let (seq, ack) = (1_000_001, answer.seq.wrapping_add(1));
    peer.send(Segment { timestamps, ..Segment::new(4000, 80, seq, Some(ack)) });
    let [Event::Accepted { conn, .. }] = peer.events()[..] else { panic!("accepted") };
    let mut connection = PeerConnection { conn, from: 4000, to: 80, seq, ack, timestamps };
    let data: Vec<u8> = (0..segments * MSS).map(|i| (i / MSS) as u8).collect();
    if segments > 10 {
        // The initial window is ten segments; twenty follow them.
        peer.write(conn, &vec![7; 10 * MSS as usize]);
        peer.write(conn, &data);
        peer.segments();
        peer.now += RTT;
        for _ in 0..10 {
            connection.ack = connection.ack.wrapping_add(MSS);
            peer.send(connection.segment());
        }
    } else {
        peer.write(conn, &data);
    }
    let sent = peer.segments();
    assert_eq!(sent.len(), segments as usize);
    (peer, connection, sent)
}

/// Sends an acknowledgement with SACK blocks of these runs of `sent`, each from the first index to before the second.
fn report(peer: &mut Peer, connection: &PeerConnection, sent: &[Segment], runs: &[(usize, usize)]) {
    let place = |index: usize| sent[0].seq.wrapping_add(index as u32 * MSS);
    let blocks: Vec<(u32, u32)> = runs.iter().map(|&(from, to)| (place(from), place(to))).collect();
    let mut ack = connection.segment().sack(&blocks);
    if let Some((value, echo)) = connection.timestamps {
        ack = ack.timestamps(value, echo);
    }
    peer.send(ack);
}

fn numbers(segments: &[Segment]) -> Vec<u8> {
    segments.iter().map(|segment| segment.payload[0]).collect()
}

#[proves("RFC 8985 6.2", "with three segments beyond a gap and no reordering seen, the gap is lost at once.")]
#[proves("RFC 6675 5", "SACKed data is not retransmitted.")]
#[test]
fn three_segments_beyond_a_gap_retransmit_it_at_once() {
    let (mut peer, mut connection, sent) = in_flight(10, Clock::None);
    peer.now += RTT;
    report(&mut peer, &connection, &sent, &[(1, 2)]);
    report(&mut peer, &connection, &sent, &[(1, 3)]);
    peer.silent();
    report(&mut peer, &connection, &sent, &[(1, 4)]);
    assert_eq!(numbers(&peer.segments()), [0]);
    for end in 5..=10 {
        report(&mut peer, &connection, &sent, &[(1, end)]);
    }
    peer.silent();
    connection.ack = connection.ack.wrapping_add(10 * MSS);
    peer.send(connection.segment());
    assert_eq!(peer.stack.connection_stats(connection.conn).unwrap().retransmits, 1);
    assert_eq!(peer.stack.counters().get(Counter::TcpTimeouts), 0);
    assert_eq!(peer.stack.next_deadline(), None);
}

#[proves(
    "RFC 8985 6.2",
    "with one segment beyond a gap, the gap is lost after a quarter of the minimum round trip."
)]
#[proves("RFC 8985 6.2", "the reordering timer runs until then.")]
#[test]
fn one_segment_beyond_a_gap_retransmits_it_after_a_quarter_of_a_round_trip() {
    let (mut peer, connection, sent) = in_flight(3, Clock::None);
    peer.now += RTT;
    report(&mut peer, &connection, &sent, &[(1, 2)]);
    peer.silent();
    let waited = peer.next_timer();
    assert_eq!(waited, Duration::from_millis(25));
    assert_eq!(numbers(&peer.segments()), [0]);
}

#[proves("RFC 8985 6.2", "a gap that fills within the reordering window is no loss.")]
#[test]
fn a_segment_late_within_the_reordering_window_is_not_retransmitted() {
    let (mut peer, mut connection, sent) = in_flight(3, Clock::None);
    peer.now += RTT;
    report(&mut peer, &connection, &sent, &[(1, 3)]);
    peer.pass(Duration::from_millis(20));
    connection.ack = connection.ack.wrapping_add(3 * MSS);
    peer.send(connection.segment());
    peer.pass(Duration::from_secs(5));
    peer.silent();
    assert_eq!(peer.stack.connection_stats(connection.conn).unwrap().retransmits, 0);
}

#[proves("RFC 8985 6.2", "after reordering was seen, three segments beyond a gap do not make it lost.")]
#[test]
fn a_path_with_reordering_gets_a_reordering_window() {
    let (mut peer, mut connection, sent) = in_flight(10, Clock::None);
    peer.now += RTT;
    report(&mut peer, &connection, &sent, &[(2, 3)]);
    report(&mut peer, &connection, &sent, &[(1, 3)]);
    peer.silent();
    report(&mut peer, &connection, &sent, &[(1, 9)]);
    peer.silent();
    connection.ack = connection.ack.wrapping_add(9 * MSS);
    peer.send(connection.segment());
    peer.silent();
    assert_eq!(peer.stack.counters().get(Counter::TcpFastRetransmits), 0);
}

#[proves("RFC 8985 6.2", "a reported duplicate widens the reordering window by a quarter of the round trip.")]
#[test]
fn reported_duplicates_widen_the_reordering_window() {
    let (mut peer, mut connection, sent) = in_flight(8, Clock::None);
    // Segment 0 is late by more than the reordering window, and arrives twice.
    peer.now += RTT;
    report(&mut peer, &connection, &sent, &[(1, 2)]);
    peer.next_timer();
    assert_eq!(numbers(&peer.segments()), [0]);
    connection.ack = connection.ack.wrapping_add(2 * MSS);
    report(&mut peer, &connection, &sent, &[]);
    peer.now += Duration::from_millis(10);
    report(&mut peer, &connection, &sent, &[(0, 1)]);
    peer.now += Duration::from_millis(10);
    connection.ack = connection.ack.wrapping_add(6 * MSS);
    report(&mut peer, &connection, &sent, &[]);
    peer.write(connection.conn, &[9; 3000]);
    let next = peer.segments();
    peer.now += RTT;
    report(&mut peer, &connection, &next, &[(1, 2)]);
    let waited = peer.next_timer();
    assert!(waited >= Duration::from_millis(40), "{waited:?}");
}

#[proves("RFC 6675 5", "all gaps of one window are repaired in one recovery, without a timeout.")]
#[test]
fn many_gaps_are_repaired_in_one_recovery() {
    let (mut peer, mut connection, sent) = in_flight(20, Clock::None);
    peer.now += RTT;
    // Segments 0, 5, 6 and 12 are lost.
    let mut again = Vec::new();
    let arrivals = [1, 2, 3, 4, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17, 18, 19];
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for number in arrivals {
        match runs.iter().position(|&(_, end)| end == number) {
            Some(at) => {
                let (from, _) = runs.remove(at);
                runs.insert(0, (from, number + 1));
            }
            None => runs.insert(0, (number, number + 1)),
        }
        report(&mut peer, &connection, &sent, &runs);
        again.extend(numbers(&peer.segments()));
    }
    assert_eq!(again, [0, 5, 6, 12]);
    connection.ack = connection.ack.wrapping_add(20 * MSS);
    peer.send(connection.segment());
    let counters = peer.stack.counters();
    assert_eq!((counters.get(Counter::TcpFastRetransmits), counters.get(Counter::TcpTimeouts)), (1, 0));
}

#[proves(
    "RFC 9937 6",
    "while the flight exceeds the target, segments are sent in proportion to arriving data."
)]
#[proves("RFC 9438 4.6", "after the recovery the window is seven tenths of the flight.")]
#[test]
fn the_flight_shrinks_in_proportion_to_arriving_data() {
    let (mut peer, mut connection, sent) = in_flight(20, Clock::None);
    peer.write(connection.conn, &[99; 40 * MSS as usize]);
    peer.silent();
    let window = peer.stack.connection_stats(connection.conn).unwrap().congestion_window;
    peer.now += RTT;
    let mut out = 0;
    for end in 2..=20 {
        report(&mut peer, &connection, &sent, &[(1, end)]);
        let now = peer.segments().len();
        assert!(now <= 2, "no burst: {now}");
        out += now;
    }
    // Limited transmit sends two, for a flight of 22; then seven segments are sent for ten that arrive.
    assert_eq!(out, 15);
    connection.ack = connection.ack.wrapping_add(20 * MSS);
    peer.send(connection.segment());
    let after = peer.stack.connection_stats(connection.conn).unwrap().congestion_window;
    assert_eq!((window, after), (20 * MSS, 22 * MSS * 7 / 10));
}

#[proves("RFC 8985 6.2", "a retransmitted segment is lost again if data sent after it has arrived.")]
#[test]
fn a_lost_retransmission_is_detected_without_a_timeout() {
    let (mut peer, connection, sent) = in_flight(10, Clock::None);
    peer.write(connection.conn, &[99; 20 * MSS as usize]);
    peer.segments();
    peer.now += RTT;
    report(&mut peer, &connection, &sent, &[(1, 4)]);
    assert_eq!(numbers(&peer.segments()), [0]);
    peer.now += Duration::from_millis(1);
    report(&mut peer, &connection, &sent, &[(1, 8)]);
    let new = peer.segments();
    assert!(!new.is_empty() && new.iter().all(|segment| segment.payload[0] == 99));
    // Data sent after the retransmission arrives a round trip later, the retransmission does not.
    peer.now += RTT;
    report(&mut peer, &connection, &sent, &[(1, 11)]);
    let again = numbers(&peer.segments());
    assert_eq!(again.first(), Some(&0), "{again:?}");
    assert_eq!(peer.stack.counters().get(Counter::TcpTimeouts), 0);
}

#[proves(
    "RFC 8985 7.2",
    "a tail that is not acknowledged is probed after two round trips, before the timeout."
)]
#[proves("RFC 8985 7.3", "the probe is the last segment if there is no new data.")]
#[proves("RFC 8985 7.4", "the answer to the probe is evidence of losses.")]
#[test]
fn a_lost_tail_is_probed_and_repaired_without_a_timeout() {
    let (mut peer, mut connection, sent) = in_flight(5, Clock::None);
    peer.now += RTT;
    connection.ack = connection.ack.wrapping_add(2 * MSS);
    report(&mut peer, &connection, &sent, &[]);
    assert_eq!(peer.next_timer(), RTT.times(2));
    assert_eq!(numbers(&peer.segments()), [4]);
    assert_eq!(peer.stack.counters().get(Counter::TcpTailProbes), 1);
    peer.now += RTT;
    report(&mut peer, &connection, &sent, &[(4, 5)]);
    assert_eq!(numbers(&peer.segments()), [2]);
    peer.now += RTT;
    connection.ack = connection.ack.wrapping_add(MSS);
    report(&mut peer, &connection, &sent, &[(4, 5)]);
    assert_eq!(numbers(&peer.segments()), [3]);
    assert_eq!(peer.stack.counters().get(Counter::TcpTimeouts), 0);
}

#[proves("RFC 8985 7.3", "the probe is new data if there is any.")]
#[test]
fn a_tail_is_probed_with_new_data_if_there_is_any() {
    let (mut peer, mut connection, sent) = in_flight(10, Clock::None);
    peer.write(connection.conn, &[99; 3 * MSS as usize]);
    peer.silent();
    peer.next_timer();
    assert_eq!(numbers(&peer.segments()), [99]);
    connection.ack = sent[9].seq.wrapping_add(2 * MSS);
    peer.send(connection.segment());
    assert_eq!(numbers(&peer.segments()), [99, 99]);
    assert_eq!(peer.stack.connection_stats(connection.conn).unwrap().retransmits, 0);
}

#[proves("RFC 8985 7.4", "a probe that repaired a loss reduces the window; a duplicate probe does not.")]
#[test]
fn a_probe_that_repaired_a_loss_counts_as_a_loss() {
    for (duplicate, shrinks) in [(false, true), (true, false)] {
        let (mut peer, mut connection, sent) = in_flight(10, Clock::None);
        peer.next_timer();
        assert_eq!(numbers(&peer.segments()), [9]);
        let before = peer.stack.connection_stats(connection.conn).unwrap().congestion_window;
        connection.ack = connection.ack.wrapping_add(10 * MSS);
        peer.send(connection.segment());
        if duplicate {
            report(&mut peer, &connection, &sent, &[(9, 10)]);
        }
        peer.write(connection.conn, &[1; MSS as usize]);
        peer.segments();
        connection.ack = connection.ack.wrapping_add(MSS);
        peer.send(connection.segment());
        let after = peer.stack.connection_stats(connection.conn).unwrap().congestion_window;
        assert_eq!(after < before, shrinks, "{before} to {after}");
    }
}

#[proves(
    "RFC 8985 7.2",
    "the probe of a single segment waits for a delayed acknowledgement, so the timeout comes first."
)]
#[test]
fn a_single_segment_is_not_probed() {
    let (mut peer, _, _) = in_flight(1, Clock::None);
    peer.next_timer();
    let counters = peer.stack.counters();
    assert_eq!((counters.get(Counter::TcpTailProbes), counters.get(Counter::TcpTimeouts)), (0, 1));
}

#[proves("RFC 2018 8", "after a timeout SACK information is discarded, and everything is retransmitted.")]
#[test]
fn a_timeout_discards_sack_information() {
    let (mut peer, mut connection, sent) = in_flight(6, Clock::None);
    peer.now += RTT;
    report(&mut peer, &connection, &sent, &[(1, 6)]);
    assert_eq!(numbers(&peer.segments()), [0]);
    peer.next_timer();
    assert_eq!(peer.stack.counters().get(Counter::TcpTimeouts), 1);
    assert_eq!(numbers(&peer.segments()), [0]);
    // The peer had discarded the rest.
    connection.ack = connection.ack.wrapping_add(MSS);
    peer.send(connection.segment());
    assert_eq!(numbers(&peer.segments()), [1, 2]);
}

#[proves(
    "RFC 3522 3.2",
    "an acknowledgement that echoes a time before the retransmission proves the timeout spurious."
)]
#[proves("RFC 4015 3.2", "the window is restored, and nothing more is retransmitted.")]
#[test]
fn a_spurious_timeout_is_undone() {
    let (mut peer, mut connection, sent) = in_flight(8, Clock::Stamped);
    let before = peer.stack.connection_stats(connection.conn).unwrap();
    let echo = sent[0].timestamps.unwrap().0;
    while peer.stack.counters().get(Counter::TcpTimeouts) == 0 {
        peer.next_timer();
        peer.segments();
    }
    peer.now += Duration::from_millis(50);
    connection.ack = connection.ack.wrapping_add(MSS);
    connection.timestamps = Some((3, echo));
    peer.send(connection.segment());
    peer.silent();
    let after = peer.stack.connection_stats(connection.conn).unwrap();
    assert!(after.congestion_window >= before.congestion_window);
    assert!(after.rto > before.rto, "the round trip was longer than thought");
    assert_eq!(peer.stack.counters().get(Counter::TcpSpurious), 1);
}

#[proves("RFC 3522 3.2", "an acknowledgement that echoes the retransmission confirms the loss.")]
#[test]
fn a_genuine_timeout_is_not_undone() {
    let (mut peer, mut connection, _) = in_flight(8, Clock::Stamped);
    let mut echo = 0;
    while peer.stack.counters().get(Counter::TcpTimeouts) == 0 {
        peer.next_timer();
        echo = peer.segments().last().unwrap().timestamps.unwrap().0;
    }
    peer.now += RTT;
    connection.ack = connection.ack.wrapping_add(MSS);
    connection.timestamps = Some((3, echo));
    peer.send(connection.segment());
    assert_eq!(numbers(&peer.segments()), [1, 2]);
    assert_eq!(peer.stack.counters().get(Counter::TcpSpurious), 0);
}

#[proves("RFC 3708 3", "if all retransmissions are reported as duplicates, nothing was lost.")]
#[test]
fn a_recovery_refuted_by_duplicates_is_undone() {
    let (mut peer, mut connection, sent) = in_flight(10, Clock::None);
    let before = peer.stack.connection_stats(connection.conn).unwrap().congestion_window;
    peer.now += RTT;
    report(&mut peer, &connection, &sent, &[(1, 4)]);
    assert_eq!(numbers(&peer.segments()), [0]);
    connection.ack = connection.ack.wrapping_add(10 * MSS);
    peer.send(connection.segment());
    assert!(peer.stack.connection_stats(connection.conn).unwrap().congestion_window < before);
    report(&mut peer, &connection, &sent, &[(0, 1)]);
    assert!(peer.stack.connection_stats(connection.conn).unwrap().congestion_window >= before);
    assert_eq!(peer.stack.counters().get(Counter::TcpSpurious), 1);
}

#[proves("RFC 7323 4.1", "a retransmitted segment is measured by its timestamp, and ends the back-off.")]
#[test]
fn timestamps_measure_retransmitted_segments() {
    let (mut peer, mut connection, _) = in_flight(1, Clock::Stamped);
    peer.next_timer();
    let again = peer.segment();
    let backed_off = peer.stack.connection_stats(connection.conn).unwrap().rto;
    peer.now += RTT;
    connection.ack = connection.ack.wrapping_add(MSS);
    connection.timestamps = Some((3, again.timestamps.unwrap().0));
    peer.send(connection.segment());
    assert!(peer.stack.connection_stats(connection.conn).unwrap().rto < backed_off);
}

#[test]
fn a_round_trip_is_measured_without_timestamps_while_data_is_out_of_order() {
    let (mut peer, mut connection, sent) = in_flight(10, Clock::None);
    peer.now += Duration::from_millis(150);
    report(&mut peer, &connection, &sent, &[(1, 2)]);
    connection.ack = connection.ack.wrapping_add(10 * MSS);
    peer.send(connection.segment());
    let smoothed = peer.stack.connection_stats(connection.conn).unwrap().smoothed_rtt.unwrap();
    assert!(smoothed > RTT, "{smoothed:?}");
}

#[proves(
    "RFC 7323 4.1",
    "only a segment that acknowledges new data measures the round-trip time by its echo."
)]
#[test]
fn a_reported_duplicate_on_an_idle_connection_measures_no_round_trip() {
    let (mut peer, mut connection, sent) = in_flight(10, Clock::Stamped);
    peer.now += RTT;
    connection.ack = connection.ack.wrapping_add(10 * MSS);
    peer.send(connection.segment());
    let before = peer.stack.connection_stats(connection.conn).unwrap();
    assert_eq!((before.in_flight, before.smoothed_rtt), (0, Some(RTT)));
    // The network delivers the last segment twice. The peer's answer still echoes the timestamp of the handshake.
    peer.now += Duration::from_secs(1);
    report(&mut peer, &connection, &sent, &[(9, 10)]);
    let after = peer.stack.connection_stats(connection.conn).unwrap();
    assert_eq!((after.smoothed_rtt, after.rto), (before.smoothed_rtt, before.rto));
}

#[proves(
    "RFC 2018 5",
    "invalid blocks are ignored: of unsent data, reversed, empty, or from before the acknowledgement."
)]
#[test]
fn invalid_blocks_are_ignored() {
    let (mut peer, connection, sent) = in_flight(10, Clock::None);
    peer.now += RTT;
    let end = sent[9].seq.wrapping_add(MSS);
    for block in [
        (end, end.wrapping_add(5 * MSS)),
        (sent[1].seq, end.wrapping_add(1)),
        (sent[5].seq, sent[1].seq),
        (sent[3].seq, sent[3].seq),
        (sent[0].seq.wrapping_sub(1 << 30), end),
    ] {
        peer.send(connection.segment().sack(&[block]));
        peer.silent();
    }
    assert_eq!(peer.stack.counters().get(Counter::TcpFastRetransmits), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[proves("RFC 2018 5", "with any SACK blocks, sent data is between the acknowledgement and the window's end.")]
    #[test]
    fn arbitrary_sack_blocks_cause_no_panic_and_no_stall(
        steps in prop::collection::vec(
            (0u32..4, prop::collection::vec((0u32..40_000, 0u32..6_000), 0..4), 0u64..300, any::<bool>()),
            1..60,
        ),
        stamped in any::<bool>(),
    ) {
        let clock = if stamped { Clock::Stamped } else { Clock::None };
        let (mut peer, mut connection, sent) = in_flight(10, clock);
        let mut highest = sent[9].seq.wrapping_add(MSS);
        let window = 60_000 << 7;
        for (acked, blocks, millis, writes) in steps {
            let in_flight = highest.wrapping_sub(connection.ack);
            connection.ack = connection.ack.wrapping_add((acked * MSS / 2).min(in_flight));
            let base = connection.ack.wrapping_sub(5_000);
            let blocks: Vec<(u32, u32)> = blocks
                .into_iter()
                .map(|(start, len)| (base.wrapping_add(start), base.wrapping_add(start + len)))
                .take(3)
                .collect();
            peer.send(connection.segment().sack(&blocks));
            if writes && peer.stack.send_space(connection.conn) >= 5_000 {
                peer.write(connection.conn, &[1; 5_000]);
            }
            for _ in 0..2 {
                for segment in peer.segments() {
                    if segment.flags.contains('R') {
                        return Ok(());
                    }
                    let end = segment.seq.wrapping_add(segment.payload.len() as u32);
                    prop_assert!(segment.seq.wrapping_sub(connection.ack) <= window, "sent acknowledged data");
                    prop_assert!(end.wrapping_sub(connection.ack) <= window);
                    if end.wrapping_sub(connection.ack) > highest.wrapping_sub(connection.ack) {
                        highest = end;
                    }
                }
                peer.pass(Duration::from_millis(millis));
            }
            if let Some(stats) = peer.stack.connection_stats(connection.conn) {
                prop_assert!(stats.congestion_window >= MSS);
            }
        }
        // If the peer acknowledges everything, the connection becomes idle.
        connection.ack = highest;
        peer.send(connection.segment());
        for _ in 0..200 {
            for segment in peer.segments() {
                let end = segment.seq.wrapping_add(segment.payload.len() as u32);
                if end.wrapping_sub(connection.ack) < 1 << 30 {
                    connection.ack = end;
                }
            }
            peer.send(connection.segment());
        }
        if let Some(stats) = peer.stack.connection_stats(connection.conn) {
            prop_assert_eq!(stats.unacked, 0);
            prop_assert_eq!(peer.stack.next_deadline(), None);
        }
    }
}

#[proves("RFC 9293 3.8.6.1", "a connection with data in flight always has a timer.")]
#[test]
fn a_late_duplicate_at_a_closed_window_leaves_a_timer() {
    let (mut peer, mut connection, sent) = in_flight(10, Clock::None);
    peer.now += RTT;
    report(&mut peer, &connection, &sent, &[(1, 4)]);
    assert_eq!(numbers(&peer.segments())[0], 0);
    connection.ack = connection.ack.wrapping_add(4 * MSS);
    peer.send(connection.segment().window(0));
    while peer.stack.counters().get(Counter::TcpTimeouts) == 0 {
        peer.next_timer();
        peer.segments();
    }
    peer.send(connection.segment().window(0).sack(&[(sent[0].seq, sent[1].seq)]));
    peer.pass(Duration::from_secs(10));
    assert!(!peer.segments().is_empty(), "the window is probed");
    peer.send(connection.segment());
    assert_eq!(numbers(&peer.segments())[0], 4);
}
