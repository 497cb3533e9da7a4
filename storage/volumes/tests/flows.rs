//! Flows from and to files.

mod common;

use common::{cache, check, data, make_image_of, small_image, with_disk};
use isola_ebbs::current_core;
use isola_events::{spawn_task_on, yield_now};
use isola_flows::{FlowError, Sink, flow};
use isola_iobuf::{Chain, IoBuf};
use isola_need::{Need, need};
use isola_platform::CoreIndex;
use isola_storage_sim::{SimDisk, Timing};
use isola_test_task::run_task_on;
use isola_volumes::{Access, FileError, Volume};
use std::cell::Cell;
use std::convert::Infallible;
use std::fs;
use std::rc::Rc;
use std::task::{Context, Poll};

const LEN: usize = 3 << 20;

/// The contents of `/large`: no two blocks are the same.
fn large() -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(5);
    (0..LEN).map(|_| random.u8(..)).collect()
}

/// An image with the file `/large`.
fn image_of_large() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("large"), large()).unwrap();
    make_image_of(16 << 20, &["-b", "4096", "-J", "size=4"], folder.path())
}

/// Takes bytes as often as `room` permits, and counts them.
struct SlowSink {
    room: Rc<Cell<usize>>,
    taken: Chain,
}

impl Sink for SlowSink {
    type Error = Infallible;

    fn poll_write(&mut self, context: &mut Context<'_>, from: &mut Chain) -> Poll<Result<usize, Infallible>> {
        let count = from.len().min(self.room.get());
        if count == 0 {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.room.set(self.room.get() - count);
        self.taken.append(from.split_to(count).unwrap());
        Poll::Ready(Ok(count))
    }
}

#[test]
fn a_file_flows_to_memory_from_any_position() {
    if !need(Need::E2fsprogs) {
        return;
    }
    with_disk(image_of_large(), |disk| async move {
        disk.complete_slowly();
        let cache = cache(&disk);
        let volume = Volume::mount(cache.clone(), Access::ReadOnly).await.unwrap();
        let file = Rc::new(volume.open("/large").await.unwrap());
        for (offset, length, window) in [
            (0, None, 256 << 10),
            (777, Some(1_000_000), 9_000),
            (LEN - 5000, None, 1 << 20),
            (LEN + 5, None, 100),
        ] {
            let mut all = Chain::new();
            let flow = flow(file.source(offset as u64), &mut all).window(window);
            let flowed = match length {
                Some(length) => flow.length(length as u64).await,
                None => flow.await,
            };
            let end = length.map_or(LEN, |length| offset + length);
            let expected = large();
            assert!(all.to_vec() == expected.get(offset..end).unwrap_or_default(), "{offset}");
            assert_eq!((flowed.bytes, flowed.result), (all.len() as u64, Ok(())));
            assert!(flowed.statistics.most_waiting <= window, "{flowed:?}");
        }
        let flowed = flow(file.source(LEN as u64 - 10), Chain::new()).length(11).await;
        assert_eq!((flowed.bytes, flowed.result), (10, Err(FlowError::TooShort(1))));
        disk.set_timing(Timing::Immediate);
    });
}

#[test]
fn a_flow_reads_ahead_up_to_its_window_and_no_further() {
    if !need(Need::E2fsprogs) {
        return;
    }
    with_disk(image_of_large(), |disk| async move {
        let cache = cache(&disk);
        let volume = Volume::mount(cache.clone(), Access::ReadOnly).await.unwrap();
        let file = Rc::new(volume.open("/large").await.unwrap());
        file.read_chain(0, 1).await.unwrap();
        cache.shrink(usize::MAX);
        disk.set_timing(Timing::Manual);
        let room = Rc::new(Cell::new(0));
        let sink = SlowSink { room: room.clone(), taken: Chain::new() };
        let before = disk.counts().0;
        let mut flowing = Box::pin(flow(file.source(0), sink).window(512 << 10));
        let settle = async |flowing: &mut std::pin::Pin<Box<_>>| {
            for _ in 0..40 {
                assert!(isola_events::future::FutureExt::now_or_never(&mut *flowing).is_none());
                yield_now().await;
            }
        };
        settle(&mut flowing).await;
        let in_device: u32 = disk.in_device().iter().map(|(_, _, len)| *len).sum();
        assert_eq!((disk.in_device().len(), in_device), (4, 512 << 10), "requests ahead");
        disk.set_timing(Timing::Immediate);
        disk.complete(usize::MAX);
        settle(&mut flowing).await;
        assert_eq!(disk.counts().0 - before, 4, "a full window stops the source");
        room.set(100);
        settle(&mut flowing).await;
        assert_eq!(disk.counts().0 - before, 4, "less than half of the window is free");
        room.set(usize::MAX);
        let flowed = flowing.await;
        assert_eq!((flowed.bytes, flowed.result), (LEN as u64, Ok(())));
    });
}

#[test]
fn memory_and_files_flow_to_files_and_errors_name_their_end() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let disk = with_disk(small_image(), |disk| async move {
        disk.complete_slowly();
        let cache = cache(&disk);
        let volume = Volume::mount(cache.clone(), Access::ReadWrite).await.unwrap();
        let [one, two] =
            [volume.create("/one").await.unwrap(), volume.create("/two").await.unwrap()].map(Rc::new);
        let parts: Chain = data(1, 700_000).chunks(1460).map(IoBuf::copy_from_slice).collect();
        let flowed = flow(parts, one.sink(0)).await;
        assert_eq!((flowed.bytes, flowed.result), (700_000, Ok(())));
        let flowed = flow(one.source(1000), two.sink(0)).start().await;
        assert_eq!((flowed.bytes, flowed.result), (699_000, Ok(())));
        volume.sync().await.unwrap();
        assert!(two.read_chain(0, 1 << 20).await.unwrap().to_vec() == data(1, 700_000)[1000..]);
        // More than the file system has room for.
        let endless: Chain = (0..20).map(|_| IoBuf::from(vec![7; 1 << 20])).collect();
        let flowed = flow(endless, two.sink(0)).await;
        assert_eq!(flowed.result, Err(FlowError::Sink(FileError::NoSpace)));
        assert!(flowed.bytes >= 2 << 20, "{flowed:?}");
        // A source that is to be of one moment, and changes.
        let source = one.source(0).of_version(one.version());
        let room = Rc::new(Cell::new(10_000));
        let sink = SlowSink { room: room.clone(), taken: Chain::new() };
        let flowing = flow(source, sink).window(20_000).start();
        while room.get() > 0 {
            yield_now().await;
        }
        one.write(5, IoBuf::from_static(b"x")).await.unwrap();
        room.set(usize::MAX);
        let flowed = flowing.await;
        assert_eq!(flowed.result, Err(FlowError::Source(FileError::Changed)));
        assert!(flowed.bytes < 700_000);
        disk.set_timing(Timing::Immediate);
        drop((one, two));
        volume.unmount().await.unwrap();
    });
    check(&disk.contents()).unwrap();
}

#[test]
fn an_error_of_the_device_ends_a_flow_after_the_bytes_before_it() {
    if !need(Need::E2fsprogs) {
        return;
    }
    with_disk(image_of_large(), |disk| async move {
        let volume = Volume::mount(cache(&disk), Access::ReadOnly).await.unwrap();
        let file = Rc::new(volume.open("/large").await.unwrap());
        let wanted = large();
        let contents = disk.contents();
        let bad = 2 << 20;
        let at =
            contents.windows(4096).step_by(4096).position(|block| *block == wanted[bad..bad + 4096]).unwrap();
        disk.set_bad(Some(at * 4096..at * 4096 + 1));
        let mut all = Chain::new();
        let flowed = flow(file.source(0), &mut all).await;
        assert!(matches!(flowed.result, Err(FlowError::Source(FileError::Disk(_)))), "{flowed:?}");
        assert!(all.len() >= 1 << 20 && all.len() <= bad && all.to_vec() == wanted[..all.len()]);
    });
}

#[test]
fn other_cores_read_a_shared_file_by_flows() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let disk = SimDisk::new(image_of_large());
    run_task_on(2, || {
        let disk = disk.clone();
        async move {
            let volume = Volume::mount(cache(&disk), Access::ReadOnly).await.unwrap();
            let file = Rc::new(volume.open("/large").await.unwrap());
            let shared = file.share();
            drop(file);
            spawn_task_on(CoreIndex(1), move || async move {
                assert_eq!(current_core(), CoreIndex(1));
                let mut all = Chain::new();
                let flowed = flow(shared.source(100), &mut all).await;
                assert_eq!((flowed.bytes, flowed.result), (LEN as u64 - 100, Ok(())));
                assert!(all.to_vec() == large()[100..]);
                let (read, version) = shared.read_chain(LEN as u64 - 1, 10).await.unwrap();
                assert_eq!((read.len(), version), (1, 0));
            });
            // The file is closed when the other core has dropped its handle.
            while volume.unmount().await == Err(FileError::InUse) {
                yield_now().await;
            }
        }
    });
}
