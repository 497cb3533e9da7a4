//! Flow control in both directions, including closed windows.

use isola_iobuf::{Chain, IoBuf};
use isola_net_sim::{Peer, PeerConnection, Segment, chain_of, host_config};
use isola_net_stack::{Counter, Duration, Event, FailReason, SendError};
use isola_proves::proves;

fn connected_with(window: u32, scale: Option<u8>) -> (Peer, PeerConnection) {
    let mut config = host_config(1);
    config.tcp.receive_window = window;
    let mut peer = Peer::new(config);
    peer.stack.listen(80, 16).unwrap();
    let connection = peer.connect(4000, Some(1000), scale);
    (peer, connection)
}

/// Passes the initial segments, which are acknowledged one by one.
fn warm_up(peer: &mut Peer, connection: &mut PeerConnection) {
    for _ in 0..16 {
        peer.send_data(connection, b"x");
        assert_eq!(peer.segment().ack, Some(connection.seq));
    }
    assert_eq!(peer.read(connection.conn).len(), 16);
    peer.events();
    peer.segments();
}

#[proves("RFC 9293 3.8.6", "the announced window is the remaining space")]
#[proves("RFC 9293 3.8.6.2.2", "a window is not opened in small steps")]
#[test]
fn the_announced_window_is_the_remaining_space() {
    let (mut peer, mut connection) = connected_with(10_000, None);
    peer.send_data(&mut connection, &[1; 1000]);
    assert_eq!(peer.segment().window, 9_000);
    peer.send_data(&mut connection, &[2; 1000]);
    assert_eq!(peer.segment().window, 8_000);
    assert_eq!(peer.read(connection.conn).len(), 2000);
    // The window has opened by less than two segments: no acknowledgement is sent for that alone.
    peer.silent();
    peer.send_data(&mut connection, &[3; 1000]);
    assert_eq!(peer.segment().window, 9_000);
}

#[proves("RFC 7323 2.2", "windows of segments without SYN are scaled")]
#[test]
fn scaled_windows_are_announced_scaled() {
    let (mut peer, mut connection) = connected_with(1 << 20, Some(2));
    peer.send_data(&mut connection, &[1; 1000]);
    let window = u32::from(peer.segment().window) << 7;
    assert!(((1 << 20) - 1128..=(1 << 20) - 1000).contains(&window), "{window}");
}

#[proves("RFC 9293 3.8.6.2.2", "a closed window is announced again when a good part of it is free")]
#[proves("RFC 9293 3.10.7.4", "a segment beyond a window of zero is acknowledged and dropped")]
#[test]
fn a_closed_window_opens_again_when_the_application_reads() {
    let (mut peer, mut connection) = connected_with(4_000, None);
    for left in [3000, 2000, 1000, 0] {
        peer.send_data(&mut connection, &[7; 1000]);
        assert_eq!(peer.segment().window, left);
    }
    // One byte beyond the window: acknowledged up to the edge, not accepted.
    peer.send(connection.segment().payload(b"!"));
    let full = peer.segment();
    assert_eq!((full.ack, full.window), (Some(connection.seq), 0));
    assert_eq!(peer.stack.read(connection.conn).unwrap().len(), 1000);
    peer.silent();
    peer.stack.read(connection.conn).unwrap();
    assert_eq!(peer.segment().window, 2000, "half of it is free");
    peer.send(connection.segment().payload(b"!"));
    assert_eq!(peer.read(connection.conn).last(), Some(&b'!'));
}

#[proves("RFC 9293 3.4", "only data in the receive window is accepted")]
#[test]
fn data_beyond_the_window_is_not_accepted() {
    let (mut peer, mut connection) = connected_with(4_000, None);
    for _ in 0..20 {
        peer.send_data(&mut connection, &[7; 1000]);
    }
    assert_eq!(peer.read(connection.conn).len(), 4000);
    assert_eq!(peer.stack.connection_stats(connection.conn).unwrap().bytes_received, 4000);
}

#[proves("RFC 9293 3.8.6", "a receiver does not shrink its window")]
#[test]
fn the_application_sets_its_window_and_an_announced_window_is_not_shrunk() {
    let (mut peer, mut connection) = connected_with(8_000, None);
    peer.stack.set_window(connection.conn, 1_000);
    peer.send_data(&mut connection, &[1; 3000]);
    assert_eq!(peer.segment().window, 5_000, "the edge does not move back");
    assert_eq!(peer.read(connection.conn).len(), 3000);
    peer.send_data(&mut connection, &[1; 5000]);
    assert_eq!(peer.segment().window, 0);
    assert_eq!(peer.read(connection.conn).len(), 5000);
    assert_eq!(peer.segment().window, 1_000);
    peer.stack.set_window(connection.conn, 60_000);
    assert_eq!(peer.segment().window, 60_000);
}

#[test]
fn a_window_of_zero_stops_the_peer() {
    let (mut peer, mut connection) = connected_with(2_000, None);
    peer.stack.set_window(connection.conn, 0);
    peer.send_data(&mut connection, &[1; 2000]);
    assert_eq!(peer.segment().window, 0);
    peer.read(connection.conn);
    peer.silent();
    peer.stack.set_window(connection.conn, 5_000);
    assert_eq!(peer.segment().window, 5_000);
}

#[proves("RFC 9293 3.8.6", "no more is sent than the window allows")]
#[proves("RFC 9293 3.8.6.2.1", "no silly remainder is sent while data is in flight")]
#[test]
fn no_more_is_sent_than_the_window_allows() {
    let (mut peer, mut connection) = connected_with(60_000, None);
    peer.send(connection.segment().window(2_500));
    peer.write(connection.conn, &[1; 10_000]);
    let sizes: Vec<usize> = peer.segments().iter().map(|segment| segment.payload.len()).collect();
    assert_eq!(sizes, [1000, 1000], "no silly remainder while data is in flight");
    connection.ack += 2000;
    peer.send(connection.segment().window(500));
    peer.silent();
    // Nothing is in flight, and the window is smaller than a segment: it is used after the persist timeout.
    peer.next_timer();
    let probe = peer.segment();
    assert_eq!((probe.seq, probe.payload.len()), (connection.ack, 500));
}

#[proves(
    "RFC 9293 3.8.6.1",
    "a zero window is probed after the retransmission timeout, with increasing intervals"
)]
#[proves("RFC 9293 3.8.6.1", "a connection whose probes are answered stays open for ever")]
#[test]
fn a_zero_window_is_probed_with_increasing_intervals_for_ever() {
    let (mut peer, connection) = connected_with(60_000, None);
    peer.send(connection.segment().window(0));
    peer.write(connection.conn, b"hello");
    peer.silent();
    let mut pauses = Vec::new();
    for _ in 0..14 {
        pauses.push(peer.next_timer().as_millis());
        let probe = peer.segment();
        assert_eq!((probe.seq, probe.payload.as_slice()), (connection.ack, &b"h"[..]));
        peer.send(connection.segment().window(0));
        peer.silent();
    }
    assert_eq!(pauses[..5], [200, 400, 800, 1600, 3200]);
    assert_eq!(pauses[13], 60_000);
    assert_eq!(peer.stack.counters().get(Counter::TcpProbes), 14);
    peer.send(connection.segment().window(1000));
    assert_eq!(peer.segment().payload, b"hello");
}

#[proves("RFC 9293 3.8.6.1", "a probe has new data that the peer may accept")]
#[test]
fn accepted_data_of_a_probe_is_progress() {
    let (mut peer, mut connection) = connected_with(60_000, None);
    peer.send(connection.segment().window(0));
    peer.write(connection.conn, b"hello");
    peer.next_timer();
    peer.segment();
    connection.ack += 1;
    peer.send(connection.segment().window(0));
    peer.silent();
    peer.next_timer();
    assert_eq!(peer.segment().payload, b"e");
    connection.ack += 1;
    peer.send(connection.segment().window(100));
    assert_eq!(peer.segment().payload, b"llo");
}

#[proves("RFC 9293 3.8.3", "unanswered probes end the connection")]
#[test]
fn unanswered_probes_end_the_connection() {
    let (mut peer, connection) = connected_with(60_000, None);
    peer.send(connection.segment().window(0));
    peer.write(connection.conn, b"hello");
    for _ in 0..10 {
        peer.next_timer();
        peer.segments();
    }
    assert_eq!(peer.events(), []);
    peer.next_timer();
    assert_eq!(peer.events(), [Event::Failed(connection.conn, FailReason::TimedOut)]);
}

#[test]
fn a_zero_window_is_probed_with_the_fin() {
    let (mut peer, mut connection) = connected_with(60_000, None);
    peer.send(connection.segment().window(0));
    peer.stack.shutdown(connection.conn);
    peer.silent();
    peer.next_timer();
    let probe = peer.segment();
    assert_eq!((probe.flags.as_str(), probe.seq), ("F", connection.ack));
    connection.ack += 1;
    peer.send(connection.segment().window(0));
    peer.silent();
    assert_eq!(peer.stack.next_deadline(), None);
}

#[proves("RFC 9293 3.8.6.1", "the answer to a probe updates the window")]
#[test]
fn a_lost_window_update_does_not_stop_the_stream() {
    let (mut peer, connection) = connected_with(60_000, None);
    peer.send(connection.segment().window(0));
    peer.write(connection.conn, &[4; 5000]);
    peer.next_timer();
    peer.segment();
    // The answer to the probe has the window of the lost segment.
    peer.send(connection.segment().window(60_000));
    let bytes: usize = peer.segments().iter().map(|segment| segment.payload.len()).sum();
    assert_eq!(bytes, 5000);
}

#[proves("RFC 9293 3.10.7.4", "only a segment newer than the one of the last update updates the window")]
#[test]
fn an_old_segment_does_not_update_the_window() {
    let (mut peer, mut connection) = connected_with(60_000, None);
    let old = connection.segment().window(100);
    peer.send_data(&mut connection, b"abc");
    peer.segments();
    peer.send(connection.segment().window(30_000));
    peer.send(Segment { payload: b"abc".to_vec(), ..old });
    assert_eq!(peer.stack.connection_stats(connection.conn).unwrap().peer_window, 30_000);
}

#[test]
fn send_is_all_or_nothing_and_an_event_reports_when_refused_data_fits() {
    let (mut peer, mut connection) = connected_with(60_000, None);
    peer.stack.set_send_limit(connection.conn, 3_000);
    assert_eq!(peer.stack.send_space(connection.conn), 3_000);
    peer.write(connection.conn, &[1; 2_000]);
    let mut big = Chain::from(IoBuf::copy_from_slice(&[2; 2_500]));
    assert_eq!(peer.stack.send(connection.conn, &mut big), Err(SendError::NoSpace { space: 1_000 }));
    assert_eq!(big.len(), 2_500, "refused data stays the caller's");
    let too_long = peer.stack.send(connection.conn, &mut chain_of(&[0; 3_001], 100));
    assert_eq!(too_long, Err(SendError::TooLong(3_000)));
    assert_eq!(peer.segments().len(), 2);
    connection.ack += 1000;
    peer.send(connection.segment());
    assert_eq!(peer.events(), [], "2,000 bytes are free: not enough yet");
    connection.ack += 1000;
    peer.send(connection.segment());
    assert_eq!(peer.events(), [Event::SendSpace(connection.conn)]);
    peer.stack.send(connection.conn, &mut big).unwrap();
    assert!(big.is_empty());
    let mut rest = Chain::from(IoBuf::copy_from_slice(&[3; 1_000]));
    assert_eq!(peer.stack.send_some(connection.conn, &mut rest), Ok(500));
    assert_eq!(rest.len(), 500);
    assert_eq!(peer.stack.send_space(connection.conn), 0);
}

#[test]
fn a_higher_send_limit_reports_space_for_refused_data_once() {
    let (mut peer, mut connection) = connected_with(60_000, None);
    peer.stack.set_send_limit(connection.conn, 3_000);
    peer.write(connection.conn, &[1; 2_000]);
    let mut big = Chain::from(IoBuf::copy_from_slice(&[2; 2_500]));
    assert_eq!(peer.stack.send(connection.conn, &mut big), Err(SendError::NoSpace { space: 1_000 }));
    peer.stack.set_send_limit(connection.conn, 5_000);
    assert_eq!(peer.events(), [Event::SendSpace(connection.conn)]);
    peer.segments();
    connection.ack += 2_000;
    peer.send(connection.segment());
    assert_eq!(peer.events(), [], "the space has been reported");
}

#[test]
fn a_connection_whose_sending_half_is_shut_has_no_send_space() {
    let (mut peer, connection) = connected_with(60_000, None);
    peer.stack.shutdown(connection.conn);
    assert_eq!(peer.stack.send_space(connection.conn), 0);
    peer.segments();
}

#[test]
fn all_received_data_is_read_at_once() {
    let (mut peer, mut connection) = connected_with(60_000, None);
    peer.send_data(&mut connection, b"ab");
    peer.send_data(&mut connection, b"cd");
    assert_eq!(peer.events(), [Event::Readable(connection.conn)]);
    peer.segments();
    let (data, _) = peer.stack.read_all(connection.conn).unwrap();
    assert_eq!(data.len(), 4);
    assert_eq!(peer.stack.read(connection.conn), None);
}

#[proves("RFC 9293 3.8.6.3", "an acknowledgement is delayed for less than 0.5 s")]
#[proves("RFC 5681 4.2", "at least every second segment is acknowledged")]
#[test]
fn acknowledgements_are_delayed_and_cover_two_segments() {
    let (mut peer, mut connection) = connected_with(60_000, None);
    warm_up(&mut peer, &mut connection);
    peer.send_data(&mut connection, b"one");
    peer.silent();
    assert_eq!(peer.next_timer(), Duration::from_millis(40));
    assert_eq!(peer.segment().ack, Some(connection.seq));
    peer.send_data(&mut connection, b"two");
    peer.silent();
    peer.send_data(&mut connection, b"three");
    assert_eq!(peer.segment().ack, Some(connection.seq));
    // A segment with data acknowledges too, and no timer remains.
    peer.send_data(&mut connection, b"question");
    peer.write(connection.conn, b"answer");
    let answer = peer.segment();
    assert_eq!((answer.payload.as_slice(), answer.ack), (&b"answer"[..], Some(connection.seq)));
    connection.ack += 6;
    peer.send(connection.segment());
    peer.silent();
    assert_eq!(peer.stack.next_deadline(), None);
}

#[test]
fn segments_of_small_pieces_have_a_bounded_number_of_views() {
    let (mut peer, connection) = connected_with(60_000, None);
    peer.stack.send(connection.conn, &mut chain_of(&[1; 900], 100)).unwrap();
    peer.stack.send(connection.conn, &mut chain_of(&[2; 1_000], 10)).unwrap();
    let mut parts = Vec::new();
    let mut bytes = 0;
    while let Some(frame) = peer.stack.poll_transmit(peer.now) {
        parts.push(frame.payload.parts().len());
        bytes += frame.payload.len();
    }
    assert_eq!(bytes, 1_900);
    assert!(parts.iter().all(|&count| count <= 16), "{parts:?}");
}
