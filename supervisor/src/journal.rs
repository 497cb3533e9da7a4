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
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    #[test]
    fn the_entries_of_a_former_supervisor_come_first_and_what_is_none_is_left_out() {
        let mut before = Journal::new();
        let mut entry = || before.record(5, 7, Some("kv"), JournalEvent::Start);
        let encode = |entry: &JournalEntry| postcard::to_allocvec(entry).unwrap();
        let (first, second, third) = (entry(), entry(), entry());
        let mut foreign = third.clone();
        foreign.number = u64::MAX;
        let torn = encode(&third)[..5].to_vec();
        let encoded = [encode(&second), torn, encode(&foreign), encode(&first), encode(&second), Vec::new()];
        let mut journal = Journal::resume(1 << 16, &encoded);
        let own = journal.record(9, 0, None, JournalEvent::Boot);
        assert_eq!((own.number, journal.begin()), (1 << 16, 1 << 16));
        assert!(journal.since(0).eq([&first, &second, &own]));
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_journal_that_is_out_of_order_or_too_long(
            encoded in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..200),
        ) {
            let mut journal = Journal::resume(1 << 16, &encoded);
            journal.record(0, 0, None, JournalEvent::Boot);
            prop_assert!(journal.since(0).map(|entry| entry.number).is_sorted_by(|a, b| a < b));
            prop_assert_eq!(journal.since(journal.begin()).count(), 1);
        }
    }
}
