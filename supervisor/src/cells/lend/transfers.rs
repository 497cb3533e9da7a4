//! Core transfers between cells, and the loans.
//!
//! A transfer takes time, during which either cell or the supervisor may end. From the request to the arrival, the
//! inventory *reserves* the core for its destination, and a lent core for its lender. So no other cell gets a core that
//! becomes free, for whatever reason. The reservations follow from transfers and loans, and the inventory is updated
//! whenever these change.

use super::memory::MemoryLoans;
use crate::lending::{Lending, Loan};
use alloc::vec::Vec;
use isola_abi::id::{CellId, CoreId};
use isola_abi::management::ReturnReason;

/// The loans, and the transfers in progress.
#[derive(Debug)]
pub(in crate::cells) struct Loans {
    pub(super) lending: Lending,
    pub(in crate::cells) memory: MemoryLoans,
    /// The transfers, at most one for each core.
    pub(super) transfers: Vec<CoreTransfer>,
    /// Whether there are transfers for the next tick to check.
    pub(super) is_unsettled: bool,
    /// When a core is sent again to a lender that could not take it.
    pub(super) retry_ns: Option<u64>,
}

/// A core transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct CoreTransfer {
    pub(super) core: CoreId,
    /// The cell that has the core until it is free; `None`: it is free.
    pub(super) from: Option<CellId>,
    pub(super) to: Destination,
    pub(super) since_ns: u64,
}

/// The destination of a transfer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Destination {
    /// The borrower of this loan.
    Borrower(Loan),
    /// The lender of this loan, or the free cores if it has none.
    Lender(Loan, ReturnReason),
}

impl Destination {
    pub(super) fn loan(&self) -> &Loan {
        let (Self::Borrower(loan) | Self::Lender(loan, _)) = self;
        loan
    }

    pub(super) fn loan_mut(&mut self) -> &mut Loan {
        let (Self::Borrower(loan) | Self::Lender(loan, _)) = self;
        loan
    }

    pub(super) fn cell(&self) -> Option<CellId> {
        match self {
            Self::Borrower(loan) => Some(loan.borrower),
            Self::Lender(loan, _) => loan.lender,
        }
    }
}

/// The state of a cell after its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cells) enum AfterEnd {
    /// The cell stays ended, unless it is created again by request.
    Nothing,
    /// The cell's policy restarts it, and it needs all its cores.
    Restart,
}

impl Loans {
    pub(in crate::cells) const fn new() -> Self {
        Self {
            lending: Lending::new(),
            memory: MemoryLoans::new(),
            transfers: Vec::new(),
            is_unsettled: false,
            retry_ns: None,
        }
    }

    /// Returns the next end of a lease or retry; 0 if there are transfers to check.
    pub(in crate::cells) fn deadline_ns(&self) -> Option<u64> {
        let next = self.lending.next_deadline_ns().into_iter().chain(self.retry_ns).min();
        if self.is_unsettled { Some(0) } else { next }
    }

    /// Handles the end of a cell: its borrowed cores return to their lenders, and its lent cores lose their lender. If
    /// the cell is to restart, its lent cores return at once. Returns the loans whose transfers to the borrower are
    /// cancelled.
    pub(super) fn cell_ended(&mut self, id: CellId, then: AfterEnd, now: u64) -> Vec<Loan> {
        self.lender_ended(id, then, now);
        for loan in self.lending.cell_ended(id) {
            if !self.is_moving(loan.core) {
                self.begin_return(loan, None, ReturnReason::Lost, now);
            }
        }
        let mut void = Vec::new();
        for CoreTransfer { to, .. } in &mut self.transfers {
            let loan = to.loan_mut();
            let is_needed = loan.lender == Some(id) && then == AfterEnd::Restart;
            // When the cell restarts, it takes all its cores from the free ones.
            loan.lender = loan.lender.filter(|lender| *lender != id);
            if let Destination::Borrower(loan) = *to
                && (is_needed || loan.borrower == id)
            {
                void.push(loan);
                *to = Destination::Lender(loan, ReturnReason::Lost);
            }
        }
        self.is_unsettled |= !self.transfers.is_empty();
        void
    }

    /// Removes the cell as the lender of its loans, whose cores will return to the free ones. If the cell is to
    /// restart, these leases end at once.
    pub(super) fn lender_ended(&mut self, id: CellId, then: AfterEnd, now: u64) {
        if then == AfterEnd::Restart {
            self.lending.recall_all(id, now);
        }
        self.lending.lender_ended(id);
    }

    /// Begins the return of a lent core; `from` has it until it is free.
    pub(super) fn begin_return(
        &mut self,
        loan: Loan,
        from: Option<CellId>,
        why: ReturnReason,
        since_ns: u64,
    ) {
        self.transfers.push(CoreTransfer {
            core: loan.core,
            from,
            to: Destination::Lender(loan, why),
            since_ns,
        });
    }

    /// Returns the transfer of a core.
    pub(super) fn transfer_of(&mut self, core: CoreId) -> Option<&mut CoreTransfer> {
        self.transfers.iter_mut().find(|transfer| transfer.core == core)
    }

    /// Removes the transfer of a core.
    pub(super) fn arrive(&mut self, core: CoreId) {
        self.transfers.retain(|transfer| transfer.core != core);
    }

    /// Returns the loans of a lender.
    pub(super) fn lent(&self, lender: CellId) -> impl Iterator<Item = Loan> {
        let entered = self.lending.loans().iter().copied().filter(move |loan| loan.lender == Some(lender));
        entered.chain(self.unentered(lender))
    }

    /// Returns the loans of a lender whose cores are in transfer and which are not entered, because the core has not
    /// arrived at the borrower or has left it.
    pub(super) fn unentered(&self, lender: CellId) -> impl Iterator<Item = Loan> {
        let loans = self.transfers.iter().map(|transfer| *transfer.to.loan());
        loans.filter(move |loan| loan.lender == Some(lender) && !self.lending.is_lent(loan.core))
    }

    /// Returns the borrower's coming loans of free cores.
    pub(super) fn expected(&self, borrower: CellId) -> impl Iterator<Item = Loan> {
        let coming = self.transfers.iter().filter_map(|transfer| match transfer.to {
            Destination::Borrower(loan) => Some(loan),
            Destination::Lender(..) => None,
        });
        coming.filter(move |loan| loan.borrower == borrower && loan.lender.is_none())
    }

    pub(super) fn is_moving(&self, core: CoreId) -> bool {
        self.transfers.iter().any(|transfer| transfer.core == core)
    }

    /// Returns whether a core is in transfer to this borrower.
    pub(super) fn is_coming_to(&self, id: CellId) -> bool {
        self.transfers
            .iter()
            .any(|transfer| matches!(transfer.to, Destination::Borrower(loan) if loan.borrower == id))
    }

    /// Returns the reservations: for each core in transfer its destination, for each lent core its lender.
    pub(super) fn reserved(&self) -> Vec<(CoreId, CellId)> {
        let going = self.transfers.iter().filter_map(|transfer| Some((transfer.core, transfer.to.cell()?)));
        let lent = self.lending.loans().iter().filter(|loan| !self.is_moving(loan.core));
        going.chain(lent.filter_map(|loan| Some((loan.core, loan.lender?)))).collect()
    }
}
