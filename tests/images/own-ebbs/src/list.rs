//! Alarms in a list, for applications with very few of them.

use isola::events::alarms::{AlarmAction, AlarmKey, Alarms};
use isola::prelude::*;

/// Unordered alarms, found by linear search.
#[derive(Default)]
pub struct List(Vec<(AlarmKey, AlarmAction)>);

impl List {
    fn position(&self, key: AlarmKey) -> Option<usize> {
        self.0.iter().position(|(other, _)| *other == key)
    }
}

impl Alarms for List {
    fn insert(&mut self, key: AlarmKey, action: AlarmAction) {
        self.0.push((key, action));
    }

    fn remove(&mut self, key: AlarmKey) -> Option<AlarmAction> {
        self.position(key).map(|at| self.0.swap_remove(at).1)
    }

    fn first(&self) -> Option<AlarmKey> {
        self.0.iter().map(|(key, _)| *key).min()
    }

    fn pop_due(&mut self, now_cycles: u64) -> Option<AlarmAction> {
        let first = self.first().filter(|first| first.deadline_cycles <= now_cycles)?;
        self.position(first).map(|at| self.0.swap_remove(at).1)
    }
}
