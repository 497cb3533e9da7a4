//! An image file of the host as the disk of a hosted cell.

mod common;

use common::{check, data, small_image};
use isola_block::{BlockDevice, BlockError, BlockSettings};
use isola_block_cache::{BlockCache, CacheSettings};
use isola_events::future::join_all;
use isola_hosted::disk::{self, DiskAccess};
use isola_iobuf::{IoBuf, IoBufMut};
use isola_need::{Need, need};
use isola_test_task::run_task;
use isola_volumes::{Access, Volume};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Runs `main` with the path of an image, in a cell.
fn cell<F: Future<Output = ()> + 'static>(path: &Path, main: impl Fn(PathBuf) -> F + Sync) {
    run_task(|| main(path.to_owned()));
}

#[test]
fn files_in_an_image_file_survive_the_cell() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let image = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(image.path(), small_image()).unwrap();
    for round in 0..3_usize {
        cell(image.path(), move |path| async move {
            let port = disk::open(&path, DiskAccess::ReadWrite).unwrap();
            assert!(disk::open(&path, DiskAccess::ReadOnly).is_err(), "another cell may use the file");
            let device = BlockDevice::start(port, BlockSettings::default()).unwrap();
            let cache = BlockCache::new(device, CacheSettings::default()).unwrap();
            let volume = Volume::mount(cache, Access::ReadWrite).await.unwrap();
            for earlier in 0..round {
                let file = volume.open(format!("/{earlier}")).await.unwrap();
                assert_eq!(file.read(0, 1 << 20).await.unwrap()[..], data(earlier, 200_000));
            }
            let file = volume.create(format!("/{round}")).await.unwrap();
            file.write(0, IoBuf::from(data(round, 200_000))).await.unwrap();
            drop(file);
            volume.unmount().await.unwrap();
        });
        check(&std::fs::read(image.path()).unwrap()).unwrap();
    }
}

#[test]
fn requests_beyond_the_queue_complete_and_a_device_that_is_given_up_fails_all() {
    let image = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(image.path(), vec![7; 1 << 20]).unwrap();
    let buffer = || {
        let mut buffer = IoBufMut::with_room(0, 512);
        buffer.extend();
        buffer
    };
    cell(image.path(), move |path| async move {
        let port = disk::open(&path, DiskAccess::ReadOnly).unwrap();
        let device = BlockDevice::start(port, BlockSettings::default()).unwrap();
        let reads: Vec<_> = (0..1000).map(|sector| device.read(sector, vec![buffer()])).collect();
        for read in join_all(reads).await {
            assert_eq!(read.unwrap()[0][..], [7; 512]);
        }
        let time_limit = Duration::from_nanos(1);
        let port = disk::open(&path, DiskAccess::ReadOnly).unwrap();
        let hasty =
            BlockDevice::start(port, BlockSettings { time_limit, ..BlockSettings::default() }).unwrap();
        let reads: Vec<_> = (0..1000).map(|sector| hasty.read(sector, vec![buffer()])).collect();
        let failed = join_all(reads).await.into_iter().filter(Result::is_err).count();
        assert!(failed > 0);
        assert_eq!(hasty.read(0, vec![buffer()]).await.err(), Some(BlockError::TimedOut));
    });
}
