//! What a side of a link learns about the other: whether it waits, whether it obeys the protocol, whether its half is
//! initialised.

use isola_link_rings::{Armed, HEADER_LINES, Half, LINE_WORDS, Message, MustNotify, Ring, SendError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

type Memory = Arc<[AtomicU64]>;

/// The number of lines of a ring, and the word with the lines written so far.
const LINES: usize = 4;
const HEAD: usize = LINE_WORDS;

fn memory() -> Memory {
    (0..(HEADER_LINES + LINES) * LINE_WORDS).map(|_| AtomicU64::new(0)).collect()
}

/// Returns both sides of a link, and the memory of the second one's half.
fn pair() -> (Ring<Memory, Memory>, Ring<Memory, Memory>, Memory) {
    let memories = [memory(), memory()];
    let half = |index: usize| {
        let half = Half::new(memories[index].clone()).unwrap();
        half.init();
        half
    };
    (Ring::new(half(0), half(1)), Ring::new(half(1), half(0)), memories[1].clone())
}

#[test]
fn a_half_is_marked_once_it_is_initialised() {
    let half = Half::new(memory()).unwrap();
    assert!(!half.is_marked());
    half.init();
    assert!(half.is_marked());
}

#[test]
fn a_ring_is_broken_only_once_the_peer_has_violated_the_protocol() {
    let (mut ring, mut peer, of_peer) = pair();
    assert_eq!(peer.send(b"a packet"), Ok(MustNotify::No));
    assert_eq!(ring.receive(&mut Vec::new()), Ok(true));
    assert!(!ring.is_broken());
    // More lines than the peer's ring has.
    of_peer[HEAD].store(1000, Ordering::Relaxed);
    assert!(ring.has_packet().is_err());
    assert!(ring.is_broken());
    assert_eq!(ring.send(b"another one"), Err(SendError::Broken));
}

#[test]
fn a_writer_that_waits_for_room_is_notified_once_and_only_of_enough_room() {
    let (mut writer, mut reader, _) = pair();
    for _ in 0..LINES {
        assert_eq!(writer.send_message(&Message::default()), Ok(MustNotify::No));
    }
    assert_eq!(writer.send_message(&Message::default()), Err(SendError::Full));
    // Two lines.
    assert_eq!(writer.await_room(LINE_WORDS * 8), Ok(false));
    let mut release_one = || {
        assert!(reader.receive_message().unwrap().is_some());
        reader.release()
    };
    assert_eq!(release_one(), MustNotify::No);
    assert_eq!(release_one(), MustNotify::Yes);
    assert_eq!(release_one(), MustNotify::No);
    assert_eq!(reader.release(), MustNotify::No);
    assert_eq!(writer.await_room(LINE_WORDS * 8), Ok(true));
}

#[test]
fn a_reader_that_polls_is_not_notified() {
    let (mut writer, mut reader, _) = pair();
    assert_eq!(reader.arm(), Ok(Armed::Yes));
    reader.disarm();
    assert_eq!(writer.send_message(&Message::default()), Ok(MustNotify::No));
    assert_eq!(reader.arm(), Ok(Armed::HasPacket));
}
