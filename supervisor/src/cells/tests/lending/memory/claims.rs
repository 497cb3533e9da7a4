//! New and restarted cells that preempt the memory of less important ones.

use super::*;

/// Begins to create a cell, for which memory is on its way then.
#[track_caller]
fn begin(cells: &mut Cells<FakeMachine>, spec: CellSpec) -> Ticket {
    match cells.create(spec).unwrap() {
        Created::Pending(ticket) => ticket,
        Created::Done(id) => panic!("{id:?} was created at once"),
    }
}

/// Returns the answer to a request, if there is one. Does a bounded amount of work.
fn outcome(cells: &mut Cells<FakeMachine>, ticket: Ticket) -> Option<Result<CellId, ManagementError>> {
    for _ in 0..200 {
        cells.work();
    }
    cells.take_created().into_iter().find(|(of, _)| *of == ticket).map(|(_, result)| result)
}

/// Makes lenders answer once.
fn lend(cells: &mut Cells<FakeMachine>, names: &[&str], manners: Manners) {
    names.iter().for_each(|name| answers(cells, name, manners));
}

/// Returns the free memory, in MiB.
fn free_mib(cells: &Cells<FakeMachine>) -> u64 {
    cells.machine().memory_free.0 / MIB
}

#[test]
fn a_new_cell_gets_memory_of_a_less_important_one_which_gets_the_unused_part_back() {
    let mut cells = full_machine();
    let ticket = begin(&mut cells, member("new", 24, 5, None));
    assert_eq!(outcome(&mut cells, ticket), None, "the lender has not answered");
    assert_eq!(mib(&mut cells, "batch"), 54);
    lend(&mut cells, &["batch"], Manners::Gives);
    let new = outcome(&mut cells, ticket).unwrap().unwrap();
    cells.start("new").unwrap();
    every_chunk_has_one_owner(&cells);
    assert_eq!((mib(&mut cells, "new"), both(&mut cells)), (24, (8, 30)));
    let loan = info(&mut cells, "new").memory_loans[0].clone();
    assert_eq!((loan.memory, loan.from.as_deref(), loan.renews), (ByteSize(24 * MIB), Some("batch"), true));
    assert_eq!(info(&mut cells, "batch").memory_lent, ByteSize(24 * MIB));
    assert_eq!(memory_events(&cells), [borrowed(24, Some("batch"), 1_000_000_000)]);
    // Before it has reported its use, and while it uses everything, it keeps the memory.
    for used in [None, Some(24)] {
        used.into_iter().for_each(|used| uses(&mut cells, "new", used));
        advance(&mut cells, 1_001);
        proceed(&mut cells, Manners::Gives);
        assert_eq!(mib(&mut cells, "new"), 24);
    }
    uses(&mut cells, "new", 4);
    advance(&mut cells, 1_001);
    proceed(&mut cells, Manners::Gives);
    assert_eq!((mib(&mut cells, "new"), mib(&mut cells, "batch")), (8, 46));
    cells.stop("new", 0).unwrap();
    proceed(&mut cells, Manners::Gives);
    assert_eq!(both(&mut cells), (8, 54), "the rest returns at its end");
    assert!(info(&mut cells, "new").id == new && cells.next_deadline_ns().is_none());
}

#[test]
fn free_memory_comes_first_and_is_no_loan() {
    let mut cells = machine(3);
    run(&mut cells, member("batch", 44, 1, Some(16)));
    assert_eq!(free_mib(&cells), 18);
    let ticket = begin(&mut cells, member("new", 24, 5, None));
    assert_eq!(free_mib(&cells), 0);
    let other = cells.create(member("other", 2, 99, None));
    assert!(matches!(other, Err(ManagementError::MemoryExhausted { .. })), "the memory is reserved");
    lend(&mut cells, &["batch"], Manners::Gives);
    outcome(&mut cells, ticket).unwrap().unwrap();
    assert_eq!((mib(&mut cells, "new"), mib(&mut cells, "batch"), free_mib(&cells)), (24, 38, 0));
    assert_eq!(info(&mut cells, "new").memory_loans[0].memory, ByteSize(6 * MIB));
    cells.destroy("new").unwrap();
    proceed(&mut cells, Manners::Gives);
    assert_eq!(free_mib(&cells), 24, "a cell that never ran has no lender to return it to");
}

#[test]
fn memory_of_equals_and_below_the_low_mark_is_not_preempted() {
    for (new, priority) in [(member("new", 24, 1, None), 1), (member("new", 40, 5, None), 5)] {
        let mut cells = full_machine();
        let refused = cells.create(new);
        assert!(matches!(refused, Err(ManagementError::MemoryExhausted { .. })), "{priority}: {refused:?}");
        assert_eq!((both(&mut cells), cells.is_waited_for()), ((8, 54), false));
        assert_eq!(resources(&cells).memory_free, ByteSize(0));
    }
}

#[test]
fn a_lender_that_gives_too_little_gets_it_back_and_the_request_is_refused() {
    for manners in [Manners::Keeps, Manners::Silent, Manners::Lies] {
        let mut cells = full_machine();
        let ticket = begin(&mut cells, member("new", 24, 5, None));
        let mut refused = None;
        for _ in 0..1_000 {
            lend(&mut cells, &["batch"], manners);
            cells.pass_ns(10_000_000);
            cells.tick();
            refused = refused.or_else(|| outcome(&mut cells, ticket));
        }
        assert!(
            matches!(refused, Some(Err(ManagementError::MemoryExhausted { .. }))),
            "{manners:?}: {refused:?}"
        );
        assert_eq!((both(&mut cells), cells.is_waited_for()), ((8, 54), false), "{manners:?}");
    }
    // Half of it.
    let mut cells = full_machine();
    let ticket = begin(&mut cells, member("new", 24, 5, None));
    uses(&mut cells, "batch", 42);
    lend(&mut cells, &["batch"], Manners::Gives);
    let refused = outcome(&mut cells, ticket);
    assert!(matches!(refused, Some(Err(ManagementError::MemoryExhausted { .. }))), "{refused:?}");
    proceed(&mut cells, Manners::Gives);
    assert_eq!(both(&mut cells), (8, 54));
    assert_eq!(memory_events(&cells), [returned(12, Some("batch"), ReturnReason::Lost)]);
}

#[test]
fn several_lenders_are_asked_in_turn_and_another_new_cell_is_refused_meanwhile() {
    let mut cells = machine(5);
    run(&mut cells, member("first", 20, 0, Some(8)));
    run(&mut cells, member("second", 42, 1, Some(8)));
    let ticket = begin(&mut cells, member("new", 24, 5, None));
    let other = cells.create(member("other", 4, 9, None));
    assert!(matches!(other, Err(ManagementError::MemoryExhausted { .. })), "{other:?}");
    lend(&mut cells, &["first"], Manners::Gives);
    assert_eq!(outcome(&mut cells, ticket), None);
    lend(&mut cells, &["second"], Manners::Gives);
    outcome(&mut cells, ticket).unwrap().unwrap();
    let loans = info(&mut cells, "new").memory_loans;
    let loans = loans.iter().map(|loan| (loan.from.as_deref().unwrap(), loan.memory.0 / MIB));
    assert!(loans.eq([("first", 12), ("second", 12)]));
    let ticket = begin(&mut cells, member("other", 4, 9, None));
    lend(&mut cells, &["first", "second"], Manners::Gives);
    outcome(&mut cells, ticket).unwrap().unwrap();
}

#[test]
fn memory_returns_if_the_request_ends_or_the_lender_does() {
    // The peer disconnects before and after the lender's answer.
    for answers_first in [false, true] {
        let mut cells = full_machine();
        begin(&mut cells, member("new", 24, 5, None));
        if answers_first {
            lend(&mut cells, &["batch"], Manners::Gives);
            assert_eq!(mib(&mut cells, "batch"), 30);
        }
        cells.forget_requests();
        assert!(!cells.is_waited_for());
        proceed(&mut cells, Manners::Gives);
        assert_eq!(both(&mut cells), (8, 54), "{answers_first}");
    }
    // The lender ends: its memory is free, and the new cell gets it.
    let mut cells = full_machine();
    let ticket = begin(&mut cells, member("new", 24, 5, None));
    lend(&mut cells, &["batch"], Manners::Gives);
    cells.stop("batch", 0).unwrap();
    outcome(&mut cells, ticket).unwrap().unwrap();
    assert_eq!((mib(&mut cells, "new"), info(&mut cells, "new").memory_loans.len()), (24, 0));
}

#[test]
fn a_cell_that_restarts_preempts_again() {
    let mut cells = full_machine();
    let ticket = begin(&mut cells, CellSpec { restart: RestartPolicy::Always, ..member("new", 24, 5, None) });
    lend(&mut cells, &["batch"], Manners::Gives);
    outcome(&mut cells, ticket).unwrap().unwrap();
    cells.start("new").unwrap();
    says(&report_of(&mut cells, "new"), CellPhase::Exited);
    cells.on_notification();
    proceed(&mut cells, Manners::Gives);
    assert_eq!(both(&mut cells), (8, 54), "the lender has its memory back");
    for _ in 0..10 {
        cells.pass_ns(100_000_000);
        cells.tick();
        lend(&mut cells, &["batch"], Manners::Gives);
        (0..200).for_each(|_| _ = cells.work());
    }
    assert_eq!(info(&mut cells, "new").state, CellState::Running);
    assert_eq!((mib(&mut cells, "new"), mib(&mut cells, "batch")), (24, 30));
    assert_eq!(info(&mut cells, "new").memory_loans[0].memory, ByteSize(24 * MIB));
}

#[test]
fn a_restarted_supervisor_knows_the_loans_of_a_new_cell() {
    let mut cells = full_machine();
    let ticket = begin(&mut cells, member("new", 24, 5, None));
    lend(&mut cells, &["batch"], Manners::Gives);
    outcome(&mut cells, ticket).unwrap().unwrap();
    cells.start("new").unwrap();
    let mut cells = go_wrong(cells, 3, 1, |_| {});
    assert_eq!(info(&mut cells, "new").memory_loans[0].memory, ByteSize(24 * MIB));
    assert_eq!(info(&mut cells, "batch").memory_lent, ByteSize(24 * MIB));
}

#[test]
fn no_memory_is_lost_at_any_write_at_which_the_supervisor_fails() {
    let mut deaths = 0;
    for write in 0.. {
        let mut cells = full_machine();
        cells.fake().death.is_at(write);
        if let Ok(Created::Pending(ticket)) = cells.create(member("new", 24, 5, None)) {
            lend(&mut cells, &["batch"], Manners::Gives);
            if outcome(&mut cells, ticket).is_some_and(|result| result.is_ok()) {
                let _ = cells.start("new");
            }
        }
        let has_come = cells.fake().death.has_come();
        cells.fake().death.is_called_off();
        if !has_come {
            break;
        }
        deaths += 1;
        let mut cells = go_wrong(cells, 3, 1, |_| {});
        every_chunk_has_one_owner(&cells);
        if cells.find("new").is_ok() {
            let _ = cells.stop("new", 0);
            proceed(&mut cells, Manners::Gives);
            let _ = cells.destroy("new");
        }
        for _ in 0..3 {
            proceed(&mut cells, Manners::Gives);
            advance(&mut cells, 1_001);
        }
        assert_eq!((both(&mut cells), free_mib(&cells)), ((8, 54), 0), "before write {write}");
    }
    assert!(deaths > 5, "{deaths}");
}
