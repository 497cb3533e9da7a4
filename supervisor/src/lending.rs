//! The rules for core loans (RainForest 4.1). They use only priorities, numbers of cores to lend, and a clock. Those for
//! memory are in [`memory`].
//!
//! A cell's specification has a priority and the number of cores that it lends. A cell that requests a core gets, in
//! this order, one that it has lent, a free core, or a core of the lender with the lowest priority below its own, among
//! equals of the one with the most cores. The core returns when the lease ends, the borrower releases it, the lender
//! requests a core, or either cell ends. A lease can be extended until it ends.
//!
//! ```text
//!              request of the borrower                  end of lease, release, request of the lender
//!   lender's ─────────────────────────▶ borrower's, lent ──────────────────────────────────────────▶ lender's
//! ```
//!
//! Invariants: a core has at most one loan; a borrowed core is not lent on; a cell lends only to cells of higher
//! priority; a lender keeps at least one core, and lends no more than its number.
//!
//! This module decides and records the loans. A core transfer takes time, and either cell may end meanwhile: a loan is
//! entered when the borrower has the core, and removed when it no longer has it.

pub mod memory;

use alloc::vec::Vec;
use isola_abi::id::{CellId, CoreId};

/// A cell, as a party to lending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LendingParty {
    /// The cell.
    pub id: CellId,
    /// Its priority.
    pub priority: u8,
    /// The number of its cores, borrowed ones included.
    pub cores: u32,
    /// The most cores that it may have.
    pub most: u32,
    /// The most cores of its own that it lends at a time.
    pub lends: u32,
}

/// A core on loan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loan {
    /// The core.
    pub core: CoreId,
    /// The cell that owns the core; `None` if it was free.
    pub lender: Option<CellId>,
    /// The cell that has the core.
    pub borrower: CellId,
    /// The end of the lease, in ns.
    pub until_ns: u64,
    /// The time at which the supervisor requests the core, in ns: the end of the lease, and later times if the borrower
    /// has not released the core.
    pub due_ns: u64,
}

impl Loan {
    /// Returns a loan of the core with this lease.
    pub const fn new(core: CoreId, lender: Option<CellId>, borrower: CellId, until_ns: u64) -> Self {
        Self { core, lender, borrower, until_ns, due_ns: until_ns }
    }
}

/// The source of a requested core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The cell owns the core and has lent it.
    Recalled(Loan),
    /// The free cores.
    Free,
    /// This cell lends a core.
    Lender(CellId),
}

/// The reason why a cell gets no core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The cell has as many cores as it may have, or its lent cores are returning already.
    Limit,
    /// No cell of lower priority lends a core.
    NoLender,
}

/// The loans.
#[derive(Clone, Debug, Default)]
pub struct Lending {
    loans: Vec<Loan>,
}

impl Lending {
    /// Returns no loans.
    pub const fn new() -> Self {
        Self { loans: Vec::new() }
    }

    /// Returns all loans, the oldest first.
    pub fn loans(&self) -> &[Loan] {
        &self.loans
    }

    /// Returns the source of a core for the borrower `who`, given the running cells and the number of free cores.
    /// `moves` says whether a core is in transfer; a lent core that is in transfer is returning already.
    ///
    /// # Errors
    /// Returns a [`Denial`] if there is none.
    pub fn source(
        &self,
        who: CellId,
        parties: &[LendingParty],
        free: u32,
        moves: impl Fn(CoreId) -> bool,
    ) -> Result<Source, Denial> {
        let Some(party) = parties.iter().find(|party| party.id == who && party.cores < party.most) else {
            return Err(Denial::Limit);
        };
        let mut lent = self.loans.iter().copied().filter(|loan| loan.lender == Some(who)).peekable();
        if lent.peek().is_some() {
            return lent.find(|loan| !moves(loan.core)).map(Source::Recalled).ok_or(Denial::Limit);
        }
        if free > 0 {
            return Ok(Source::Free);
        }
        let lenders =
            parties.iter().filter(|lender| lender.priority < party.priority && self.can_lend(lender));
        let first = lenders.min_by_key(|lender| (lender.priority, u32::MAX - lender.cores, lender.id));
        first.map(|lender| Source::Lender(lender.id)).ok_or(Denial::NoLender)
    }

    /// Returns whether a cell has a core to lend.
    fn can_lend(&self, party: &LendingParty) -> bool {
        let borrowed = self.borrowed(party.id).count() as u32;
        let lent = self.loans.iter().filter(|loan| loan.lender == Some(party.id)).count() as u32;
        lent < party.lends && party.cores.saturating_sub(borrowed) > 1
    }

    /// Returns the loans to a borrower.
    pub fn borrowed(&self, borrower: CellId) -> impl DoubleEndedIterator<Item = Loan> {
        self.loans.iter().copied().filter(move |loan| loan.borrower == borrower)
    }

    /// Returns whether the core is on loan.
    pub fn is_lent(&self, core: CoreId) -> bool {
        self.loans.iter().any(|loan| loan.core == core)
    }

    /// Enters a loan whose core the borrower has. Replaces an earlier loan of the core.
    pub fn enter(&mut self, loan: Loan) {
        self.end(loan.core);
        self.loans.push(loan);
    }

    /// Removes the loan of a core that the borrower no longer has, or now owns.
    pub fn end(&mut self, core: CoreId) -> Option<Loan> {
        let place = self.loans.iter().position(|loan| loan.core == core)?;
        Some(self.loans.remove(place))
    }

    /// Handles the end of a cell: removes and returns the loans to it, and removes it as a lender.
    pub fn cell_ended(&mut self, id: CellId) -> Vec<Loan> {
        let over = self.borrowed(id).collect();
        self.loans.retain(|loan| loan.borrower != id);
        self.lender_ended(id);
        over
    }

    /// Removes the cell as the lender of its loans.
    pub fn lender_ended(&mut self, id: CellId) {
        self.loans.iter_mut().filter(|loan| loan.lender == Some(id)).for_each(|loan| loan.lender = None);
    }

    /// Ends the leases of all cores that the cell has lent.
    pub fn recall_all(&mut self, lender: CellId, now_ns: u64) {
        let lent = self.loans.iter_mut().filter(|loan| loan.lender == Some(lender));
        lent.for_each(|loan| (loan.until_ns, loan.due_ns) = (now_ns, now_ns));
    }

    /// Extends the lease of a core to `until_ns` and returns the loan; never shortens it. Returns `None` if the cell has
    /// not borrowed the core, or the lease has ended.
    pub fn renew(&mut self, borrower: CellId, core: CoreId, now_ns: u64, until_ns: u64) -> Option<Loan> {
        let mut borrowed = self.loans.iter_mut().filter(|loan| loan.borrower == borrower);
        let loan = borrowed.find(|loan| loan.core == core && loan.until_ns > now_ns)?;
        loan.until_ns = loan.until_ns.max(until_ns);
        loan.due_ns = loan.until_ns;
        Some(*loan)
    }

    /// Postpones the next request for a core whose lease has ended, and which cannot return yet.
    pub fn put_off(&mut self, core: CoreId, due_ns: u64) {
        let loan = self.loans.iter_mut().find(|loan| loan.core == core);
        loan.into_iter().for_each(|loan| loan.due_ns = due_ns);
    }

    /// Returns the loan whose core has been due longest, if any is due.
    pub fn due(&self, now_ns: u64) -> Option<Loan> {
        self.loans.iter().copied().filter(|loan| loan.due_ns <= now_ns).min_by_key(|loan| loan.due_ns)
    }

    /// Returns the time at which the next core is due.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.loans.iter().map(|loan| loan.due_ns).min()
    }
}

#[cfg(test)]
mod tests;
