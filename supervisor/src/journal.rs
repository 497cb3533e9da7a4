//! The journal: what the supervisor did and saw, the latest [`CAPACITY`] entries of it.

use alloc::collections::VecDeque;
use alloc::string::String;
use isola_abi::management::{JournalEntry, JournalEvent};

/// Most entries that are kept.
pub const CAPACITY: usize = 1024;

/// A bounded list of numbered entries.
#[derive(Debug, Default)]
pub struct Journal {
    entries: VecDeque<JournalEntry>,
    next: u64,
}

impl Journal {
    /// An empty journal.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty journal whose first entry has that number.
    pub fn from(number: u64) -> Self {
        Self { next: number, ..Self::default() }
    }

    /// Enters what happened to `cell` at `unix_ns`, and how long it took.
    pub fn record(&mut self, unix_ns: u64, duration_ns: u64, cell: Option<&str>, event: JournalEvent) {
        if self.entries.len() == CAPACITY {
            self.entries.pop_front();
        }
        let cell = cell.map(String::from);
        self.entries.push_back(JournalEntry { number: self.next, unix_ns, duration_ns, cell, event });
        self.next += 1;
    }

    /// The entries that are still there, from number `from` on.
    pub fn since(&self, from: u64) -> impl Iterator<Item = &JournalEntry> {
        self.entries.iter().skip_while(move |entry| entry.number < from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn old_entries_give_way_and_numbers_go_on() {
        let mut journal = Journal::new();
        for number in 0..CAPACITY as u64 + 10 {
            journal.record(number, 0, Some("kv"), JournalEvent::Create);
        }
        let numbers: Vec<u64> = journal.since(0).map(|entry| entry.number).collect();
        assert_eq!(numbers, (10..CAPACITY as u64 + 10).collect::<Vec<_>>());
        assert_eq!(journal.since(CAPACITY as u64 + 9).count(), 1);
        assert_eq!(journal.since(u64::MAX).count(), 0);
    }
}
