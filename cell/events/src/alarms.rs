//! What a core keeps its alarms in: a tree by deadline, unless an application has something of its own.
//!
//! The timers of a core are an Ebb, [`TIMERS`](crate::TIMERS). An application puts its own in their place by naming what
//! they keep alarms in, before any is set:
//!
//! ```ignore
//! TIMERS.replace(|| Timers::with_alarms(Wheel::default()))
//! ```

use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use core::task::Waker;

/// An alarm, in the order in which alarms ring: by deadline, then as they were set. No two of a core are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AlarmKey {
    /// The cycle counter's value at which it is due.
    pub deadline_cycles: u64,
    /// How many were set before it.
    pub serial: u64,
}

/// What is done when an alarm rings.
pub struct Ring(pub(crate) Rung);

pub(crate) enum Rung {
    Call(Rc<dyn Fn()>),
    Wake(Waker),
}

/// Keeps the alarms of a core.
///
/// Nothing else keeps them: an alarm that does not come out never rings.
pub trait Alarms {
    /// Takes an alarm.
    fn insert(&mut self, key: AlarmKey, ring: Ring);

    /// Takes an alarm out; `None` where it is not there.
    fn remove(&mut self, key: AlarmKey) -> Option<Ring>;

    /// The alarm that rings first. The core sleeps until its deadline.
    fn first(&self) -> Option<AlarmKey>;

    /// Gives out the first alarm, where its deadline is not after `now_cycles`.
    fn pop_due(&mut self, now_cycles: u64) -> Option<Ring>;
}

/// Alarms in a tree, by deadline.
#[derive(Default)]
pub struct Sorted(BTreeMap<AlarmKey, Ring>);

impl Alarms for Sorted {
    fn insert(&mut self, key: AlarmKey, ring: Ring) {
        self.0.insert(key, ring);
    }

    fn remove(&mut self, key: AlarmKey) -> Option<Ring> {
        self.0.remove(&key)
    }

    fn first(&self) -> Option<AlarmKey> {
        self.0.first_key_value().map(|(key, _)| *key)
    }

    fn pop_due(&mut self, now_cycles: u64) -> Option<Ring> {
        let first = self.0.first_entry()?;
        (first.key().deadline_cycles <= now_cycles).then(|| first.remove())
    }
}
