//! Core transfers between cells, and the loans.
//!
//! A transfer takes time, during which either cell or the supervisor may end. From the request to the arrival, the
//! inventory *reserves* the core for its destination, and a lent core for its lender. So no other cell gets a core that
//! becomes free, for whatever reason. The reservations follow from transfers and loans, and the inventory is updated
//! whenever these change.

use crate::cells::Cells;
use crate::cells::moves::CoresWanted;
use crate::effects::Effects;
use crate::lending::{Lending, Loan};
use alloc::vec::Vec;
use isola_abi::id::{CellId, CoreId};
use isola_abi::management::{
    CORE_LIMIT_MS, Change, CoreOwner, JournalEvent, ManagementError, Mode, ReturnReason,
};

/// If a lender could not take its core, the time until the core is sent again, in ns.
const RETRY_NS: u64 = 1_000_000_000;

/// The loans, and the transfers in progress.
#[derive(Debug)]
pub(in crate::cells) struct Loans {
    pub(super) lending: Lending,
    /// The transfers, at most one for each core.
    pub(super) ways: Vec<Way>,
    /// Whether there are transfers for the next tick to check.
    pub(super) has_news: bool,
    /// When a core is sent again to a lender that could not take it.
    retry_ns: Option<u64>,
}

/// A core transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub(super) core: CoreId,
    /// The cell that has the core until it is free; `None`: it is free.
    pub(super) from: Option<CellId>,
    pub(super) to: To,
    pub(super) since_ns: u64,
}

/// The destination of a transfer.
#[derive(Clone, Copy, Debug)]
pub(super) enum To {
    /// The borrower of this loan.
    Borrower(Loan),
    /// The lender of this loan, or the free cores if it has none.
    Lender(Loan, ReturnReason),
}

impl To {
    fn loan(&self) -> &Loan {
        let (Self::Borrower(loan) | Self::Lender(loan, _)) = self;
        loan
    }

    fn loan_mut(&mut self) -> &mut Loan {
        let (Self::Borrower(loan) | Self::Lender(loan, _)) = self;
        loan
    }

    fn cell(&self) -> Option<CellId> {
        match self {
            Self::Borrower(loan) => Some(loan.borrower),
            Self::Lender(loan, _) => loan.lender,
        }
    }
}

/// The state of a cell after its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cells) enum Afterwards {
    /// The cell stays ended, unless it is created again by request.
    Nothing,
    /// The cell's policy restarts it, and it needs all its cores.
    Restart,
}

impl Loans {
    pub(in crate::cells) const fn new() -> Self {
        Self { lending: Lending::new(), ways: Vec::new(), has_news: false, retry_ns: None }
    }

    /// Returns the next end of a lease or retry; 0 if there are transfers to check.
    pub(in crate::cells) fn deadline_ns(&self) -> Option<u64> {
        let next = self.lending.next_deadline_ns().into_iter().chain(self.retry_ns).min();
        if self.has_news { Some(0) } else { next }
    }

    /// Handles the end of a cell: its borrowed cores return to their lenders, and its lent cores lose their lender. If
    /// the cell is to restart, its lent cores return at once. Returns the loans whose transfers to the borrower are
    /// cancelled.
    fn cell_ended(&mut self, id: CellId, then: Afterwards, now: u64) -> Vec<Loan> {
        self.lender_ended(id, then, now);
        for loan in self.lending.cell_ended(id) {
            if !self.is_moving(loan.core) {
                self.go_back(loan, None, ReturnReason::Lost, now);
            }
        }
        let mut void = Vec::new();
        for Way { to, .. } in &mut self.ways {
            let loan = to.loan_mut();
            let is_needed = loan.lender == Some(id) && then == Afterwards::Restart;
            // When the cell restarts, it takes all its cores from the free ones.
            loan.lender = loan.lender.filter(|lender| *lender != id);
            if let To::Borrower(loan) = *to
                && (is_needed || loan.borrower == id)
            {
                void.push(loan);
                *to = To::Lender(loan, ReturnReason::Lost);
            }
        }
        self.has_news |= !self.ways.is_empty();
        void
    }

    /// Removes the cell as the lender of its loans, whose cores will return to the free ones. If the cell is to
    /// restart, these leases end at once.
    pub(super) fn lender_ended(&mut self, id: CellId, then: Afterwards, now: u64) {
        if then == Afterwards::Restart {
            self.lending.recall_all(id, now);
        }
        self.lending.lender_ended(id);
    }

    /// Begins the return of a lent core; `from` has it until it is free.
    pub(super) fn go_back(&mut self, loan: Loan, from: Option<CellId>, why: ReturnReason, since_ns: u64) {
        self.ways.push(Way { core: loan.core, from, to: To::Lender(loan, why), since_ns });
    }

    /// Returns the transfer of a core.
    fn way_of(&mut self, core: CoreId) -> Option<&mut Way> {
        self.ways.iter_mut().find(|way| way.core == core)
    }

    /// Removes the transfer of a core.
    pub(super) fn arrive(&mut self, core: CoreId) {
        self.ways.retain(|way| way.core != core);
    }

    /// Returns the loans of a lender.
    pub(super) fn lent(&self, lender: CellId) -> impl Iterator<Item = Loan> {
        let entered = self.lending.loans().iter().copied().filter(move |loan| loan.lender == Some(lender));
        entered.chain(self.unentered(lender))
    }

    /// Returns the loans of a lender whose cores are in transfer and which are not entered, because the core has not
    /// arrived at the borrower or has left it.
    pub(super) fn unentered(&self, lender: CellId) -> impl Iterator<Item = Loan> {
        let loans = self.ways.iter().map(|way| *way.to.loan());
        loans.filter(move |loan| loan.lender == Some(lender) && !self.lending.is_lent(loan.core))
    }

    /// Returns the borrower's coming loans of free cores.
    pub(super) fn expected(&self, borrower: CellId) -> impl Iterator<Item = Loan> {
        let coming = self.ways.iter().filter_map(|way| match way.to {
            To::Borrower(loan) => Some(loan),
            To::Lender(..) => None,
        });
        coming.filter(move |loan| loan.borrower == borrower && loan.lender.is_none())
    }

    pub(super) fn is_moving(&self, core: CoreId) -> bool {
        self.ways.iter().any(|way| way.core == core)
    }

    /// Returns whether a core is in transfer to this borrower.
    pub(super) fn is_coming_to(&self, id: CellId) -> bool {
        self.ways.iter().any(|way| matches!(way.to, To::Borrower(loan) if loan.borrower == id))
    }

    /// Returns the reservations: for each core in transfer its destination, for each lent core its lender.
    fn promised(&self) -> Vec<(CoreId, CellId)> {
        let going = self.ways.iter().filter_map(|way| Some((way.core, way.to.cell()?)));
        let lent = self.lending.loans().iter().filter(|loan| !self.is_moving(loan.core));
        going.chain(lent.filter_map(|loan| Some((loan.core, loan.lender?)))).collect()
    }
}

impl<E: Effects> Cells<E> {
    /// Begins a transfer of a core that is free or will be unplugged.
    pub(super) fn set_out(&mut self, way: Way) {
        self.loans.ways.push(way);
        self.promise_cores();
        self.keep_way(&way);
    }

    /// Cancels a transfer.
    pub(super) fn call_off(&mut self, way: Way) {
        self.loans.arrive(way.core);
        self.promise_cores();
        self.keep_way(&way);
    }

    /// Saves a change of a loan in the lender's ownership record; for a core from the free ones in the borrower's,
    /// which has the core only for a while.
    fn keep_way(&mut self, way: &Way) {
        let loan = way.to.loan();
        self.keep_up(loan.lender.unwrap_or(loan.borrower));
    }

    /// Updates the reservations in the inventory.
    pub(super) fn promise_cores(&mut self) {
        self.inventory.cores.promise(&self.loans.promised());
    }

    /// Handles the end of a cell that may have lent or borrowed cores.
    pub(in crate::cells) fn lending_ended(&mut self, id: CellId, then: Afterwards) {
        let now = self.effects.now_ns();
        for loan in self.loans.cell_ended(id, then, now) {
            self.note_loan(loan.borrower, now, JournalEvent::NotBorrowed { core: Some(loan.core) });
        }
        self.promise_cores();
        // The cores that the cell has lent have no lender now, also in the borrowers' records.
        let going = self.loans.ways.iter().map(|way| way.to.loan().borrower);
        let lent = self.loans.lending.loans().iter().map(|loan| loan.borrower);
        let borrowers: Vec<CellId> = going.chain(lent).collect();
        borrowers.into_iter().for_each(|borrower| self.keep_up(borrower));
    }

    /// Handles a core that was unplugged from a running cell. If its loan has no lender, the return ends here: the core
    /// is free, and the next cell that gets it, even the same one, owns it.
    pub(in crate::cells) fn came_free(&mut self, core: CoreId) {
        let now = self.effects.now_ns();
        let loan = self.loans.lending.loans().iter().find(|loan| loan.core == core && loan.lender.is_none());
        let Some(loan) = loan.copied() else { return };
        let way = self.loans.ways.iter().find(|way| way.core == core).copied();
        self.loans.arrive(core);
        self.end_loan(core);
        let (why, since_ns) = match way {
            Some(Way { to: To::Lender(_, why), since_ns, .. }) => (why, since_ns),
            _ => (ReturnReason::Lost, now),
        };
        self.note_loan(loan.borrower, since_ns, JournalEvent::Return { core, to: None, why });
    }

    /// Ends the loan of a core.
    fn end_loan(&mut self, core: CoreId) {
        if let Some(loan) = self.loans.lending.end(core) {
            self.keep_up(loan.borrower);
        }
    }

    /// Continues the transfers of cores that are free, and ends loans whose borrower does not have the core any more.
    pub(in crate::cells) fn settle_loans(&mut self) {
        (self.loans.has_news, self.loans.retry_ns) = (false, None);
        if self.loans.lending.loans().is_empty() && self.loans.ways.is_empty() {
            return;
        }
        let now = self.effects.now_ns();
        let lost = self.loans.lending.loans().iter().copied().filter(|loan| {
            let owner = self.inventory.cores.owner(loan.core);
            !self.loans.is_moving(loan.core) && owner != Some(CoreOwner::Cell(loan.borrower))
        });
        for loan in lost.collect::<Vec<Loan>>() {
            self.loans.go_back(loan, None, ReturnReason::Lost, now);
        }
        let going: Vec<CoreId> = self.loans.ways.iter().map(|way| way.core).collect();
        for core in going {
            // One by one, as a step may find that a cell has ended, and change the other transfers.
            let Some(way) = self.loans.way_of(core).copied() else { continue };
            match (self.inventory.cores.owner(core), way.from) {
                (Some(CoreOwner::Free | CoreOwner::OnItsWay(_)), _) => self.deliver(way),
                // The core is still being unplugged.
                (Some(CoreOwner::Cell(has)), Some(from)) if has == from && self.is_leaving(from, core) => {}
                (owner, _) => self.astray(way, owner),
            }
        }
        self.promise_cores();
    }

    /// Plugs a free core into its destination. The transfer exists until the arrival is recorded.
    fn deliver(&mut self, way: Way) {
        let core = way.core;
        // A destination with another core request in progress is asked again when that is complete.
        if way.to.cell().is_some_and(|to| self.is_resizing(to)) {
            return self.wait(way);
        }
        let name = way.to.cell().and_then(|to| self.name_of(to));
        self.inventory.cores.release(core);
        let came = name.map(|name| self.move_core(&name, Change::More(1), core));
        // The destination may have changed, if a cell was found to have ended.
        let Some(way) = self.loans.way_of(core).copied() else { return };
        match (way.to, came) {
            (To::Borrower(loan), Some(Ok(()))) => {
                self.loans.arrive(core);
                self.loans.lending.enter(loan);
                self.keep_up(loan.borrower);
                let from = loan.lender.and_then(|id| self.name_of(id));
                let lease_ns = loan.until_ns.saturating_sub(way.since_ns);
                self.note_loan(loan.borrower, way.since_ns, JournalEvent::Borrow { core, from, lease_ns });
            }
            (To::Borrower(loan), _) => {
                let event = JournalEvent::NotBorrowed { core: Some(core) };
                self.note_loan(loan.borrower, way.since_ns, event);
                let back = Way { to: To::Lender(loan, ReturnReason::Lost), ..way };
                self.loans.way_of(core).into_iter().for_each(|way| *way = back);
                self.deliver(back);
            }
            // The lender lacks memory for the core's stacks, or a core slot, as suspended contexts occupy the slots.
            (To::Lender(loan, _), Some(Err(_))) if loan.lender.is_some_and(|to| self.is_running(to)) => {
                self.wait(way);
                self.loans.retry_ns = Some(self.effects.now_ns().saturating_add(RETRY_NS));
            }
            (To::Lender(loan, why), came) => {
                self.loans.arrive(core);
                self.end_loan(core);
                self.keep_way(&way);
                let to = came.and_then(Result::ok).and(loan.lender).and_then(|id| self.name_of(id));
                self.note_loan(loan.borrower, way.since_ns, JournalEvent::Return { core, to, why });
            }
        }
    }

    /// Lets a free core wait until the next attempt. The loan of a core on its way back ends.
    fn wait(&mut self, way: Way) {
        self.loans.way_of(way.core).into_iter().for_each(|way| way.from = None);
        if matches!(way.to, To::Lender(..)) {
            self.end_loan(way.core);
        }
        self.promise_cores();
    }

    /// Ends the transfer of a core that was not unplugged, or has failed.
    fn astray(&mut self, way: Way, owner: Option<CoreOwner>) {
        self.loans.arrive(way.core);
        let event = match way.to {
            To::Borrower(_) => JournalEvent::NotBorrowed { core: Some(way.core) },
            // The loan continues as long as the borrower has the core, and the supervisor asks again.
            To::Lender(loan, _) if owner == Some(CoreOwner::Cell(loan.borrower)) => return,
            To::Lender(loan, why) => {
                self.end_loan(way.core);
                let kept = loan.lender.filter(|lender| owner == Some(CoreOwner::Cell(*lender)));
                JournalEvent::Return { core: way.core, to: kept.and_then(|id| self.name_of(id)), why }
            }
        };
        self.keep_way(&way);
        self.note_loan(way.to.loan().borrower, way.since_ns, event);
    }

    pub(super) fn move_core(
        &mut self,
        name: &str,
        change: Change<u32>,
        core: CoreId,
    ) -> Result<(), ManagementError> {
        let wanted = CoresWanted { change, ids: &[core], limit_ms: CORE_LIMIT_MS };
        self.resize_cores(name, &wanted, Mode::Apply).map(|_| ())
    }

    fn is_resizing(&self, id: CellId) -> bool {
        self.cells.get(&id).is_some_and(|cell| cell.moves.is_under_way())
    }

    pub(super) fn is_leaving(&self, id: CellId, core: CoreId) -> bool {
        self.cells.get(&id).is_some_and(|cell| cell.moves.is_leaving(core))
    }
}
