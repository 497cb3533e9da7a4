//! The bytes that devices move for each activity.
//!
//! The network counts frames, and the block layer completed requests, each on the core that does the work. Unlike cycles,
//! traffic has no counters in the ledger: an activity's counters have only its own, and [`list`](crate::list) adds those
//! of its descendants.

use crate::registry::{generation, registry};
use core::sync::atomic::{AtomicU64, Ordering};
use isola_abi::id::ActivityId;
use isola_abi::query::ActivityTraffic;

/// The counters of an activity on a core, which only that core writes. Those of earlier activities of the same id are
/// included.
#[derive(Debug, Default)]
pub struct TrafficCounters {
    /// The bytes of received frames.
    pub received_bytes: AtomicU64,
    /// The bytes of sent frames.
    pub sent_bytes: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
}

/// Returns the counters of an activity on a core slot, the calling core's; `None` if the activity does not exist, or the
/// cell has no memory for them.
pub fn traffic(activity: ActivityId, core: usize) -> Option<&'static TrafficCounters> {
    // Creates the predefined activities, if it is the first use.
    let registry = registry();
    if !generation(activity).is_in_use() {
        return None;
    }
    registry.traffic.get(core)?.get_or_add(activity.0).ok()
}

impl TrafficCounters {
    /// Counts traffic on the calling core.
    pub fn count(&self, more: ActivityTraffic) {
        let add = |counter: &AtomicU64, amount: u64| {
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
        };
        add(&self.received_bytes, more.received_bytes);
        add(&self.sent_bytes, more.sent_bytes);
        add(&self.reads, more.reads);
        add(&self.read_bytes, more.read_bytes);
        add(&self.writes, more.writes);
        add(&self.written_bytes, more.written_bytes);
    }

    pub(crate) fn read(&self) -> ActivityTraffic {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ActivityTraffic {
            received_bytes: of(&self.received_bytes),
            sent_bytes: of(&self.sent_bytes),
            reads: of(&self.reads),
            read_bytes: of(&self.read_bytes),
            writes: of(&self.writes),
            written_bytes: of(&self.written_bytes),
        }
    }
}

/// Returns `combine` of each pair of values.
pub(crate) fn combined(
    one: ActivityTraffic,
    other: ActivityTraffic,
    combine: fn(u64, u64) -> u64,
) -> ActivityTraffic {
    ActivityTraffic {
        received_bytes: combine(one.received_bytes, other.received_bytes),
        sent_bytes: combine(one.sent_bytes, other.sent_bytes),
        reads: combine(one.reads, other.reads),
        read_bytes: combine(one.read_bytes, other.read_bytes),
        writes: combine(one.writes, other.writes),
        written_bytes: combine(one.written_bytes, other.written_bytes),
    }
}
