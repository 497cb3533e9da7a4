//! Loans of cores and memory (RainForest 4.1). This file has core loans: borrowing, core transfers, and returns. `memory`
//! has memory loans.
//!
//! [`crate::lending`] decides which cell lends a core. A request for more or fewer cores plugs and unplugs it. This module
//! follows the core from one cell to the other, as `transfers` says; `debts` saves and recovers the loans. Each step asks
//! the inventory for the core's owner, as only the inventory knows it.
//!
//! ```text
//!   borrow ── lender's core is unplugged ──▶ free ──▶ plugged into the borrower: a loan
//!   (by an operator's request, or by the cell's own cores when their events wait)
//!   lease over, given back, recalled ── borrower's core is unplugged ──▶ free ──▶ plugged into the lender, if it runs
//! ```

mod debts;
mod memory;
mod transfers;

use super::cell::Cell;
use super::cores::{CoresResize, CoresWanted};
use super::{Cells, shorten};
use crate::lending::{Denial, LendingParty, Loan, Source};
use crate::report;
use alloc::string::String;
use alloc::vec::Vec;
pub(super) use debts::{Debt, SavedLoans};
use isola_abi::id::{CellId, CoreId};
use isola_abi::management::{
    CORE_LIMIT_MS, Change, CoreOwner, JournalEvent, LoanInfo, MAX_LEASE_MS, ManagementError, Mode,
    ReturnReason,
};
use isola_supervisor_core::Hardware;
use isola_supervisor_core::trusted_core::OwnedCell;
pub(super) use transfers::{AfterEnd, Loans};
use transfers::{CoreTransfer, Destination};

/// If a lender could not take its core, the time until the core is sent again, in ns.
const RETRY_NS: u64 = 1_000_000_000;

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

impl<H: Hardware> Cells<H> {
    /// Begins to borrow a core for a running cell.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`]; [`ManagementError::WrongState`]; [`ManagementError::OutOfLimits`] if no
    /// cell lends a core; and the errors of [`Self::resize_cores`]. The state is unchanged then.
    pub fn borrow(&mut self, name: &str, lease_ms: u32) -> Result<LoanInfo, ManagementError> {
        let since_ns = self.core.now_ns();
        let id = self.find(name)?;
        self.poll(id);
        self.settle_loans();
        let until_ns = lease_end_ns(since_ns, lease_ms)?;
        let gone = || ManagementError::NoSuchCell(shorten(name));
        let cell = self.table.get(id).ok_or_else(gone)?;
        if !cell.is_running() {
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
            Some(lender) => (self.table.name_of(lender).ok_or_else(gone)?, Change::Less(1)),
            None => (name.into(), Change::More(1)),
        };
        let core = self.first_of(&who, lender, change)?;
        let loan = Loan::new(core, lender, id, until_ns);
        let transfer = CoreTransfer { core, from: lender, to: Destination::Borrower(loan), since_ns };
        self.begin_transfer(transfer);
        if lender.is_some()
            && let Err(error) = self.move_core(&who, change, core)
        {
            self.cancel_transfer(transfer);
            return Err(error);
        }
        self.settle_loans();
        Ok(self.loan_info(&loan))
    }

    /// Borrows a core for a running cell whose own cores request one, if there is a new request and a lender.
    pub(super) fn grant_core(&mut self, id: CellId) {
        let Some(cell) = self.table.get_mut(id).filter(|cell| cell.spec.lending.borrow_above_us > 0) else {
            return;
        };
        let Some(owned) = self.core.cell(id) else { return };
        let requests = report::core_requests(owned.report());
        if core::mem::replace(&mut cell.cores.handled, requests) != requests {
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
        let now = self.core.now_ns();
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
        self.save(id);
        Ok(self.loan_info(&loan))
    }

    /// Begins to return the core that a cell has borrowed last.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`]; [`ManagementError::OutOfLimits`] if the cell has borrowed no core; and
    /// the errors of [`Self::resize_cores`]. The state is unchanged then.
    pub fn give_back(&mut self, name: &str) -> Result<LoanInfo, ManagementError> {
        let since_ns = self.core.now_ns();
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
        let name = self.table.name_of(loan.borrower).unwrap_or_default();
        self.loans.begin_return(loan, Some(loan.borrower), why, since_ns);
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
            CoresResize::Pending(_) => None,
        };
        let candidates: Vec<CoreId> = match lender {
            None => self.free_cores(),
            Some(lender) => {
                let cores = self.core.cell(lender).into_iter().flat_map(OwnedCell::movable_cores);
                cores.filter(|core| !self.loans.lending.is_lent(*core)).collect()
            }
        };
        let core = best.filter(|core| candidates.contains(core)).or_else(|| candidates.last().copied());
        core.ok_or(ManagementError::CoresExhausted { wanted: 1, free: 0 })
    }

    /// Returns the free cores.
    fn free_cores(&self) -> Vec<CoreId> {
        let cores = self.core.inventory().cores.info().into_iter();
        cores.filter(|core| core.owner == CoreOwner::Free).map(|core| core.id).collect()
    }

    fn is_running(&self, id: CellId) -> bool {
        self.table.get(id).is_some_and(Cell::is_running)
    }

    /// Returns the running cells without a core request in progress, as parties to lending.
    fn parties(&self) -> Vec<LendingParty> {
        let most = self.core.inventory().cores.slots_of_each_cell() as u32;
        let party = |cell: &Cell| LendingParty {
            id: cell.id,
            priority: cell.spec.lending.priority,
            cores: self.core.cell(cell.id).map_or(0, OwnedCell::core_count) as u32,
            most,
            lends: cell.spec.lending.lends.saturating_sub(self.loans.unentered(cell.id).count() as u32),
        };
        let running = |cell: &&Cell| cell.is_running() && cell.cores.resize.is_none();
        self.table.iter().filter(running).map(party).collect()
    }

    fn denied(&self, name: &str, denial: Denial) -> String {
        match denial {
            Denial::Limit => alloc::format!("{name:?} has as many cores as it can, or is being given some"),
            Denial::NoLender => alloc::format!(
                "no cell lends a core to {name:?}: none of lower priority has one that it lends"
            ),
        }
    }

    /// Returns a cell's borrowed cores.
    pub(super) fn loans_of(&self, id: CellId) -> Vec<LoanInfo> {
        self.loans.lending.borrowed(id).map(|loan| self.loan_info(&loan)).collect()
    }

    fn loan_info(&self, loan: &Loan) -> LoanInfo {
        let from = loan.lender.and_then(|id| self.table.name_of(id));
        LoanInfo { core: loan.core, from, left_ns: loan.until_ns.saturating_sub(self.core.now_ns()) }
    }

    /// Begins a transfer of a core that is free or will be unplugged.
    fn begin_transfer(&mut self, transfer: CoreTransfer) {
        self.loans.transfers.push(transfer);
        self.reserve_cores();
        self.save_transfer(&transfer);
    }

    /// Cancels a transfer.
    fn cancel_transfer(&mut self, transfer: CoreTransfer) {
        self.loans.arrive(transfer.core);
        self.reserve_cores();
        self.save_transfer(&transfer);
    }

    /// Saves a change of a loan in the lender's ownership record; for a core from the free ones in the borrower's,
    /// which has the core only for a while.
    fn save_transfer(&mut self, transfer: &CoreTransfer) {
        let loan = transfer.to.loan();
        self.save(loan.lender.unwrap_or(loan.borrower));
    }

    /// Updates the reservations in the inventory.
    fn reserve_cores(&mut self) {
        self.core.reserve_cores(&self.loans.reserved());
    }

    /// Handles the end of a cell that may have lent or borrowed cores.
    pub(super) fn lending_ended(&mut self, id: CellId, then: AfterEnd) {
        let now = self.core.now_ns();
        for loan in self.loans.cell_ended(id, then, now) {
            self.record_about(loan.borrower, now, JournalEvent::NotBorrowed { core: Some(loan.core) });
        }
        self.reserve_cores();
        // The cores that the cell has lent have no lender now, also in the borrowers' records.
        let going = self.loans.transfers.iter().map(|transfer| transfer.to.loan().borrower);
        let lent = self.loans.lending.loans().iter().map(|loan| loan.borrower);
        let borrowers: Vec<CellId> = going.chain(lent).collect();
        borrowers.into_iter().for_each(|borrower| self.save(borrower));
    }

    /// Handles a core that was unplugged from a running cell. If its loan has no lender, the return ends here: the core
    /// is free, and the next cell that gets it, even the same one, owns it.
    pub(super) fn end_loan_of_free_core(&mut self, core: CoreId) {
        let now = self.core.now_ns();
        let loan = self.loans.lending.loans().iter().find(|loan| loan.core == core && loan.lender.is_none());
        let Some(loan) = loan.copied() else { return };
        let transfer = self.loans.transfers.iter().find(|transfer| transfer.core == core).copied();
        self.loans.arrive(core);
        self.end_loan(core);
        let (why, since_ns) = match transfer {
            Some(CoreTransfer { to: Destination::Lender(_, why), since_ns, .. }) => (why, since_ns),
            _ => (ReturnReason::Lost, now),
        };
        self.record_about(loan.borrower, since_ns, JournalEvent::Return { core, to: None, why });
    }

    /// Ends the loan of a core.
    fn end_loan(&mut self, core: CoreId) {
        if let Some(loan) = self.loans.lending.end(core) {
            self.save(loan.borrower);
        }
    }

    /// Continues the transfers of cores that are free, and ends loans whose borrower does not have the core any more.
    pub(super) fn settle_loans(&mut self) {
        (self.loans.is_unsettled, self.loans.retry_ns) = (false, None);
        if self.loans.lending.loans().is_empty() && self.loans.transfers.is_empty() {
            return;
        }
        let now = self.core.now_ns();
        let lost = self.loans.lending.loans().iter().copied().filter(|loan| {
            let owner = self.core.inventory().cores.owner(loan.core);
            !self.loans.is_moving(loan.core) && owner != Some(CoreOwner::Cell(loan.borrower))
        });
        for loan in lost.collect::<Vec<Loan>>() {
            self.loans.begin_return(loan, None, ReturnReason::Lost, now);
        }
        let going: Vec<CoreId> = self.loans.transfers.iter().map(|transfer| transfer.core).collect();
        for core in going {
            // One by one, as a step may find that a cell has ended, and change the other transfers.
            let Some(transfer) = self.loans.transfer_of(core).copied() else { continue };
            match (self.core.inventory().cores.owner(core), transfer.from) {
                (Some(CoreOwner::Free | CoreOwner::InTransfer(_)), _) => self.deliver(transfer),
                // The core is still being unplugged.
                (Some(CoreOwner::Cell(has)), Some(from)) if has == from && self.is_leaving(from, core) => {}
                (owner, _) => self.end_failed_transfer(transfer, owner),
            }
        }
        self.reserve_cores();
    }

    /// Plugs a free core into its destination. The transfer exists until the arrival is recorded.
    fn deliver(&mut self, transfer: CoreTransfer) {
        let core = transfer.core;
        // A destination with another core request in progress is asked again when that is complete.
        if transfer.to.cell().is_some_and(|to| self.is_resizing(to)) {
            return self.wait(transfer);
        }
        let name = transfer.to.cell().and_then(|to| self.table.name_of(to));
        self.core.unreserve_core(core);
        let came = name.map(|name| self.move_core(&name, Change::More(1), core));
        // The destination may have changed, if a cell was found to have ended.
        let Some(transfer) = self.loans.transfer_of(core).copied() else { return };
        match (transfer.to, came) {
            (Destination::Borrower(loan), Some(Ok(()))) => {
                self.loans.arrive(core);
                self.loans.lending.enter(loan);
                self.save(loan.borrower);
                let from = loan.lender.and_then(|id| self.table.name_of(id));
                let lease_ns = loan.until_ns.saturating_sub(transfer.since_ns);
                self.record_about(
                    loan.borrower,
                    transfer.since_ns,
                    JournalEvent::Borrow { core, from, lease_ns },
                );
            }
            (Destination::Borrower(loan), _) => {
                let event = JournalEvent::NotBorrowed { core: Some(core) };
                self.record_about(loan.borrower, transfer.since_ns, event);
                let back = CoreTransfer { to: Destination::Lender(loan, ReturnReason::Lost), ..transfer };
                self.loans.transfer_of(core).into_iter().for_each(|transfer| *transfer = back);
                self.deliver(back);
            }
            // The lender lacks memory for the core's stacks, or a core slot, as suspended contexts occupy the slots.
            (Destination::Lender(loan, _), Some(Err(_)))
                if loan.lender.is_some_and(|to| self.is_running(to)) =>
            {
                self.wait(transfer);
                self.loans.retry_ns = Some(self.core.now_ns().saturating_add(RETRY_NS));
            }
            (Destination::Lender(loan, why), came) => {
                self.loans.arrive(core);
                self.end_loan(core);
                self.save_transfer(&transfer);
                let to = came.and_then(Result::ok).and(loan.lender).and_then(|id| self.table.name_of(id));
                self.record_about(loan.borrower, transfer.since_ns, JournalEvent::Return { core, to, why });
            }
        }
    }

    /// Lets a free core wait until the next attempt. The loan of a core on its way back ends.
    fn wait(&mut self, transfer: CoreTransfer) {
        self.loans.transfer_of(transfer.core).into_iter().for_each(|transfer| transfer.from = None);
        if matches!(transfer.to, Destination::Lender(..)) {
            self.end_loan(transfer.core);
        }
        self.reserve_cores();
    }

    /// Ends the transfer of a core that was not unplugged, or has failed.
    fn end_failed_transfer(&mut self, transfer: CoreTransfer, owner: Option<CoreOwner>) {
        self.loans.arrive(transfer.core);
        let event = match transfer.to {
            Destination::Borrower(_) => JournalEvent::NotBorrowed { core: Some(transfer.core) },
            // The loan continues as long as the borrower has the core, and the supervisor asks again.
            Destination::Lender(loan, _) if owner == Some(CoreOwner::Cell(loan.borrower)) => return,
            Destination::Lender(loan, why) => {
                self.end_loan(transfer.core);
                let kept = loan.lender.filter(|lender| owner == Some(CoreOwner::Cell(*lender)));
                JournalEvent::Return {
                    core: transfer.core,
                    to: kept.and_then(|id| self.table.name_of(id)),
                    why,
                }
            }
        };
        self.save_transfer(&transfer);
        self.record_about(transfer.to.loan().borrower, transfer.since_ns, event);
    }

    fn move_core(&mut self, name: &str, change: Change<u32>, core: CoreId) -> Result<(), ManagementError> {
        let wanted = CoresWanted { change, ids: &[core], limit_ms: CORE_LIMIT_MS };
        self.resize_cores(name, &wanted, Mode::Apply).map(|_| ())
    }

    fn is_resizing(&self, id: CellId) -> bool {
        self.table.get(id).is_some_and(|cell| cell.cores.resize.is_some())
    }

    fn is_leaving(&self, id: CellId, core: CoreId) -> bool {
        self.core.cell(id).is_some_and(|cell| cell.is_leaving(core))
    }
}
