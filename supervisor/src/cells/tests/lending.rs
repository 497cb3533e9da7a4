//! Core loans and their returns, for all fates of borrower and lender.

mod between;
mod memory;
mod renewals;

use super::*;
use crate::fake::go_wrong;
use alloc::string::ToString;
use isola_abi::management::{CORE_LIMIT_MS, LendingSpec, RestartPolicy, ReturnReason};
use proptest::prelude::*;

const LEASE_MS: u32 = 100;

fn party(name: &str, cores: u32, priority: u8, lends: u32) -> CellSpec {
    CellSpec {
        cores,
        lending: LendingSpec { priority, lends, borrow_above_us: 100, memory_low: None },
        network: NetworkSpec::None,
        ..spec(name)
    }
}

/// Returns a machine with `service`, of high priority with one core, and `batch`, which has all others and lends two.
fn lender_and_borrower() -> Cells<FakeMachine> {
    let mut cells = machine(4);
    run(&mut cells, party("service", 1, 9, 0));
    let rest = cells.machine().cores.iter().filter(|core| core.owner == CoreOwner::Free).count();
    run(&mut cells, party("batch", rest as u32, 1, 2));
    cells
}

fn owned(cells: &Cells<FakeMachine>, name: &str) -> usize {
    let owner = cells.find(name).map(CoreOwner::Cell).unwrap();
    cells.machine().cores.iter().filter(|core| core.owner == owner).count()
}

fn last(cells: &Cells<FakeMachine>) -> JournalEvent {
    events(cells).pop().unwrap()
}

#[test]
fn a_borrowed_core_returns_to_its_lender_when_the_lease_ends() {
    let mut cells = lender_and_borrower();
    let all = owned(&cells, "batch");
    let loan = cells.borrow("service", LEASE_MS).unwrap();
    assert_eq!(loan.from.as_deref(), Some("batch"));
    assert!((99_000_000..=100_000_000).contains(&loan.left_ns), "{loan:?}");
    assert_eq!((owned(&cells, "service"), owned(&cells, "batch")), (2, all - 1));
    assert_eq!(info(&mut cells, "service").loans[0].core, loan.core);
    assert_eq!(
        last(&cells),
        JournalEvent::Borrow { core: loan.core, from: Some("batch".into()), lease_ns: 100_000_000 }
    );
    advance(&mut cells, 98);
    assert_eq!(owned(&cells, "service"), 2);
    advance(&mut cells, 2);
    assert_eq!((owned(&cells, "service"), owned(&cells, "batch")), (1, all));
    let to = Some("batch".into());
    assert_eq!(last(&cells), JournalEvent::Return { core: loan.core, to, why: ReturnReason::LeaseOver });
    assert_eq!((info(&mut cells, "service").loans, cells.next_deadline_ns()), (Vec::new(), None));
}

#[test]
fn lenders_lend_only_to_higher_priorities_and_no_more_than_specified() {
    let mut cells = lender_and_borrower();
    for _ in 0..2 {
        cells.borrow("service", LEASE_MS).unwrap();
    }
    let refused =
        |cells: &mut Cells<FakeMachine>, name| cells.borrow(name, LEASE_MS).unwrap_err().to_string();
    assert!(refused(&mut cells, "service").contains("no cell lends"));
    assert!(cells.borrow("service", 0).is_err() && cells.borrow("service", u32::MAX).is_err());
    cells.give_back("service").unwrap();
    cells.give_back("service").unwrap();
    assert!(refused(&mut cells, "batch").contains("no cell lends"));
    assert!(cells.give_back("service").unwrap_err().to_string().contains("no borrowed core"));
}

#[test]
fn a_lender_that_requests_a_core_gets_its_own_back() {
    let mut cells = lender_and_borrower();
    let all = owned(&cells, "batch");
    let loan = cells.borrow("service", LEASE_MS).unwrap();
    assert_eq!(cells.borrow("batch", LEASE_MS).unwrap().core, loan.core);
    assert_eq!((owned(&cells, "service"), owned(&cells, "batch")), (1, all));
    assert!(matches!(last(&cells), JournalEvent::Return { why: ReturnReason::Recalled, .. }));
}

#[test]
fn a_core_request_in_the_report_borrows_one_core() {
    let mut cells = lender_and_borrower();
    let id = cells.find("service").unwrap();
    let report = cells.fake().reports[&id].clone();
    cells.on_notification();
    assert_eq!(owned(&cells, "service"), 1);
    report.core_requests.fetch_add(1, Ordering::Release);
    cells.on_notification();
    cells.on_notification();
    assert_eq!(owned(&cells, "service"), 2);
    report.core_requests.fetch_add(5, Ordering::Release);
    cells.on_notification();
    report.core_requests.fetch_add(1, Ordering::Release);
    cells.on_notification();
    assert_eq!(owned(&cells, "service"), 3, "the lender lends no more");
    advance(&mut cells, 1_001);
    assert_eq!(owned(&cells, "service"), 1);
}

#[test]
fn free_cores_are_lent_before_those_of_cells() {
    let mut cells = lender_and_borrower();
    stop(&mut cells, "batch");
    run(&mut cells, party("smaller", 1, 1, 1));
    let free = cells.machine().cores.iter().filter(|core| core.owner == CoreOwner::Free).count();
    assert_eq!(cells.borrow("service", LEASE_MS).unwrap().from, None);
    advance(&mut cells, LEASE_MS.into());
    let now_free = cells.machine().cores.iter().filter(|core| core.owner == CoreOwner::Free).count();
    assert_eq!((now_free, owned(&cells, "smaller")), (free, 1));
}

/// Ends a cell by force.
fn stop(cells: &mut Cells<FakeMachine>, name: &str) {
    cells.stop(name, 0).unwrap();
    for _ in 0..3 {
        advance(cells, 200);
    }
    cells.on_notification();
    assert!(info(cells, name).state.has_ended());
}

#[test]
fn borrowed_cores_return_when_the_borrower_ends() {
    let mut cells = lender_and_borrower();
    let all = owned(&cells, "batch");
    cells.borrow("service", u32::from(u16::MAX)).unwrap();
    stop(&mut cells, "service");
    assert_eq!((owned(&cells, "service"), owned(&cells, "batch")), (0, all));
}

#[test]
fn a_core_whose_lender_has_ended_becomes_free() {
    let mut cells = lender_and_borrower();
    let loan = cells.borrow("service", u32::from(u16::MAX)).unwrap();
    stop(&mut cells, "batch");
    assert_eq!(info(&mut cells, "service").loans[0].from, None);
    cells.give_back("service").unwrap();
    assert_eq!(cells.machine().cores[loan.core.0 as usize].owner, CoreOwner::Free);
    let returns = |event: &&JournalEvent| matches!(event, JournalEvent::Return { .. });
    let returned = JournalEvent::Return { core: loan.core, to: None, why: ReturnReason::GivenBack };
    assert_eq!(
        events(&cells).iter().filter(returns).collect::<Vec<_>>(),
        [&returned],
        "the return is entered once"
    );
}

#[test]
fn cores_of_busy_lenders_and_borrowers_are_reclaimed_by_force() {
    let mut cells = lender_and_borrower();
    let all = owned(&cells, "batch");
    cells.fake().cells_are_deaf = true;
    cells.borrow("service", 2 * CORE_LIMIT_MS).unwrap();
    advance(&mut cells, u64::from(CORE_LIMIT_MS) + 1);
    cells.on_notification();
    assert_eq!((owned(&cells, "service"), owned(&cells, "batch")), (2, all - 1));
    (0..4).for_each(|_| advance(&mut cells, u64::from(CORE_LIMIT_MS) + 1));
    cells.on_notification();
    assert_eq!((owned(&cells, "service"), owned(&cells, "batch")), (1, all));
}

#[test]
fn a_returning_core_waits_for_a_vacant_core_slot_of_its_lender() {
    let mut cells = lender_and_borrower();
    let (id, all) = (cells.find("batch").unwrap(), owned(&cells, "batch"));
    // Each time, the core's suspended context keeps a core slot occupied.
    for _ in 0..2 {
        cells.fake().cells_are_deaf = true;
        cells.borrow("service", LEASE_MS).unwrap();
        advance(&mut cells, u64::from(CORE_LIMIT_MS) + 1);
        cells.fake().cells_are_deaf = false;
        assert_eq!((owned(&cells, "service"), owned(&cells, "batch")), (2, all - 1));
        advance(&mut cells, u64::from(LEASE_MS));
        assert_eq!(owned(&cells, "service"), 1);
    }
    assert_eq!(owned(&cells, "batch"), all - 1);
    assert!(!matches!(last(&cells), JournalEvent::Return { .. }), "{:?}", last(&cells));
    let (report, slots) = cells.fake().report_and_slots(id);
    (1..4).for_each(|slot| obeys(&report, &slots, slot));
    cells.on_notification();
    advance(&mut cells, 1_001);
    assert_eq!(owned(&cells, "batch"), all);
    let to = Some("batch".into());
    assert!(matches!(last(&cells), JournalEvent::Return { to: returned, .. } if returned == to));
}

#[test]
fn a_lender_that_defies_the_unplug_keeps_its_core() {
    let mut cells = lender_and_borrower();
    let all = owned(&cells, "batch");
    (cells.fake().cells_are_deaf, cells.fake().cells_defy_force) = (true, true);
    cells.borrow("service", LEASE_MS).unwrap();
    assert!(cells.borrow("service", LEASE_MS).unwrap_err().to_string().contains("on its way"));
    (0..600).for_each(|_| advance(&mut cells, 2));
    (cells.fake().cells_are_deaf, cells.fake().cells_defy_force) = (false, false);
    assert_eq!((owned(&cells, "service"), owned(&cells, "batch")), (1, all));
    assert!(matches!(last(&cells), JournalEvent::NotBorrowed { core: Some(_) }));
    cells.borrow("service", LEASE_MS).unwrap();
    assert_eq!(owned(&cells, "service"), 2);
}

#[test]
fn a_borrowed_core_that_is_unplugged_by_request_returns_to_its_lender() {
    let mut cells = lender_and_borrower();
    let all = owned(&cells, "batch");
    let loan = cells.borrow("service", LEASE_MS).unwrap();
    let wanted = CoresWanted { change: Change::Less(1), ids: &[loan.core], limit_ms: 10 };
    cells.resize_cores("service", &wanted, Mode::Apply).unwrap();
    cells.on_notification();
    assert_eq!(
        (owned(&cells, "service"), owned(&cells, "batch")),
        (1, all),
        "the core is back at the lender"
    );
    assert_eq!(info(&mut cells, "service").loans, []);
}

#[test]
fn a_restarted_supervisor_returns_lent_cores() {
    let mut cells = lender_and_borrower();
    let all = owned(&cells, "batch");
    let loan = cells.borrow("service", LEASE_MS).unwrap();
    let given_back = cells.borrow("service", LEASE_MS).unwrap();
    cells.give_back("service").unwrap();
    let mut cells = go_wrong(cells, 4, 1, |_| {});
    let loans = info(&mut cells, "service").loans;
    assert_eq!(
        loans.iter().map(|loan| (loan.core, loan.from.as_deref())).collect::<Vec<_>>(),
        [(loan.core, Some("batch"))]
    );
    assert_ne!(loan.core, given_back.core);
    advance(&mut cells, LEASE_MS.into());
    assert_eq!((owned(&cells, "service"), owned(&cells, "batch")), (1, all));
    assert!(matches!(last(&cells), JournalEvent::Return { why: ReturnReason::LeaseOver, .. }));
}

/// Makes the cores of one cell carry out their orders and notify the supervisor, while those of others ignore theirs.
fn hears(cells: &mut Cells<FakeMachine>, name: &str) {
    does(cells, name);
    cells.on_notification();
}

/// Makes the cores of one cell carry out their orders without a notification.
fn does(cells: &mut Cells<FakeMachine>, name: &str) {
    let id = cells.find(name).unwrap();
    let (report, slots) = cells.fake().report_and_slots(id);
    (0..8).for_each(|slot| obeys(&report, &slots, slot));
}

#[test]
fn a_lender_that_restarts_by_policy_gets_its_lent_cores_back() {
    let mut cells = machine(4);
    run(&mut cells, party("service", 1, 9, 0));
    let rest = cells.machine().cores.iter().filter(|core| core.owner == CoreOwner::Free).count();
    let spec = CellSpec { restart: RestartPolicy::Always, ..party("batch", rest as u32, 1, 1) };
    let report = run(&mut cells, spec);
    cells.borrow("service", u32::from(u16::MAX)).unwrap();
    says(&report, CellPhase::Exited);
    cells.on_notification();
    (0..3).for_each(|_| advance(&mut cells, 50));
    assert_eq!((owned(&cells, "service"), owned(&cells, "batch")), (1, rest), "the lender runs again");
    assert!(!events(&cells).iter().any(|event| matches!(event, JournalEvent::RestartRefused { .. })));
}

#[test]
fn a_restarted_lender_gets_no_surplus_core() {
    let mut cells = machine(5);
    run(&mut cells, party("service", 1, 9, 0));
    let report = run(&mut cells, CellSpec { restart: RestartPolicy::Always, ..party("batch", 2, 1, 1) });
    let rest = cells.machine().cores.iter().filter(|core| core.owner == CoreOwner::Free).count();
    run(&mut cells, party("other", rest as u32, 1, 0));
    let loan = cells.borrow("service", u32::from(u16::MAX)).unwrap();
    stop(&mut cells, "other");
    (cells.fake().cells_are_deaf, cells.fake().cells_defy_force) = (true, true);
    cells.give_back("service").unwrap();
    says(&report, CellPhase::Exited);
    cells.on_notification();
    (0..3).for_each(|_| advance(&mut cells, 50));
    assert_eq!((owned(&cells, "service"), owned(&cells, "batch")), (2, 2), "the lender runs again");
    hears(&mut cells, "service");
    assert_eq!((owned(&cells, "service"), owned(&cells, "batch")), (1, 2));
    assert_eq!(cells.machine().cores[loan.core.0 as usize].owner, CoreOwner::Free);
}

#[test]
fn a_core_in_transfer_counts_as_lent() {
    let mut cells = machine(6);
    run(&mut cells, party("service", 2, 9, 0));
    run(&mut cells, party("other", 1, 8, 0));
    let rest = cells.machine().cores.iter().filter(|core| core.owner == CoreOwner::Free).count();
    run(&mut cells, party("batch", rest as u32, 1, 1));
    cells.fake().cells_are_deaf = true;
    cells.borrow("service", LEASE_MS).unwrap();
    let wanted = CoresWanted { change: Change::Less(1), ids: &[], limit_ms: 1_000 };
    cells.resize_cores("service", &wanted, Mode::Apply).unwrap();
    hears(&mut cells, "batch");
    assert_eq!(
        (owned(&cells, "service"), owned(&cells, "batch")),
        (2, rest - 1),
        "the core waits between the two cells"
    );
    assert!(cells.borrow("other", LEASE_MS).unwrap_err().to_string().contains("no cell lends"));
    assert_eq!(owned(&cells, "batch"), rest - 1);
}

proptest! {
    #[test]
    fn every_core_has_one_owner_and_all_borrowed_cores_return(
        steps in proptest::collection::vec((0_u8..10, 0_usize..3, 1_u32..40, 0_u32..30), 1..60),
    ) {
        let mut cells = machine(7);
        let names = ["high", "middle", "low"];
        let specs = [party("high", 1, 9, 0), party("middle", 2, 5, 1), party("low", 3, 0, 2)];
        let reports: Vec<Rc<Report>> = specs.iter().map(|spec| run(&mut cells, spec.clone())).collect();
        let mut due: Vec<usize> = names.iter().map(|name| owned(&cells, name)).collect();
        let mut ended = [false; 3];
        for (step, cell, number, write) in steps {
            let name = names[cell];
            // If no answer arrives, the test does not know whether a request was granted.
            let asks = step == 9 && number > 1;
            if !asks {
                cells.fake().death.is_at(write);
            }
            match step {
                0 | 1 => _ = cells.borrow(name, number),
                2 => _ = cells.give_back(name),
                3 => advance(&mut cells, number.into()),
                4 => cells.fake().cells_are_deaf = number.is_multiple_of(2),
                5 => {
                    names.iter().for_each(|name| does(&mut cells, name));
                    cells.on_notification();
                }
                6 => {
                    does(&mut cells, name);
                    info(&mut cells, name);
                }
                7 => cells = go_wrong(cells, 7, number, |_| {}),
                8 => {
                    for loan in info(&mut cells, name).loans {
                        let _ = cells.renew(name, loan.core, number);
                    }
                }
                _ if number == 1 => {
                    says(&reports[cell], CellPhase::Exited);
                    cells.on_notification();
                    ended[cell] = true;
                }
                _ => {
                    // A request for a core never gets one that is in transfer.
                    let wanted = CoresWanted { change: Change::More(1), ids: &[], limit_ms: number };
                    due[cell] += usize::from(cells.resize_cores(name, &wanted, Mode::Apply).is_ok());
                }
            }
            if cells.fake().death.has_come() {
                cells = go_wrong(cells, 7, number, |_| {});
            }
            cells.fake().death.is_called_off();
            // Each core's owner in the inventory is the cell that holds the core.
            for id in cells.table.iter().map(|cell| cell.id) {
                let held = cells.core.cell(id).map_or(0, OwnedCell::core_count);
                let owner = CoreOwner::Cell(id);
                let owned = cells.machine().cores.iter().filter(|core| core.owner == owner).count();
                prop_assert_eq!(held, owned);
            }
            for core in cells.machine().cores {
                let CoreOwner::InTransfer(to) = core.owner else { continue };
                prop_assert!(!cells.info(to).unwrap().state.has_ended(), "core {} has no destination", core.id);
            }
        }
        cells.fake().cells_are_deaf = false;
        for _ in 0..20 {
            names.iter().for_each(|name| does(&mut cells, name));
            cells.on_notification();
            advance(&mut cells, 50);
        }
        for (cell, name) in names.iter().enumerate() {
            prop_assert_eq!(owned(&cells, name), if ended[cell] { 0 } else { due[cell] }, "{}", name);
        }
        prop_assert_eq!(cells.next_deadline_ns(), None);
    }
}
