//! Cores in transfer that are in neither cell.

use super::*;

/// Puts a core between `batch` and `service`: it was borrowed or is returning, and an unrelated request has reclaimed
/// it.
fn between(cells: &mut Cells<FakeMachine>, from: &str) -> CoreId {
    cells.fake().cells_are_deaf = true;
    let core = match from {
        "batch" => cells.borrow("service", LEASE_MS).unwrap().core,
        _ => {
            hears(cells, "service");
            cells.give_back("service").unwrap().core
        }
    };
    does(cells, from);
    info(cells, from);
    core
}

fn owner(cells: &Cells<FakeMachine>, core: CoreId) -> CoreOwner {
    cells.machine().cores[core.0 as usize].owner
}

/// Checks that requests of other cells do not get the core.
fn is_refused_to_others(cells: &mut Cells<FakeMachine>, core: CoreId) {
    let created = cells.create_waiting(party("other", 1, 1, 0));
    assert_eq!(created, Err(ManagementError::CoresExhausted { wanted: 1, free: 0 }));
    for (name, ids) in [("batch", &[][..]), ("service", &[core][..])] {
        let wanted = CoresWanted { change: Change::More(1), ids, limit_ms: 10 };
        assert!(cells.resize_cores(name, &wanted, Mode::DryRun).is_err(), "{name}");
    }
}

#[test]
fn a_core_in_transfer_is_not_given_to_other_cells() {
    let mut cells = lender_and_borrower();
    let (all, batch) = (owned(&cells, "batch"), cells.find("batch").unwrap());
    let core = between(&mut cells, "batch");
    assert_eq!(owner(&cells, core), CoreOwner::InTransfer(cells.find("service").unwrap()));
    is_refused_to_others(&mut cells, core);
    cells.on_notification();
    assert_eq!((owned(&cells, "service"), owned(&cells, "batch")), (2, all - 1));
    assert_eq!(between(&mut cells, "service"), core);
    assert_eq!(owner(&cells, core), CoreOwner::InTransfer(batch));
    is_refused_to_others(&mut cells, core);
    cells.on_notification();
    assert_eq!((owned(&cells, "service"), owned(&cells, "batch")), (1, all));
}

#[test]
fn a_core_whose_borrower_ends_is_reserved_for_its_lender() {
    let mut cells = lender_and_borrower();
    let (all, batch) = (owned(&cells, "batch"), cells.find("batch").unwrap());
    let core = cells.borrow("service", LEASE_MS).unwrap().core;
    let id = cells.find("service").unwrap();
    says(&cells.fake().reports[&id].clone(), CellPhase::Exited);
    info(&mut cells, "service");
    assert_eq!(owner(&cells, core), CoreOwner::InTransfer(batch));
    cells.create_waiting(party("other", 1, 1, 0)).unwrap();
    assert!(cells.create_waiting(party("more", 1, 1, 0)).is_err());
    advance(&mut cells, 0);
    assert_eq!(owned(&cells, "batch"), all);
}

#[test]
fn a_core_whose_borrower_ends_during_the_transfer_returns() {
    let mut cells = lender_and_borrower();
    let all = owned(&cells, "batch");
    let core = between(&mut cells, "batch");
    cells.stop("service", 0).unwrap();
    cells.destroy("service").unwrap();
    assert_eq!(owner(&cells, core), CoreOwner::InTransfer(cells.find("batch").unwrap()));
    advance(&mut cells, 0);
    assert_eq!(owned(&cells, "batch"), all);
    let found =
        events(&cells).iter().filter(|event| matches!(event, JournalEvent::NotBorrowed { .. })).count();
    assert_eq!(found, 1);
}

#[test]
fn a_core_in_transfer_returns_to_its_lender_after_a_supervisor_restart() {
    for from in ["batch", "service"] {
        let mut cells = lender_and_borrower();
        let all = owned(&cells, "batch");
        let core = between(&mut cells, "batch");
        if from == "service" {
            cells.on_notification();
            assert_eq!(between(&mut cells, "service"), core);
        }
        let mut cells = go_wrong(cells, 4, 1, |_| {});
        assert_eq!(owner(&cells, core), CoreOwner::InTransfer(cells.find("batch").unwrap()));
        assert_eq!(cells.next_deadline_ns(), Some(0));
        cells.tick();
        assert_eq!((owned(&cells, "service"), owned(&cells, "batch")), (1, all), "from {from}");
    }
}

#[test]
fn a_core_that_was_being_unplugged_at_a_supervisor_restart_returns_to_its_lender() {
    let mut cells = lender_and_borrower();
    let all = owned(&cells, "batch");
    cells.fake().cells_are_deaf = true;
    cells.borrow("service", LEASE_MS).unwrap();
    let mut cells = go_wrong(cells, 4, 1, |_| {});
    cells.tick();
    hears(&mut cells, "batch");
    assert_eq!((owned(&cells, "service"), owned(&cells, "batch")), (1, all));
}

#[test]
fn a_debt_ends_when_the_core_is_back() {
    let mut cells = machine(6);
    run(&mut cells, party("service", 1, 9, 0));
    run(&mut cells, party("batch", 3, 1, 2));
    let others = cells.machine().cores.iter().filter(|core| core.owner == CoreOwner::Free).count();
    run(&mut cells, party("other", others as u32, 1, 0));
    between(&mut cells, "batch");
    cells.on_notification();
    let core = between(&mut cells, "service");
    // The core has to wait, as another one is leaving.
    resize(&mut cells, "batch", Change::Less(1), &[]).unwrap();
    cells.on_notification();
    assert!(matches!(owner(&cells, core), CoreOwner::InTransfer(_)));
    hears(&mut cells, "batch");
    hears(&mut cells, "batch");
    assert_eq!(owned(&cells, "batch"), 2);
    resize(&mut cells, "batch", Change::Less(1), &[core]).unwrap();
    hears(&mut cells, "batch");
    let mut cells = go_wrong(cells, 6, 1, |_| {});
    cells.tick();
    assert_eq!((owned(&cells, "batch"), owner(&cells, core)), (1, CoreOwner::Free));
}

#[test]
fn a_core_that_returned_to_the_free_ones_is_owned_by_its_next_cell() {
    let mut cells = lender_and_borrower();
    stop(&mut cells, "batch");
    cells.borrow("service", LEASE_MS).unwrap();
    let core = between(&mut cells, "service");
    assert_eq!(owner(&cells, core), CoreOwner::Free);
    resize(&mut cells, "service", Change::More(1), &[core]).unwrap();
    hears(&mut cells, "service");
    (0..3).for_each(|_| advance(&mut cells, LEASE_MS.into()));
    hears(&mut cells, "service");
    assert_eq!((owned(&cells, "service"), info(&mut cells, "service").loans), (2, Vec::new()));
}

#[test]
fn a_lender_that_ended_is_owed_no_core_after_a_supervisor_restart() {
    let mut cells = machine(6);
    run(&mut cells, party("service", 1, 9, 0));
    run(&mut cells, party("batch", 2, 1, 1));
    let others = cells.machine().cores.iter().filter(|core| core.owner == CoreOwner::Free).count();
    run(&mut cells, party("other", others as u32, 1, 0));
    // Longer than the lender takes to start again.
    let core = cells.borrow("service", 100 * LEASE_MS).unwrap().core;
    hears(&mut cells, "batch");
    cells.on_notification();
    assert_eq!(owned(&cells, "service"), 2);
    stop(&mut cells, "batch");
    stop(&mut cells, "other");
    cells.recreate_waiting("batch").unwrap();
    cells.start("batch").unwrap();
    assert_eq!(owned(&cells, "service"), 2);
    let mut cells = go_wrong(cells, 6, 1, |_| {});
    cells.tick();
    for _ in 0..3 {
        advance(&mut cells, 100 * u64::from(LEASE_MS));
        hears(&mut cells, "service");
    }
    assert_eq!((owned(&cells, "batch"), owner(&cells, core)), (2, CoreOwner::Free));
}

#[test]
fn a_loan_that_ended_before_two_supervisor_restarts_is_not_recovered() {
    let mut deaths = 0;
    for write in 0.. {
        let mut cells = lender_and_borrower();
        let all = owned(&cells, "batch");
        let core = cells.borrow("service", LEASE_MS).unwrap().core;
        cells.fake().death.is_at(write);
        let _ = cells.give_back("service");
        if !cells.fake().death.has_come() {
            break;
        }
        deaths += 1;
        let mut cells = go_wrong(cells, 4, 1, |_| {});
        (0..3).for_each(|_| advance(&mut cells, LEASE_MS.into()));
        assert_eq!((owned(&cells, "service"), owned(&cells, "batch")), (1, all), "before write {write}");
        resize(&mut cells, "batch", Change::Less(1), &[core]).unwrap();
        hears(&mut cells, "batch");
        assert_eq!(owner(&cells, core), CoreOwner::Free);
        let mut cells = go_wrong(cells, 4, 2, |_| {});
        (0..3).for_each(|_| advance(&mut cells, LEASE_MS.into()));
        assert_eq!((owner(&cells, core), owned(&cells, "batch")), (CoreOwner::Free, all - 1));
    }
    assert!(deaths > 1);
}

fn resize(
    cells: &mut Cells<FakeMachine>,
    name: &str,
    change: Change<u32>,
    ids: &[CoreId],
) -> Result<CoresResize, ManagementError> {
    cells.resize_cores(name, &CoresWanted { change, ids, limit_ms: 1_000 }, Mode::Apply)
}
