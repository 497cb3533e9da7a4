//! New entries replace the oldest, and a restarted supervisor reads the entries of its predecessor.

use super::*;
use proptest::prelude::*;

#[test]
fn new_entries_replace_the_oldest_and_numbers_continue() {
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
fn the_entries_of_a_former_supervisor_come_first_without_invalid_ones() {
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

#[test]
fn no_number_of_a_former_supervisor_with_many_entries_is_given_out_again() {
    let mut before = Journal::resume(1 << 16, &[]);
    // More entries than the numbers that an incarnation has to itself.
    before.next = (2 << 16) + 100;
    let entries: Vec<JournalEntry> = (0..10).map(|_| before.record(5, 0, None, JournalEvent::Boot)).collect();
    let encoded: Vec<Vec<u8>> = entries.iter().map(|entry| postcard::to_allocvec(entry).unwrap()).collect();
    let mut journal = Journal::resume(2 << 16, &encoded);
    let own = journal.record(9, 0, None, JournalEvent::Boot);
    assert_eq!((own.number, journal.begin()), ((2 << 16) + 110, (2 << 16) + 110));
    assert!(journal.since(0).eq(entries.iter().chain([&own])), "all entries are kept, in order");
}

proptest! {
    #[test]
    fn a_journal_from_arbitrary_bytes_is_ordered_and_bounded(
        encoded in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..200),
    ) {
        let mut journal = Journal::resume(1 << 16, &encoded);
        journal.record(0, 0, None, JournalEvent::Boot);
        prop_assert!(journal.since(0).map(|entry| entry.number).is_sorted_by(|a, b| a < b));
        prop_assert_eq!(journal.since(journal.begin()).count(), 1);
    }
}
