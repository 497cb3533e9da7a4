//! The items as memory that the cell could do without, of the activities for which clients have stored them.
//!
//! If the supervisor wants memory back, the server evicts the least recently used items of all shards, and moves the
//! others out of the chunks that are to become free. If the cell has no free memory, connections are closed first
//! (`serve`), and items are evicted at the critical level only.

use crate::owner::{ItemOwner, OwnedBytes, move_charges};
use crate::serve::{lower_limits, service};
use crate::server::Server;
use crate::shard::MovedMemory;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use isola_abi::id::ActivityId;
use isola_abi::report::MemoryPressure;
use isola_ebbs::{Ebb, Representative};
use isola_events::reclaim::{
    HolderRegistration, MemoryHolder, ReclaimCause, VacatedMemory, register_memory_holder,
};
use isola_resources::MEMORY;

/// The holder, on the core that prepared the server.
pub(crate) static ITEM_HOLDER: Ebb<RegisteredItems> = Ebb::new();

/// The most items that one event looks at, and the most bytes that it copies.
const ITEMS_LOOKED_AT: usize = 4096;
const MOST_MOVED: usize = 256 << 10;

/// The items that a shard looks at before its lock is released.
const ITEMS_AT_ONCE: usize = 128;

/// The bits of a position that are the index in a shard; the others are the number of the shard.
const INDEX_BITS: u32 = 32;

pub(crate) struct RegisteredItems {
    _registration: HolderRegistration,
}

impl Representative for RegisteredItems {
    fn create() -> Self {
        Self { _registration: register_memory_holder(Items) }
    }
}

impl RegisteredItems {
    /// Registers the items, by the creation of this representative.
    pub fn register(&self) {}
}

/// The items of the server. Those of activities that have ended count as the server's.
struct Items;

impl Items {
    fn activity_of(owner: ItemOwner) -> ActivityId {
        let server = service().server.activity;
        owner.activity(server).unwrap_or(server)
    }
}

/// Evicts items of activities that have stored more than their hard budgets.
pub(crate) fn free_beyond_hard_budgets() {
    for (activity, bytes) in Items.held(ReclaimCause::Budget) {
        let hard = MEMORY.entitlement(activity).memory.hard.and_then(|hard| usize::try_from(hard).ok());
        if let Some(hard) = hard.filter(|hard| bytes > *hard) {
            Items.free(ReclaimCause::Budget, activity, bytes - hard);
        }
    }
}

impl MemoryHolder for Items {
    fn held(&self, cause: ReclaimCause) -> Vec<(ActivityId, usize)> {
        if matches!(cause, ReclaimCause::Shortage(level) if level < MemoryPressure::Critical) {
            return Vec::new();
        }
        let shards = &service().server.shards;
        let mut held: BTreeMap<ActivityId, usize> = BTreeMap::new();
        for shard in shards.ids().filter_map(|id| shards.lock(id)) {
            for OwnedBytes { owner, bytes } in shard.usage() {
                *held.entry(Self::activity_of(owner)).or_default() += bytes;
            }
        }
        held.into_iter().filter(|(_, bytes)| *bytes > 0).collect()
    }

    fn free(&self, cause: ReclaimCause, activity: ActivityId, len_bytes: usize) -> usize {
        let Server { shards, activity: server, .. } = &*service().server;
        let now = crate::unix_time();
        let part = len_bytes / shards.ids().count().max(1) + 1;
        // Memory beyond a budget is for others to use.
        let lowers = cause != ReclaimCause::Budget;
        if lowers {
            lower_limits();
        }
        let mut freed_bytes = 0;
        for id in shards.ids() {
            let Some(mut shard) = shards.lock(id) else { continue };
            freed_bytes += shard.evict_of(now, part, |owner| Self::activity_of(owner) == activity);
            if lowers {
                shard.lower_limit();
            }
            let freed = shard.take_freed();
            drop(shard);
            move_charges(&freed, *server);
        }
        freed_bytes
    }

    fn vacate(&self, memory: &VacatedMemory, from: u64) -> Option<u64> {
        let shards = &service().server.shards;
        let (first, mut index) = ((from >> INDEX_BITS) as usize, from as u32 as usize);
        // The originals are freed when all copies are made, and after the locks.
        let mut moved = MovedMemory::default();
        let mut left = ITEMS_LOOKED_AT;
        for id in shards.ids().skip(first) {
            loop {
                let at = u64::from(id.0) << INDEX_BITS | index as u64;
                if left == 0 || moved.len_bytes() >= MOST_MOVED {
                    return Some(at);
                }
                // If another core has the lock for long, a later event tries again.
                let Some(mut shard) = shards.lock(id) else { return Some(at) };
                let next = shard.vacate(memory, index, ITEMS_AT_ONCE.min(left), &mut moved);
                left -= ITEMS_AT_ONCE.min(left);
                match next {
                    Some(next) => index = next,
                    None => break,
                }
            }
            index = 0;
        }
        None
    }
}
