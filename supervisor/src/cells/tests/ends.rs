//! The ends of cells, and the remaining resources if a core or a device does not come back.

use super::*;

#[test]
fn a_crash_is_reported_and_does_not_affect_other_cells() {
    let mut cells = machine(2);
    let report = run(&mut cells, spec("bad"));
    let other = run(&mut cells, spec("good"));
    says(&other, CellPhase::Running);
    crashes(&report, CrashKind::DoubleFault, "stack overflow");
    cells.on_notification();
    let crash = info(&mut cells, "bad").crash.unwrap();
    assert_eq!(
        (crash.kind, crash.core, &*crash.message),
        (CrashKind::DoubleFault, Some(CoreId(1)), "stack overflow")
    );
    assert_eq!(info(&mut cells, "good").state, CellState::Running);
    assert!(events(&cells).contains(&JournalEvent::Crash(CrashKind::DoubleFault)));
}

#[test]
fn a_cell_may_exit_after_a_stop_request() {
    let mut cells = machine(1);
    let report = run(&mut cells, spec("kv"));
    let Ok(Stop::Requested(id)) = cells.stop("kv", 1000) else { panic!("not asked") };
    assert_eq!(cells.fake().actions.last(), Some(&Action::RequestStop(id)));
    assert_eq!(info(&mut cells, "kv").state, CellState::Stopping);
    assert!(cells.take_ended().is_empty());
    says(&report, CellPhase::Exited);
    cells.on_notification();
    assert_eq!(cells.take_ended(), [id]);
    assert_eq!(info(&mut cells, "kv").state, CellState::Exited);
    assert_eq!(cells.next_deadline_ns(), None);
}

#[test]
fn a_cell_that_does_not_stop_in_time_is_killed_and_its_instruction_is_recorded() {
    let mut cells = machine(2);
    let report = run(&mut cells, CellSpec { cores: 2, ..spec("kv") });
    says(&report, CellPhase::Running);
    signs(&report, 0, CorePhase::Halted, 5);
    signs(&report, 1, CorePhase::Running, 5);
    cells.stop("kv", 1000).unwrap();
    advance(&mut cells, 900);
    assert_eq!(info(&mut cells, "kv").state, CellState::Stopping);
    advance(&mut cells, 200);
    assert_eq!(cells.fake().actions.last(), Some(&Action::Examine(CoreId(2))));
    crashes(&report, CrashKind::Hang, "here");
    cells.on_notification();
    let killed = info(&mut cells, "kv");
    assert_eq!((killed.state, &*killed.crash.unwrap().message), (CellState::Killed, "here"));
    assert!(killed.durations.reclaim_ns.unwrap() > 1_000_000_000, "since the request");
    assert_eq!(events(&cells).last(), Some(&JournalEvent::Kill));
}

#[test]
fn a_silent_cell_that_does_not_stop_in_time_is_killed() {
    let mut cells = machine(1);
    run(&mut cells, spec("kv"));
    cells.stop("kv", 10).unwrap();
    advance(&mut cells, 10);
    assert_eq!(info(&mut cells, "kv").state, CellState::Stopping);
    advance(&mut cells, 100);
    let killed = info(&mut cells, "kv");
    assert_eq!((killed.state, killed.crash.unwrap().kind), (CellState::Killed, CrashKind::Hang));
}

#[test]
fn a_stop_by_force_is_immediate() {
    let mut cells = machine(1);
    run(&mut cells, spec("kv"));
    cells.stop("kv", 60_000).unwrap();
    assert!(matches!(cells.stop("kv", 0), Ok(Stop::Stopped(_))));
    let killed = info(&mut cells, "kv");
    assert_eq!((killed.state, killed.crash), (CellState::Killed, None));
}

#[test]
fn the_earlier_of_two_stop_deadlines_applies() {
    for (first, second) in [(50, 60_000), (60_000, 50)] {
        let mut cells = machine(1);
        run(&mut cells, spec("kv"));
        cells.stop("kv", first).unwrap();
        cells.stop("kv", second).unwrap();
        advance(&mut cells, 60);
        advance(&mut cells, 100);
        assert_eq!(info(&mut cells, "kv").state, CellState::Killed);
    }
}

#[test]
fn a_cell_that_has_just_exited_counts_as_stopped() {
    let mut cells = machine(1);
    let report = run(&mut cells, spec("kv"));
    says(&report, CellPhase::Exited);
    assert!(matches!(cells.stop("kv", 1000), Ok(Stop::Stopped(_))));
    let wrong = ManagementError::WrongState { name: "kv".into(), state: CellState::Exited };
    assert_eq!(cells.stop("kv", 1000), Err(wrong));
}

#[test]
fn a_lost_core_takes_the_cell_s_memory_out_of_use() {
    let mut cells = machine(3);
    run(&mut cells, CellSpec { cores: 2, ..spec("kv") });
    let free = cells.machine().memory_free;
    cells.fake().lost.insert(CoreId(2));
    cells.stop("kv", 0).unwrap();
    let after = cells.machine();
    assert_eq!((&after.cores[1].owner, &after.cores[2].owner), (&CoreOwner::Free, &CoreOwner::Failed));
    assert_eq!(after.memory_free, free, "the lost core may write to the memory and execute the image");
    assert_eq!((after.memory_quarantined, after.devices_free), (ByteSize(4 * MIB + IMAGE), 1));
    assert!(events(&cells).contains(&JournalEvent::CoreLost(CoreId(2))));
    // The cell can be created again with free resources, like any other.
    cells.recreate_waiting("kv").unwrap();
    cells.start("kv").unwrap();
    assert_eq!(info(&mut cells, "kv").cores.iter().map(|core| core.id.0).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(cells.machine().memory_quarantined, ByteSize(4 * MIB), "a cell uses the image");
    cells.fake().lost.clear();
    cells.stop("kv", 0).unwrap();
    cells.destroy("kv").unwrap();
    assert_eq!(cells.machine().memory_quarantined, ByteSize(4 * MIB + IMAGE));
}

#[test]
fn a_device_that_cannot_be_reset_is_not_given_again() {
    let mut cells = machine(3);
    run(&mut cells, spec("kv"));
    let free = cells.machine().memory_free;
    cells.fake().device_is_stuck = true;
    cells.stop("kv", 0).unwrap();
    let after = cells.machine();
    assert_eq!((after.devices_total, after.devices_free), (2, 1));
    assert_eq!(after.memory_free, free, "all but the cell's memory and its image");
    assert_eq!(after.memory_quarantined, ByteSize(4 * MIB + IMAGE));
    assert!(events(&cells).contains(&JournalEvent::DeviceLost));
    // A cell that never ran has a device as well.
    create(&mut cells, spec("other")).unwrap();
    cells.destroy("other").unwrap();
    assert_eq!(
        (cells.machine().devices_free, cells.machine().memory_quarantined),
        (0, ByteSize(8 * MIB + IMAGE))
    );
}

#[test]
fn a_stop_request_is_answered_after_a_crash() {
    let mut cells = machine(1);
    let report = run(&mut cells, spec("kv"));
    let Ok(Stop::Requested(id)) = cells.stop("kv", 60_000) else { panic!("not asked") };
    crashes(&report, CrashKind::Panic, "on the way out");
    cells.on_notification();
    assert_eq!(cells.take_ended(), [id]);
    let crashed = info(&mut cells, "kv");
    assert_eq!((crashed.state, &*crashed.crash.unwrap().message), (CellState::Crashed, "on the way out"));
    assert_eq!(cells.next_deadline_ns(), None);
}
