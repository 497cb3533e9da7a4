//! Activities, and the change of the running event's activity.
//!
//! The [accounting](crate::accounting) charges each event's cycles to the event's activity. The tree of activities is in
//! [`isola_activities`].

use crate::event_loop::EVENTS;
use isola_abi::id::ActivityId;

pub use isola_activities::{
    APPLICATION, Activity, ActivityError, INFRASTRUCTURE, Usage, counted_by, end as end_activity, generation,
    list as activities, register as register_activity, register_under as register_activity_under,
    rename as rename_activity, usage_of as activity_usage,
};

/// Returns the activity of the running event, which events that it creates inherit.
pub fn current_activity() -> ActivityId {
    EVENTS.current_tag().activity
}

/// Charges the rest of the running event to `activity`: for work whose owner is known from here on.
pub fn charge_to(activity: ActivityId) {
    EVENTS.retag(activity);
}

/// Charges the running event's cycles since its last change of activity, and the rest of it, to `activity`: for work
/// whose owner becomes known midway.
pub fn charge_all_to(activity: ActivityId) {
    EVENTS.set_activity(activity);
    EVENTS.accounting.claim(activity);
}

/// Charges a piece of the running event, from the reading `since` of the cycle counter on, and the rest of the event to
/// `activity`. The cost of the change itself, from the reading `until` on, is charged to [`INFRASTRUCTURE`].
#[inline(always)]
pub fn charge_piece(since: u64, until: u64, activity: ActivityId) {
    EVENTS.set_activity(activity);
    EVENTS.accounting.charge_piece(since, until, activity);
}

/// Charges the running event's cycles from its last change of activity to the reading `until` of the cycle counter to
/// `activity`. Later cycles are charged as before.
pub fn charge_until(until: u64, activity: ActivityId) {
    EVENTS.accounting.charge_until(until, activity);
}
