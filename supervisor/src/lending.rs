//! Who lends cores to whom, and until when (RainForest 4.1): rules that need no figures, only priorities and a clock.
//!
//! A cell says in its specification how important it is, and how many of its cores it lends. One that requests for a core gets,
//! in this order, what it has lent itself, a core that nobody has, or one of a cell of lower priority that lends: of the
//! lowest, and among several the one with most cores. It is a loan: the core goes back when the lease ends, when the borrower
//! offers it, when the lender requests for it, or when either ends.
//!
//! ```text
//!             request of the borrower                    lease over, offer, request of the lender
//!   lender's ─────────────────────▶ borrower's, lent ──────────────────────────────────────▶ lender's
//! ```
//!
//! What holds whatever happens: a core is lent once at a time; what is borrowed is not lent on; nobody lends to whom is not
//! more important; a lender keeps a core at least, and has lent no more than it said.
//!
//! Here is what is decided, and the loans are kept. Moving cores takes time, in which much can happen: a loan is entered when
//! the borrower has the core, and forgotten when it has it no longer.

use alloc::vec::Vec;
use isola_abi::id::{CellId, CoreId};

/// A cell, as far as lending goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Party {
    /// Which.
    pub id: CellId,
    /// How important it is.
    pub priority: u8,
    /// Cores that it has, borrowed ones included.
    pub cores: u32,
    /// The most that it may have.
    pub most: u32,
    /// The most of its own that may be lent at a time.
    pub lends: u32,
}

/// A core that a cell has for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loan {
    /// The core.
    pub core: CoreId,
    /// Whose it is; nobody's, where it was free.
    pub lender: Option<CellId>,
    /// Who has it.
    pub borrower: CellId,
    /// When it is to go back, in ns.
    pub until_ns: u64,
}

/// Where a core that a cell requests for comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// It is the cell's own, and lent.
    Recalled(Loan),
    /// Nobody has it.
    Free,
    /// This cell lends it.
    Lender(CellId),
}

/// Why a cell that requests for a core gets none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// It has as many as it may have, or what it has lent is on its way back.
    Limit,
    /// Nobody less important lends one.
    NoLender,
}

/// The loans.
#[derive(Clone, Debug, Default)]
pub struct Lending {
    loans: Vec<Loan>,
}

impl Lending {
    /// No loans.
    pub const fn new() -> Self {
        Self { loans: Vec::new() }
    }

    /// All loans, the oldest first.
    pub fn loans(&self) -> &[Loan] {
        &self.loans
    }

    /// Where a core for the cell `who` would come from, of these cells and so many free cores. A lent core that moves already
    /// is on its way back, and nobody has to do anything for it.
    ///
    /// # Errors
    /// [`Denial`].
    pub fn source(
        &self,
        who: CellId,
        parties: &[Party],
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

    /// Whether a cell has a core to lend.
    fn can_lend(&self, party: &Party) -> bool {
        let borrowed = self.borrowed(party.id).count() as u32;
        let lent = self.loans.iter().filter(|loan| loan.lender == Some(party.id)).count() as u32;
        lent < party.lends && party.cores.saturating_sub(borrowed) > 1
    }

    /// What a cell has borrowed.
    pub fn borrowed(&self, borrower: CellId) -> impl DoubleEndedIterator<Item = Loan> {
        self.loans.iter().copied().filter(move |loan| loan.borrower == borrower)
    }

    /// Whether that core is lent.
    pub fn is_lent(&self, core: CoreId) -> bool {
        self.loans.iter().any(|loan| loan.core == core)
    }

    /// Enters a loan: the borrower has the core now. One of the same core before is over.
    pub fn enter(&mut self, loan: Loan) {
        self.end(loan.core);
        self.loans.push(loan);
    }

    /// Ends the loan of a core: the borrower has it no longer, or it is its own from now on.
    pub fn end(&mut self, core: CoreId) -> Option<Loan> {
        let place = self.loans.iter().position(|loan| loan.core == core)?;
        Some(self.loans.remove(place))
    }

    /// The loans of a cell that has ended: what it had borrowed is over, and returned; what it had lent has no lender any more.
    pub fn cell_ended(&mut self, id: CellId) -> Vec<Loan> {
        let over = self.borrowed(id).collect();
        self.loans.retain(|loan| loan.borrower != id);
        self.lender_ended(id);
        over
    }

    /// What that cell had lent has no lender any more.
    pub fn lender_ended(&mut self, id: CellId) {
        self.loans.iter_mut().filter(|loan| loan.lender == Some(id)).for_each(|loan| loan.lender = None);
    }

    /// What that cell has lent goes back: its leases are over.
    pub fn recall_all(&mut self, lender: CellId, now_ns: u64) {
        let lent = self.loans.iter_mut().filter(|loan| loan.lender == Some(lender));
        lent.for_each(|loan| loan.until_ns = now_ns);
    }

    /// Puts the end of a loan off to then: the core cannot go back yet.
    pub fn put_off(&mut self, core: CoreId, until_ns: u64) {
        let loan = self.loans.iter_mut().find(|loan| loan.core == core);
        loan.into_iter().for_each(|loan| loan.until_ns = until_ns);
    }

    /// A loan that is over by now, by its lease.
    pub fn due(&self, now_ns: u64) -> Option<Loan> {
        self.loans.iter().copied().filter(|loan| loan.until_ns <= now_ns).min_by_key(|loan| loan.until_ns)
    }

    /// When the next lease ends.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.loans.iter().map(|loan| loan.until_ns).min()
    }
}

#[cfg(test)]
mod tests;
