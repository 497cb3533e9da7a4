//! The journal: what the supervisor did and saw, the latest [`CAPACITY`] entries of it.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use isola_abi::management::{JournalEntry, JournalEvent};

/// Most entries that are kept.
pub const CAPACITY: usize = 1024;

/// A bounded list of numbered entries.
#[derive(Debug, Default)]
pub struct Journal {
    entries: VecDeque<JournalEntry>,
    next: u64,
    begin: u64,
}

impl Journal {
    /// An empty journal.
    pub fn new() -> Self {
        Self::default()
    }

    /// The journal of former supervisors, whose next entry has that number, which all before it are below. `encoded` has
    /// entries in any order; one that is none, or has a number that none of them can have given, is left out.
    pub fn resume(number: u64, encoded: &[Vec<u8>]) -> Self {
        let entries = encoded.iter().filter_map(|bytes| postcard::from_bytes(bytes).ok());
        let mut entries: Vec<JournalEntry> =
            entries.filter(|entry: &JournalEntry| entry.number < number).collect();
        entries.sort_unstable_by_key(|entry| entry.number);
        entries.dedup_by_key(|entry| entry.number);
        entries.drain(..entries.len().saturating_sub(CAPACITY));
        Self { entries: entries.into(), next: number, begin: number }
    }

    /// Enters what happened to `cell` at `unix_ns`, and how long it took. Returns the entry.
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

    /// The number of the first entry that this supervisor has made.
    pub fn begin(&self) -> u64 {
        self.begin
    }

    /// The entries that are still there, from number `from` on.
    pub fn since(&self, from: u64) -> impl Iterator<Item = &JournalEntry> {
        self.entries.iter().skip_while(move |entry| entry.number < from)
    }
}

#[cfg(test)]
mod tests;
