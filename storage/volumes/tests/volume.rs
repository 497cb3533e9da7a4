//! Volumes on the whole stack: fiber, cache, block layer and a simulated disk.

mod common;

use common::{cache, check, check_after_power_failure, data, make_image_of, small_image, with_disk};
use isola_block::BlockError;
use isola_events::future::join_all;
use isola_events::{parallel, register_activity, sleep, spawn_task, spawn_task_for, yield_now};
use isola_iobuf::IoBuf;
use isola_need::{Need, need};
use isola_platform::block::{BlockLimits, Writability};
use isola_resources::{Entitlement, PROCESSOR, PolicyKind, Weight};
use isola_storage_sim::{SimDisk, power};
use isola_test_task::run_task_on;
use isola_volumes::{Access, FileError, FileKind, ListPosition, Volume};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn bytes(seed: usize, len: usize) -> IoBuf {
    IoBuf::from(data(seed, len))
}

#[test]
fn files_are_written_by_several_activities_at_once_and_e2fsck_accepts_them() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let disk = with_disk(small_image(), |disk| async move {
        disk.complete_slowly();
        let cache = cache(&disk);
        let volume = Volume::mount(cache.clone(), Access::ReadWrite).await.unwrap();
        let activities = ["one", "two", "three"].map(|name| register_activity(name).unwrap());
        let writers = activities.iter().enumerate().map(|(number, activity)| {
            let volume = volume.clone();
            spawn_task_for(*activity, async move {
                let folder = format!("/folder{number}");
                volume.make_directory(&folder).await.unwrap();
                for file in 0..8 {
                    let path = format!("{folder}/{file}");
                    let open = volume.create(&path).await.unwrap();
                    open.write(0, bytes(number * 10 + file, 20_000)).await.unwrap();
                    open.write(5_000_000 * (file as u64 % 2), bytes(file, 5_000)).await.unwrap();
                }
                volume.remove(format!("{folder}/3")).await.unwrap();
                volume.rename(format!("{folder}/4"), format!("/{number}")).await.unwrap();
            })
        });
        join_all(writers.collect::<Vec<_>>()).await;
        for activity in activities {
            let usage = cache.usage(activity);
            assert!(usage.misses > 10 && cache.device().usage(activity).written_bytes > 0, "{usage:?}");
        }
        for number in 0..3 {
            let file = volume.open(format!("/{number}")).await.unwrap();
            let read = file.read(5_000, 100_000).await.unwrap();
            assert_eq!(read[..], data(number * 10 + 4, 20_000)[5_000..]);
            let (entries, next) =
                volume.list(format!("folder{number}/"), ListPosition::default(), 100).await.unwrap();
            assert_eq!((entries.len(), next), (6, None));
        }
        let space = volume.space().await.unwrap();
        assert!(space.free_bytes > 0 && space.free_bytes < space.total_bytes);
        volume.unmount().await.unwrap();
        assert_eq!(volume.open("/0").await.err(), Some(FileError::Unmounted));
    });
    check(&disk.contents()).unwrap();
}

#[test]
fn a_power_failure_below_the_cache_loses_nothing_that_was_synced() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let base = small_image();
    let synced = Arc::new(Mutex::new(Vec::new()));
    let note = synced.clone();
    let disk = with_disk(base.clone(), move |disk| {
        let note = note.clone();
        async move {
            let volume = Volume::mount(cache(&disk), Access::ReadWrite).await.unwrap();
            let mut all = Vec::new();
            for round in 0..3 {
                for number in 0..5 {
                    let file = volume.create(format!("/{round}-{number}")).await.unwrap();
                    file.write(0, bytes(round * 5 + number, 9_000)).await.unwrap();
                }
                volume.sync().await.unwrap();
                all.extend(disk.take_log());
                note.lock().unwrap().push(all.len());
            }
            volume.unmount().await.unwrap();
            all.extend(disk.take_log());
            LOG.lock().unwrap().replace(all);
        }
    });
    check(&disk.contents()).unwrap();
    let log = LOG.lock().unwrap().take().unwrap();
    let synced = synced.lock().unwrap().clone();
    let mut cuts = 0;
    let mut check_cut = |position: usize, contents: &[u8]| {
        cuts += 1;
        let replayed =
            check_after_power_failure(contents).unwrap_or_else(|error| panic!("at {position}: {error}"));
        let rounds = synced.iter().filter(|at| **at <= position).count();
        let memory = common::MemoryDisk::new(replayed);
        let tree = common::tree(&mut common::mount(&memory).unwrap()).unwrap();
        for round in 0..rounds {
            for number in 0..5 {
                let found = tree.get(&format!("/{round}-{number}"));
                assert!(
                    found == Some(&Some(data(round * 5 + number, 9_000))),
                    "at {position}: {round}-{number}"
                );
            }
        }
    };
    power::at_every_write(&base, &log, &mut check_cut);
    power::with_random_losses(&base, &log, 4096, 4, 3, &mut check_cut);
    assert!(cuts > 40, "{cuts}");
}

static LOG: Mutex<Option<Vec<isola_storage_sim::Logged>>> = Mutex::new(None);

#[test]
fn an_open_file_that_was_removed_can_be_used_until_it_is_closed() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let disk = with_disk(small_image(), |disk| async move {
        let volume = Volume::mount(cache(&disk), Access::ReadWrite).await.unwrap();
        let before = volume.space().await.unwrap();
        let file = volume.create("/a").await.unwrap();
        file.write(0, bytes(1, 50_000)).await.unwrap();
        let second = volume.open("/a").await.unwrap();
        volume.remove("/a").await.unwrap();
        assert_eq!(volume.open("/a").await.err(), Some(FileError::NotFound));
        drop(file);
        assert_eq!(second.read(49_000, 5_000).await.unwrap()[..], data(1, 50_000)[49_000..]);
        second.write(50_000, bytes(2, 10)).await.unwrap();
        assert_eq!(volume.unmount().await, Err(FileError::InUse));
        drop(second);
        assert_eq!(volume.space().await.unwrap(), before);
        // A file that is replaced by a rename as well.
        let replaced = volume.create("/b").await.unwrap();
        volume.create("/c").await.unwrap().write(0, bytes(3, 100)).await.unwrap();
        volume.rename("/c", "/b").await.unwrap();
        assert_eq!(replaced.metadata().await.unwrap().len, 0);
        assert_eq!(volume.metadata("/b").await.unwrap().len, 100);
        drop(replaced);
        volume.unmount().await.unwrap();
    });
    check(&disk.contents()).unwrap();
}

#[test]
fn dropping_all_handles_unmounts() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let disk = with_disk(small_image(), |disk| async move {
        let cache = cache(&disk);
        let volume = Volume::mount(cache.clone(), Access::ReadWrite).await.unwrap();
        let file = volume.create("/file").await.unwrap();
        file.write(0, bytes(1, 100)).await.unwrap();
        drop(volume);
        drop(file);
        // The fiber ends later.
        for _ in 0..100 {
            yield_now().await;
        }
        let again = Volume::mount(cache, Access::ReadOnly).await.unwrap();
        assert_eq!(again.metadata("/file").await.unwrap().len, 100);
        assert_eq!(again.create("/other").await.err(), Some(FileError::ReadOnly));
    });
    check(&disk.contents()).unwrap();
}

#[test]
fn a_mount_for_reading_shows_what_was_synced_before_a_power_failure() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let disk = with_disk(small_image(), |disk| async move {
        let volume = Volume::mount(cache(&disk), Access::ReadWrite).await.unwrap();
        let file = volume.create("/file").await.unwrap();
        file.write(0, bytes(1, 100)).await.unwrap();
        volume.sync().await.unwrap();
        // The cell ends here; its cache is lost.
        disk.fail();
    });
    let contents = disk.contents();
    let read_only = SimDisk::with_limits(
        contents.clone(),
        BlockLimits { writability: Writability::ReadOnly, ..isola_storage_sim::limits() },
    );
    let disk = with_disk(contents, move |disk| {
        let read_only = read_only.clone();
        async move {
            let refused = Volume::mount(cache(&read_only), Access::ReadOnly).await;
            assert_eq!(refused.err(), Some(FileError::NeedsRecovery));
            let volume = Volume::mount(cache(&disk), Access::ReadOnly).await.unwrap();
            let file = volume.open("/file").await.unwrap();
            assert_eq!(file.read(0, 1000).await.unwrap()[..], data(1, 100));
            assert_eq!(volume.create("/other").await.err(), Some(FileError::ReadOnly));
        }
    });
    check(&disk.contents()).unwrap();
}

#[test]
fn a_failing_disk_is_an_error_of_each_operation_and_the_next_mount_recovers() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let disk = with_disk(small_image(), |disk| async move {
        let volume = Volume::mount(cache(&disk), Access::ReadWrite).await.unwrap();
        let file = volume.create("/kept").await.unwrap();
        file.write(0, bytes(1, 30_000)).await.unwrap();
        volume.sync().await.unwrap();
        let lost = volume.create("/lost").await.unwrap();
        lost.write(0, bytes(2, 30_000)).await.unwrap();
        disk.fail();
        assert_eq!(volume.sync().await, Err(FileError::Disk(BlockError::DeviceFailed)));
        assert!(volume.create("/later").await.is_err() || volume.sync().await.is_err());
        drop((file, lost));
        assert!(volume.unmount().await.is_err());
    });
    let contents = check_after_power_failure(&disk.contents()).unwrap();
    let memory = common::MemoryDisk::new(contents);
    let tree = common::tree(&mut common::mount(&memory).unwrap()).unwrap();
    assert_eq!(tree.get("/kept"), Some(&Some(data(1, 30_000))));
}

#[test]
fn a_folder_of_linux_is_read() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("pages")).unwrap();
    std::fs::write(folder.path().join("pages/large"), data(1, 3_000_000)).unwrap();
    for number in 0..300 {
        std::fs::write(folder.path().join(format!("pages/{number}")), number.to_string()).unwrap();
    }
    std::os::unix::fs::symlink("pages", folder.path().join("link")).unwrap();
    let image = make_image_of(16 << 20, &["-b", "4096", "-J", "size=4"], folder.path());
    with_disk(image, |disk| async move {
        let volume = Volume::mount(cache(&disk), Access::ReadOnly).await.unwrap();
        let large = volume.open("/pages/large").await.unwrap();
        let (mut offset, mut all) = (0, Vec::new());
        loop {
            let part = large.read(offset, usize::MAX).await.unwrap();
            if part.is_empty() {
                break;
            }
            offset += part.len() as u64;
            all.extend_from_slice(&part);
        }
        assert!(all == data(1, 3_000_000));
        let (mut names, mut position) = (Vec::new(), Some(ListPosition::default()));
        while let Some(from) = position {
            let (entries, next) = volume.list("pages", from, 50).await.unwrap();
            names.extend(entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()));
            position = next;
        }
        assert_eq!(names.len(), 301);
        for number in 0..300_u32 {
            let file = volume.open(format!("/pages/{number}")).await.unwrap();
            assert_eq!(file.read(0, 10).await.unwrap()[..], *number.to_string().as_bytes());
        }
        assert_eq!(volume.metadata("/link").await.unwrap().kind, FileKind::Other);
        assert_eq!(volume.open("/link/1").await.err(), Some(FileError::NotADirectory));
        assert_eq!(volume.open("/pages").await.err(), Some(FileError::IsADirectory));
        assert_eq!(volume.open("/pages/../pages/1").await.err(), Some(FileError::InvalidName));
        // Nothing was written, not even access times.
        assert_eq!(disk.take_log(), []);
    });
}

#[test]
fn activities_take_turns_at_a_volume() {
    if !need(Need::E2fsprogs) {
        return;
    }
    with_disk(small_image(), |disk| async move {
        let volume = Volume::mount(cache(&disk), Access::ReadWrite).await.unwrap();
        let order = Rc::new(RefCell::new(Vec::new()));
        let ask = |activity, name: &'static str| {
            let (volume, order) = (volume.clone(), order.clone());
            spawn_task_for(activity, async move {
                volume.metadata("/").await.unwrap();
                order.borrow_mut().push(name);
            })
        };
        let [many, few] = ["many", "few"].map(|name| register_activity(name).unwrap());
        let mut tasks: Vec<_> = (0..50).map(|_| ask(many, "many")).collect();
        tasks.push(ask(few, "few"));
        join_all(tasks).await;
        let position = order.borrow().iter().position(|name| *name == "few").unwrap();
        assert!(position < 3, "the activity with one operation came {position} operations later");
    });
}

#[test]
fn all_operations_complete_if_more_are_requested_than_may_wait() {
    if !need(Need::E2fsprogs) {
        return;
    }
    with_disk(small_image(), |disk| async move {
        let volume = Volume::mount(cache(&disk), Access::ReadWrite).await.unwrap();
        let file = Rc::new(volume.create("/file").await.unwrap());
        let write = |at: u64| {
            let file = file.clone();
            spawn_task(async move { file.write(at, IoBuf::from(vec![at as u8])).await.unwrap() })
        };
        join_all((0..3000).map(write).collect::<Vec<_>>()).await;
        let read = file.read(0, 3000).await.unwrap();
        assert!(read.iter().enumerate().all(|(at, byte)| *byte == at as u8));
    });
}

#[test]
fn other_cores_use_a_shared_volume() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let disk = SimDisk::new(small_image());
    run_task_on(3, || {
        let disk = disk.clone();
        async move {
            let volume = Volume::mount(cache(&disk), Access::ReadWrite).await.unwrap();
            let shared = volume.share();
            drop(volume);
            parallel(30, move |number| async move {
                let write = move |volume: Volume| async move {
                    let file = volume.create(format!("/{number}")).await?;
                    file.write(0, bytes(number, 5_000)).await
                };
                shared.with(write).await.unwrap();
                let read = shared.read(format!("/{number}"), 4_990, 100).await.unwrap();
                assert_eq!(read[..], data(number, 5_000)[4_990..]);
            })
            .await;
            shared.unmount().await.unwrap();
            assert_eq!(shared.read("/1", 0, 1).await, Err(FileError::Unmounted));
        }
    });
    check(&disk.contents()).unwrap();
}

/// The activities' shares of the operations on a volume, which each makes one after the other.
#[test]
fn operations_follow_the_weights_of_the_processor() {
    if !need(Need::E2fsprogs) {
        return;
    }
    /// Weights that are large beside that of other activities of a cell, and small beside that of infrastructure.
    const WEIGHTS: [u32; 3] = [500, 330, 170];
    /// The operations of all after which the shares are read, and the most readings.
    const OPERATIONS: u32 = 3_000;
    const READINGS: u32 = 15;
    with_disk(small_image(), |disk| async move {
        let volume = Volume::mount(cache(&disk), Access::ReadWrite).await.unwrap();
        let file = volume.create("/file").await.unwrap();
        file.write(0, IoBuf::from(data(1, 32 << 10))).await.unwrap();
        let counts = Rc::new([Cell::new(0), Cell::new(0), Cell::new(0)]);
        PROCESSOR.set_policy(Some(PolicyKind::Wfq));
        for (index, weight) in WEIGHTS.into_iter().enumerate() {
            let activity = register_activity("reader").unwrap();
            let entitlement = Entitlement::by_weight(Weight::new(weight).unwrap());
            PROCESSOR.set_entitlement(activity, entitlement).unwrap();
            let (volume, counts) = (volume.clone(), counts.clone());
            spawn_task_for(activity, async move {
                loop {
                    let file = volume.open("/file").await.unwrap();
                    assert_eq!(file.read(0, 32 << 10).await.unwrap().len(), 32 << 10);
                    counts[index].set(counts[index].get() + 1);
                    yield_now().await;
                }
            })
            .detach();
        }
        // A host that interrupts an operation makes it longer, at the cost of its activity; after many operations this has
        // happened to all. Shares that do not follow the weights do not approach them.
        for reading in 1..=READINGS {
            let operations = || counts.iter().map(Cell::get).sum::<u32>();
            while operations() < reading * OPERATIONS {
                sleep(Duration::from_millis(1)).await;
            }
            let share = |count: u32| f64::from(count) / f64::from(operations());
            let deviation =
                |(count, weight): (&Cell<u32>, u32)| (share(count.get()) - f64::from(weight) / 1_000.0).abs();
            if counts.iter().zip(WEIGHTS).map(deviation).all(|deviation| deviation < 0.06) {
                return;
            }
        }
        panic!("{counts:?} operations with weights {WEIGHTS:?}");
    });
}
