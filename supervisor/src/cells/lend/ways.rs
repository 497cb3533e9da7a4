//! Cores on their way from one cell to another, and the loans that are entered.
//!
//! A core takes its time between two cells, in which much can happen: either may end, or the supervisor. From when it is
//! asked for until it is there, the inventory has *promised* it to where it goes, and what is lent to whose it is: so a core
//! that comes free, whatever the reason, is nobody else's for a moment. What is promised follows from ways and loans, and is
//! told to the inventory whenever these change.

use crate::cells::Cells;
use crate::cells::moves::CoresWanted;
use crate::effects::Effects;
use crate::lending::{Lending, Loan};
use alloc::vec::Vec;
use isola_abi::id::{CellId, CoreId};
use isola_abi::management::{
    CORE_LIMIT_MS, Change, CoreOwner, JournalEvent, ManagementError, Mode, ReturnReason,
};

/// After how long a lender is sent its core again that could not take it, in ns.
const RETRY_NS: u64 = 1_000_000_000;

/// The loans, and the cores on their way.
#[derive(Debug)]
pub(in crate::cells) struct Loans {
    pub(super) lending: Lending,
    /// At most one for each core.
    pub(super) ways: Vec<Way>,
    /// Whether there are cores on their way that the next tick looks at.
    pub(super) has_news: bool,
    /// When a lender is sent its core again that could not take it.
    retry_ns: Option<u64>,
}

/// A core on its way from one cell to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub(super) core: CoreId,
    /// Who has it until it is free; `None`: it is free.
    pub(super) from: Option<CellId>,
    pub(super) to: To,
    pub(super) since_ns: u64,
}

/// Where a core goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum To {
    /// To a borrower.
    Borrower(Loan),
    /// To its lender, where there is one.
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

/// What becomes of a cell that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cells) enum Afterwards {
    /// Nothing, unless somebody asks for it.
    Nothing,
    /// It is started again by its policy, and needs all its cores.
    Restart,
}

impl Loans {
    pub(in crate::cells) const fn new() -> Self {
        Self { lending: Lending::new(), ways: Vec::new(), has_news: false, retry_ns: None }
    }

    /// When a lease ends or a lender is to be sent a core again, or at once where there is something to look at.
    pub(in crate::cells) fn deadline_ns(&self) -> Option<u64> {
        let next = self.lending.next_deadline_ns().into_iter().chain(self.retry_ns).min();
        if self.has_news { Some(0) } else { next }
    }

    /// A cell has ended: what it had borrowed goes back, and what it had lent goes to nobody; at once, where it needs it
    /// itself. Returns the loans that come to nothing.
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
            // Started again it has all its cores.
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

    /// What that cell had lent is nobody's when it goes back; that is at once, where the cell needs it itself.
    pub(super) fn lender_ended(&mut self, id: CellId, then: Afterwards, now: u64) {
        if then == Afterwards::Restart {
            self.lending.recall_all(id, now);
        }
        self.lending.lender_ended(id);
    }

    /// A core that is lent goes back; `from` has it until it is free.
    pub(super) fn go_back(&mut self, loan: Loan, from: Option<CellId>, why: ReturnReason, since_ns: u64) {
        self.ways.push(Way { core: loan.core, from, to: To::Lender(loan, why), since_ns });
    }

    /// The way of a core.
    fn way_of(&mut self, core: CoreId) -> Option<&mut Way> {
        self.ways.iter_mut().find(|way| way.core == core)
    }

    /// A core is not on its way any more.
    pub(super) fn arrive(&mut self, core: CoreId) {
        self.ways.retain(|way| way.core != core);
    }

    /// The loans of that lender's.
    pub(super) fn lent(&self, lender: CellId) -> impl Iterator<Item = Loan> {
        let entered = self.lending.loans().iter().copied().filter(move |loan| loan.lender == Some(lender));
        entered.chain(self.unentered(lender))
    }

    /// The loans of that lender's whose cores are on their way, and not entered: not yet, or not any more.
    pub(super) fn unentered(&self, lender: CellId) -> impl Iterator<Item = Loan> {
        let loans = self.ways.iter().map(|way| *way.to.loan());
        loans.filter(move |loan| loan.lender == Some(lender) && !self.lending.is_lent(loan.core))
    }

    /// The loans of that borrower's that are about to be entered, of cores that nobody had.
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

    /// Whether a core is on its way to a cell that borrows it.
    pub(super) fn is_coming_to(&self, id: CellId) -> bool {
        self.ways.iter().any(|way| matches!(way.to, To::Borrower(loan) if loan.borrower == id))
    }

    /// Who is to have each core that goes, or that is lent, once it is free.
    fn promised(&self) -> Vec<(CoreId, CellId)> {
        let going = self.ways.iter().filter_map(|way| Some((way.core, way.to.cell()?)));
        let lent = self.lending.loans().iter().filter(|loan| !self.is_moving(loan.core));
        going.chain(lent.filter_map(|loan| Some((loan.core, loan.lender?)))).collect()
    }
}

impl<E: Effects> Cells<E> {
    /// A core goes: it is to be asked for, or is free.
    pub(super) fn set_out(&mut self, way: Way) {
        self.loans.ways.push(way);
        self.promise_cores();
        self.keep_way(&way);
    }

    /// A core that was to go does not.
    pub(super) fn call_off(&mut self, way: Way) {
        self.loans.arrive(way.core);
        self.promise_cores();
        self.keep_way(&way);
    }

    /// Takes note that a core is lent, or not any more: with its lender; or, where nobody had it, with its borrower, who is to
    /// have it for a while and not for good.
    fn keep_way(&mut self, way: &Way) {
        let loan = way.to.loan();
        self.keep_up(loan.lender.unwrap_or(loan.borrower));
    }

    /// Tells the inventory who is to have which core.
    pub(super) fn promise_cores(&mut self) {
        self.inventory.cores.promise(&self.loans.promised());
    }

    /// A cell has ended that may have lent or borrowed cores.
    pub(in crate::cells) fn lending_ended(&mut self, id: CellId, then: Afterwards) {
        let now = self.effects.now_ns();
        for loan in self.loans.cell_ended(id, then, now) {
            self.note_loan(loan.borrower, now, JournalEvent::NotBorrowed { core: Some(loan.core) });
        }
        self.promise_cores();
        // What it lent, they have of nobody now.
        let going = self.loans.ways.iter().map(|way| way.to.loan().borrower);
        let lent = self.loans.lending.loans().iter().map(|loan| loan.borrower);
        let borrowers: Vec<CellId> = going.chain(lent).collect();
        borrowers.into_iter().for_each(|borrower| self.keep_up(borrower));
    }

    /// A core of a cell that runs has come free. One that is to go to nobody is there, and whoever gets it next, be it the
    /// same cell, has it for good.
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

    /// Sends on the cores that have come free, and takes note of loans that are over otherwise.
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
            // One by one, as a cell may be found to have ended meanwhile.
            let Some(way) = self.loans.way_of(core).copied() else { continue };
            match (self.inventory.cores.owner(core), way.from) {
                (Some(CoreOwner::Free | CoreOwner::OnItsWay(_)), _) => self.deliver(way),
                // It has not come free yet, and is still to.
                (Some(CoreOwner::Cell(has)), Some(from)) if has == from && self.is_leaving(from, core) => {}
                (owner, _) => self.astray(way, owner),
            }
        }
        self.promise_cores();
    }

    /// Sends a core that is free to where it goes. It is on its way until it is noted that it is there.
    fn deliver(&mut self, way: Way) {
        let core = way.core;
        // Who has just been given another is waited for.
        if way.to.cell().is_some_and(|to| self.is_resizing(to)) {
            return self.wait(way);
        }
        let name = way.to.cell().and_then(|to| self.name_of(to));
        self.inventory.cores.release(core);
        let came = name.map(|name| self.move_core(&name, Change::More(1), core));
        // Elsewhere, where a cell was found to have ended.
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
            // For want of memory for its stacks, or as all its places are taken by what is still to end there.
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

    /// A core that is free waits to go on.
    fn wait(&mut self, way: Way) {
        self.loans.way_of(way.core).into_iter().for_each(|way| way.from = None);
        if matches!(way.to, To::Lender(..)) {
            self.end_loan(way.core);
        }
        self.promise_cores();
    }

    /// A core did not come free, or has failed.
    fn astray(&mut self, way: Way, owner: Option<CoreOwner>) {
        self.loans.arrive(way.core);
        let event = match way.to {
            To::Borrower(_) => JournalEvent::NotBorrowed { core: Some(way.core) },
            // As long as the borrower has it, it is a loan, and asked for again.
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
