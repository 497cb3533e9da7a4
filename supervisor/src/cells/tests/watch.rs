//! The watchdog: hung cells, and cells that only seem to hang.

use super::*;

/// Runs a watched cell of two cores for a second, with the checks that the supervisor requests.
fn watched(mut live: impl FnMut(&Report, u64)) -> (Cells<FakeMachine>, Rc<Report>) {
    let mut cells = machine(2);
    let report = run(&mut cells, CellSpec { cores: 2, watchdog_ms: 200, ..spec("kv") });
    for ms in 0..1000 {
        live(&report, ms);
        advance(&mut cells, 1);
    }
    (cells, report)
}

#[test]
fn a_hung_core_is_found_interrupted_and_reclaimed() {
    let (mut cells, _) = watched(|report, ms| {
        says(report, CellPhase::Running);
        signs(report, 0, CorePhase::Running, ms);
        signs(report, 1, CorePhase::Running, ms.min(300));
        if ms == 700 {
            crashes(report, CrashKind::Hang, "a loop without end");
        }
    });
    assert!(cells.fake().actions.contains(&Action::Examine(CoreId(2))));
    let hung = info(&mut cells, "kv");
    assert_eq!(
        (hung.state, &*hung.crash.unwrap().message),
        (CellState::Crashed, "the cell stood still, and did not say where")
    );
    assert_eq!(cells.next_deadline_ns(), None);
    assert!(events(&cells).contains(&JournalEvent::Crash(CrashKind::Hang)));
}

#[test]
fn a_hang_is_noticed_in_time_and_its_record_is_read() {
    let (mut cells, report) = watched(|report, ms| {
        says(report, CellPhase::Running);
        signs(report, 0, CorePhase::Running, ms.min(700));
    });
    assert_eq!(cells.fake().actions.last(), Some(&Action::Examine(CoreId(1))));
    crashes(&report, CrashKind::Hang, "a loop without end");
    cells.on_notification();
    let hung = info(&mut cells, "kv");
    assert_eq!((hung.state, &*hung.crash.unwrap().message), (CellState::Crashed, "a loop without end"));
}

#[test]
fn halted_and_busy_cores_are_not_suspected() {
    let (mut cells, _) = watched(|report, ms| {
        says(report, CellPhase::Running);
        signs(report, 0, CorePhase::Halted, 1);
        signs(report, 1, CorePhase::Running, ms / 90);
    });
    assert_eq!(info(&mut cells, "kv").state, CellState::Running);
}

#[test]
fn a_watched_cell_that_stays_silent_counts_as_hung() {
    let (mut cells, _) = watched(|_, _| {});
    assert_eq!(info(&mut cells, "kv").crash.unwrap().kind, CrashKind::Hang);
}

#[test]
fn there_is_a_deadline_only_while_a_cell_needs_one() {
    let mut cells = machine(2);
    run(&mut cells, spec("idle"));
    assert_eq!(cells.next_deadline_ns(), None);
    run(&mut cells, CellSpec { watchdog_ms: 100, ..spec("watched") });
    assert!(cells.next_deadline_ns().is_some());
    cells.stop("watched", 0).unwrap();
    assert_eq!(cells.next_deadline_ns(), None);
}
