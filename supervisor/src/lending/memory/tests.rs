//! The choice of lenders of memory, and the leases.

use super::*;
use alloc::vec;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn party(id: u32, priority: u8, has_mib: u64, low_mib: u64) -> MemoryParty {
    MemoryParty { id: CellId(id), priority, has_bytes: has_mib * MIB, low_bytes: low_mib * MIB }
}

fn loan(lender: Option<u32>, borrower: u32, mib: u64, until_ns: u64) -> MemoryLoan {
    MemoryLoan {
        lender: lender.map(CellId),
        borrower: CellId(borrower),
        len_bytes: mib * MIB,
        renewal: Renewal::ByUse,
        lease_ns: 10,
        until_ns,
        due_ns: until_ns,
    }
}

fn lenders(lending: &MemoryLending, parties: &[MemoryParty]) -> Vec<(u32, u64)> {
    let lenders = lending.lenders((CellId(1), 5), parties, 0, |_| false);
    lenders.into_iter().map(|(id, bytes)| (id.0, bytes / MIB)).collect()
}

#[test]
fn the_least_important_lender_with_the_most_memory_is_asked_first_and_keeps_its_low_mark() {
    let parties = [
        party(1, 5, 64, 0),
        party(2, 3, 64, 16),
        party(3, 1, 32, 16),
        party(4, 1, 64, 15),
        party(5, 5, 64, 0),
        party(6, 0, 16, 16),
        party(7, 0, 8, 16),
    ];
    let lending = MemoryLending::new();
    assert_eq!(lenders(&lending, &parties), [(4, 48), (3, 16), (2, 48)], "whole chunks, in this order");
    assert!(
        lending.lenders((CellId(1), 5), &parties, 0, |id| id == CellId(1)).is_empty(),
        "it has lent memory"
    );
}

#[test]
fn borrowed_memory_is_not_lent_on_and_loans_are_limited_in_number() {
    let mut lending = MemoryLending::new();
    let parties = [party(2, 3, 64, 0), party(3, 1, 64, 0)];
    lending.enter(loan(Some(3), 2, 4, 100));
    assert_eq!(lenders(&lending, &parties), [(3, 64), (2, 60)]);
    for lender in 0..MAX_LOANS as u32 {
        lending.enter(loan(Some(10 + lender), 1, 2, 100));
    }
    assert_eq!(lenders(&lending, &parties), []);
}

#[test]
fn a_cell_that_returned_too_little_is_asked_again_after_delays_that_double() {
    let mut lending = MemoryLending::new();
    let parties = [party(2, 3, 64, 0)];
    let mut now = 0;
    for delay_s in [1, 2, 4, 8, 16, 32, 64, 64] {
        lending.note_outcome(CellId(2), false, now);
        now += delay_s * 1_000_000_000;
        assert_eq!(lending.lenders((CellId(1), 5), &parties, now - 1, |_| false), []);
        assert_eq!(lending.lenders((CellId(1), 5), &parties, now, |_| false).len(), 1);
    }
    lending.note_outcome(CellId(2), true, now);
    assert_eq!(lending.asked_again_ns(CellId(2)), 0);
    lending.note_outcome(CellId(1), false, now);
    assert!(lending.lenders((CellId(1), 5), &parties, now, |_| false).is_empty(), "a borrower waits as well");
}

#[test]
fn loans_of_the_same_cells_and_kind_join() {
    let mut lending = MemoryLending::new();
    lending.enter(loan(Some(2), 1, 4, 100));
    lending.enter(loan(Some(2), 1, 6, 50));
    let by_request = MemoryLoan { renewal: Renewal::None, ..loan(Some(2), 1, 2, 70) };
    lending.enter(by_request);
    assert_eq!(lending.loans(), [loan(Some(2), 1, 10, 100), by_request]);
    assert_eq!((lending.lent_bytes(CellId(2)), lending.borrowed_bytes(CellId(1))), (12 * MIB, 12 * MIB));
    assert_eq!(lending.reduce(&loan(Some(2), 1, 0, 0), 12 * MIB), 10 * MIB);
    assert_eq!(lending.loans(), [by_request]);
}

#[test]
fn a_lender_that_restarts_ends_its_leases_and_is_no_lender_any_more() {
    let mut lending = MemoryLending::new();
    lending.enter(loan(Some(2), 1, 4, 100));
    lending.enter(loan(Some(3), 1, 4, 100));
    lending.recall_all(CellId(2), 50);
    lending.lender_ended(CellId(2));
    let due = lending.due(50).unwrap();
    assert_eq!((due.lender, due.renewal, due.until_ns), (None, Renewal::None, 50));
    assert_eq!(lending.next_deadline_ns(), Some(50));
    assert_eq!(lending.borrower_ended(CellId(1)).len(), 2);
    assert_eq!(lending.loans(), []);
}

#[test]
fn a_borrower_keeps_three_eighths_of_its_memory_free() {
    for (total, used, unused) in [(64, 40, 0), (64, 38, 2), (64, 0, 64), (64, 24, 25), (64, 70, 0), (0, 0, 0)]
    {
        let unused = unused / 2 * 2;
        assert_eq!(unused_bytes(total * MIB, used * MIB), unused * MIB, "{used} of {total}");
    }
    assert_eq!(unused_bytes(u64::MAX, 0) % CHUNK, 0, "no report overflows");
}

proptest! {
    /// For all loans and returns: a lender keeps its low mark and lends only to higher priorities, the sum is conserved,
    /// and all memory is back after the leases.
    #[test]
    fn memory_is_conserved_and_returns(steps in proptest::collection::vec((0_u8..4, 0_usize..4, 1_u64..20), 0..200)) {
        let mut lending = MemoryLending::new();
        let begin = vec![party(0, 0, 64, 8), party(1, 1, 32, 30), party(2, 2, 16, 0), party(3, 2, 8, 8)];
        let mut parties = begin.clone();
        let mut now = 0;
        for (step, index, chunks) in steps {
            let who = parties[index];
            match step {
                0 | 1 => {
                    let lent = |id| lending.lent_bytes(id) > 0;
                    let lenders = lending.lenders((who.id, who.priority), &parties, now, lent);
                    for (lender, spare) in lenders.into_iter().take(1) {
                        let len_bytes = spare.min(chunks * CHUNK);
                        let until_ns = now + chunks;
                        let renewal = if step == 0 { Renewal::ByUse } else { Renewal::None };
                        let (lender, lease_ns, due_ns) = (Some(lender), chunks, until_ns);
                        let borrower = who.id;
                        lending.enter(MemoryLoan { lender, borrower, len_bytes, renewal, lease_ns, until_ns, due_ns });
                        parties[lender.unwrap().0 as usize].has_bytes -= len_bytes;
                        parties[index].has_bytes += len_bytes;
                    }
                }
                2 => {
                    let newest = lending.borrowed(who.id).next_back();
                    if let Some(loan) = newest {
                        let back = lending.reduce(&loan, chunks * CHUNK);
                        parties[index].has_bytes -= back;
                        parties[loan.lender.unwrap().0 as usize].has_bytes += back;
                    }
                }
                _ => {
                    now += chunks;
                    while let Some(loan) = lending.due(now) {
                        if loan.renewal == Renewal::ByUse && chunks > 10 {
                            lending.renew(&loan, now);
                            continue;
                        }
                        let back = lending.reduce(&loan, u64::MAX);
                        parties[loan.borrower.0 as usize].has_bytes -= back;
                        parties[loan.lender.unwrap().0 as usize].has_bytes += back;
                    }
                }
            }
            let sum = |parties: &[MemoryParty]| parties.iter().map(|party| party.has_bytes).sum::<u64>();
            prop_assert_eq!(sum(&parties), sum(&begin));
            for (party, begin) in parties.iter().zip(&begin) {
                let (lent, borrowed) = (lending.lent_bytes(party.id), lending.borrowed_bytes(party.id));
                prop_assert_eq!(party.has_bytes + lent, begin.has_bytes + borrowed);
                prop_assert!(lent == 0 || party.has_bytes >= party.low_bytes + borrowed);
            }
            for loan in lending.loans() {
                let priority = |id: CellId| begin[id.0 as usize].priority;
                prop_assert!(priority(loan.lender.unwrap()) < priority(loan.borrower));
            }
        }
        while let Some(loan) = lending.due(u64::MAX) {
            let back = lending.reduce(&loan, u64::MAX);
            parties[loan.borrower.0 as usize].has_bytes -= back;
            parties[loan.lender.unwrap().0 as usize].has_bytes += back;
        }
        prop_assert_eq!(parties, begin);
    }
}
