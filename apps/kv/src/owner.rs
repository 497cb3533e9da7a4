//! The activity for which a client stores items.

use isola_abi::id::ActivityId;
use isola_abi::ledger::Generation;
use isola_events::activity::{counted_by, generation};
use isola_events::current_activity;
use isola_events::reclaim::move_memory_charge;

/// The activity for which a client stores items, or the server itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemOwner(Option<(ActivityId, Generation)>);

impl ItemOwner {
    /// The server itself: the activity that prepared it.
    pub const SERVER: Self = Self(None);

    /// Returns the activity for which the running event works, or the ancestor whose memory counts for it. `server` is the
    /// server's activity.
    pub fn current(server: ActivityId) -> Self {
        let activity = counted_by(current_activity());
        Self((activity != server).then(|| (activity, generation(activity))))
    }

    /// Returns the activity, that of the server for [`Self::SERVER`]; `None` if it has ended since.
    pub fn activity(self, server: ActivityId) -> Option<ActivityId> {
        match self.0 {
            Some((activity, of)) => (generation(activity) == of).then_some(activity),
            None => Some(server),
        }
    }
}

#[cfg(test)]
impl ItemOwner {
    /// Returns an owner of that number.
    pub fn numbered(number: u32) -> Self {
        Self(Some((ActivityId(number), Generation::default())))
    }
}

/// The memory of an owner's items, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnedBytes {
    /// The owner.
    pub owner: ItemOwner,
    /// The memory.
    pub bytes: usize,
}

/// Moves the charge for items that the running event frees to the activity for which it works: the heap takes their memory
/// from that one. The charge for items of activities that have ended is not moved.
#[cold]
pub(crate) fn move_charges(freed: &[OwnedBytes], server: ActivityId) {
    let current = counted_by(current_activity());
    for OwnedBytes { owner, bytes } in freed {
        if let Some(owner) = owner.activity(server).filter(|owner| *owner != current) {
            move_memory_charge(owner, current, *bytes);
        }
    }
}
