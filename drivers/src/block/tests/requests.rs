//! Requests of each type, their completions, back-pressure and interrupts.

use super::*;
use crate::fake::disk::{IO_ERROR, UNSUPPORTED};

#[test]
pub(super) fn data_is_written_and_read_without_copies() {
    for offered in [EVERYTHING, EVERYTHING & !INDIRECT, EVERYTHING & !EVENT_INDEX] {
        let rig = Rig::new(offered);
        let (_device, mut queue, mut disk) = rig.start_one();
        queue.submit(rig.write(4, &[512, 1536], 0xab), 1).unwrap();
        assert!(disk.take().is_none(), "a request before it was published");
        queue.publish();
        assert_eq!(lock(&rig.device).notices, [0]);
        let (chain, seen) = disk.take().unwrap();
        assert_eq!((seen.kind, seen.sector, seen.segments.as_slice()), (1, 4, [512, 1536].as_slice()));
        disk.execute(&chain, &seen);
        assert_eq!(&disk.bytes[2048..4096], [0xab; 2048]);
        let written = queue.take_completed().unwrap();
        assert_eq!((written.tag, written.outcome, written.data_len), (1, Outcome::Done, 2048));
        disk.bytes[3072] = 0xcd;

        queue.submit(rig.read(4, &[1024, 512, 512, 1024]), 2).unwrap();
        queue.publish();
        disk.execute_all();
        let read = queue.take_completed().unwrap();
        assert_eq!((read.tag, read.outcome, read.data_len), (2, Outcome::Done, 3072));
        let expected = [vec![0xab; 1024], vec![0xcd], vec![0xab; 1023], vec![0; 1024]].concat();
        assert_eq!(contents(&read), expected);
        assert!(queue.take_completed().is_none());
        assert_eq!((queue.in_flight(), queue.room()), (0, 16));
    }
}

#[test]
pub(super) fn flushes_discards_and_writes_of_zeros_reach_the_device() {
    let rig = Rig::new(EVERYTHING);
    let (_device, mut queue, mut disk) = rig.start_one();
    disk.bytes.fill(1);
    queue.submit(Request::Flush, 1).unwrap();
    queue.submit(Request::Discard { sector: 8, sectors: 16 }, 2).unwrap();
    let zeroes = |sector, unmap| Request::WriteZeroes { sector, sectors: 2, unmap };
    queue.submit(zeroes(2, Unmap::Allowed), 3).unwrap();
    queue.submit(zeroes(6, Unmap::Never), 4).unwrap();
    queue.publish();
    let mut flags = vec![];
    while let Some((chain, seen)) = disk.take() {
        assert_eq!(seen.sector, 0);
        flags.push(seen.payload.get(12..).map(<[u8]>::to_vec));
        disk.execute(&chain, &seen);
    }
    assert_eq!(flags, [None, Some(vec![0; 4]), Some(vec![1, 0, 0, 0]), Some(vec![0; 4])]);
    assert_eq!((disk.flushes, disk.discards.as_slice()), (1, [(8, 16, 0)].as_slice()));
    let zeroed: Vec<usize> = (0..64).filter(|sector| disk.bytes[sector * 512] == 0).collect();
    assert_eq!(zeroed, [2, 3, 6, 7]);
    let done: Vec<_> =
        core::iter::from_fn(|| queue.take_completed()).map(|done| (done.tag, done.outcome)).collect();
    assert_eq!(done, [1, 2, 3, 4].map(|tag| (tag, Outcome::Done)));
}

#[test]
pub(super) fn a_device_that_frees_no_storage_is_not_asked_to() {
    let rig = Rig::new(EVERYTHING);
    rig.configure(56, &[0]);
    let (_device, mut queue, mut disk) = rig.start_one();
    queue.submit(Request::WriteZeroes { sector: 0, sectors: 2, unmap: Unmap::Allowed }, 0).unwrap();
    queue.publish();
    assert_eq!(&disk.take().unwrap().1.payload[12..], [0; 4]);
}

#[test]
pub(super) fn errors_of_the_device_complete_with_the_buffer() {
    let rig = Rig::new(EVERYTHING);
    let (_device, mut queue, mut disk) = rig.start_one();
    for (status, outcome) in [(IO_ERROR, Outcome::IoError), (UNSUPPORTED, Outcome::Unsupported)] {
        // A device may report all bytes of a failed request as written, or none.
        for written in [0, 1025] {
            queue.submit(rig.read(0, &[1024]), 9).unwrap();
            queue.publish();
            let (chain, _) = disk.take().unwrap();
            disk.refuse(&chain, status, written);
            let failed = queue.take_completed().unwrap();
            assert_eq!((failed.tag, failed.outcome), (9, outcome));
            assert_eq!(contents(&failed), [0xee; 1024]);
        }
    }
    assert_eq!(queue.fault(), None);
}

#[test]
pub(super) fn a_full_queue_returns_the_request_until_completions_are_taken() {
    let rig = Rig::new(EVERYTHING & !INDIRECT);
    let (_device, mut queue, mut disk) = rig.start_one();
    // Three of the sixteen descriptors each.
    for tag in 0..5 {
        queue.submit(rig.read(u64::from(tag) * 2, &[1024]), tag).unwrap();
    }
    let refused = queue.submit(rig.write(20, &[1024], 3), 5).unwrap_err();
    assert_eq!((refused.tag, refused.reason), (5, RequestRefusal::Queue(Refusal::Full)));
    assert_eq!((queue.in_flight(), queue.room()), (5, 1));
    queue.publish();
    assert_eq!(disk.execute_all(), 5);
    // Returned by the device, but not yet taken back.
    let refused = queue.submit(refused.request, refused.tag).unwrap_err();
    assert_eq!(refused.reason, RequestRefusal::Queue(Refusal::Full));
    assert_eq!(queue.take_completed().unwrap().tag, 0);
    queue.submit(refused.request, refused.tag).unwrap();
    queue.publish();
    assert_eq!(disk.execute_all(), 1);
    let tags: Vec<_> = core::iter::from_fn(|| queue.take_completed()).map(|done| done.tag).collect();
    assert_eq!((tags.as_slice(), disk.bytes[20 * 512]), ([1, 2, 3, 4, 5].as_slice(), 3));
}

#[test]
pub(super) fn completions_report_the_requests_ahead_in_any_order() {
    let rig = Rig::new(EVERYTHING);
    let (_device, mut queue, mut disk) = rig.start_one();
    for tag in 0..3 {
        queue.submit(rig.read(u64::from(tag) * 2, &[1024]), tag).unwrap();
    }
    queue.publish();
    let taken: Vec<_> = core::iter::from_fn(|| disk.take()).collect();
    for nth in [2, 0] {
        disk.execute(&taken[nth].0, &taken[nth].1);
    }
    let mut complete = || queue.take_completed().map(|done| (done.tag, done.ahead));
    assert_eq!([complete(), complete(), complete()], [Some((2, 2)), Some((0, 0)), None]);
    queue.submit(Request::Flush, 3).unwrap();
    queue.publish();
    disk.execute(&taken[1].0, &taken[1].1);
    disk.execute_all();
    let mut complete = || queue.take_completed().map(|done| (done.tag, done.ahead));
    assert_eq!([complete(), complete(), complete()], [Some((1, 1)), Some((3, 1)), None]);
}

#[test]
pub(super) fn long_requests_use_a_table_while_one_is_free() {
    let rig = Rig::new(EVERYTHING);
    let (_device, mut queue, mut disk) = rig.start_one();
    // Two tables for sixteen descriptors, then eight descriptors of the ring.
    for (tag, room) in [(0, 15), (1, 14), (2, 6)] {
        queue.submit(rig.write(u64::from(tag) * 12, &[1024; 6], tag as u8 + 1), tag).unwrap();
        assert_eq!(queue.room(), room);
    }
    let refused = refusal(&mut queue, rig.write(36, &[1024; 6], 4));
    assert_eq!(refused, RequestRefusal::Queue(Refusal::Full));
    queue.publish();
    assert_eq!(disk.execute_all(), 3);
    assert_eq!([0, 12, 24, 36].map(|sector| disk.bytes[sector * 512 + 511]), [1, 2, 3, 0]);
    while queue.take_completed().is_some() {}
    assert_eq!(queue.room(), 16);
}

#[test]
pub(super) fn interrupts_are_off_until_enabled() {
    for offered in [EVERYTHING, EVERYTHING & !EVENT_INDEX] {
        let rig = Rig::new(offered);
        let (_device, mut queue, mut disk) = rig.start_one();
        assert_eq!(queue.interrupts_once(), offered == EVERYTHING);
        for tag in 0..4 {
            queue.submit(Request::Flush, tag).unwrap();
        }
        queue.publish();
        let flush = |disk: &mut FakeDisk| {
            let (chain, seen) = disk.take().unwrap();
            disk.execute(&chain, &seen);
            disk.ring.wants_interrupt()
        };
        assert!(!flush(&mut disk));
        assert!(queue.has_completed());
        assert_eq!(queue.enable_interrupts(WakeWhen::Returned), Pending::Yes);
        assert!(queue.take_completed().is_some());
        assert_eq!(queue.enable_interrupts(WakeWhen::Returned), Pending::No);
        assert!(flush(&mut disk));
        queue.disable_interrupts();
        assert!(!flush(&mut disk));
    }
}

#[test]
pub(super) fn a_busy_device_is_not_notified() {
    let rig = Rig::new(EVERYTHING);
    let (_device, mut queue, disk) = rig.start_one();
    disk.ring.refuse_notice();
    queue.submit(Request::Flush, 0).unwrap();
    queue.publish();
    assert!(lock(&rig.device).notices.is_empty());
    queue.publish();
    disk.ring.refuse_notice();
    assert!(lock(&rig.device).notices.is_empty(), "nothing was submitted");
}

#[test]
pub(super) fn requests_allocate_nothing() {
    let rig = Rig::new(EVERYTHING);
    let (_device, mut queue, mut disk) = rig.start_one();
    lock(&rig.device).notices.reserve(1000);
    for segments in [1, 2, 6] {
        let mut request = Some(rig.read(0, &vec![1024; segments]));
        for _ in 0..50 {
            let submitting = allocation_counter::measure(|| {
                queue.submit(request.take().unwrap(), 0).unwrap();
                queue.submit(Request::Discard { sector: 0, sectors: 8 }, 0).unwrap();
                queue.publish();
            });
            assert_eq!(disk.execute_all(), 2);
            let taking = allocation_counter::measure(|| {
                request = queue.take_completed().and_then(|done| done.request);
                drop(queue.take_completed());
                _ = queue.enable_interrupts(WakeWhen::Returned);
                queue.disable_interrupts();
            });
            assert_eq!((submitting.count_total, taking.count_total), (0, 0));
        }
    }
}
