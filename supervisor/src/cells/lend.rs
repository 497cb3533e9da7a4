//! Core loans: borrowing, core transfers, and returns (RainForest 4.1).
//!
//! [`crate::lending`] decides which cell lends a core. The module `moves` plugs and unplugs it. This module begins a
//! transfer; `ways` follows the core from one cell to the other. Each step asks the inventory for the core's owner, as
//! only the inventory knows it.
//!
//! ```text
//!   borrow ── lender's core is unplugged ──▶ free ──▶ plugged into the borrower: a loan
//!   (by an operator's request, or by the cell's own cores when their events wait)
//!   lease over, given back, recalled ── borrower's core is unplugged ──▶ free ──▶ plugged into the lender, if it runs
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

/// If a borrower does not release a core, the time until the supervisor asks again, in ns.
const ASK_AGAIN_NS: u64 = 20_000_000;

/// The lease of a core that a cell's own cores requested, in ms.
const REQUEST_LEASE_MS: u32 = 1_000;

/// Returns the end of a lease that begins now.
fn lease_end_ns(now: u64, lease_ms: u32) -> Result<u64, ManagementError> {
    if lease_ms == 0 || lease_ms > MAX_LEASE_MS {
        return Err(ManagementError::OutOfLimits(alloc::format!("a lease takes 1 to {MAX_LEASE_MS} ms")));
    }
    Ok(now.saturating_add(u64::from(lease_ms) * 1_000_000))
}

impl<E: Effects> Cells<E> {
    /// Begins to borrow a core for a running cell.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`]; [`ManagementError::WrongState`]; [`ManagementError::OutOfLimits`] if no
    /// cell lends a core; and the errors of [`Self::resize_cores`]. The state is unchanged then.
    pub fn borrow(&mut self, name: &str, lease_ms: u32) -> Result<LoanInfo, ManagementError> {
        let since_ns = self.effects.now_ns();
        let id = self.find(name)?;
        self.poll(id);
        self.settle_loans();
        let until_ns = lease_end_ns(since_ns, lease_ms)?;
        let gone = || ManagementError::NoSuchCell(shorten(name));
        let cell = self.cells.get(&id).ok_or_else(gone)?;
        if !matches!(cell.run, Run::Running { .. }) {
            return Err(cell.wrong_state());
        }
        if self.loans.is_coming_to(id) {
            let what = alloc::format!("a core is on its way to {name:?} already: wait for it");
            return Err(ManagementError::OutOfLimits(what));
        }
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
        let loan = Loan::new(core, lender, id, until_ns);
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

    /// Borrows a core for a running cell whose own cores request one, if there is a new request and a lender.
    pub(super) fn grant_core(&mut self, id: CellId) {
        let Some(cell) = self.cells.get_mut(&id).filter(|cell| cell.spec.lending.borrow_above_us > 0) else {
            return;
        };
        let Body::Held(held) = &cell.body else { return };
        let requests = report::core_requests(self.effects.report(&held.space));
        if core::mem::replace(&mut cell.core_requests, requests) != requests {
            let name = cell.spec.name.clone();
            // The cell repeats its request as long as its events wait.
            let _ = self.borrow(&name, REQUEST_LEASE_MS);
        }
    }

    /// Extends the lease of a core that a cell has borrowed; never shortens it.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`]; [`ManagementError::OutOfLimits`] for an invalid lease, and if the cell
    /// has not borrowed the core, the lease has ended, or the core is returning. The state is unchanged then.
    pub fn renew(&mut self, name: &str, core: CoreId, lease_ms: u32) -> Result<LoanInfo, ManagementError> {
        let now = self.effects.now_ns();
        let id = self.find(name)?;
        self.poll(id);
        self.settle_loans();
        let until_ns = lease_end_ns(now, lease_ms)?;
        let over = || {
            ManagementError::OutOfLimits(alloc::format!(
                "{name:?} has no loan of core {core}: borrow another core"
            ))
        };
        if self.loans.is_moving(core) {
            return Err(over());
        }
        let loan = self.loans.lending.renew(id, core, now, until_ns).ok_or_else(over)?;
        self.keep_up(id);
        Ok(self.loan_info(&loan))
    }

    /// Begins to return the core that a cell has borrowed last.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`]; [`ManagementError::OutOfLimits`] if the cell has borrowed no core; and
    /// the errors of [`Self::resize_cores`]. The state is unchanged then.
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

    /// Begins to return the cores whose leases are over.
    pub(super) fn end_leases(&mut self, now: u64) {
        while let Some(loan) = self.loans.lending.due(now) {
            // If the core is not back by then, the supervisor asks again.
            self.loans.lending.put_off(loan.core, now.saturating_add(ASK_AGAIN_NS));
            if !self.loans.is_moving(loan.core) {
                // A borrower with another core request in progress is asked again.
                let _ = self.send_back(loan, ReturnReason::LeaseOver, now);
            }
        }
    }

    /// Unplugs a core from its borrower.
    fn send_back(&mut self, loan: Loan, why: ReturnReason, since_ns: u64) -> Result<(), ManagementError> {
        let name = self.name_of(loan.borrower).unwrap_or_default();
        self.loans.go_back(loan, Some(loan.borrower), why, since_ns);
        let asked = self.move_core(&name, Change::Less(1), loan.core);
        // If the borrower turned out to have ended, the loan is over and the transfer back to the lender continues.
        if asked.is_err() && self.loans.lending.is_lent(loan.core) {
            self.loans.arrive(loan.core);
        }
        asked?;
        self.settle_loans();
        Ok(())
    }

    /// Returns the core to transfer: one that the lender owns, or a free one if there is no lender.
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

    /// Returns the free cores.
    fn free_cores(&self) -> Vec<CoreId> {
        let cores = self.inventory.cores.info().into_iter();
        cores.filter(|core| core.owner == CoreOwner::Free).map(|core| core.id).collect()
    }

    fn is_running(&self, id: CellId) -> bool {
        self.cells.get(&id).is_some_and(|cell| matches!(cell.run, Run::Running { .. }))
    }

    /// Returns the running cells without a core request in progress, as parties to lending.
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

    /// Returns a cell's borrowed cores.
    pub(super) fn loans_of(&self, id: CellId) -> Vec<LoanInfo> {
        self.loans.lending.borrowed(id).map(|loan| self.loan_info(&loan)).collect()
    }

    fn loan_info(&self, loan: &Loan) -> LoanInfo {
        let from = loan.lender.and_then(|id| self.name_of(id));
        LoanInfo { core: loan.core, from, left_ns: loan.until_ns.saturating_sub(self.effects.now_ns()) }
    }
}
