//! Extensions of leases.

use super::*;
use isola_abi::management::LoanInfo;

/// Returns the remaining lease in ms; each look at the clock takes the machine a microsecond.
fn ms_left(loan: &LoanInfo) -> u32 {
    loan.left_ns.div_ceil(1_000_000) as u32
}

/// Returns the message of a refused renewal.
fn refused(cells: &mut Cells<FakeMachine>, name: &str, core: CoreId) -> String {
    cells.renew(name, core, LEASE_MS).unwrap_err().to_string()
}

#[test]
fn a_renewed_core_stays_and_returns_when_the_renewals_end() {
    let mut cells = lender_and_borrower();
    let all = owned(&cells, "batch");
    let core = cells.borrow("service", LEASE_MS).unwrap().core;
    for _ in 0..5 {
        advance(&mut cells, u64::from(LEASE_MS) - 10);
        let loan = cells.renew("service", core, LEASE_MS).unwrap();
        assert_eq!((loan.core, loan.from.as_deref()), (core, Some("batch")));
        assert_eq!(ms_left(&loan), LEASE_MS);
        assert_eq!((owned(&cells, "service"), owned(&cells, "batch")), (2, all - 1));
    }
    advance(&mut cells, u64::from(LEASE_MS) - 1);
    assert_eq!(owned(&cells, "service"), 2);
    advance(&mut cells, 1);
    assert_eq!((owned(&cells, "service"), owned(&cells, "batch")), (1, all));
    let to = Some("batch".into());
    assert_eq!(last(&cells), JournalEvent::Return { core, to, why: ReturnReason::LeaseOver });
    assert_eq!(cells.next_deadline_ns(), None);
}

#[test]
fn a_renewal_never_shortens_a_lease() {
    let mut cells = lender_and_borrower();
    let core = cells.borrow("service", 10 * LEASE_MS).unwrap().core;
    let loan = cells.renew("service", core, LEASE_MS).unwrap();
    assert_eq!(ms_left(&loan), 10 * LEASE_MS);
}

#[test]
fn renewals_without_a_loan_are_refused() {
    let mut cells = lender_and_borrower();
    let core = cells.borrow("service", LEASE_MS).unwrap().core;
    let first = info(&mut cells, "service").cores[0].id;
    assert!(refused(&mut cells, "batch", core).contains("no loan"), "another cell");
    assert!(refused(&mut cells, "service", first).contains("no loan"), "a core of its own");
    assert!(refused(&mut cells, "service", CoreId(77)).contains("no loan"), "no core of the machine");
    assert_eq!(cells.renew("none", core, LEASE_MS), Err(ManagementError::NoSuchCell("none".into())));
    for lease_ms in [0, u32::MAX] {
        assert!(cells.renew("service", core, lease_ms).is_err());
    }
    assert_eq!(ms_left(&info(&mut cells, "service").loans[0]), LEASE_MS);
    cells.give_back("service").unwrap();
    assert!(refused(&mut cells, "service", core).contains("no loan"), "the core is back");
}

#[test]
fn a_core_that_has_to_return_is_not_renewed() {
    let mut cells = lender_and_borrower();
    let core = cells.borrow("service", LEASE_MS).unwrap().core;
    (cells.fake().cells_are_deaf, cells.fake().cells_defy_force) = (true, true);
    advance(&mut cells, LEASE_MS.into());
    assert!(refused(&mut cells, "service", core).contains("no loan"), "the core is returning");
    // The borrower keeps the core, and the supervisor requests it again.
    (0..600).for_each(|_| advance(&mut cells, 2));
    assert!(refused(&mut cells, "service", core).contains("no loan"), "the lease has ended");
    let loans = info(&mut cells, "service").loans;
    assert_eq!(loans.iter().map(|loan| (loan.core, loan.left_ns)).collect::<Vec<_>>(), [(core, 0)]);
}

#[test]
fn a_core_that_is_returning_before_its_lease_ends_is_not_renewed() {
    let mut cells = lender_and_borrower();
    let core = cells.borrow("service", 10 * LEASE_MS).unwrap().core;
    cells.fake().cells_are_deaf = true;
    cells.give_back("service").unwrap();
    assert!(refused(&mut cells, "service", core).contains("no loan"));
    hears(&mut cells, "service");
    hears(&mut cells, "batch");
    assert_eq!((owned(&cells, "service"), info(&mut cells, "service").loans), (1, Vec::new()));
}

#[test]
fn a_lender_that_restarts_by_policy_gets_a_renewed_core_back() {
    let mut cells = machine(4);
    run(&mut cells, party("service", 1, 9, 0));
    let rest = cells.machine().cores.iter().filter(|core| core.owner == CoreOwner::Free).count();
    let spec = CellSpec { restart: RestartPolicy::Always, ..party("batch", rest as u32, 1, 1) };
    let report = run(&mut cells, spec);
    let core = cells.borrow("service", LEASE_MS).unwrap().core;
    cells.renew("service", core, u32::from(u16::MAX)).unwrap();
    says(&report, CellPhase::Exited);
    info(&mut cells, "batch");
    assert!(refused(&mut cells, "service", core).contains("no loan"), "the lender needs the core");
    cells.on_notification();
    (0..3).for_each(|_| advance(&mut cells, 50));
    assert_eq!((owned(&cells, "service"), owned(&cells, "batch")), (1, rest), "the lender runs again");
}

#[test]
fn a_restarted_supervisor_knows_renewed_leases() {
    let mut cells = lender_and_borrower();
    let all = owned(&cells, "batch");
    let core = cells.borrow("service", LEASE_MS).unwrap().core;
    cells.renew("service", core, 10 * LEASE_MS).unwrap();
    let mut cells = go_wrong(cells, 4, 1, |_| {});
    advance(&mut cells, 5 * u64::from(LEASE_MS));
    assert_eq!(owned(&cells, "service"), 2);
    cells.renew("service", core, 10 * LEASE_MS).unwrap();
    advance(&mut cells, 10 * u64::from(LEASE_MS));
    assert_eq!((owned(&cells, "service"), owned(&cells, "batch")), (1, all));
}

#[test]
fn requests_of_the_cores_and_renewals_share_the_loans() {
    let mut cells = lender_and_borrower();
    let id = cells.find("service").unwrap();
    let report = cells.fake().reports[&id].clone();
    report.core_requests.fetch_add(1, Ordering::Release);
    cells.on_notification();
    let core = info(&mut cells, "service").loans[0].core;
    advance(&mut cells, 999);
    cells.renew("service", core, LEASE_MS).unwrap();
    advance(&mut cells, 99);
    assert_eq!(owned(&cells, "service"), 2);
    advance(&mut cells, 1);
    assert_eq!(owned(&cells, "service"), 1);
}
