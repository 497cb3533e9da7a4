//! The journal: a log of changes and events, with the latest [`CAPACITY`] entries.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use isola_abi::management::{JournalEntry, JournalEvent};
use isola_supervisor_core::{Hardware, TrustedCore};

/// The most entries.
pub const CAPACITY: usize = 1024;

/// No entry has this number: a million entries a second reach it after 285 years. JSON has no larger exact integers.
const NUMBER_LIMIT: u64 = 1 << 53;

/// A bounded list of numbered entries.
#[derive(Debug, Default)]
pub struct Journal {
    entries: VecDeque<JournalEntry>,
    next: u64,
    begin: u64,
    /// The time of day at time 0, in ns since 1970-01-01 UTC.
    boot_unix_ns: u64,
}

impl Journal {
    /// Returns an empty journal.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the journal of previous incarnations. `encoded` has entries in any order; invalid ones are ignored. The
    /// next entry has a number that none of these has, and at least `number`: entries after the saved ones may be lost.
    pub fn resume(number: u64, encoded: &[Vec<u8>]) -> Self {
        let entries = encoded.iter().filter_map(|bytes| postcard::from_bytes(bytes).ok());
        let mut entries: Vec<JournalEntry> =
            entries.filter(|entry: &JournalEntry| entry.number < NUMBER_LIMIT).collect();
        entries.sort_unstable_by_key(|entry| entry.number);
        entries.dedup_by_key(|entry| entry.number);
        entries.drain(..entries.len().saturating_sub(CAPACITY));
        let next = entries.last().map_or(number, |last| number.max(last.number + 1));
        Self { entries: entries.into(), next, begin: next, boot_unix_ns: 0 }
    }

    /// Returns the journal with the time of day at time 0, in ns since 1970-01-01 UTC.
    #[must_use]
    pub fn booted_at(self, boot_unix_ns: u64) -> Self {
        Self { boot_unix_ns, ..self }
    }

    /// Returns the time of day at `now_ns`, in ns since 1970-01-01 UTC.
    pub fn unix_ns(&self, now_ns: u64) -> u64 {
        self.boot_unix_ns.saturating_add(now_ns)
    }

    /// Enters and saves an event that lasted from `since_ns` until now.
    pub fn enter<H: Hardware>(
        &mut self,
        core: &mut TrustedCore<H>,
        since_ns: u64,
        cell: Option<&str>,
        event: JournalEvent,
    ) {
        let now = core.now_ns();
        self.enter_at(core, self.unix_ns(now), now.saturating_sub(since_ns), cell, event);
    }

    /// Enters and saves an event about `cell` at `unix_ns`, with its duration.
    pub fn enter_at<H: Hardware>(
        &mut self,
        core: &mut TrustedCore<H>,
        unix_ns: u64,
        duration_ns: u64,
        cell: Option<&str>,
        event: JournalEvent,
    ) {
        let entry = self.record(unix_ns, duration_ns, cell, event);
        if let Ok(bytes) = postcard::to_allocvec(&entry) {
            core.save_journal_entry(&bytes);
        }
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
