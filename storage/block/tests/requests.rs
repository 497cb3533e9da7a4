//! Requests on a simulated disk: data, splitting, back-pressure and errors.

mod common;

use common::{buffers, chain, data, start};
use isola_block::{BlockDevice, BlockError, BlockSettings};
use isola_events::future::join_all;
use isola_events::{current_activity, register_activity, sleep, spawn_task, spawn_task_for, yield_now};
use isola_iobuf::IoBufMut;
use isola_platform::block::{BlockRefusal, Unmap, Writability, WriteCache};
use isola_storage_sim::{Logged, SimDisk, Timing, limits};
use isola_test_task::run_task;
use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

async fn write_and_read(device: &BlockDevice) {
    let bytes = data(3 * 4096);
    device.write(8, chain(&bytes, 4096)).await.unwrap();
    let read = device.read(8, buffers(3, 4096)).await.unwrap();
    assert_eq!(read.iter().flat_map(|buffer| buffer.iter().copied()).collect::<Vec<_>>(), bytes);
}

#[test]
fn written_data_is_read_back_from_synchronous_and_interrupting_devices() {
    run_task(|| async {
        let disk = SimDisk::new(vec![0; 1 << 20]);
        let device = start(&disk, BlockSettings::default());
        write_and_read(&device).await;
        disk.complete_slowly();
        write_and_read(&device).await;
        let usage = device.usage(current_activity());
        assert_eq!((usage.reads, usage.writes), (2, 2));
        assert_eq!((usage.read_bytes, usage.written_bytes), (6 * 4096, 6 * 4096));
    });
}

#[test]
fn requests_beyond_the_limits_are_split_and_keep_their_order() {
    run_task(|| async {
        let few = isola_platform::block::BlockLimits { data_len: 8192, pieces: 3, ..limits() };
        let disk = SimDisk::with_limits(vec![0; 1 << 20], few);
        let device = start(&disk, BlockSettings::default());
        disk.complete_slowly();
        let bytes = data(100 * 1024);
        // Views that end within a block, and views much shorter than one.
        for view in [100 * 1024, 4096, 700, 100] {
            disk.edit(|contents| contents.fill(0));
            device.write(16, chain(&bytes, view)).await.unwrap();
            assert_eq!(disk.contents()[16 * 512..][..bytes.len()], bytes, "views of {view} bytes");
        }
        for (count, len) in [(200, 512), (25, 4096), (50, 2048)] {
            let read = device.read(16, buffers(count, len)).await.unwrap();
            assert_eq!(read.len(), count);
            assert_eq!(read.iter().flat_map(|buffer| buffer.iter().copied()).collect::<Vec<_>>(), bytes);
        }
        let too_long = device.read(0, buffers(1, 16384)).await.unwrap_err();
        assert_eq!(too_long, BlockError::Rejected(BlockRefusal::TooLong));
        let misaligned = device.read(0, buffers(1, 500)).await.unwrap_err();
        assert_eq!(misaligned, BlockError::Rejected(BlockRefusal::Misaligned));
        device.write_zeroes(0, 2000, Unmap::Never).await.unwrap();
        assert!(disk.contents()[..2000 * 512].iter().all(|byte| *byte == 0));
        let outside = device.write(2047, chain(&data(1024), 1024)).await.unwrap_err();
        assert_eq!(outside, BlockError::Rejected(BlockRefusal::OutsideDevice));
    });
}

#[test]
fn a_function_gets_the_result_in_the_event_of_the_completion_for_the_activity() {
    run_task(|| async {
        let disk = SimDisk::new(data(1 << 20));
        let device = start(&disk, BlockSettings { most_waiting: 1, ..BlockSettings::default() });
        disk.set_timing(Timing::Manual);
        disk.set_queue_len(2);
        let activity = register_activity("reader").unwrap();
        let results = Rc::new(RefCell::new(Vec::new()));
        let requests = device.clone();
        let noted = results.clone();
        spawn_task_for(activity, async move {
            // More than may wait: the caller bounds them.
            for sector in 0..6_u64 {
                let noted = noted.clone();
                let note = move |result: Result<Vec<IoBufMut>, BlockError>| {
                    noted.borrow_mut().push((
                        sector,
                        result.map(|read| read[0].to_vec()),
                        current_activity(),
                    ));
                };
                requests.read(sector, buffers(1, 512)).on_completion(note);
            }
        })
        .await;
        assert_eq!(results.borrow().len(), 0);
        let began = Instant::now();
        while results.borrow().len() < 6 {
            assert!(began.elapsed() < Duration::from_secs(20), "{} have completed", results.borrow().len());
            disk.complete(2);
            yield_now().await;
        }
        for (sector, result, charged) in results.take() {
            assert_eq!(result.unwrap(), data(1 << 20)[sector as usize * 512..][..512], "sector {sector}");
            assert_eq!(charged, activity);
        }
        assert_eq!(device.usage(activity).reads, 6);
        // A request without a part for the device, and one that fails.
        let noted = results.clone();
        device.read(0, buffers(1, 500)).on_completion(move |result| {
            noted.borrow_mut().push((0, result.map(|_| Vec::new()), current_activity()));
        });
        disk.fail();
        let noted = results.clone();
        device.write(0, chain(&data(512), 512)).on_completion(move |result| {
            noted.borrow_mut().push((1, result.map(|_| Vec::new()), current_activity()));
        });
        sleep(Duration::from_millis(1)).await;
        let errors: Vec<_> = results.take().into_iter().map(|(_, result, _)| result.unwrap_err()).collect();
        assert_eq!(errors, [BlockError::Rejected(BlockRefusal::Misaligned), BlockError::DeviceFailed]);
    });
}

#[test]
fn all_requests_complete_if_the_queue_is_full_and_waiting_ones_are_bounded() {
    run_task(|| async {
        let disk = SimDisk::new(vec![0; 1 << 20]);
        disk.set_queue_len(3);
        let device = start(&disk, BlockSettings { most_waiting: 5, ..BlockSettings::default() });
        disk.set_timing(Timing::Manual);
        let mut requests: Vec<_> =
            (0..50_u64).map(|sector| Box::pin(device.write(sector, chain(&data(512), 512)))).collect();
        let mut context = Context::from_waker(Waker::noop());
        for request in &mut requests {
            assert!(request.as_mut().poll(&mut context).is_pending());
        }
        assert_eq!(disk.in_device().len(), 3);
        assert!(format!("{device:?}").contains("in_device: 3"));
        disk.complete_slowly();
        let results = join_all(requests).await;
        assert!(results.iter().all(Result::is_ok));
        assert_eq!(disk.counts().1, 50);
    });
}

#[test]
fn an_io_error_fails_its_request_only() {
    run_task(|| async {
        let disk = SimDisk::new(vec![0; 1 << 20]);
        let device = start(&disk, BlockSettings::default());
        disk.set_bad(Some(8192..8193));
        let reads: Vec<_> = (0..4).map(|block| device.read(block * 8, buffers(1, 4096))).collect();
        let results: Vec<_> = join_all(reads).await.into_iter().map(|result| result.err()).collect();
        assert_eq!(results, [None, None, Some(BlockError::Io), None]);
        // A request that was split fails with the error of any part.
        let whole = device.read(0, buffers(256, 4096)).await;
        assert_eq!(whole.err(), Some(BlockError::Io));
        assert_eq!(device.usage(current_activity()).failed, 2);
        disk.set_bad(None);
        write_and_read(&device).await;
    });
}

#[test]
fn a_failed_device_fails_requests_in_it_waiting_ones_and_later_ones() {
    run_task(|| async {
        let disk = SimDisk::new(vec![0; 1 << 20]);
        disk.set_queue_len(2);
        disk.set_timing(Timing::Manual);
        let device = start(&disk, BlockSettings { most_waiting: 3, ..BlockSettings::default() });
        let reads: Vec<_> = (0..10).map(|sector| device.read(sector, buffers(1, 512))).collect();
        let failing = disk.clone();
        spawn_task(async move { failing.fail() }).detach();
        for result in join_all(reads).await {
            assert_eq!(result.err(), Some(BlockError::DeviceFailed));
        }
        assert_eq!(device.read(0, buffers(1, 512)).await.err(), Some(BlockError::DeviceFailed));
        assert_eq!(device.failure(), Some(BlockError::DeviceFailed));
    });
}

#[test]
fn a_device_that_does_not_answer_is_given_up_at_the_time_limit() {
    run_task(|| async {
        let disk = SimDisk::new(vec![0; 1 << 20]);
        disk.set_timing(Timing::Manual);
        disk.set_queue_len(2);
        let time_limit = Duration::from_millis(20);
        let device = start(&disk, BlockSettings { time_limit, ..BlockSettings::default() });
        // Answered in time: the limit holds for each request, not for the device.
        for _ in 0..3 {
            let completing = disk.clone();
            spawn_task(async move {
                sleep(Duration::from_millis(12)).await;
                completing.complete(1);
            })
            .detach();
            device.flush().await.unwrap();
        }
        let requests: Vec<_> = (0..5).map(|_| device.flush()).collect();
        for result in join_all(requests).await {
            assert_eq!(result.err(), Some(BlockError::TimedOut));
        }
        assert_eq!(device.flush().await.err(), Some(BlockError::TimedOut));
    });
}

#[test]
fn a_dropped_request_is_executed_and_its_memory_stays_valid() {
    run_task(|| async {
        let disk = SimDisk::new(vec![0; 1 << 20]);
        disk.set_timing(Timing::Manual);
        let device = start(&disk, BlockSettings::default());
        let mut context = Context::from_waker(Waker::noop());
        {
            let mut write = pin!(device.write(0, chain(&data(512), 512)));
            assert!(matches!(write.as_mut().poll(&mut context), Poll::Pending));
            let mut read = pin!(device.read(0, buffers(1, 512)));
            assert!(matches!(read.as_mut().poll(&mut context), Poll::Pending));
        }
        assert_eq!(disk.complete(9), 2);
        sleep(Duration::from_millis(1)).await;
        assert_eq!(disk.contents()[..512], data(512));
    });
}

#[test]
fn what_the_device_does_not_support_is_an_error_or_needs_no_request() {
    run_task(|| async {
        let none = isola_platform::block::BlockLimits {
            cache: WriteCache::None,
            writability: Writability::ReadOnly,
            discard_sectors: None,
            ..limits()
        };
        let disk = SimDisk::with_limits(vec![0; 1 << 20], none);
        let device = start(&disk, BlockSettings::default());
        assert!(device.flush().await.is_ok());
        assert_eq!(device.discard(0, 8).await.err(), Some(BlockError::Unsupported));
        let write = device.write(0, chain(&data(512), 512)).await;
        assert_eq!(write.err(), Some(BlockError::Rejected(BlockRefusal::ReadOnly)));
        assert_eq!(disk.take_log(), []);
    });
}

#[test]
fn a_flush_reaches_the_device_after_the_writes_awaited_before_it() {
    run_task(|| async {
        let disk = SimDisk::new(vec![0; 1 << 20]);
        let device = start(&disk, BlockSettings::default());
        disk.complete_slowly();
        let writes = (0..5).map(|sector| device.write(sector, chain(&data(512), 512)));
        join_all(writes.collect::<Vec<_>>()).await.into_iter().for_each(|result| drop(result.unwrap()));
        device.flush().await.unwrap();
        let log = disk.take_log();
        assert_eq!((log.len(), log.last()), (6, Some(&Logged::Flush)));
    });
}
