//! Cores that cells have for a while: borrowed, on their way, and back (RainForest 4.1).
//!
//! Who lends is [`crate::lending`]'s to say; how a core moves, the neighbour's, `moves`. What is here begins it; `ways`
//! follows a core from the one cell to the other, and every step looks where the core *is*, in the inventory, which alone
//! says whose a core is.
//!
//! ```text
//!   borrow ── lender asked for it ──▶ free ──▶ sent to the borrower: a loan
//!   (asked for, or requested by the cell's own cores as their events wait)
//!   lease over, given back, recalled ── borrower asked for it ──▶ free ──▶ sent to the lender, where it runs
//! ```

mod debts;
mod ways;

use super::cell::{Body, Cell, Run};
use super::moves::{CoresResize, CoresWanted};
use super::{Cells, shorten};
use crate::effects::Effects;
use crate::inventory::CoreToken;
use crate::lending::{Denial, Loan, Party, Source};
use crate::report;
use alloc::string::String;
use alloc::vec::Vec;
pub(super) use debts::{Debt, KeptLoans};
use isola_abi::id::{CellId, CoreId};
use isola_abi::management::{
    CORE_LIMIT_MS, Change, CoreOwner, JournalEvent, LoanInfo, MAX_LEASE_MS, ManagementError, Mode,
    ReturnReason,
};
pub(super) use ways::{Afterwards, Loans};
use ways::{To, Way};

/// How long a borrower that did not give a core back when it was asked has it until it is asked again, in ns.
const ASK_AGAIN_NS: u64 = 20_000_000;

/// How long a cell has a core that it requested itself, in ms.
const REQUEST_LEASE_MS: u32 = 1_000;

impl<E: Effects> Cells<E> {
    /// Begins to borrow a core for a running cell.
    ///
    /// # Errors
    /// [`ManagementError::NoSuchCell`], [`ManagementError::WrongState`], [`ManagementError::OutOfLimits`] where nobody lends
    /// one, and what is said where the core cannot move. Nothing has changed then.
    pub fn borrow(&mut self, name: &str, lease_ms: u32) -> Result<LoanInfo, ManagementError> {
        let since_ns = self.effects.now_ns();
        let id = self.find(name)?;
        self.poll(id);
        self.settle_loans();
        if lease_ms == 0 || lease_ms > MAX_LEASE_MS {
            return Err(ManagementError::OutOfLimits(alloc::format!("a lease takes 1 to {MAX_LEASE_MS} ms")));
        }
        let gone = || ManagementError::NoSuchCell(shorten(name));
        let cell = self.cells.get(&id).ok_or_else(gone)?;
        if !matches!(cell.run, Run::Running { .. }) {
            return Err(cell.wrong_state());
        }
        if self.loans.is_coming_to(id) {
            let what = alloc::format!("a core is on its way to {name:?} already: wait for it");
            return Err(ManagementError::OutOfLimits(what));
        }
        let lease_ns = u64::from(lease_ms) * 1_000_000;
        let free = self.free_cores().len() as u32;
        let lender =
            match self.loans.lending.source(id, &self.parties(), free, |core| self.loans.is_moving(core)) {
                Ok(Source::Recalled(loan)) => {
                    self.send_back(loan, ReturnReason::Recalled, since_ns)?;
                    return Ok(self.loan_info(&loan));
                }
                Ok(Source::Free) => None,
                Ok(Source::Lender(lender)) => Some(lender),
                Err(denial) => return Err(ManagementError::OutOfLimits(self.denied(name, denial))),
            };
        let (who, change) = match lender {
            Some(lender) => (self.name_of(lender).ok_or_else(gone)?, Change::Less(1)),
            None => (name.into(), Change::More(1)),
        };
        let core = self.first_of(&who, lender, change)?;
        let loan = Loan { core, lender, borrower: id, until_ns: since_ns.saturating_add(lease_ns) };
        let way = Way { core, from: lender, to: To::Borrower(loan), since_ns };
        self.set_out(way);
        if lender.is_some()
            && let Err(error) = self.move_core(&who, change, core)
        {
            self.call_off(way);
            return Err(error);
        }
        self.settle_loans();
        Ok(self.loan_info(&loan))
    }

    /// Borrows a core for a live cell whose own cores request for one, where there is a new request and somebody lends.
    pub(super) fn grant_core(&mut self, id: CellId) {
        let Some(cell) = self.cells.get_mut(&id).filter(|cell| cell.spec.lending.borrow_above_us > 0) else {
            return;
        };
        let Body::Held(held) = &cell.body else { return };
        let requests = report::core_requests(self.effects.report(&held.space));
        if core::mem::replace(&mut cell.core_requests, requests) != requests {
            let name = cell.spec.name.clone();
            // It requests again as long as its events wait.
            let _ = self.borrow(&name, REQUEST_LEASE_MS);
        }
    }

    /// Begins to give back the core that a cell has borrowed last.
    ///
    /// # Errors
    /// [`ManagementError::NoSuchCell`], [`ManagementError::OutOfLimits`] where it has borrowed none, and what is said where the
    /// core cannot move. Nothing has changed then.
    pub fn give_back(&mut self, name: &str) -> Result<LoanInfo, ManagementError> {
        let since_ns = self.effects.now_ns();
        let id = self.find(name)?;
        self.poll(id);
        self.settle_loans();
        let borrowed = self.loans.lending.borrowed(id).rfind(|loan| !self.loans.is_moving(loan.core));
        let nothing =
            || ManagementError::OutOfLimits(alloc::format!("{name:?} has no borrowed core to give back"));
        let loan = borrowed.ok_or_else(nothing)?;
        self.send_back(loan, ReturnReason::GivenBack, since_ns)?;
        Ok(self.loan_info(&loan))
    }

    /// Sends back what was lent until now.
    pub(super) fn end_leases(&mut self, now: u64) {
        while let Some(loan) = self.loans.lending.due(now) {
            // Asked again then, unless it is back before.
            self.loans.lending.put_off(loan.core, now.saturating_add(ASK_AGAIN_NS));
            if !self.loans.is_moving(loan.core) {
                // A borrower that has other things to do with its cores is asked again.
                let _ = self.send_back(loan, ReturnReason::LeaseOver, now);
            }
        }
    }

    /// Asks the borrower of a core for it.
    fn send_back(&mut self, loan: Loan, why: ReturnReason, since_ns: u64) -> Result<(), ManagementError> {
        let name = self.name_of(loan.borrower).unwrap_or_default();
        self.loans.go_back(loan, Some(loan.borrower), why, since_ns);
        let asked = self.move_core(&name, Change::Less(1), loan.core);
        // Where the borrower was found to have ended, it goes back all the same.
        if asked.is_err() && self.loans.lending.is_lent(loan.core) {
            self.loans.arrive(loan.core);
        }
        asked?;
        self.settle_loans();
        Ok(())
    }

    /// Which core would move: of a lender, one that it has not borrowed itself; else a free one.
    fn first_of(
        &mut self,
        name: &str,
        lender: Option<CellId>,
        change: Change<u32>,
    ) -> Result<CoreId, ManagementError> {
        let wanted = CoresWanted { change, ids: &[], limit_ms: CORE_LIMIT_MS };
        let best = match self.resize_cores(name, &wanted, Mode::DryRun)? {
            CoresResize::Done(resized) => resized.cores.first().copied(),
            CoresResize::Asked(_) => None,
        };
        let candidates: Vec<CoreId> = match lender {
            None => self.free_cores(),
            Some(lender) => {
                let held = self.cells.get(&lender).and_then(Cell::held);
                let held = held.iter().flat_map(|held| held.cores.iter().skip(1).flatten());
                held.map(CoreToken::id).filter(|core| !self.loans.lending.is_lent(*core)).collect()
            }
        };
        let core = best.filter(|core| candidates.contains(core)).or_else(|| candidates.last().copied());
        core.ok_or(ManagementError::CoresExhausted { wanted: 1, free: 0 })
    }

    /// The cores that nobody has.
    fn free_cores(&self) -> Vec<CoreId> {
        let cores = self.inventory.cores.info().into_iter();
        cores.filter(|core| core.owner == CoreOwner::Free).map(|core| core.id).collect()
    }

    fn is_running(&self, id: CellId) -> bool {
        self.cells.get(&id).is_some_and(|cell| matches!(cell.run, Run::Running { .. }))
    }

    /// The running cells, as far as lending goes.
    fn parties(&self) -> Vec<Party> {
        let most = self.inventory.cores.count_for_cells() as u32;
        let party = |cell: &Cell<E>| Party {
            id: cell.id,
            priority: cell.spec.lending.priority,
            cores: cell.core_count() as u32,
            most,
            lends: cell.spec.lending.lends.saturating_sub(self.loans.unentered(cell.id).count() as u32),
        };
        let running = |cell: &&Cell<E>| matches!(cell.run, Run::Running { .. }) && !cell.moves.is_under_way();
        self.cells.values().filter(running).map(party).collect()
    }

    fn denied(&self, name: &str, denial: Denial) -> String {
        match denial {
            Denial::Limit => alloc::format!("{name:?} has as many cores as it can, or is being given some"),
            Denial::NoLender => alloc::format!(
                "nobody lends a core to {name:?}: no cell of lower priority has one that it lends"
            ),
        }
    }

    pub(super) fn name_of(&self, id: CellId) -> Option<String> {
        self.cells.get(&id).map(|cell| cell.spec.name.clone())
    }

    fn note_loan(&mut self, id: CellId, since_ns: u64, event: JournalEvent) {
        let name = self.name_of(id);
        self.record(since_ns, name.as_deref(), event);
    }

    /// What a cell has borrowed.
    pub(super) fn loans_of(&self, id: CellId) -> Vec<LoanInfo> {
        self.loans.lending.borrowed(id).map(|loan| self.loan_info(&loan)).collect()
    }

    fn loan_info(&self, loan: &Loan) -> LoanInfo {
        let from = loan.lender.and_then(|id| self.name_of(id));
        LoanInfo { core: loan.core, from, left_ns: loan.until_ns.saturating_sub(self.effects.now_ns()) }
    }
}
