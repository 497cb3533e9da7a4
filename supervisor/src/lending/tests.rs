//! The choice of lenders, and the returns of cores.

use super::*;
use alloc::vec;
use proptest::prelude::*;

fn party(id: u32, priority: u8, cores: u32, lends: u32) -> LendingParty {
    LendingParty { id: CellId(id), priority, cores, most: 8, lends }
}

fn loan(core: u32, lender: Option<u32>, borrower: u32, until_ns: u64) -> Loan {
    Loan::new(CoreId(core), lender.map(CellId), CellId(borrower), until_ns)
}

#[test]
fn a_core_comes_from_the_lender_of_lowest_priority_with_the_most_cores() {
    let parties =
        [party(1, 9, 1, 0), party(2, 3, 4, 2), party(3, 1, 2, 1), party(4, 1, 3, 1), party(5, 0, 5, 0)];
    let lending = Lending::new();
    assert_eq!(lending.source(CellId(1), &parties, 0, |_| false), Ok(Source::Lender(CellId(4))));
    assert_eq!(
        lending.source(CellId(1), &parties, 1, |_| false),
        Ok(Source::Free),
        "a free core comes before a lender's"
    );
    assert_eq!(
        lending.source(CellId(4), &parties, 0, |_| false),
        Err(Denial::NoLender),
        "cell 3 has the same priority"
    );
    assert_eq!(lending.source(CellId(9), &parties, 1, |_| false), Err(Denial::Limit));
}

#[test]
fn a_lender_lends_no_more_than_specified_and_keeps_a_core() {
    let mut lending = Lending::new();
    let mut parties = [party(1, 9, 1, 0), party(2, 1, 3, 1)];
    lending.enter(loan(7, Some(2), 1, 100));
    (parties[0].cores, parties[1].cores) = (2, 2);
    assert_eq!(lending.source(CellId(1), &parties, 0, |_| false), Err(Denial::NoLender));
    parties[1] = party(2, 1, 1, 5);
    assert_eq!(lending.source(CellId(1), &parties, 0, |_| false), Err(Denial::NoLender));
}

#[test]
fn a_lender_that_requests_a_core_gets_its_lent_cores_back_first() {
    let mut lending = Lending::new();
    let parties = [party(1, 9, 2, 0), party(2, 1, 2, 2)];
    let first = loan(7, Some(2), 1, 100);
    lending.enter(first);
    lending.enter(loan(8, Some(2), 1, 50));
    assert_eq!(lending.source(CellId(2), &parties, 3, |_| false), Ok(Source::Recalled(first)));
    let second = loan(8, Some(2), 1, 50);
    let moves = |core: CoreId| core == first.core;
    assert_eq!(lending.source(CellId(2), &parties, 3, moves), Ok(Source::Recalled(second)));
    assert_eq!(
        lending.source(CellId(2), &parties, 3, |_| true),
        Err(Denial::Limit),
        "both cores are returning"
    );
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

#[test]
fn a_lease_is_extended_until_it_ends_and_never_shortened() {
    let mut lending = Lending::new();
    lending.enter(loan(7, Some(2), 1, 100));
    let renewed = loan(7, Some(2), 1, 150);
    assert_eq!(lending.renew(CellId(1), CoreId(7), 99, 150), Some(renewed));
    assert_eq!(lending.renew(CellId(1), CoreId(7), 99, 120), Some(renewed));
    assert_eq!((lending.due(149), lending.due(150)), (None, Some(renewed)));
    for (borrower, core, now_ns) in [(2, 7, 99), (1, 8, 99), (1, 7, 150)] {
        assert_eq!(lending.renew(CellId(borrower), CoreId(core), now_ns, 200), None);
    }
    // The supervisor requests the core again later, but the lease stays over.
    lending.put_off(CoreId(7), 170);
    assert_eq!((lending.due(169), lending.next_deadline_ns()), (None, Some(170)));
    assert_eq!(lending.renew(CellId(1), CoreId(7), 160, 200), None);
}

#[test]
fn a_lender_that_recalls_its_cores_ends_their_leases() {
    let mut lending = Lending::new();
    lending.enter(loan(7, Some(2), 1, 100));
    lending.recall_all(CellId(2), 50);
    assert_eq!(lending.due(50), Some(loan(7, Some(2), 1, 50)));
    assert_eq!(lending.renew(CellId(1), CoreId(7), 50, 200), None);
}

/// A machine with eight cores and four cells, with the cores' owners beside the loans.
struct Machine {
    lending: Lending,
    /// The owner of each core.
    owners: Vec<Option<CellId>>,
    parties: Vec<LendingParty>,
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

    /// Returns a core of that owner that is not lent to it.
    fn own(&self, owner: Option<CellId>) -> CoreId {
        let mut cores = (0..).map(CoreId).zip(&self.owners);
        cores.find(|(core, has)| **has == owner && !self.lending.is_lent(*core)).unwrap().0
    }

    fn request(&mut self, who: CellId) {
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
        self.lending.enter(Loan::new(core, lender, borrower, until_ns));
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
    fn every_core_has_one_owner_and_returns_to_its_lender(
        steps in proptest::collection::vec((0_u8..5, 0_u32..4), 0..200),
    ) {
        let mut machine = Machine::new();
        let begin = machine.owners.clone();
        for (step, id) in steps {
            match step {
                0 | 1 => machine.request(CellId(id)),
                2 => {
                    let newest = machine.lending.borrowed(CellId(id)).next_back();
                    newest.into_iter().for_each(|loan| machine.give_back(loan));
                }
                3 => {
                    let (borrower, now_ns) = (CellId(id), machine.now_ns);
                    let oldest = machine.lending.borrowed(borrower).next();
                    let core = oldest.map(|loan| loan.core);
                    core.and_then(|core| machine.lending.renew(borrower, core, now_ns, now_ns + 10));
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
        prop_assert_eq!(machine.owners, begin, "all cores are back after the leases");
    }
}
