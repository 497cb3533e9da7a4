//! Records of ended cells, and cells that are created again.

use super::*;
use isola_abi::management::{RestartPolicy, max_cells};

/// Sets usage in a cell's report, and crashes the cell.
fn use_and_crash(cells: &mut Cells<FakeMachine>, report: &Report) {
    says(report, CellPhase::Running);
    signs(report, 0, CorePhase::Running, 7);
    report.cores[0].interrupts.store(11, Ordering::Relaxed);
    report.memory.peak_bytes.store(5000, Ordering::Relaxed);
    report.network.sent_frames.store(3, Ordering::Relaxed);
    report.ipv4_address.store(0x0a00_0210, Ordering::Relaxed);
    let ledger = cells.fake().ledgers.last_key_value().unwrap().1.clone();
    ledger.register(report, 0, "work");
    crate::logs::tests::print(report, b"so far\n");
    crashes(report, CrashKind::Panic, "oh");
    cells.on_notification();
}

fn log(cells: &mut Cells<FakeMachine>, name: &str) -> Vec<u8> {
    cells.logs(name, 0, usize::MAX).unwrap().bytes
}

#[test]
fn the_usage_of_an_ended_cell_is_kept_after_its_memory_is_reused() {
    let mut cells = machine(1);
    let report = run(&mut cells, spec("bad"));
    use_and_crash(&mut cells, &report);
    // The memory of the report may belong to another cell now.
    report.memory.peak_bytes.store(6, Ordering::Relaxed);
    report.cores[0].interrupts.store(6, Ordering::Relaxed);
    report.crash.claimed_by.store(0, Ordering::Relaxed);
    run(&mut cells, CellSpec { memory: ByteSize(62 * MIB), ..spec("next") });
    let ended = info(&mut cells, "bad");
    assert_eq!((ended.state, ended.memory, ended.address), (CellState::Crashed, ByteSize(0), None));
    assert_eq!(ended.memory_given, ByteSize(4 * MIB));
    assert_eq!((ended.cores[0].id, ended.cores[0].interrupts), (CoreId(1), 11));
    assert_eq!((ended.memory_usage.peak, ended.network.sent_frames), (ByteSize(5000), 3));
    assert_eq!((&*ended.activities.activities[0].name, &*ended.crash.unwrap().message), ("work", "oh"));
    assert_eq!(log(&mut cells, "bad"), b"so far\n");
    let next = info(&mut cells, "next").id;
    assert_eq!(cells.machine().cores[1].owner, CoreOwner::Cell(next));
    cells.destroy("bad").unwrap();
    assert_eq!(
        cells.machine().cores[1].owner,
        CoreOwner::Cell(next),
        "the record of an ended cell owns no core"
    );
}

#[test]
fn a_recreated_cell_keeps_its_id_and_log() {
    let mut cells = machine(1);
    let before = resources(&cells);
    let report = run(&mut cells, spec("bad"));
    use_and_crash(&mut cells, &report);
    let old = info(&mut cells, "bad");
    cells.fake().images.clear();
    // The fake machine checks that the memory is zero.
    assert_eq!(cells.recreate_waiting("bad"), Ok(old.id));
    assert_eq!(cells.fake().images[&old.id], image());
    let recreated = cells.journal().since(0).find(|entry| entry.event == JournalEvent::Recreate).unwrap();
    assert_eq!(recreated.cell.as_deref(), Some("bad"));
    let created = info(&mut cells, "bad");
    assert_eq!((created.state, created.crash, created.memory), (CellState::Created, None, ByteSize(4 * MIB)));
    assert_eq!((created.created_unix_ns, created.network.sent_frames), (old.created_unix_ns, 0));
    assert_eq!(created.durations.reclaim_ns, None);
    cells.start("bad").unwrap();
    // The supervisor has not read the report yet, so no other call resets the position in the log.
    let report = cells.fake().reports[&old.id].clone();
    crate::logs::tests::print(&report, b"once more, and longer\n");
    assert_eq!(info(&mut cells, "bad").state, CellState::Running);
    says(&report, CellPhase::Exited);
    cells.on_notification();
    assert_eq!(log(&mut cells, "bad"), b"so far\nonce more, and longer\n");
    assert_eq!(resources(&cells), before);
    let expected = [
        JournalEvent::Boot,
        JournalEvent::Create,
        JournalEvent::Start,
        JournalEvent::Crash(CrashKind::Panic),
        JournalEvent::Recreate,
        JournalEvent::Start,
        JournalEvent::Exit(0),
    ];
    assert_eq!(events(&cells), expected);
}

#[test]
fn a_failed_recreation_leaves_the_record_unchanged() {
    let mut cells = machine(2);
    let report = run(&mut cells, CellSpec { cores: 2, ..spec("bad") });
    use_and_crash(&mut cells, &report);
    let ended = info(&mut cells, "bad");
    run(&mut cells, spec("thief"));
    assert_eq!(cells.recreate_waiting("bad"), Err(ManagementError::CoresExhausted { wanted: 2, free: 1 }));
    assert_eq!(info(&mut cells, "bad"), ended);
    cells.stop("thief", 0).unwrap();
    cells.recreate_waiting("bad").unwrap();
}

#[test]
fn only_ended_cells_are_recreated() {
    let mut cells = machine(2);
    let wrong = |state| ManagementError::WrongState { name: "kv".into(), state };
    create(&mut cells, spec("kv")).unwrap();
    assert_eq!(cells.recreate_waiting("kv"), Err(wrong(CellState::Created)));
    cells.start("kv").unwrap();
    assert_eq!(cells.recreate_waiting("kv"), Err(wrong(CellState::Running)));
    cells.stop("kv", 0).unwrap();
    assert_eq!(cells.start("kv"), Err(wrong(CellState::Killed)), "an ended cell has no resources");
    assert_eq!(cells.recreate_waiting("x"), Err(ManagementError::NoSuchCell("x".into())));
    cells.recreate_waiting("kv").unwrap();
}

#[test]
fn an_unnoticed_end_is_found_by_recreate_and_destroy() {
    let mut cells = machine(1);
    let report = run(&mut cells, spec("kv"));
    // Without a notification.
    says(&report, CellPhase::Exited);
    cells.recreate_waiting("kv").unwrap();
    cells.start("kv").unwrap();
    says(&cells.fake().reports.values().next().unwrap().clone(), CellPhase::Exited);
    cells.destroy("kv").unwrap();
}

#[test]
fn a_new_cell_replaces_the_oldest_ended_one_without_a_restart() {
    let mut cells = machine(2);
    // The oldest cell awaits a restart, the next one runs.
    let report = run(
        &mut cells,
        CellSpec { restart: RestartPolicy::Always, network: NetworkSpec::None, ..spec("again") },
    );
    run(&mut cells, spec("runs"));
    crashes(&report, CrashKind::Panic, "oh");
    cells.on_notification();
    for number in 2..max_cells(3) {
        run(&mut cells, spec(&alloc::format!("cell-{number}")));
        cells.stop(&alloc::format!("cell-{number}"), 0).unwrap();
    }
    let names = |cells: &Cells<FakeMachine>| -> Vec<_> {
        cells.list(Detail::Brief).map(|cell| cell.spec.name).collect()
    };
    assert_eq!(names(&cells).len(), max_cells(3));
    // A cell that cannot be created replaces no record.
    assert!(create(&mut cells, CellSpec { cores: 3, ..spec("more") }).is_err());
    assert!(names(&cells).contains(&"cell-2".into()));
    create(&mut cells, spec("more")).unwrap();
    let left = names(&cells);
    assert_eq!(left.len(), max_cells(3));
    assert!(
        !left.contains(&"cell-2".into())
            && ["again", "runs", "cell-3"].iter().all(|name| left.contains(&(*name).into()))
    );
    let gone = cells.journal().since(0).filter(|entry| entry.event == JournalEvent::Destroy);
    assert_eq!(gone.filter_map(|entry| entry.cell.as_deref()).collect::<Vec<_>>(), ["cell-2"]);
}

#[test]
fn cells_that_await_a_restart_are_not_replaced() {
    let mut cells = machine(2);
    for number in 0..max_cells(3) {
        let name = alloc::format!("cell-{number}");
        let restarted =
            CellSpec { restart: RestartPolicy::Always, network: NetworkSpec::None, ..spec(&name) };
        let report = run(&mut cells, restarted);
        crashes(&report, CrashKind::Panic, "oh");
        cells.on_notification();
    }
    let refused = create(&mut cells, spec("more"));
    let Err(ManagementError::OutOfLimits(what)) = refused else { panic!("{refused:?}") };
    assert!(what.contains("stop or remove one"), "{what}");
    cells.stop("cell-7", 0).unwrap();
    create(&mut cells, spec("more")).unwrap();
    assert!(cells.find("cell-7").is_err());
}

#[test]
fn free_memory_is_scrubbed_in_slices_when_idle() {
    let mut cells = machine(1);
    assert_eq!(cells.machine().memory_dirty, cells.machine().memory_free);
    let mut slices = 0;
    while cells.work() == isola_supervisor_core::inventory::Scrub::Unfinished {
        slices += 1;
    }
    assert!(slices > 1);
    assert_eq!(cells.machine().memory_dirty, ByteSize(0));
    run(&mut cells, spec("kv"));
    cells.stop("kv", 0).unwrap();
    assert_eq!(cells.machine().memory_dirty, ByteSize(4 * MIB), "the memory of the cell");
}
