//! All items of a server, in shards. A lock protects each shard, and every core may work on every shard.
//!
//! A lock is held for one operation on one item, or for one shard's part of an operation on all shards. The rules:
//!
//! - No event holds two locks. While it holds one, it does not call into the network, nor into anything else that takes
//!   a lock for longer than the heap does.
//! - An event that holds a lock always continues: events are not preempted, and if the core is taken from the cell in
//!   the middle of an event, another core completes that event.
//! - An event that finds a lock taken tries for a bounded time and then gives up ([`Shards::lock`] returns `None`). It
//!   ends, and a later event tries again. The core that has to complete the event of another core therefore reaches
//!   that event, even if it is waiting for a lock that the event holds.

use alloc::boxed::Box;
use core::hint::spin_loop;
use core::ops::DerefMut;

use crossbeam_utils::CachePadded;
use spin::mutex::{SpinMutex, SpinMutexGuard};

use crate::config::Config;
use crate::key::ShardId;
use crate::shard::Shard;

/// The number of attempts to take a lock before the event gives up for now. They last far longer than an operation on
/// an item of the usual size.
const MAX_ATTEMPTS: usize = 1 << 12;

/// All items of a server.
#[derive(Debug)]
pub struct Shards {
    shards: Box<[CachePadded<SpinMutex<Shard>>]>,
}

impl Shards {
    /// Creates the empty shards of a server with this configuration.
    pub fn new(config: &Config) -> Self {
        let shard = |id| CachePadded::new(SpinMutex::new(Shard::new(ShardId(id), config)));
        Self { shards: (0..config.shard_count()).map(shard).collect() }
    }

    /// Returns the numbers of the shards.
    pub fn ids(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.shards.len() as u16).map(ShardId)
    }

    /// Locks the shard with that number until the caller drops the returned guard.
    ///
    /// Returns `None` if another core has held the lock for long; the caller is to try again in a later event.
    #[inline]
    pub fn lock(&self, id: ShardId) -> Option<impl DerefMut<Target = Shard>> {
        let shard = &self.shards[usize::from(id.0)];
        shard.try_lock().or_else(|| wait_for(shard))
    }
}

#[cold]
fn wait_for(shard: &SpinMutex<Shard>) -> Option<SpinMutexGuard<'_, Shard>> {
    (0..MAX_ATTEMPTS).find_map(|_| {
        spin_loop();
        if shard.is_locked() { None } else { shard.try_lock() }
    })
}
