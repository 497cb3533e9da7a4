//! A cell of one core with a cache of a simulated disk.
#![allow(dead_code, reason = "each test file uses a part")]

use isola_block::{BlockDevice, BlockSettings};
use isola_block_cache::{BlockCache, CacheSettings};
use isola_events::{exit, run, spawn_task, yield_now};
use isola_hosted::Settings;
use isola_storage_sim::{SimDisk, Timing};
use std::future::Future;

pub const BLOCK: usize = isola_block_cache::BLOCK_LEN;

pub fn cell<F: Future<Output = ()> + 'static>(main: impl Fn() -> F + Sync) {
    let codes = isola_hosted::run(Settings::default(), Vec::new(), |_| {
        let main = main();
        spawn_task(async move {
            main.await;
            exit(0);
        })
        .detach();
        run()
    });
    assert_eq!(codes, [0]);
}

/// Returns a cache of this many blocks.
pub fn cache(disk: &SimDisk, blocks: usize) -> BlockCache {
    let device = BlockDevice::start(disk.port(), BlockSettings::default()).unwrap();
    let settings = CacheSettings { capacity: blocks * BLOCK, dirty: blocks / 4 * BLOCK, seed: 1 };
    BlockCache::new(device, settings).unwrap()
}

/// A disk of `blocks` blocks, each filled with the lowest byte of its number.
pub fn disk(blocks: usize) -> SimDisk {
    SimDisk::new((0..blocks * BLOCK).map(|at| (at / BLOCK) as u8).collect())
}

/// Completes requests one by one, in random order.
pub fn complete_slowly(disk: &SimDisk) {
    disk.set_timing(Timing::Manual);
    let disk = disk.clone();
    spawn_task(async move {
        loop {
            disk.complete(1);
            yield_now().await;
        }
    })
    .detach();
}
