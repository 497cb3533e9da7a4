//! Who lends cores to whom, and until when (RainForest 4.1): rules that need no figures, only priorities and a clock.
//!
//! A cell says in its specification how important it is, and how many of its cores it lends. One that wishes for a core gets,
//! in this order, what it has lent itself, a core that nobody has, or one of a cell of lower priority that lends: of the
//! lowest, and among several the one with most cores. It is a loan: the core goes back when the lease ends, when the borrower
//! offers it, when the lender wishes for it, or when either ends.
//!
//! ```text
//!             wish of the borrower                    lease over, offer, wish of the lender
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

/// Where a core that a cell wishes for comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// It is the cell's own, and lent.
    Recalled(Loan),
    /// Nobody has it.
    Free,
    /// This cell lends it.
    Lender(CellId),
}

/// Why a cell that wishes for a core gets none.
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
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn party(id: u32, priority: u8, cores: u32, lends: u32) -> Party {
        Party { id: CellId(id), priority, cores, most: 8, lends }
    }

    fn loan(core: u32, lender: Option<u32>, borrower: u32, until_ns: u64) -> Loan {
        Loan { core: CoreId(core), lender: lender.map(CellId), borrower: CellId(borrower), until_ns }
    }

    #[test]
    fn a_core_comes_from_the_least_important_lender_that_has_most() {
        let parties =
            [party(1, 9, 1, 0), party(2, 3, 4, 2), party(3, 1, 2, 1), party(4, 1, 3, 1), party(5, 0, 5, 0)];
        let lending = Lending::new();
        assert_eq!(lending.source(CellId(1), &parties, 0, |_| false), Ok(Source::Lender(CellId(4))));
        assert_eq!(
            lending.source(CellId(1), &parties, 1, |_| false),
            Ok(Source::Free),
            "nobody has to give it up"
        );
        assert_eq!(
            lending.source(CellId(4), &parties, 0, |_| false),
            Err(Denial::NoLender),
            "cell 3 is as important"
        );
        assert_eq!(lending.source(CellId(9), &parties, 1, |_| false), Err(Denial::Limit));
    }

    #[test]
    fn a_lender_lends_no_more_than_it_said_and_keeps_a_core() {
        let mut lending = Lending::new();
        let mut parties = [party(1, 9, 1, 0), party(2, 1, 3, 1)];
        lending.enter(loan(7, Some(2), 1, 100));
        (parties[0].cores, parties[1].cores) = (2, 2);
        assert_eq!(lending.source(CellId(1), &parties, 0, |_| false), Err(Denial::NoLender));
        parties[1] = party(2, 1, 1, 5);
        assert_eq!(lending.source(CellId(1), &parties, 0, |_| false), Err(Denial::NoLender));
    }

    #[test]
    fn who_has_lent_a_core_gets_that_back_first() {
        let mut lending = Lending::new();
        let parties = [party(1, 9, 2, 0), party(2, 1, 2, 2)];
        let first = loan(7, Some(2), 1, 100);
        lending.enter(first);
        lending.enter(loan(8, Some(2), 1, 50));
        assert_eq!(lending.source(CellId(2), &parties, 3, |_| false), Ok(Source::Recalled(first)));
        let second = loan(8, Some(2), 1, 50);
        let moves = |core: CoreId| core == first.core;
        assert_eq!(lending.source(CellId(2), &parties, 3, moves), Ok(Source::Recalled(second)));
        assert_eq!(lending.source(CellId(2), &parties, 3, |_| true), Err(Denial::Limit), "both come");
    }

    #[test]
    fn loans_end_with_their_lease_and_with_either_cell() {
        let mut lending = Lending::new();
        lending.enter(loan(7, Some(2), 1, 100));
        lending.enter(loan(8, Some(2), 3, 50));
        assert_eq!((lending.next_deadline_ns(), lending.due(49)), (Some(50), None));
        assert_eq!(lending.due(200), Some(loan(8, Some(2), 3, 50)));
        assert_eq!(lending.cell_ended(CellId(2)), []);
        assert_eq!(lending.cell_ended(CellId(3)), [loan(8, None, 3, 50)]);
        assert_eq!(lending.end(CoreId(7)), Some(loan(7, None, 1, 100)));
        assert_eq!(lending.loans(), []);
    }

    /// A machine of eight cores and four cells, whose owners are kept beside the loans.
    struct Machine {
        lending: Lending,
        /// Who has each core.
        owners: Vec<Option<CellId>>,
        parties: Vec<Party>,
        now_ns: u64,
    }

    impl Machine {
        fn new() -> Self {
            let parties = vec![party(0, 0, 3, 2), party(1, 1, 2, 1), party(2, 2, 1, 1), party(3, 2, 1, 0)];
            let owners = [0, 0, 0, 1, 1, 2, 3].map(|id| Some(CellId(id)));
            let owners = owners.into_iter().chain([None]).collect();
            Self { lending: Lending::new(), owners, parties, now_ns: 0 }
        }

        fn give(&mut self, core: CoreId, to: Option<CellId>) {
            self.owners[core.0 as usize] = to;
            for party in &mut self.parties {
                party.cores = self.owners.iter().filter(|owner| **owner == Some(party.id)).count() as u32;
            }
        }

        /// A core of that owner's that is not lent to it.
        fn own(&self, owner: Option<CellId>) -> CoreId {
            let mut cores = (0..).map(CoreId).zip(&self.owners);
            cores.find(|(core, has)| **has == owner && !self.lending.is_lent(*core)).unwrap().0
        }

        fn wish(&mut self, who: CellId) {
            let free = self.owners.iter().filter(|owner| owner.is_none()).count() as u32;
            let until_ns = self.now_ns + 10;
            match self.lending.source(who, &self.parties, free, |_| false) {
                Ok(Source::Recalled(loan)) => self.give_back(loan),
                Ok(Source::Free) => self.lend(self.own(None), None, who, until_ns),
                Ok(Source::Lender(lender)) => self.lend(self.own(Some(lender)), Some(lender), who, until_ns),
                Err(_) => {}
            }
        }

        fn lend(&mut self, core: CoreId, lender: Option<CellId>, borrower: CellId, until_ns: u64) {
            self.lending.enter(Loan { core, lender, borrower, until_ns });
            self.give(core, Some(borrower));
        }

        fn give_back(&mut self, loan: Loan) {
            assert_eq!(self.lending.end(loan.core), Some(loan));
            self.give(loan.core, loan.lender);
        }

        fn check(&self) -> Result<(), TestCaseError> {
            for (index, loan) in self.lending.loans().iter().enumerate() {
                let again = self.lending.loans()[..index].iter().any(|other| other.core == loan.core);
                prop_assert!(!again, "a core is lent twice");
                prop_assert_eq!(self.owners[loan.core.0 as usize], Some(loan.borrower));
                if let Some(lender) = loan.lender {
                    let priority = |id: CellId| self.parties[id.0 as usize].priority;
                    prop_assert!(priority(lender) < priority(loan.borrower));
                }
            }
            for party in &self.parties {
                let lent = self.lending.loans().iter().filter(|loan| loan.lender == Some(party.id)).count();
                prop_assert!(lent as u32 <= party.lends);
                let borrowed = self.lending.borrowed(party.id).count() as u32;
                prop_assert!(party.cores > borrowed, "{:?} has no core of its own", party);
                prop_assert!(party.cores <= party.most);
            }
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn every_core_has_one_owner_and_goes_back_to_its_lender(
            steps in proptest::collection::vec((0_u8..4, 0_u32..4), 0..200),
        ) {
            let mut machine = Machine::new();
            let begin = machine.owners.clone();
            for (step, id) in steps {
                match step {
                    0 | 1 => machine.wish(CellId(id)),
                    2 => {
                        let newest = machine.lending.borrowed(CellId(id)).next_back();
                        newest.into_iter().for_each(|loan| machine.give_back(loan));
                    }
                    _ => {
                        machine.now_ns += u64::from(id);
                        while let Some(loan) = machine.lending.due(machine.now_ns) {
                            machine.give_back(loan);
                        }
                    }
                }
                machine.check()?;
            }
            while let Some(loan) = machine.lending.due(u64::MAX) {
                machine.give_back(loan);
            }
            prop_assert_eq!(machine.owners, begin, "when all leases have ended it is as it was");
        }
    }
}
