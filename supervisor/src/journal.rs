//! The journal: a log of changes and events, with the latest [`CAPACITY`] entries.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use isola_abi::management::{JournalEntry, JournalEvent};

/// The most entries.
pub const CAPACITY: usize = 1024;

/// A bounded list of numbered entries.
#[derive(Debug, Default)]
pub struct Journal {
    entries: VecDeque<JournalEntry>,
    next: u64,
    begin: u64,
}

impl Journal {
    /// Returns an empty journal.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the journal of previous incarnations, whose next entry has the number `number`. `encoded` has entries in
    /// any order. Invalid entries are ignored, as are those with a number from `number` on, which no previous
    /// incarnation used.
    pub fn resume(number: u64, encoded: &[Vec<u8>]) -> Self {
        let entries = encoded.iter().filter_map(|bytes| postcard::from_bytes(bytes).ok());
        let mut entries: Vec<JournalEntry> =
            entries.filter(|entry: &JournalEntry| entry.number < number).collect();
        entries.sort_unstable_by_key(|entry| entry.number);
        entries.dedup_by_key(|entry| entry.number);
        entries.drain(..entries.len().saturating_sub(CAPACITY));
        Self { entries: entries.into(), next: number, begin: number }
    }

    /// Records an event about `cell` at `unix_ns`, with its duration. Returns the entry.
    pub fn record(
        &mut self,
        unix_ns: u64,
        duration_ns: u64,
        cell: Option<&str>,
        event: JournalEvent,
    ) -> JournalEntry {
        if self.entries.len() == CAPACITY {
            self.entries.pop_front();
        }
        let entry =
            JournalEntry { number: self.next, unix_ns, duration_ns, cell: cell.map(String::from), event };
        self.next += 1;
        self.entries.push_back(entry.clone());
        entry
    }

    /// Returns the number of this incarnation's first entry.
    pub fn begin(&self) -> u64 {
        self.begin
    }

    /// Returns the remaining entries from number `from` on.
    pub fn since(&self, from: u64) -> impl Iterator<Item = &JournalEntry> {
        self.entries.iter().skip_while(move |entry| entry.number < from)
    }
}

#[cfg(test)]
mod tests;
