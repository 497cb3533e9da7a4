//! Buffers are lent to the device and return; invalid ones are rejected.

use super::*;

#[test]
fn the_device_accesses_the_buffers_in_place() {
    for options in BOTH {
        let mut rig = Rig::new(8, options);
        let sent = rig.buffer(b"ping");
        let place = segments(&sent);
        rig.queue.lend(sent, Access::DeviceReads).unwrap();
        let empty = rig.buffer(&[0; 16]);
        rig.queue.lend(empty, Access::DeviceWrites).unwrap();
        assert!(rig.ring.take().is_none(), "a chain before it was published");
        rig.queue.publish();
        let chain = rig.ring.take().unwrap();
        assert_eq!((chain.segments[0].address, chain.segments[0].len), place[0]);
        assert_eq!(rig.ring.read(&chain), b"ping");
        rig.ring.give_back(chain.head, 0);
        let chain = rig.ring.take().unwrap();
        rig.ring.answer(&chain, b"pong");

        let back = rig.queue.take_returned().unwrap().unwrap();
        assert_eq!((content(&back.buffer).as_slice(), back.written), (b"ping".as_slice(), 0));
        let back = rig.queue.take_returned().unwrap().unwrap();
        assert_eq!((&content(&back.buffer)[..4], back.written), (b"pong".as_slice(), 4));
        assert!(rig.queue.take_returned().unwrap().is_none());
        assert_eq!((rig.queue.room(), rig.queue.outstanding()), (8, 0));
    }
}

#[test]
fn the_device_may_return_in_any_order() {
    let mut rig = Rig::new(4, BY_INDEX);
    for name in [b"a", b"b", b"c", b"d"] {
        let buffer = rig.buffer(name);
        rig.queue.lend(buffer, Access::DeviceReads).unwrap();
    }
    rig.queue.publish();
    let chains: Vec<_> = core::iter::from_fn(|| rig.ring.take()).collect();
    for nth in [2, 0, 3, 1] {
        rig.ring.give_back(chains[nth].head, 0);
    }
    let order: Vec<u8> = core::iter::from_fn(|| rig.queue.take_returned().unwrap())
        .map(|returned| content(&returned.buffer)[0])
        .collect();
    assert_eq!(order, b"cadb");
}

#[test]
fn headers_precede_the_pieces_of_a_frame() {
    let options = QueueOptions { headers: Headers::Room, ..BY_INDEX };
    let mut rig = Rig::new(8, options);
    let header = *b"a header 12.";
    for frame in [[b"one ".as_slice(), b"", b"two"], [b"three ", b"four", b""]] {
        let pieces: Vec<_> = frame.iter().map(|piece| rig.buffer(piece)).collect();
        rig.queue.lend_with_header(header, pieces).unwrap();
    }
    rig.queue.publish();
    for expected in [b"a header 12.one two".as_slice(), b"a header 12.three four"] {
        let chain = rig.ring.take().unwrap();
        assert_eq!(chain.segments.len(), 3, "empty pieces are left out");
        assert_eq!(rig.ring.read(&chain), expected);
    }
}

#[test]
fn long_chains_use_tables_while_some_are_free() {
    let options = QueueOptions { indirection: Indirection::LongChains, headers: Headers::Room, ..BY_INDEX };
    let mut rig = Rig::new(16, options);
    let pieces = |rig: &Rig<_>| (0..9).map(|nth| rig.buffer(&[nth])).collect::<Vec<_>>();
    let mut expected = b"------------".to_vec();
    expected.extend(0..9);
    // Two tables for sixteen descriptors; then the ring, which has room for the third chain and not for the fourth.
    for room in [15, 14, 4] {
        let frame = pieces(&rig);
        rig.queue.lend_with_header(*b"------------", frame).unwrap();
        assert_eq!(rig.queue.room(), room);
    }
    let refused = rig.queue.lend_with_header([0; 12], pieces(&rig)).unwrap_err();
    assert_eq!(refused.reason, Refusal::Full);
    rig.queue.publish();
    for _ in 0..3 {
        let chain = rig.ring.take().unwrap();
        assert_eq!(rig.ring.read(&chain), expected);
        rig.ring.give_back(chain.head, 0);
        assert_eq!(rig.queue.take_returned().unwrap().unwrap().buffer.len(), 9);
    }
    assert_eq!(rig.queue.room(), 16);
    // A table is free again, too.
    rig.queue.lend_with_header([0; 12], refused.buffer).unwrap();
    assert_eq!(rig.queue.room(), 15);
}

#[test]
fn four_pieces_use_the_ring_while_enough_of_it_is_free() {
    let options = QueueOptions { indirection: Indirection::LongChains, ..BY_INDEX };
    let mut rig = Rig::new(64, options);
    // Four descriptors each, until fewer than 32 are free; then one and a table, of which there are eight.
    let rooms = (1..=9).map(|nth| 64 - 4 * nth).chain((1..=8).map(|nth| 28 - nth));
    for room in rooms {
        let frame: Vec<_> = (0..4).map(|nth| rig.buffer(&[nth])).collect();
        rig.queue.lend(frame, Access::DeviceReads).unwrap();
        assert_eq!(rig.queue.room(), room);
        rig.queue.publish();
        let chain = rig.ring.take().unwrap();
        assert_eq!(rig.ring.read(&chain), [0, 1, 2, 3]);
    }
}

#[test]
fn a_rejected_buffer_is_returned_and_changes_nothing() {
    let options = QueueOptions { headers: Headers::Room, ..BY_INDEX };
    let mut rig = Rig::new(4, options);
    let pieces = |rig: &Rig<_>, count| (0..count).map(|_| rig.buffer(b"x")).collect::<Vec<_>>();
    let refused = rig.queue.lend(pieces(&rig, 0), Access::DeviceReads).unwrap_err();
    assert_eq!(refused.reason, Refusal::Empty);
    let refused = rig.queue.lend(pieces(&rig, 5), Access::DeviceReads).unwrap_err();
    assert_eq!((refused.reason, refused.buffer.len()), (Refusal::TooManySegments, 5));
    let refused = rig.queue.lend_with_header([0; 12], pieces(&rig, 4)).unwrap_err();
    assert_eq!(refused.reason, Refusal::TooManySegments);
    rig.queue.lend(pieces(&rig, 3), Access::DeviceReads).unwrap();
    let refused = rig.queue.lend(pieces(&rig, 2), Access::DeviceReads).unwrap_err();
    assert_eq!(refused.reason, Refusal::Full);
    rig.queue.lend(pieces(&rig, 1), Access::DeviceReads).unwrap();
    let refused = rig.queue.lend_with_header([0; 12], pieces(&rig, 1)).unwrap_err();
    assert_eq!(refused.reason, Refusal::Full);
    rig.queue.publish();
    assert_eq!(rig.ring.take().unwrap().segments.len(), 3);
    assert_eq!(rig.ring.take().unwrap().segments.len(), 1);
    assert!(rig.ring.take().is_none());

    let mut plain = Rig::new(4, BY_INDEX);
    let buffer = plain.buffer(b"x");
    assert_eq!(plain.queue.lend_with_header([0; 12], buffer).unwrap_err().reason, Refusal::NoHeaders);
}

#[test]
fn memory_without_a_device_address_is_rejected() {
    let mut rig: Rig<()> = Rig::new(4, BY_INDEX);
    let stack = STACKS as *const u8;
    let refused = rig.queue.add((), |(), chain| chain.push_segment(stack, 8, Access::DeviceReads));
    assert_eq!(refused.unwrap_err().reason, Refusal::NotDeviceMemory);
    let long = u32::MAX as usize + 1;
    let refused =
        rig.queue.add((), |(), chain| chain.push_segment(8 as *const u8, long, Access::DeviceReads));
    assert_eq!(refused.unwrap_err().reason, Refusal::TooLong);
    assert_eq!((rig.queue.room(), rig.queue.outstanding()), (4, 0));
}

/// The address of the core stacks in a cell's address space.
const STACKS: u64 = 0xffff_c000_0000_0000;

#[test]
fn parts_of_a_region_are_checked() {
    let mut rig = Rig::new(4, BY_INDEX);
    let part = |offset, len, access| Part { offset, len, access };
    let region = rig.memory.region(4096).unwrap();
    let outside = [part(0, 2, Access::DeviceReads), part(4095, 2, Access::DeviceWrites)];
    let refused = rig.queue.lend_parts(region, &outside).unwrap_err();
    assert_eq!(refused.reason, Refusal::OutsideRegion);
    let swapped = [part(0, 2, Access::DeviceWrites), part(2, 2, Access::DeviceReads)];
    let refused = rig.queue.lend_parts(refused.buffer, &swapped).unwrap_err();
    assert_eq!(refused.reason, Refusal::OutOfOrder);
    let mut region = refused.buffer;
    region.write_u16(6, 0x4241);
    let right = [part(6, 2, Access::DeviceReads), part(100, 4, Access::DeviceWrites)];
    rig.queue.lend_parts(region, &right).unwrap();
    rig.queue.publish();
    let chain = rig.ring.take().unwrap();
    assert_eq!(rig.ring.read(&chain), b"AB");
    rig.ring.answer(&chain, b"done");
    let back = rig.queue.take_returned().unwrap().unwrap();
    assert_eq!(back.buffer.read_u32(100).to_le_bytes(), *b"done");
}

#[test]
fn queue_sizes_are_powers_of_two() {
    for (asked, size) in [(0, 2), (1, 2), (2, 2), (3, 2), (255, 128), (256, 256), (u16::MAX, MAX_QUEUE_SIZE)]
    {
        assert_eq!(Rig::<()>::new(asked, BY_INDEX).queue.size(), size);
    }
}

#[test]
fn indices_wrap_many_times() {
    for options in BOTH {
        let mut rig = Rig::new(4, options);
        let mut spare: Vec<_> = (0..3).map(|nth| rig.buffer(&[nth])).collect();
        let mut expected = 0;
        for _ in 0..70_000 {
            for buffer in spare.drain(..) {
                rig.queue.lend(buffer, Access::DeviceReads).unwrap();
            }
            rig.queue.publish();
            while let Some(chain) = rig.ring.take() {
                rig.ring.give_back(chain.head, 0);
            }
            while let Some(returned) = rig.queue.take_returned().unwrap() {
                assert_eq!(content(&returned.buffer), [expected % 3]);
                expected = (expected + 1) % 3;
                spare.push(returned.buffer);
            }
            assert_eq!(spare.len(), 3);
        }
    }
}

#[test]
fn a_dropped_queue_leaks_only_while_its_device_runs() {
    use crate::device::tests::set_running;
    for running in [true, false] {
        let liveness = Liveness::default();
        let memory = SharedMemory::new(1 << 16);
        let mut queue = VirtQueue::new(4, BY_INDEX, liveness.clone(), &mut |len| memory.region(len).unwrap());
        let owner = Arc::new(());
        let lent = queue.add(owner.clone(), |_, chain| chain.push(0x1000, 1, Access::DeviceWrites));
        lent.unwrap();
        set_running(&liveness, true);
        if !running {
            set_running(&liveness, false);
        }
        drop(queue);
        assert_eq!(Arc::strong_count(&owner), if running { 2 } else { 1 });
    }
}

#[test]
fn lending_and_taking_back_allocate_nothing() {
    let options = QueueOptions { indirection: Indirection::LongChains, headers: Headers::Room, ..BY_INDEX };
    let mut rig = Rig::new(64, options);
    for pieces in [1, 2, 9] {
        let mut frame = Some((0..pieces).map(|_| rig.buffer(b"data")).collect::<Vec<_>>());
        for _ in 0..100 {
            let lending = allocation_counter::measure(|| {
                rig.queue.lend_with_header([0; 12], frame.take().unwrap()).unwrap();
                rig.queue.publish();
            });
            let chain = rig.ring.take().unwrap();
            rig.ring.give_back(chain.head, 0);
            let taking = allocation_counter::measure(|| {
                frame = rig.queue.take_returned().unwrap().map(|returned| returned.buffer);
                _ = rig.queue.arm(WakeWhen::Returned);
                rig.queue.disarm();
            });
            assert_eq!((lending.count_total, taking.count_total), (0, 0));
        }
    }
}
