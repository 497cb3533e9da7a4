//! Each limit: the longest request within it, and the rejection beyond it.

use super::*;

const MISALIGNED: RequestRefusal = RequestRefusal::Misaligned { block_len: 1024 };

#[test]
fn a_request_has_at_most_the_device_s_segments() {
    for offered in [EVERYTHING, EVERYTHING & !INDIRECT] {
        let rig = Rig::new(offered);
        let (_device, mut queue, mut disk) = rig.start_one();
        let refused = refusal(&mut queue, rig.write(0, &[1024; 7], 1));
        assert_eq!(refused, RequestRefusal::Queue(Refusal::TooManySegments));
        queue.submit(rig.write(0, &[1024; 6], 1), 0).unwrap();
        // Also while the queue has no room for as many.
        queue.submit(rig.write(0, &[1024, 512, 512], 1), 1).unwrap();
        let refused = refusal(&mut queue, rig.write(0, &[1024; 7], 1));
        assert_eq!(refused, RequestRefusal::Queue(Refusal::TooManySegments));
        queue.publish();
        assert_eq!(disk.execute_all(), 2);
    }
}

#[test]
fn a_device_that_reports_no_segments_or_very_many_gets_1_or_30() {
    for (reported, segments) in [(0, 1), (1, 1), (30, 30), (31, 30), (0x1_0001, 30), (u32::MAX, 30)] {
        let rig = Rig::new(EVERYTHING);
        rig.configure(12, &reported.to_le_bytes());
        let (device, mut queues) = rig.start(&BlockOptions { queue_size: 64, ..LINE }).unwrap();
        assert_eq!(device.limits().segments, segments);
        let queue = &mut queues[0];
        let segments = usize::from(segments);
        let refused = refusal(queue, rig.write(0, &vec![1024; segments + 1], 1));
        assert_eq!(refused, RequestRefusal::Queue(Refusal::TooManySegments));
        queue.submit(rig.write(0, &vec![1024; segments], 1), 0).unwrap();
    }
}

#[test]
fn a_short_queue_limits_the_segments() {
    for (queue_size, segments) in [(0, 2), (4, 2), (7, 2), (8, 6), (16, 14), (32, 30), (64, 30)] {
        for offered in [EVERYTHING & !bits::SEGMENTS, BASIC] {
            let rig = Rig::new(offered);
            let (device, mut queues) = rig.start(&BlockOptions { queue_size, ..LINE }).unwrap();
            assert_eq!(device.limits().segments, segments);
            let segments = usize::from(segments);
            let refused = refusal(&mut queues[0], rig.write(0, &vec![1024; segments + 1], 1));
            assert_eq!(refused, RequestRefusal::Queue(Refusal::TooManySegments));
            queues[0].submit(rig.write(0, &vec![1024; segments], 1), 0).unwrap();
        }
    }
}

#[test]
fn longer_segments_are_divided() {
    let rig = Rig::new(EVERYTHING);
    let (_device, mut queue, mut disk) = rig.start_one();
    queue.submit(rig.write(0, &[9 * 1024, 1024, 16 * 1024], 5), 0).unwrap();
    queue.publish();
    let (chain, seen) = disk.take().unwrap();
    assert_eq!(seen.segments, [8192, 1024, 1024, 8192, 8192]);
    disk.execute(&chain, &seen);
    assert_eq!(disk.bytes.iter().filter(|byte| **byte == 5).count(), 26 * 1024);
    // Seven segments when divided.
    rig.configure(0, &1024_u64.to_le_bytes());
    let refused = refusal(&mut queue, rig.write(0, &[24 * 1024, 1024, 1024, 1024, 1024], 5));
    assert_eq!(refused, RequestRefusal::Queue(Refusal::TooManySegments));
}

#[test]
fn a_request_has_at_most_4_mib() {
    let rig = Rig::new(BASIC);
    rig.configure(0, &(1_u64 << 20).to_le_bytes());
    let (_device, mut queue, mut disk) = rig.start_one();
    let refused = refusal(&mut queue, rig.write(0, &[MAX_DATA_LEN as usize, 512], 1));
    assert_eq!(refused, RequestRefusal::TooLong);
    queue.submit(rig.read(0, &[MAX_DATA_LEN as usize]), 0).unwrap();
    queue.publish();
    assert_eq!(disk.take().unwrap().1.segments, [4 << 20]);
}

#[test]
fn requests_consist_of_whole_logical_blocks() {
    let rig = Rig::new(EVERYTHING);
    let (_device, mut queue, _disk) = rig.start_one();
    for (sector, len) in [(1, 1024), (0, 512), (0, 1536), (0, 1023), (0, 1025), (3, 1024)] {
        assert_eq!(refusal(&mut queue, rig.read(sector, &[len])), MISALIGNED);
        assert_eq!(refusal(&mut queue, rig.write(sector, &[len], 0)), MISALIGNED);
    }
    for (sector, sectors) in [(1, 2), (0, 1), (2, 3)] {
        assert_eq!(refusal(&mut queue, Request::Discard { sector, sectors }), MISALIGNED);
        let zeroes = Request::WriteZeroes { sector, sectors, unmap: Unmap::Never };
        assert_eq!(refusal(&mut queue, zeroes), MISALIGNED);
    }
    let empty = RequestRefusal::Queue(Refusal::Empty);
    assert_eq!(refusal(&mut queue, rig.read(0, &[])), empty);
    assert_eq!(refusal(&mut queue, rig.write(0, &[0, 0], 0)), empty);
    assert_eq!(refusal(&mut queue, Request::Discard { sector: 0, sectors: 0 }), empty);
    assert_eq!((queue.in_flight(), queue.room()), (0, 16));
}

#[test]
fn ranges_have_at_most_the_device_s_sectors() {
    let rig = Rig::new(EVERYTHING);
    let (_device, mut queue, _disk) = rig.start_one();
    let zeroes = |sectors| Request::WriteZeroes { sector: 0, sectors, unmap: Unmap::Never };
    let discard = |sectors| Request::Discard { sector: 0, sectors };
    assert_eq!(refusal(&mut queue, discard(18)), RequestRefusal::TooLong);
    assert_eq!(refusal(&mut queue, zeroes(34)), RequestRefusal::TooLong);
    assert_eq!(refusal(&mut queue, zeroes(u32::MAX)), RequestRefusal::TooLong);
    queue.submit(discard(16), 0).unwrap();
    queue.submit(zeroes(32), 0).unwrap();
}

#[test]
fn no_request_extends_beyond_the_device() {
    let rig = Rig::new(EVERYTHING);
    let (_device, mut queue, _disk) = rig.start_one();
    let outside = RequestRefusal::OutsideDevice { capacity: 64 };
    for sector in [64, 1 << 40, 1 << 55, u64::MAX - 1] {
        assert_eq!(refusal(&mut queue, rig.read(sector, &[1024])), outside);
        assert_eq!(refusal(&mut queue, Request::Discard { sector, sectors: 2 }), outside);
        let zeroes = Request::WriteZeroes { sector, sectors: 2, unmap: Unmap::Never };
        assert_eq!(refusal(&mut queue, zeroes), outside);
    }
    assert_eq!(refusal(&mut queue, rig.write(62, &[1024, 1024], 0)), outside);
    queue.submit(rig.write(62, &[1024], 0), 0).unwrap();
}

#[test]
fn a_changed_capacity_is_used_by_all_queues_once_read() {
    let rig = Rig::new(EVERYTHING);
    let (mut device, mut queues) = rig.start(&BlockOptions { queues: 2, ..LINE }).unwrap();
    for queue in &mut queues {
        queue.submit(rig.read(60, &[1024]), 1).unwrap();
        queue.publish();
    }
    rig.configure(0, &8_u64.to_le_bytes());
    assert_eq!(device.capacity(), 64);
    assert_eq!(device.update_capacity(), Ok(8));
    assert_eq!(device.capacity(), 8);
    for (index, queue) in (0..).zip(&mut queues) {
        let outside = RequestRefusal::OutsideDevice { capacity: 8 };
        assert_eq!(refusal(queue, rig.read(8, &[1024])), outside);
        queue.submit(rig.read(6, &[1024]), 2).unwrap();
        // The device fails a request in flight, or still executes it.
        let mut disk = rig.disk(index);
        let (chain, _) = disk.take().unwrap();
        disk.refuse(&chain, crate::fake::disk::IO_ERROR, 0);
        assert_eq!(queue.take_completed().unwrap().outcome, Outcome::IoError);
    }
    rig.configure(0, &u64::MAX.to_le_bytes());
    let largest = u64::MAX / 512;
    assert_eq!(device.update_capacity(), Ok(largest), "positions in bytes have 64 bits");
    let outside = RequestRefusal::OutsideDevice { capacity: largest };
    assert_eq!(refusal(&mut queues[0], rig.read(largest - 1, &[1024])), outside);
    queues[0].submit(rig.read(largest - 3, &[1024]), 3).unwrap();
    lock(&rig.device).quirks.changes_configuration_always = true;
    assert_eq!(device.update_capacity(), Err(DeviceError::ConfigurationUnstable));
    assert_eq!(device.capacity(), largest);
}

#[test]
fn requests_that_the_device_does_not_support_are_rejected() {
    let rig = Rig::new(BASIC);
    let (_device, mut queue, _disk) = rig.start_one();
    let zeroes = || Request::WriteZeroes { sector: 0, sectors: 2, unmap: Unmap::Never };
    let discard = || Request::Discard { sector: 0, sectors: 2 };
    for request in [Request::Flush, discard(), zeroes()] {
        assert_eq!(refusal(&mut queue, request), RequestRefusal::NotOffered);
    }
    let rig = Rig::new(EVERYTHING | bits::READ_ONLY);
    let (_device, mut queue, _disk) = rig.start_one();
    for request in [rig.write(0, &[1024], 0), discard(), zeroes()] {
        assert_eq!(refusal(&mut queue, request), RequestRefusal::ReadOnly);
    }
    queue.submit(rig.read(0, &[1024]), 0).unwrap();
    queue.submit(Request::Flush, 0).unwrap();
}

#[test]
fn a_topology_out_of_range_is_ignored() {
    for (exponent, physical) in [(0, 1024), (8, 256 << 10), (9, 1024), (255, 1024)] {
        let rig = Rig::new(EVERYTHING);
        rig.configure(24, &[exponent]);
        rig.configure(28, &[0xff; 4]);
        let (device, _queues) = rig.start(&LINE).unwrap();
        assert_eq!(device.limits().physical_block_len, physical);
        assert_eq!(device.limits().optimal_len, u32::MAX);
    }
}
