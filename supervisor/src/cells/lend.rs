//! Cores that cells have for a while: borrowed, on their way, and back (RainForest 4.1).
//!
//! Who lends is [`crate::lending`]'s to say; how a core moves, the neighbour's, `moves`. What is here follows a core from the
//! one cell to the other. That takes time, and much can happen in it: so every step looks where the core *is*, in the
//! inventory, which alone says whose a core is. A core that somebody else has got meanwhile is nobody's loan any more.
//!
//! ```text
//!   borrow ── lender asked for it ──▶ free ──▶ sent to the borrower: a loan
//!   (asked for, or wished by the cell's own cores as their events wait)
//!   lease over, given back, recalled ── borrower asked for it ──▶ free ──▶ sent to the lender, where it runs
//! ```

use super::cell::{Body, Cell, Run};
use super::moves::{CoresResize, CoresWanted};
use super::{Cells, shorten};
use crate::effects::Effects;
use crate::inventory::CoreToken;
use crate::lending::{Denial, Lending, Loan, Party, Source};
use crate::report;
use alloc::string::String;
use alloc::vec::Vec;
use isola_abi::id::{CellId, CoreId};
use isola_abi::management::{
    CORE_LIMIT_MS, Change, CoreOwner, JournalEvent, LoanInfo, MAX_LEASE_MS, ManagementError, Mode,
    ReturnReason,
};

/// How long a borrower that did not give a core back when it was asked has it until it is asked again, in ns.
const ASK_AGAIN_NS: u64 = 20_000_000;

/// After how long a lender is sent its core again that could not take it, in ns.
const RETRY_NS: u64 = 1_000_000_000;

/// How long a cell has a core that it wished for itself, in ms.
const WISH_LEASE_MS: u32 = 1_000;

/// The loans, and the cores on their way.
#[derive(Debug)]
pub(super) struct Loans {
    lending: Lending,
    /// At most one for each core.
    ways: Vec<Way>,
    /// Whether a cell has ended that had or has lent cores: what becomes of them is looked at with the next tick.
    has_news: bool,
    /// When a lender is sent its core again that could not take it.
    retry_ns: Option<u64>,
}

/// A core on its way from one cell to another.
#[derive(Clone, Copy, Debug)]
struct Way {
    core: CoreId,
    /// Who has it until it is free; `None`: it is free.
    from: Option<CellId>,
    to: To,
    since_ns: u64,
}

/// Where a core goes.
#[derive(Clone, Copy, Debug)]
enum To {
    /// To a borrower.
    Borrower(Loan),
    /// To its lender, where there is one.
    Lender(Loan, ReturnReason),
}

/// What is to be known again of a loan beside who has borrowed: the core, whose it is, and until when.
pub(super) type KeptLoan = (CoreId, Option<CellId>, u64);

impl Loans {
    pub(super) const fn new() -> Self {
        Self { lending: Lending::new(), ways: Vec::new(), has_news: false, retry_ns: None }
    }

    /// When a lease ends or a lender is to be sent a core again, or at once where there is something to look at.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        let next = self.lending.next_deadline_ns().into_iter().chain(self.retry_ns).min();
        if self.has_news { Some(0) } else { next }
    }

    /// What is to be known again of what a cell has borrowed: at most as much as a machine has cores.
    pub(super) fn kept(&self, borrower: CellId) -> Vec<KeptLoan> {
        self.lending.borrowed(borrower).map(|loan| (loan.core, loan.lender, loan.until_ns)).collect()
    }

    /// Takes up what a supervisor before this one has entered, of cores that the borrower has.
    pub(super) fn resume(&mut self, borrower: CellId, kept: impl Iterator<Item = KeptLoan>, now: u64) {
        let longest_ns = now.saturating_add(u64::from(MAX_LEASE_MS) * 1_000_000);
        for (core, lender, until_ns) in kept {
            self.lending.enter(Loan { core, lender, borrower, until_ns: until_ns.min(longest_ns) });
        }
    }

    /// A cell has ended: what it had borrowed goes back, and what it had lent goes to nobody.
    pub(super) fn cell_ended(&mut self, id: CellId, now: u64) {
        for loan in self.lending.cell_ended(id) {
            if !self.is_moving(loan.core) {
                let to = To::Lender(loan, ReturnReason::Lost);
                self.ways.push(Way { core: loan.core, from: None, to, since_ns: now });
            }
        }
        for Way { to: To::Borrower(loan) | To::Lender(loan, _), .. } in &mut self.ways {
            // Started again it has all its cores.
            loan.lender = loan.lender.filter(|lender| *lender != id);
        }
        self.has_news = !self.ways.is_empty();
    }

    /// The cores of that lender's that are on their way, and not entered as lent: not yet, or not any more.
    fn unentered(&self, lender: CellId) -> usize {
        let mut count = 0;
        for Way { core, to: To::Borrower(loan) | To::Lender(loan, _), .. } in &self.ways {
            count += usize::from(loan.lender == Some(lender) && !self.lending.is_lent(*core));
        }
        count
    }

    fn is_moving(&self, core: CoreId) -> bool {
        self.ways.iter().any(|way| way.core == core)
    }
}

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
        if self.loans.ways.iter().any(|way| matches!(way.to, To::Borrower(loan) if loan.borrower == id)) {
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
        if lender.is_some() {
            self.move_core(&who, change, core)?;
        }
        self.loans.ways.push(Way { core, from: lender, to: To::Borrower(loan), since_ns });
        self.settle_loans();
        Ok(self.loan_info(&loan))
    }

    /// Borrows a core for a live cell whose own cores wish for one, where there is a new wish and somebody lends.
    pub(super) fn grant_core(&mut self, id: CellId) {
        let Some(cell) = self.cells.get_mut(&id).filter(|cell| cell.spec.lending.borrow_above_us > 0) else {
            return;
        };
        let Body::Held(held) = &cell.body else { return };
        let wishes = report::core_wishes(self.effects.report(&held.space));
        if core::mem::replace(&mut cell.core_wishes, wishes) != wishes {
            let name = cell.spec.name.clone();
            // It wishes again as long as its events wait.
            let _ = self.borrow(&name, WISH_LEASE_MS);
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

    /// Forgets the lenders that are no cells any more.
    pub(super) fn forget_lenders(&mut self) {
        let lenders = self.loans.lending.loans().iter().filter_map(|loan| loan.lender);
        let gone: Vec<CellId> = lenders.filter(|id| !self.cells.contains_key(id)).collect();
        gone.into_iter().for_each(|id| self.loans.lending.lender_ended(id));
    }

    /// Ends the loan of a core.
    fn end_loan(&mut self, core: CoreId) {
        if let Some(loan) = self.loans.lending.end(core) {
            self.keep_up(loan.borrower);
        }
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

    /// Sends on the cores that have come free, and takes note of loans that are over otherwise.
    pub(super) fn settle_loans(&mut self) {
        (self.loans.has_news, self.loans.retry_ns) = (false, None);
        if self.loans.lending.loans().is_empty() && self.loans.ways.is_empty() {
            return;
        }
        let now = self.effects.now_ns();
        let owners: Vec<(CoreId, CoreOwner)> =
            self.inventory.cores.info().into_iter().map(|core| (core.id, core.owner)).collect();
        let owner = |core: CoreId| owners.iter().find(|(id, _)| *id == core).map(|(_, owner)| owner);
        let lost: Vec<Loan> = self
            .loans
            .lending
            .loans()
            .iter()
            .copied()
            .filter(|loan| {
                !self.loans.is_moving(loan.core) && owner(loan.core) != Some(&CoreOwner::Cell(loan.borrower))
            })
            .collect();
        for loan in lost {
            self.end_loan(loan.core);
            let to = To::Lender(loan, ReturnReason::Lost);
            self.loans.ways.push(Way { core: loan.core, from: None, to, since_ns: now });
        }
        for way in core::mem::take(&mut self.loans.ways) {
            match (owner(way.core), way.from) {
                (Some(CoreOwner::Free), _) => self.deliver(way),
                // It has not come free yet, and is still to.
                (Some(CoreOwner::Cell(has)), Some(from)) if *has == from && self.is_resizing(from) => {
                    self.loans.ways.push(way);
                }
                (owner, _) => self.astray(way, owner),
            }
        }
    }

    /// Sends a core that is free to where it goes.
    fn deliver(&mut self, way: Way) {
        let to = match way.to {
            To::Borrower(loan) => Some(loan.borrower),
            To::Lender(loan, _) => {
                self.end_loan(way.core);
                loan.lender
            }
        };
        // Who has just been given another is waited for.
        if to.is_some_and(|to| self.is_resizing(to)) {
            self.loans.ways.push(Way { from: None, ..way });
            return;
        }
        let came =
            to.and_then(|to| self.name_of(to)).map(|name| self.move_core(&name, Change::More(1), way.core));
        match (way.to, came) {
            (To::Borrower(loan), Some(Ok(()))) => {
                self.loans.lending.enter(loan);
                self.keep_up(loan.borrower);
                let from = loan.lender.and_then(|id| self.name_of(id));
                let lease_ns = loan.until_ns.saturating_sub(way.since_ns);
                self.note_loan(
                    loan.borrower,
                    way.since_ns,
                    JournalEvent::Borrow { core: way.core, from, lease_ns },
                );
            }
            (To::Borrower(loan), _) => {
                self.note_loan(
                    loan.borrower,
                    way.since_ns,
                    JournalEvent::NotBorrowed { core: Some(way.core) },
                );
                let to = To::Lender(loan, ReturnReason::Lost);
                self.deliver(Way { to, ..way });
            }
            // For want of memory for its stacks, or as all its places are taken by what is still to end there.
            (To::Lender(..), Some(Err(_))) if to.is_some_and(|to| self.is_running(to)) => {
                self.loans.ways.push(Way { from: None, ..way });
                self.loans.retry_ns = Some(self.effects.now_ns().saturating_add(RETRY_NS));
            }
            (To::Lender(loan, why), came) => {
                let to = came.and_then(Result::ok).and(loan.lender).and_then(|id| self.name_of(id));
                self.note_loan(loan.borrower, way.since_ns, JournalEvent::Return { core: way.core, to, why });
            }
        }
    }

    /// A core did not come free, or somebody else has got it.
    fn astray(&mut self, way: Way, owner: Option<&CoreOwner>) {
        let event = match way.to {
            To::Borrower(_) => JournalEvent::NotBorrowed { core: Some(way.core) },
            // As long as the borrower has it, it is a loan, and asked for again.
            To::Lender(loan, _) if owner == Some(&CoreOwner::Cell(loan.borrower)) => return,
            To::Lender(_, why) => {
                self.end_loan(way.core);
                JournalEvent::Return { core: way.core, to: None, why }
            }
        };
        let (To::Borrower(loan) | To::Lender(loan, _)) = way.to;
        self.note_loan(loan.borrower, way.since_ns, event);
    }

    /// Asks the borrower of a core for it.
    fn send_back(&mut self, loan: Loan, why: ReturnReason, since_ns: u64) -> Result<(), ManagementError> {
        let name = self.name_of(loan.borrower).unwrap_or_default();
        self.move_core(&name, Change::Less(1), loan.core)?;
        let (core, from, to) = (loan.core, Some(loan.borrower), To::Lender(loan, why));
        self.loans.ways.push(Way { core, from, to, since_ns });
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

    /// The cores that nobody has, and that are on their way to nobody.
    fn free_cores(&self) -> Vec<CoreId> {
        let cores = self.inventory.cores.info().into_iter();
        let free = cores.filter(|core| core.owner == CoreOwner::Free && !self.loans.is_moving(core.id));
        free.map(|core| core.id).collect()
    }

    fn move_core(&mut self, name: &str, change: Change<u32>, core: CoreId) -> Result<(), ManagementError> {
        let wanted = CoresWanted { change, ids: &[core], limit_ms: CORE_LIMIT_MS };
        self.resize_cores(name, &wanted, Mode::Apply).map(|_| ())
    }

    fn is_running(&self, id: CellId) -> bool {
        self.cells.get(&id).is_some_and(|cell| matches!(cell.run, Run::Running { .. }))
    }

    fn is_resizing(&self, id: CellId) -> bool {
        self.cells.get(&id).is_some_and(|cell| cell.moves.is_under_way())
    }

    /// The running cells, as far as lending goes.
    fn parties(&self) -> Vec<Party> {
        let most = self.inventory.cores.count_for_cells() as u32;
        let party = |cell: &Cell<E>| Party {
            id: cell.id,
            priority: cell.spec.lending.priority,
            cores: cell.core_count() as u32,
            most,
            lends: cell.spec.lending.lends.saturating_sub(self.loans.unentered(cell.id) as u32),
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

    fn name_of(&self, id: CellId) -> Option<String> {
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
