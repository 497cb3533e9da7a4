//! The block cache of a cell: blocks of a device in bounded memory.
//!
//! ```text
//!   read, write --> cached blocks, by activity <-- reclaim
//!                       |  ^
//!            write-back |  | misses
//!                       v  |
//!                    BlockDevice
//! ```
//!
//! - [`BlockCache`]: the blocks of one device, on the core that serves the device.
//! - [`Budget`]: the memory of an activity. [`CacheUse`]: its blocks, hits and misses.
//!
//! **Charges.** A block is charged to the activity that brought it in, until it is evicted. The requests to the device
//! are charged to that activity as well.
//!
//! **Reclaim.** If the cache is full, the activity furthest above its soft budget loses blocks first: those that it has
//! not used for longest, approximately (CLOCK, second chance). Ended activities have no budget. Without a budget of its
//! own, an activity has an equal part of the cache. An activity above its hard budget evicts its own blocks, even if the
//! cache has room.
//!
//! **Write-back.** A write returns when the block is in the cache. [`BlockCache::flush`] writes all dirty blocks, then
//! flushes the device: writes of which the caller awaits a flush are permanent before later ones reach the device, as
//! with a disk's own volatile cache. Between two flushes, blocks are written in any order: sorted, adjacent ones in one
//! request, when a flush, reclaim or the bound of dirty blocks requires it. A block whose write fails stays dirty: the
//! flush fails, and the next one repeats the write.
//!
//! Not here: files, and blocks of another length than [`BLOCK_LEN`].
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod account;
mod blocks;
mod cache;

pub use account::{Budget, CacheUse};
pub use cache::{BlockCache, CacheSettings};

/// The length of a block, in bytes.
pub const BLOCK_LEN: usize = 4096;
