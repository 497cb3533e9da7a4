//! A device that violates the protocol: the queue identifies the fault, returns nothing, and stops.

use super::*;
use proptest::prelude::*;

/// A queue of 4 with two buffers lent to the device and one more staged.
fn rig() -> Rig<SharedBuffer> {
    let mut rig = Rig::after(u16::MAX - 1, 4, BY_INDEX);
    for _ in 0..2 {
        let buffer = rig.buffer(&[0; 16]);
        rig.queue.lend(buffer, Access::DeviceWrites).unwrap();
    }
    rig.queue.publish();
    let staged = rig.buffer(&[0; 16]);
    rig.queue.lend(staged, Access::DeviceWrites).unwrap();
    rig
}

fn assert_broken(mut rig: Rig<SharedBuffer>, fault: Fault) {
    let outstanding = rig.queue.outstanding();
    assert_eq!(rig.queue.take_returned().unwrap_err(), fault);
    assert_eq!(rig.queue.fault(), Some(fault));
    // No later action of the device revives the queue.
    rig.ring.give_back(0, 0);
    assert_eq!(rig.queue.take_returned().unwrap_err(), fault);
    assert!(!rig.queue.has_returned());
    assert_eq!(rig.queue.outstanding(), outstanding);
    assert_eq!(rig.queue.arm(WakeWhen::Returned), Pending::Yes, "a fault must not be waited for");
    let buffer = rig.buffer(b"x");
    let refused = rig.queue.lend(buffer, Access::DeviceReads).unwrap_err();
    assert_eq!(refused.reason, Refusal::Broken(fault));
    let before = rig.notices();
    let shown = rig.ring.available_index();
    rig.queue.publish();
    assert_eq!((rig.notices(), rig.ring.available_index()), (before, shown));
}

#[test]
fn an_unknown_id_is_a_fault() {
    for id in [4, 5, 0xffff, 0x1_0000, 0x1_0001, u32::MAX] {
        let mut rig = rig();
        rig.ring.write_used(rig.ring.used, id, 0);
        rig.ring.set_used_index(u16::MAX);
        assert_broken(rig, Fault::UnknownBuffer { id });
    }
}

#[test]
fn returning_a_buffer_that_is_not_lent_is_a_fault() {
    // Never lent.
    let mut unlent = rig();
    unlent.ring.give_back(3, 0);
    assert_broken(unlent, Fault::NotLent { id: 3 });
    // Staged, but not published.
    let mut early = rig();
    early.ring.give_back(2, 0);
    assert_broken(early, Fault::NotLent { id: 2 });
    // Returned twice.
    let mut twice = rig();
    twice.ring.give_back(1, 0);
    twice.ring.give_back(1, 0);
    assert!(twice.queue.take_returned().unwrap().is_some());
    assert_broken(twice, Fault::NotLent { id: 1 });
}

#[test]
fn an_id_within_a_chain_is_a_fault() {
    let mut rig = Rig::new(4, BY_INDEX);
    let pieces: Vec<_> = (0..3).map(|_| rig.buffer(b"x")).collect();
    rig.queue.lend(pieces, Access::DeviceReads).unwrap();
    rig.queue.publish();
    rig.ring.give_back(1, 0);
    assert_eq!(rig.queue.take_returned().unwrap_err(), Fault::NotLent { id: 1 });
}

#[test]
fn a_written_length_beyond_the_buffer_is_a_fault() {
    let mut long = rig();
    long.ring.give_back(0, 17);
    assert_broken(long, Fault::TooLong { written: 17, writable: 16 });
    let mut read_only = Rig::new(4, BY_FLAGS);
    let buffer = read_only.buffer(&[0; 16]);
    read_only.queue.lend(buffer, Access::DeviceReads).unwrap();
    read_only.queue.publish();
    read_only.ring.give_back(0, 1);
    assert_broken(read_only, Fault::TooLong { written: 1, writable: 0 });
}

#[test]
fn a_used_index_beyond_the_published_buffers_is_a_fault() {
    for (index, count) in [(1, 3), (0x7fff, 0x8001), (u16::MAX - 2, u16::MAX)] {
        let mut rig = rig();
        rig.ring.set_used_index(index);
        assert_broken(rig, Fault::IndexJump { count });
    }
    // Backwards, after something was returned.
    let mut back = rig();
    back.ring.give_back(0, 0);
    assert!(back.queue.take_returned().unwrap().is_some());
    back.ring.set_used_index(u16::MAX - 1);
    assert_broken(back, Fault::IndexJump { count: u16::MAX });
}

#[test]
fn overwritten_descriptors_and_heads_do_not_affect_the_driver() {
    let mut rig = rig();
    let at = rig.queue.addresses();
    let peer = rig.memory.peer();
    peer.write(at.descriptors, &[0xff; 64]).unwrap();
    peer.write(at.available, &[0xff; 12]).unwrap();
    rig.ring.give_back(1, 16);
    rig.ring.give_back(0, 16);
    for _ in 0..2 {
        assert_eq!(rig.queue.take_returned().unwrap().unwrap().written, 16);
    }
    assert_eq!((rig.queue.room(), rig.queue.outstanding()), (3, 1));
}

proptest! {
    #[test]
    fn each_buffer_returns_at_most_once_for_any_device_writes(
        steps in prop::collection::vec((0_u8..4, any::<u16>(), 0_u32..8, 0_u32..20), 1..200),
    ) {
        let mut rig: Rig<SharedBuffer> = Rig::after(u16::MAX - 3, 4, BY_INDEX);
        let mut spare: Vec<_> = (0..6_u8).map(|name| rig.buffer(&[name; 16])).collect();
        for (step, word, id, written) in steps {
            match step {
                0 => while let Some(buffer) = spare.pop() {
                    if let Err(refused) = rig.queue.lend(buffer, Access::DeviceWrites) {
                        spare.push(refused.buffer);
                        break;
                    }
                },
                1 => rig.queue.publish(),
                2 => {
                    let wild = word % 8 == 0;
                    rig.ring.write_used(if wild { word } else { rig.ring.used }, id, written);
                    let index = if wild { word } else { rig.ring.used.wrapping_add(1) };
                    rig.ring.set_used_index(index);
                }
                _ => while let Ok(Some(returned)) = rig.queue.take_returned() {
                    prop_assert!(returned.written <= 16);
                    spare.push(returned.buffer);
                },
            }
            let mut names: Vec<u8> = spare.iter().map(|buffer| content(buffer)[0]).collect();
            names.sort_unstable();
            names.dedup();
            prop_assert_eq!(names.len(), spare.len(), "a buffer came back twice");
            prop_assert_eq!(spare.len() + usize::from(rig.queue.outstanding()), 6, "a buffer was lost");
        }
    }
}
