//! When the congestion window grows, and when it must not (RFC 5681, RFC 6928).

use isola_net_sim::{Peer, Talk};
use isola_net_stack::Duration;

const MSS: usize = 1000;

/// RFC 6928: ten segments.
const INITIAL: usize = 10;

fn connected() -> (Peer, Talk) {
    let mut peer = Peer::listening();
    let talk = peer.connect(4000, Some(MSS as u16), Some(7));
    (peer, talk)
}

/// Gives the connection more than it may send at once; returns how many segments it sends.
fn burst(peer: &mut Peer, talk: &Talk) -> usize {
    peer.write(talk.conn, &vec![7; 100 * MSS]);
    peer.segments().len()
}

/// Acknowledges so many segments, one by one; returns how many are sent for that.
fn acknowledge(peer: &mut Peer, talk: &mut Talk, segments: usize) -> usize {
    let mut sent = 0;
    for _ in 0..segments {
        talk.ack += MSS as u32;
        peer.send(talk.segment().window(u16::MAX));
        sent += peer.segments().len();
    }
    sent
}

/// RFC 5681 3.1: slow start adds a segment for each one acknowledged
/// RFC 6928 2: the first window is ten segments
#[test]
fn slow_start_doubles_the_window_each_round_trip() {
    let (mut peer, mut talk) = connected();
    assert_eq!(burst(&mut peer, &talk), INITIAL);
    assert_eq!(acknowledge(&mut peer, &mut talk, INITIAL), 2 * INITIAL);
    assert_eq!(acknowledge(&mut peer, &mut talk, 2 * INITIAL), 4 * INITIAL);
}

/// RFC 5681 3.1: the window grows only for what is acknowledged of a window in use
#[test]
fn a_window_that_is_not_used_does_not_grow() {
    let (mut peer, mut talk) = connected();
    for _ in 0..100 {
        peer.write(talk.conn, &[7; MSS]);
        assert_eq!(peer.segments().len(), 1);
        acknowledge(&mut peer, &mut talk, 1);
    }
    assert_eq!(burst(&mut peer, &talk), INITIAL);
}

/// RFC 5681 4.1: after a pause longer than a timeout the window begins anew
#[test]
fn a_window_that_has_grown_begins_anew_after_a_pause() {
    let (mut peer, mut talk) = connected();
    let mut under_way = burst(&mut peer, &talk);
    while under_way > 0 {
        under_way = acknowledge(&mut peer, &mut talk, under_way);
    }
    // Shorter than a timeout: what was learned holds.
    peer.pass(Duration::from_millis(50));
    let mut under_way = burst(&mut peer, &talk);
    assert!(under_way > 2 * INITIAL, "{under_way} segments");
    while under_way > 0 {
        under_way = acknowledge(&mut peer, &mut talk, under_way);
    }
    peer.pass(Duration::from_secs(10));
    assert_eq!(burst(&mut peer, &talk), INITIAL);
}
