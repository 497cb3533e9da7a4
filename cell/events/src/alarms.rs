//! The container of a core's alarms: a tree by deadline, unless the application supplies another.
//!
//! The timers of a core are an Ebb, [`TIMERS`](crate::TIMERS). An application replaces it with timers that use its own
//! container, before any alarm is set:
//!
//! ```ignore
//! TIMERS.replace(|| Timers::with_alarms(Wheel::default()))
//! ```

use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use core::task::Waker;

/// The sort key of an alarm. Alarms ring by deadline, then in the order in which they were set. Keys are unique on a
/// core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AlarmKey {
    /// The cycle count at which the alarm is due.
    pub deadline_cycles: u64,
    /// The number of alarms set before it.
    pub serial: u64,
}

/// The action of an alarm.
pub struct AlarmAction(pub(crate) ActionKind);

pub(crate) enum ActionKind {
    Call(Rc<dyn Fn()>),
    Wake(Waker),
}

/// A container for the alarms of a core.
///
/// It holds the only copy: an alarm that it does not return never rings.
pub trait Alarms {
    /// Adds an alarm.
    fn insert(&mut self, key: AlarmKey, action: AlarmAction);

    /// Removes and returns an alarm; `None` if it is not in the container.
    fn remove(&mut self, key: AlarmKey) -> Option<AlarmAction>;

    /// Returns the key of the first alarm to ring. The core halts until its deadline.
    fn first(&self) -> Option<AlarmKey>;

    /// Removes and returns the first alarm if its deadline is not after `now_cycles`.
    fn pop_due(&mut self, now_cycles: u64) -> Option<AlarmAction>;
}

/// Alarms in a tree, by deadline.
#[derive(Default)]
pub struct AlarmTree(BTreeMap<AlarmKey, AlarmAction>);

impl Alarms for AlarmTree {
    fn insert(&mut self, key: AlarmKey, action: AlarmAction) {
        self.0.insert(key, action);
    }

    fn remove(&mut self, key: AlarmKey) -> Option<AlarmAction> {
        self.0.remove(&key)
    }

    fn first(&self) -> Option<AlarmKey> {
        self.0.first_key_value().map(|(key, _)| *key)
    }

    fn pop_due(&mut self, now_cycles: u64) -> Option<AlarmAction> {
        let first = self.0.first_entry()?;
        (first.key().deadline_cycles <= now_cycles).then(|| first.remove())
    }
}
