//! All items of a server: shards behind a lock each, on which any core may work.
//!
//! A lock is held for one operation on one item, or for one shard's part in one that concerns all. The rules:
//!
//! - Nobody holds two of them, and nobody calls into the network, or anything else that takes a lock of its own for longer
//!   than the heap does, while holding one.
//! - Who holds one always goes on: events are not preempted, and where the core is taken in the middle of one, another
//!   core finishes it.
//! - Who finds one taken tries for a bounded time and then gives up ([`Shards::lock`] returns `None`): it lets its event
//!   end, and tries again in a later one. So the core that is to finish another's event comes to it, even where what it
//!   waits for is held by that event.

use alloc::boxed::Box;
use core::hint::spin_loop;
use core::ops::DerefMut;

use crossbeam_utils::CachePadded;
use spin::mutex::{SpinMutex, SpinMutexGuard};

use crate::config::Config;
use crate::key::ShardId;
use crate::shard::Shard;

/// How often a lock that is taken is looked at again before its user gives up for now: longer than an operation on a usual
/// item takes, by far.
const PATIENCE: usize = 1 << 12;

/// All items of a server.
#[derive(Debug)]
pub struct Shards {
    shards: Box<[CachePadded<SpinMutex<Shard>>]>,
}

impl Shards {
    /// The shards of such a server, without items.
    pub fn new(config: &Config) -> Self {
        let shard = |id| CachePadded::new(SpinMutex::new(Shard::new(ShardId(id), config)));
        Self { shards: (0..config.shard_count()).map(shard).collect() }
    }

    /// The names of the shards.
    pub fn ids(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.shards.len() as u16).map(ShardId)
    }

    /// The shard of that name, which nobody else works on until the returned value is dropped. `None`: somebody else has
    /// worked on it for long; to be tried again in a later event.
    #[inline]
    pub fn lock(&self, id: ShardId) -> Option<impl DerefMut<Target = Shard>> {
        let shard = &self.shards[usize::from(id.0)];
        shard.try_lock().or_else(|| wait_for(shard))
    }
}

#[cold]
fn wait_for(shard: &SpinMutex<Shard>) -> Option<SpinMutexGuard<'_, Shard>> {
    (0..PATIENCE).find_map(|_| {
        spin_loop();
        if shard.is_locked() { None } else { shard.try_lock() }
    })
}
