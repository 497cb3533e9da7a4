//! Alarms in a list, for applications with very few of them.

use isola::events::alarms::{AlarmKey, Alarms, Ring};
use isola::prelude::*;

/// Unordered alarms, found by linear search.
#[derive(Default)]
pub struct List(Vec<(AlarmKey, Ring)>);

impl List {
    fn position(&self, key: AlarmKey) -> Option<usize> {
        self.0.iter().position(|(other, _)| *other == key)
    }
}

impl Alarms for List {
    fn insert(&mut self, key: AlarmKey, ring: Ring) {
        self.0.push((key, ring));
    }

    fn remove(&mut self, key: AlarmKey) -> Option<Ring> {
        self.position(key).map(|at| self.0.swap_remove(at).1)
    }

    fn first(&self) -> Option<AlarmKey> {
        self.0.iter().map(|(key, _)| *key).min()
    }

    fn pop_due(&mut self, now_cycles: u64) -> Option<Ring> {
        let first = self.first().filter(|first| first.deadline_cycles <= now_cycles)?;
        self.position(first).map(|at| self.0.swap_remove(at).1)
    }
}
