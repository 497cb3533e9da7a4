use super::*;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

type Memory = Arc<[AtomicU64]>;

/// Returns the memory of a half with room for so many lines.
fn memory(lines: usize) -> Memory {
    (0..(crate::HEADER_LINES + lines) * LINE_WORDS).map(|_| AtomicU64::new(0)).collect()
}

/// Returns both sides of a link, and the memory of their halves.
fn pair(lines: usize) -> (Ring<Memory, Memory>, Ring<Memory, Memory>, [Memory; 2]) {
    let memories = [memory(lines), memory(lines)];
    let half = |index: usize| Half::new(memories[index].clone()).unwrap();
    half(0).init();
    half(1).init();
    (Ring::new(half(0), half(1)), Ring::new(half(1), half(0)), memories)
}

fn received(ring: &mut Ring<Memory, Memory>) -> Option<Vec<u8>> {
    let mut packet = Vec::new();
    ring.receive(&mut packet).unwrap().then_some(packet)
}

#[test]
fn packets_of_all_lengths_arrive_in_order() {
    let (mut a, mut b, _) = pair(16);
    for len in 0..=a.most_bytes() {
        let packet: Vec<u8> = (0..len).map(|index| (index * 7 + len) as u8).collect();
        let _ = a.send(&packet).unwrap();
        assert_eq!(received(&mut b), Some(packet), "{len} bytes");
        let _ = b.release();
    }
    assert_eq!(received(&mut b), None);
}

/// Takes the next packet, if there is one.
fn taken(ring: &mut Ring<Memory, Memory>) -> Option<Vec<u8>> {
    let packet = ring.incoming().unwrap()?;
    let mut bytes = vec![0xee; packet.len_bytes()];
    ring.take(packet, &mut bytes);
    Some(bytes)
}

proptest! {
    #[test]
    fn parts_of_any_lengths_arrive_as_one_packet(
        packets in prop::collection::vec(prop::collection::vec(0..150usize, 0..6), 1..20),
    ) {
        let (mut a, mut b, _) = pair(16);
        for (number, lens) in packets.into_iter().enumerate() {
            let part = |(index, len): (usize, usize)| -> Vec<u8> {
                (0..len).map(|byte| (byte * 7 + index * 50 + number) as u8).collect()
            };
            let parts: Vec<Vec<u8>> = lens.into_iter().enumerate().map(part).collect();
            let _ = a.send_parts(parts.concat().len(), parts.iter().map(|part| &**part)).unwrap();
            prop_assert_eq!(taken(&mut b), Some(parts.concat()));
            let _ = b.release();
            // As a packet of one part, and received as such.
            let _ = a.send(&parts.concat()).unwrap();
            prop_assert_eq!(received(&mut b), Some(parts.concat()));
            let _ = b.release();
        }
        prop_assert_eq!(taken(&mut b), None);
    }
}

#[test]
fn a_packet_is_taken_once_and_in_part() {
    let (mut a, mut b, _) = pair(16);
    let _ = a.send_parts(200, [&[7; 100][..], &[8; 100], &[9; 5]].into_iter()).unwrap();
    let packet = b.incoming().unwrap().unwrap();
    let same = b.incoming().unwrap().unwrap();
    let mut bytes = [0; 120];
    b.take(packet, &mut bytes);
    assert_eq!(bytes[99..101], [7, 8]);
    b.take(same, &mut bytes);
    assert!(b.incoming().unwrap().is_none());
    let long = vec![0; a.most_bytes()];
    let mut send = |len| a.send_parts(len, core::iter::once(&long[..]));
    assert!(matches!(send(long.len() + 1), Err(SendError::TooLong { .. })));
    assert_eq!(send(long.len()), Err(SendError::Full));
    let _ = b.release();
    let _ = send(long.len()).unwrap();
    assert_eq!(taken(&mut b), Some(long));
}

#[test]
fn a_packet_longer_than_the_ring_is_refused_and_one_without_room_waits() {
    let (mut a, mut b, _) = pair(4);
    let most_bytes = a.most_bytes();
    assert_eq!(most_bytes, 4 * LINE_BYTES - 8);
    assert_eq!(a.send(&vec![0; most_bytes + 1]), Err(SendError::TooLong { most_bytes }));
    let _ = a.send(b"first").unwrap();
    assert_eq!(a.send(&vec![1; most_bytes]), Err(SendError::Full));
    assert_eq!(a.await_room(most_bytes), Ok(false));
    assert_eq!(received(&mut b).as_deref(), Some(&b"first"[..]));
    assert_eq!(b.release(), MustNotify::Yes);
    assert_eq!(a.await_room(most_bytes), Ok(true));
    let _ = a.send(&vec![1; most_bytes]).unwrap();
    assert_eq!(received(&mut b), Some(vec![1; most_bytes]));
    assert_eq!(b.release(), MustNotify::No, "nothing waits for room");
}

#[test]
fn a_flood_to_an_armed_receiver_notifies_it_once() {
    let (mut a, mut b, _) = pair(16);
    assert_eq!(b.arm(), Ok(Armed::Yes));
    assert_eq!(a.send(b"wake"), Ok(MustNotify::Yes));
    for _ in 0..15 {
        assert_eq!(a.send(b"more"), Ok(MustNotify::No));
    }
    assert_eq!(a.send(b"more"), Err(SendError::Full));
    assert_eq!(b.arm(), Ok(Armed::HasPacket));
    b.disarm();
    while received(&mut b).is_some() {}
    let _ = b.release();
    assert_eq!(a.send(b"polled"), Ok(MustNotify::No));
}

#[test]
fn messages_are_packets_of_one_line() {
    let (mut a, mut b, _) = pair(4);
    let message = Message::new([1, 2, 3, 4, 5, 6, 7]);
    let _ = a.send_message(&message).unwrap();
    assert_eq!(b.receive_message(), Ok(Some(message)));
    assert_eq!(b.receive_message(), Ok(None));
    let _ = a.send(b"abc").unwrap();
    assert_eq!(b.receive_message().unwrap().unwrap().words()[0], 0x63_6261);
    let _ = a.send(&[0; 57]).unwrap();
    assert_eq!(b.receive_message(), Err(Broken), "two lines are no message");
}

#[test]
fn memory_without_room_for_two_lines_is_refused() {
    assert!(Half::new(memory(1)).is_err() && Half::new(memory(0)).is_err());
    assert_eq!(Half::new(memory(2)).unwrap().capacity(), 2);
    assert_eq!(Half::new(memory(60)).unwrap().capacity(), 32, "a page has 32 entries");
    assert!(!Half::new(memory(2)).unwrap().is_marked());
}

#[test]
fn a_half_that_is_replaced_after_the_peer_died_is_noticed() {
    for value in [0, u64::MAX, 1 << 40] {
        let (mut a, mut b, [_, memory]) = pair(4);
        let _ = b.send(b"last").unwrap();
        assert!(received(&mut a).is_some());
        memory.iter().for_each(|word| word.store(value, Ordering::Relaxed));
        assert_eq!(a.has_packet(), Err(Broken));
        assert_eq!(a.send(b"any"), Err(SendError::Broken));
        assert!(a.is_broken());
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize),
    Receive,
    Release,
    Arm,
    AwaitRoom(usize),
    /// The peer writes a word of its half: any, or a plausible index.
    Write(usize, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let word = prop_oneof![any::<u64>(), 0u64..40, (0u64..20, 0u64..300).prop_map(|(s, l)| s << 32 | l)];
    let index = prop_oneof![
        0usize..96,
        Just(Word::Head as usize),
        Just(Word::Tail as usize),
        Just(Word::WakeAt as usize)
    ];
    prop_oneof![
        (0usize..300).prop_map(Step::Send),
        Just(Step::Receive),
        Just(Step::Release),
        Just(Step::Arm),
        (0usize..240).prop_map(Step::AwaitRoom),
        (index, word).prop_map(|(index, word)| Step::Write(index, word)),
    ]
}

proptest! {
    #[test]
    fn a_hostile_peer_breaks_only_the_ring(steps in proptest::collection::vec(step(), 0..80)) {
        let (mut a, _, [own, peer]) = pair(8);
        let mut packet = Vec::new();
        let mut was_broken = false;
        for step in steps {
            let before: Vec<u64> = peer.iter().map(|word| word.load(Ordering::Relaxed)).collect();
            let broken = match step {
                Step::Send(len) => a.send(&vec![7; len]) == Err(SendError::Broken),
                Step::Receive => match a.receive(&mut packet) {
                    Ok(_) => {
                        prop_assert!(packet.len() <= a.most_bytes() && packet.capacity() <= 8 * LINE_BYTES);
                        false
                    }
                    Err(Broken) => true,
                },
                Step::Release => {
                    let _ = a.release();
                    false
                }
                Step::Arm => a.arm() == Err(Broken),
                Step::AwaitRoom(len) => a.await_room(len) == Err(Broken),
                Step::Write(index, word) => {
                    peer[index].store(word, Ordering::Relaxed);
                    continue;
                }
            };
            prop_assert!(!was_broken || a.is_broken());
            prop_assert!(!broken || a.is_broken());
            was_broken = a.is_broken();
            // This side writes nothing to the peer's half, and its own indices never contradict each other.
            prop_assert!(peer.iter().map(|word| word.load(Ordering::Relaxed)).eq(before));
            let (head, tail) = (a.head, a.tail);
            prop_assert!(head - a.peer_tail <= 8 && a.peer_head - tail <= 8);
            prop_assert_eq!(own[Word::Head as usize].load(Ordering::Relaxed), head);
        }
    }

    #[test]
    fn two_honest_sides_lose_and_reorder_nothing(lens in proptest::collection::vec(0usize..500, 0..60), lag in 0usize..8) {
        let (mut a, mut b, _) = pair(8);
        let (mut sent, mut got) = (Vec::new(), Vec::new());
        for (number, len) in lens.into_iter().enumerate() {
            let packet = vec![number as u8; len];
            while a.send(&packet) == Err(SendError::Full) {
                got.extend(received(&mut b));
                let _ = b.release();
            }
            sent.push(packet);
            if number % (lag + 1) == 0 {
                got.extend(received(&mut b));
            }
        }
        while let Some(packet) = received(&mut b) {
            got.push(packet);
        }
        prop_assert_eq!(sent, got);
    }
}
