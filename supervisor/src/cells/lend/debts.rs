//! Loans in ownership records, and their recovery after a restart of the supervisor.
//!
//! A lender's record lists the cores that it lends, from the request to the return; a borrower's record lists the cores
//! that it has borrowed. A restarted supervisor thus finds each loan, wherever the core is, and whichever cell ends.

use super::memory::SavedMemory;
use super::transfers::{AfterEnd, Loans};
use crate::cells::cell::Cell;
use crate::cells::table::CellTable;
use crate::lending::Loan;
use alloc::vec::Vec;
use isola_abi::id::{CellId, CoreId};
use isola_abi::management::{CoreOwner, MAX_LEASE_MS, ReturnReason};
use isola_supervisor_core::trusted_core::OwnedCell;
use isola_supervisor_core::{Hardware, TrustedCore};
use serde::{Deserialize, Serialize};

/// The loans of one cell, in its saved state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::cells) struct SavedLoans {
    /// The cores that the cell has borrowed or is about to get from the free cores, with lender and end of the lease:
    /// at most as many as the machine has cores.
    borrowed: Vec<(CoreId, Option<CellId>, u64)>,
    /// The cores that the cell has lent, with borrower, from the request to the return: at most as many as the machine
    /// has cores.
    lent: Vec<(CoreId, CellId)>,
    /// The memory loans.
    pub(in crate::cells) memory: SavedMemory,
}

/// A lender's core that was on loan or in transfer when the supervisor failed.
#[derive(Clone, Copy, Debug)]
pub(in crate::cells) struct Debt {
    core: CoreId,
    lender: CellId,
    borrower: CellId,
}

impl Loans {
    /// Returns the loans of a cell, for its saved state.
    pub(in crate::cells) fn saved<H: Hardware>(&self, cell: &Cell, core: &TrustedCore<H>) -> SavedLoans {
        let id = cell.id;
        let borrowed = self.lending.borrowed(id).chain(self.expected(id));
        let borrowed = borrowed.map(|loan| (loan.core, loan.lender, loan.until_ns));
        let lent = self.lent(id).map(|loan| (loan.core, loan.borrower));
        let memory_bytes = core.cell(id).map_or(0, OwnedCell::memory_bytes) + cell.reclaimed_bytes();
        let memory = self.memory.saved(id, memory_bytes);
        SavedLoans { borrowed: borrowed.collect(), lent: lent.collect(), memory }
    }

    /// Enters the loans in a recovered cell's state for the cores that it has; `cores` are its cores except the first.
    /// Returns the others as debts.
    pub(in crate::cells) fn resume(
        &mut self,
        id: CellId,
        mut saved: SavedLoans,
        cores: &[CoreId],
        now: u64,
    ) -> Vec<Debt> {
        let longest_ns = now.saturating_add(u64::from(MAX_LEASE_MS) * 1_000_000);
        let has = |(core, ..): &mut (CoreId, Option<CellId>, u64)| cores.contains(core);
        for (core, lender, until_ns) in saved.borrowed.extract_if(.., has) {
            self.lending.enter(Loan::new(core, lender, id, until_ns.min(longest_ns)));
        }
        saved.into_debts(id)
    }
}

impl SavedLoans {
    /// Returns the loans as debts, for a cell that has none of the borrowed cores.
    pub(in crate::cells) fn into_debts(self, id: CellId) -> Vec<Debt> {
        let lent = self.lent.into_iter().map(|(core, borrower)| Debt { core, lender: id, borrower });
        let borrowed = self.borrowed.into_iter();
        let borrowed =
            borrowed.filter_map(|(core, lender, _)| Some(Debt { core, lender: lender?, borrower: id }));
        lent.chain(borrowed).collect()
    }
}

impl Loans {
    /// Restores loans and debts from before a supervisor restart, after all cells were recovered.
    pub(in crate::cells) fn resume_debts<H: Hardware>(
        &mut self,
        debts: Vec<Debt>,
        core: &mut TrustedCore<H>,
        table: &CellTable,
    ) {
        let now = core.now_ns();
        let lenders = self.lending.loans().iter().filter_map(|loan| loan.lender);
        let is_live = |id: &CellId| table.get(*id).is_some_and(Cell::is_live);
        let gone: Vec<CellId> = lenders.filter(|id| !is_live(id)).collect();
        for id in gone {
            let is_due = table.get(id).is_some_and(|cell| cell.restarting.next_ns().is_some());
            let then = if is_due { AfterEnd::Restart } else { AfterEnd::Nothing };
            self.lender_ended(id, then, now);
        }
        for Debt { core: id, lender, borrower } in debts.into_iter().filter(|debt| is_live(&debt.lender)) {
            if self.is_moving(id) || self.lending.is_lent(id) {
                continue;
            }
            let loan = Loan::new(id, Some(lender), borrower, now);
            let why = ReturnReason::Lost;
            let is_leaving = |cell| core.cell(cell).is_some_and(|cell| cell.is_leaving(id));
            let is_first = |cell| core.cell(cell).is_some_and(|cell| cell.first_core() == Some(id));
            match core.inventory().cores.owner(id) {
                Some(CoreOwner::Free) => self.begin_return(loan, None, why, now),
                Some(CoreOwner::Cell(has)) if has == lender && is_leaving(has) => {
                    self.begin_return(loan, Some(has), why, now);
                }
                // The core had reached its borrower, and the loan was not saved yet.
                Some(CoreOwner::Cell(has)) if has == borrower && !is_first(has) => self.lending.enter(loan),
                _ => {}
            }
        }
        self.is_unsettled = !self.transfers.is_empty();
        core.reserve_cores(&self.reserved());
        self.memory.resume_debts(core, table);
        // The next restart then finds this state, and nothing older. A lender has a lower priority than its borrowers,
        // so it comes first: a debt that only the borrower's record contains is in the lender's record before it is
        // removed there.
        let mut live: Vec<&Cell> = table.iter().filter(|cell| cell.is_live()).collect();
        live.sort_by_key(|cell| cell.spec.lending.priority);
        live.into_iter().for_each(|cell| core.save(cell.id, cell.notes(self.saved(cell, core))));
    }
}
