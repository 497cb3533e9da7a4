//! What outlives a supervisor of loans, and how the next one takes it up.
//!
//! A lender's deed says which of its cores are between two cells ([`Debt`]), a borrower's which it has. The one is written
//! before the other is struck out, so that a supervisor that begins anew finds each, and no core twice.

use super::ways::{Loans, To};
use crate::cells::Cells;
use crate::cells::cell::Cell;
use crate::effects::Effects;
use crate::inventory::CoreToken;
use crate::lending::Loan;
use alloc::vec::Vec;
use isola_abi::id::{CellId, CoreId};
use isola_abi::management::{CoreOwner, MAX_LEASE_MS, ReturnReason};
use serde::{Deserialize, Serialize};

/// What is to be known again of loans, of one cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::cells) struct KeptLoans {
    /// What it has borrowed, of whom, and until when: at most as much as a machine has cores.
    borrowed: Vec<(CoreId, Option<CellId>, u64)>,
    /// What it has lent that is between two cells, and who was to have it, or had it: likewise.
    owed: Vec<(CoreId, CellId)>,
}

/// A core that is a lender's, and was between two cells when a supervisor went wrong.
#[derive(Clone, Copy, Debug)]
pub(in crate::cells) struct Debt {
    core: CoreId,
    lender: CellId,
    borrower: CellId,
}

impl Loans {
    /// What is to be known again of a cell's.
    pub(in crate::cells) fn kept(&self, id: CellId) -> KeptLoans {
        let borrowed = self.lending.borrowed(id).map(|loan| (loan.core, loan.lender, loan.until_ns));
        let owed = self.unentered(id).map(|loan| (loan.core, loan.borrower));
        KeptLoans { borrowed: borrowed.collect(), owed: owed.collect() }
    }

    /// Takes up what a supervisor before this one has entered of a cell that has these cores beside its first one. Returns
    /// what it is owed.
    pub(in crate::cells) fn resume(
        &mut self,
        id: CellId,
        kept: KeptLoans,
        cores: &[CoreId],
        now: u64,
    ) -> Vec<Debt> {
        let longest_ns = now.saturating_add(u64::from(MAX_LEASE_MS) * 1_000_000);
        let owed = kept.owed.into_iter().map(|(core, borrower)| Debt { core, lender: id, borrower });
        let mut debts: Vec<Debt> = owed.collect();
        for (core, lender, until_ns) in kept.borrowed {
            if cores.contains(&core) {
                self.lending.enter(Loan { core, lender, borrower: id, until_ns: until_ns.min(longest_ns) });
            } else {
                debts.extend(lender.map(|lender| Debt { core, lender, borrower: id }));
            }
        }
        debts
    }
}

impl<E: Effects> Cells<E> {
    /// Takes up loans and debts of a supervisor before this one, whose cells are all known by now.
    pub(in crate::cells) fn resume_lending(&mut self, debts: Vec<Debt>) {
        let now = self.effects.now_ns();
        let lenders = self.loans.lending.loans().iter().filter_map(|loan| loan.lender);
        let is_live = |id: &CellId| self.cells.get(id).is_some_and(Cell::is_live);
        let gone: Vec<CellId> = lenders.filter(|id| !is_live(id)).collect();
        gone.into_iter().for_each(|id| self.loans.lending.lender_ended(id));
        let is_live = |id: &CellId| self.cells.get(id).is_some_and(Cell::is_live);
        let debts: Vec<Debt> = debts.into_iter().filter(|debt| is_live(&debt.lender)).collect();
        for Debt { core, lender, borrower } in debts {
            if self.loans.is_moving(core) || self.loans.lending.is_lent(core) {
                continue;
            }
            let loan = Loan { core, lender: Some(lender), borrower, until_ns: now };
            let to = To::Lender(loan, ReturnReason::Lost);
            match self.inventory.cores.owner(core) {
                Some(CoreOwner::Free) => self.loans.set_out(loan, None, to, now),
                Some(CoreOwner::Cell(has)) if has == lender && self.is_leaving(has, core) => {
                    self.loans.set_out(loan, Some(has), to, now);
                }
                // It has come, and that was not noted any more.
                Some(CoreOwner::Cell(has)) if has == borrower && !self.is_first(has, core) => {
                    self.loans.lending.enter(loan);
                }
                _ => {}
            }
        }
        self.loans.has_news = !self.loans.ways.is_empty();
        self.promise_cores();
        // Who was owed a core by what the borrower's deed said is owed it by its own from here on.
        self.keep_lenders();
    }

    fn is_first(&self, id: CellId, core: CoreId) -> bool {
        let held = self.cells.get(&id).and_then(|cell| cell.held());
        let first = held.and_then(|held| held.cores.first()?.as_ref());
        first.is_some_and(|first| first.id() == core)
    }
}
