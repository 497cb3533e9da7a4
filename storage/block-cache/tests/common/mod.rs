//! A cache of a simulated disk.
#![allow(dead_code, reason = "each test file uses a part")]

use isola_block::{BlockDevice, BlockSettings};
use isola_block_cache::{BlockCache, CacheSettings};
use isola_storage_sim::SimDisk;

pub const BLOCK: usize = isola_block_cache::BLOCK_LEN;

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
