//! A device that violates the protocol: every request completes once, no buffer returns that the device may still
//! access, and nothing panics.

use super::*;
use crate::fake::disk::{IO_ERROR, OK};
use proptest::prelude::*;

/// Checks that each of the requests with these tags completes as failed, without its buffer, and that the queue then
/// rejects all work.
fn assert_failed(rig: &Rig, mut queue: Queue, fault: Fault, tags: &[u32]) {
    let mut failed = Vec::new();
    while let Some(completed) = queue.take_completed() {
        assert_eq!(completed.outcome, Outcome::DeviceFailed(fault));
        assert!(completed.request.is_none(), "a buffer that the device may still access");
        failed.push(completed.tag);
    }
    failed.sort_unstable();
    assert_eq!((failed.as_slice(), queue.fault()), (tags, Some(fault)));
    assert!(queue.take_completed().is_none());
    assert_eq!(queue.enable_interrupts(WakeWhen::Returned), Pending::Yes, "a fault must not be waited for");
    let refused = queue.submit(rig.read(0, &[1024]), 0).unwrap_err();
    assert_eq!(refused.reason, RequestRefusal::Queue(Refusal::Broken(fault)));
}

/// A device with three requests: two that it has, and one that is not published. Their tags are 1, 2 and 3.
fn busy() -> (Rig, BlockDevice, Queue, FakeDisk) {
    let rig = Rig::new(EVERYTHING);
    let (device, mut queue, disk) = rig.start_one();
    queue.submit(rig.read(0, &[1024]), 1).unwrap();
    queue.submit(rig.write(2, &[1024], 1), 2).unwrap();
    queue.publish();
    queue.submit(Request::Flush, 3).unwrap();
    (rig, device, queue, disk)
}

#[test]
pub(super) fn a_status_that_does_not_exist_fails_all_requests() {
    for status in [3, 4, 0x80, 0xfe, 0xff] {
        let (rig, _device, queue, mut disk) = busy();
        let (chain, _) = disk.take().unwrap();
        disk.refuse(&chain, status, 1025);
        assert_failed(&rig, queue, Fault::UnknownStatus { status }, &[1, 2, 3]);
    }
}

#[test]
pub(super) fn a_request_returned_without_a_status_fails_all_requests() {
    let (rig, _device, mut queue, mut disk) = busy();
    // The memory of the status had a valid one before.
    disk.execute_all();
    while queue.take_completed().is_some() {}
    queue.publish();
    disk.execute_all();
    assert_eq!(queue.take_completed().unwrap().tag, 3);
    queue.submit(rig.read(0, &[1024]), 4).unwrap();
    queue.publish();
    let (chain, _) = disk.take().unwrap();
    disk.ring.give_back(chain.head, 1025);
    assert_failed(&rig, queue, Fault::UnknownStatus { status: 0xff }, &[4]);
}

#[test]
pub(super) fn success_of_a_read_with_missing_bytes_fails_all_requests() {
    for written in [0, 1, 1023] {
        let (rig, _device, queue, mut disk) = busy();
        let (chain, _) = disk.take().unwrap();
        disk.refuse(&chain, OK, written);
        assert_failed(&rig, queue, Fault::Incomplete { written, asked: 1024 }, &[1, 2, 3]);
    }
    // A device may leave the status out of the length, and out of that of a write.
    let (_rig, _device, mut queue, mut disk) = busy();
    for written in [1024, 0] {
        let (chain, _) = disk.take().unwrap();
        disk.refuse(&chain, OK, written);
        assert_eq!(queue.take_completed().unwrap().outcome, Outcome::Done);
    }
}

#[test]
pub(super) fn wrong_ids_lengths_and_indices_fail_all_requests() {
    let (rig, _device, queue, mut disk) = busy();
    let (chain, _) = disk.take().unwrap();
    disk.refuse(&chain, OK, 1026);
    assert_failed(&rig, queue, Fault::TooLong { written: 1026, writable: 1025 }, &[1, 2, 3]);
    for id in [16, 0xffff, 0x1_0000, u32::MAX] {
        let (rig, _device, queue, mut disk) = busy();
        disk.ring.write_used(0, id, 0);
        disk.ring.set_used_index(1);
        assert_failed(&rig, queue, Fault::UnknownBuffer { id }, &[1, 2, 3]);
    }
    let (rig, _device, queue, mut disk) = busy();
    // The first descriptor of the request that is not published: each of the others takes three.
    disk.ring.give_back(6, 1);
    assert_failed(&rig, queue, Fault::NotLent { id: 6 }, &[1, 2, 3]);
    let (rig, _device, queue, mut disk) = busy();
    disk.ring.set_used_index(3);
    assert_failed(&rig, queue, Fault::IndexJump { count: 3 }, &[1, 2, 3]);
}

#[test]
pub(super) fn a_request_that_is_returned_twice_completes_once() {
    let (rig, _device, mut queue, mut disk) = busy();
    let (chain, _) = disk.take().unwrap();
    disk.refuse(&chain, IO_ERROR, 0);
    disk.refuse(&chain, IO_ERROR, 0);
    assert_eq!(queue.take_completed().unwrap().tag, 1);
    assert_failed(&rig, queue, Fault::NotLent { id: chain.head.into() }, &[2, 3]);
}

#[test]
pub(super) fn requests_of_a_device_that_is_given_up_fail() {
    let (rig, _device, mut queue, _disk) = busy();
    assert!(queue.take_completed().is_none());
    queue.give_up();
    assert_failed(&rig, queue, Fault::Silent, &[1, 2, 3]);
}

#[test]
fn buffers_of_a_broken_queue_are_leaked_unless_the_device_was_reset() {
    let freed = |hangs| {
        let (rig, device, mut queue, mut disk) = busy();
        let (chain, _) = disk.take().unwrap();
        disk.refuse(&chain, 7, 1);
        while queue.take_completed().is_some() {}
        lock(&rig.device).quirks.hangs_in_reset = hangs;
        let queues = vec![queue];
        -allocation_counter::measure(|| assert_eq!(device.stop(queues).is_err(), hangs)).count_current
    };
    // Rings, tables, the list of requests, and the buffers of the rejected request and of the other.
    assert_eq!(freed(false) - freed(true), 5);
}

#[test]
fn a_queue_s_own_memory_is_leaked_unless_the_device_was_reset() {
    let freed = |hangs| {
        let rig = Rig::new(EVERYTHING);
        let transport = Box::new(MmioTransport::new(mmio(&rig.device)).unwrap());
        let started = BlockDevice::start::<Buffer, u32>(transport, &LINE, &mut DmaRegion::new);
        let (device, queues) = started.unwrap();
        lock(&rig.device).quirks.hangs_in_reset = hangs;
        -allocation_counter::measure(|| assert_eq!(device.stop(queues).is_err(), hangs)).bytes_current
    };
    // A page each for the rings, the tables, and the headers and statuses; and less than one for the list of requests.
    assert_eq!((freed(false) - freed(true)) / 4096, 3);
}

#[derive(Clone, Debug)]
enum Step {
    Submit(u8, u64),
    Publish,
    /// Writes a used entry: id, length, and whether its position and the index are random, too.
    Return {
        id: u32,
        written: u32,
        wild: Option<u16>,
    },
    /// Writes a byte into the memory of headers and statuses.
    Scribble(u64, u8),
    Take,
}

fn step() -> impl Strategy<Value = Step> {
    let written = prop_oneof![Just(0_u32), Just(1), Just(1024), Just(1025), any::<u32>()];
    let wild = prop_oneof![9 => Just(None), 1 => any::<u16>().prop_map(Some)];
    prop_oneof![
        4 => (0_u8..5, 0_u64..70).prop_map(|(kind, sector)| Step::Submit(kind, sector)),
        2 => Just(Step::Publish),
        4 => (0_u32..18, written, wild).prop_map(|(id, written, wild)| Step::Return { id, written, wild }),
        6 => (0_u64..16, prop_oneof![Just(0), Just(1), Just(2), any::<u8>()]).prop_map(|(slot, byte)| Step::Scribble(slot, byte)),
        2 => Just(Step::Take),
    ]
}

proptest! {
    #[test]
    fn each_request_completes_once_for_any_device_writes(steps in prop::collection::vec(step(), 1..200)) {
        let rig = Rig::new(EVERYTHING);
        let mut regions = vec![];
        let transport = Box::new(MmioTransport::new(mmio(&rig.device)).unwrap());
        let (_device, mut queues) = BlockDevice::start::<Buffer, u32>(transport, &LINE, &mut |len| {
            let region = rig.memory.region(len).unwrap();
            regions.push(region.device_address(0));
            region
        }).unwrap();
        let mut queue = queues.remove(0);
        let (mut disk, peer) = (rig.disk(0), rig.memory.peer());
        // The rings, then the memory of requests.
        let requests = regions[1];
        let (mut submitted, mut completed) = (0_u32, vec![]);
        for step in steps {
            match step {
                Step::Submit(kind, sector) => {
                    let request = match kind {
                        0 => rig.read(sector, &[1024]),
                        1 => rig.write(sector, &[512, 512], 1),
                        2 => Request::Flush,
                        3 => Request::Discard { sector, sectors: 2 },
                        _ => Request::WriteZeroes { sector, sectors: 2, unmap: Unmap::Allowed },
                    };
                    match queue.submit(request, submitted) {
                        Ok(()) => submitted += 1,
                        Err(refused) => prop_assert_eq!(refused.tag, submitted),
                    }
                }
                Step::Publish => queue.publish(),
                Step::Return { id, written, wild } => {
                    disk.ring.write_used(wild.unwrap_or(disk.ring.used), id, written);
                    disk.ring.set_used_index(wild.unwrap_or(disk.ring.used.wrapping_add(1)));
                }
                Step::Scribble(slot, byte) => peer.write(requests + slot * 64 + 32, &[byte]).unwrap(),
                Step::Take => while let Some(done) = queue.take_completed() {
                    let has_failed = matches!(done.outcome, Outcome::DeviceFailed(_));
                    prop_assert_eq!(done.request.is_none(), has_failed);
                    prop_assert!(done.ahead < 16);
                    completed.push(done.tag);
                },
            }
            prop_assert!(queue.in_flight() <= 16);
        }
        queue.give_up();
        while let Some(done) = queue.take_completed() {
            prop_assert!(done.request.is_none());
            completed.push(done.tag);
        }
        completed.sort_unstable();
        prop_assert_eq!(completed, (0..submitted).collect::<Vec<_>>(), "a request was lost or completed twice");
    }

    #[test]
    fn any_configuration_is_rejected_or_gives_sane_limits(
        offered in any::<u64>(),
        mut configuration in prop::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(2), any::<u8>()], 0..64),
        queue_limits in prop::collection::vec(any::<u16>(), 3),
        requests in prop::collection::vec((any::<u64>(), 0_usize..8), 0..8),
    ) {
        let rig = Rig::new(offered | VERSION_1);
        {
            let mut device = lock(&rig.device);
            // MMIO windows have whole words.
            configuration.truncate(configuration.len() & !3);
            device.configuration = configuration;
            device.queues = queue_limits.iter().map(|limit| {
                let mut queue = device.queues[0].clone();
                queue.limit = *limit;
                queue
            }).collect();
        }
        let options = BlockOptions { queues: 3, queue_size: 32, ..LINE };
        let Ok((device, mut queues)) = rig.start(&options) else { return Ok(()) };
        let limits = *device.limits();
        prop_assert!(limits.block_len.is_power_of_two() && (512..=MAX_BLOCK_LEN).contains(&limits.block_len));
        prop_assert!(limits.physical_block_len >= limits.block_len);
        prop_assert!((1..=30).contains(&limits.segments) && limits.segment_len >= 512);
        for (sector, blocks) in requests {
            let len = blocks * limits.block_len as usize;
            let capacity = device.capacity();
            if queues[0].submit(rig.read(sector, &[len]), 0).is_ok() {
                prop_assert!(sector + (len as u64 >> 9) <= capacity);
            }
        }
        queues.iter_mut().for_each(Queue::publish);
    }
}
