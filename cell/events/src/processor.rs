//! The processor as a resource of the grid ([`PROCESSOR`]): how each core divides its time among the cell's
//! activities (omni-kernel 2.1 and 4.1).
//!
//! Without a policy, a core runs its events in the order of their creation, whatever their activity. With a policy, a
//! core has one queue of events per activity, and the policy chooses the activity whose event runs next. Events of one
//! activity still run in the order of their creation; events of different activities do not. A core follows a change of
//! the policy at its next event boundary.
//!
//! An application with an event queue of its own ([`EventQueue`](crate::queue::EventQueue)) decides itself: policies
//! have no effect there.

use crate::event_loop::EVENTS;
use crate::mailbox;
use alloc::vec::Vec;
use isola_abi::id::ActivityId;
use isola_abi::query::GridClient;
use isola_resources::{ClientStatistics, PROCESSOR};

/// Returns the events of the activity that have competed for the calling core since there is a policy, with their cost
/// in cycles. Events without competitors do not count; the [ledger](isola_abi::ledger) has all.
pub fn statistics(activity: ActivityId) -> ClientStatistics {
    EVENTS.statistics(activity)
}

/// Returns the same for all activities.
pub fn report() -> Vec<GridClient> {
    EVENTS.grid_clients()
}

/// Returns whether the calling core divides its time by a policy.
#[inline]
pub fn has_policy() -> bool {
    EVENTS.has_policy()
}

/// Returns whether other events wait for the calling core.
pub fn has_competition() -> bool {
    EVENTS.has_events()
}

/// Makes all cores follow changes of the policy. To be called once, as the cell starts.
pub(crate) fn start() {
    PROCESSOR.on_change(|| mailbox::all().give_notice());
}
