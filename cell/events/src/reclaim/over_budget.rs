//! The activities that have more memory than their hard budgets allow, although the memory scheduler has freed what they
//! could do without.
//!
//! While there are some, [`OVER_BUDGET`] is set in the report beside the pressure level. Those who bring memory into the
//! cell, such as the network, look at the flag and refuse memory to these activities.

use super::{RECLAIM, used_bytes};
use crate::timer::now;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use isola_abi::id::ActivityId;
use isola_abi::report::OVER_BUDGET;
use isola_activities::{INFRASTRUCTURE, counted_by, generation};
use isola_ebbs::platform;
use isola_platform::Instant;
use isola_resources::MEMORY;
use spin::Once;

/// The interval at which the activities are looked at again.
const INTERVAL: Duration = Duration::from_millis(1);

/// The set of these activities, by slot of the ledger.
#[derive(Default)]
pub(super) struct OverBudget {
    slots: Once<Vec<AtomicBool>>,
    /// When the set is next updated, in nanoseconds.
    next_update: AtomicU64,
}

/// Returns whether an activity, or the one that counts for it, has more memory than its hard budget and nothing that it
/// could do without. [`INFRASTRUCTURE`] never is: all others need its work. The answer is at most some milliseconds old.
pub fn is_over_budget(activity: ActivityId) -> bool {
    let slot = counted_by(activity).index();
    let slots = RECLAIM.over_budget.slots.get();
    slots.and_then(|slots| slots.get(slot)).is_some_and(|is_over| is_over.load(Ordering::Relaxed))
}

impl OverBudget {
    /// Enters the activities that are above their hard budgets now, and removes the others. To be called when the memory
    /// scheduler has freed what there was.
    pub fn update(&self) {
        let count = platform().ledger().records().len();
        let slots = self.slots.call_once(|| (0..count).map(|_| AtomicBool::new(false)).collect());
        let mut any = false;
        for (slot, is_over) in slots.iter().enumerate() {
            let over = exceeds(ActivityId(slot as u32));
            is_over.store(over, Ordering::Relaxed);
            any |= over;
        }
        self.announce(any);
    }

    /// Removes the activities that are within their budgets again. To be called in passes of the loop while
    /// [`OVER_BUDGET`] is set; looks at them once in a while.
    pub fn relax(&self) {
        if now() < Instant::from_ns(self.next_update.load(Ordering::Relaxed)) {
            return;
        }
        let mut any = false;
        for (slot, is_over) in self.slots.get().into_iter().flatten().enumerate() {
            if is_over.load(Ordering::Relaxed) {
                let over = exceeds(ActivityId(slot as u32));
                is_over.store(over, Ordering::Relaxed);
                any |= over;
            }
        }
        self.announce(any);
    }

    fn announce(&self, any: bool) {
        let pressure = &platform().report().memory.pressure;
        if any {
            self.next_update.store((now() + INTERVAL).as_ns(), Ordering::Relaxed);
            pressure.fetch_or(OVER_BUDGET, Ordering::SeqCst);
        } else {
            pressure.fetch_and(!OVER_BUDGET, Ordering::SeqCst);
        }
    }
}

fn exceeds(activity: ActivityId) -> bool {
    activity != INFRASTRUCTURE
        && generation(activity).is_in_use()
        && MEMORY.entitlement(activity).memory.hard.is_some_and(|hard| used_bytes(activity) > hard)
}
