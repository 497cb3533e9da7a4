//! Pending requests and restarts: they delay no other request, and a supervisor restart drops them without loss.

use super::*;
use crate::fake::{every_chunk_has_one_owner, go_wrong};
use isola_abi::growth::Answer;
use isola_abi::id::NodeId;
use isola_abi::management::RestartPolicy;

/// Returns the specification of a cell of `mib` MiB without a device.
fn large(name: &str, mib: u64) -> CellSpec {
    CellSpec { memory: ByteSize(mib * MIB), network: NetworkSpec::None, ..spec(name) }
}

/// Returns a machine with dirty memory and a stored image.
fn dirty(cores: u32) -> Cells<FakeMachine> {
    let mut cells = machine(cores);
    send(&mut cells, &image());
    cells
}

fn begin(cells: &mut Cells<FakeMachine>, spec: CellSpec) -> Ticket {
    match cells.create(spec).unwrap() {
        Created::Pending(ticket) => ticket,
        Created::Done(_) => panic!("enough memory was known to be zero"),
    }
}

/// Checks that all resources are as `before`, and every chunk has one owner.
fn is_as_before(cells: &mut Cells<FakeMachine>, before: &MachineInfo) {
    assert!(!cells.is_waited_for());
    every_chunk_has_one_owner(cells);
    assert_eq!(&resources(cells), before);
}

#[test]
fn a_growing_cell_does_not_wait_for_the_creation_of_a_large_one() {
    let mut cells = dirty(2);
    let report = run(&mut cells, CellSpec { memory_max: Some(ByteSize(20 * MIB)), ..spec("kv") });
    let ticket = begin(&mut cells, large("big", 40));
    let id = cells.find("kv").unwrap();
    for _ in 0..3 {
        let number = report.memory_request.make(2 * MIB, 2 * MIB, NodeId(0));
        let before = cells.fake().scrubbed();
        cells.on_notification();
        assert_eq!(cells.fake().scrubbed(), before, "a notification scrubs no memory");
        let mut slices = 0;
        while cells.fake().grown[&id].answer_to(number) != Some(Answer::Given) {
            cells.work();
            slices += 1;
        }
        assert!(slices <= 3, "{slices} slices");
        assert!(cells.find("big").is_err());
    }
    cells.work_while_waited_for();
    assert_eq!(cells.take_created(), [(ticket, Ok(cells.find("big").unwrap()))]);
    assert_eq!(info(&mut cells, "big").memory.0, 40 * MIB);
    every_chunk_has_one_owner(&cells);
}

#[test]
fn no_call_scrubs_and_no_slice_scrubs_more_than_a_mebibyte() {
    let mut cells = dirty(2);
    let report = run(&mut cells, CellSpec { restart: RestartPolicy::Always, ..large("kv", 4) });
    let mut scrubbed = cells.fake().scrubbed();
    let mut at_most = |cells: &mut Cells<FakeMachine>, most: u64| {
        let now = cells.fake().scrubbed();
        assert!(now - scrubbed <= most, "{} bytes", now - scrubbed);
        scrubbed = now;
    };
    begin(&mut cells, large("big", 30));
    at_most(&mut cells, 0);
    let to = Change::To(ByteSize(10 * MIB));
    assert!(matches!(cells.resize_memory("kv", to, Mode::Apply), Ok(Resize::Pending(_))));
    at_most(&mut cells, 0);
    while cells.is_waited_for() {
        cells.work();
        at_most(&mut cells, SCRUB_SLICE);
    }
    assert_eq!(info(&mut cells, "kv").memory.0, 10 * MIB);
    crashes(&report, CrashKind::Panic, "oh");
    cells.on_notification();
    cells.destroy("big").unwrap();
    begin(&mut cells, large("all", 54));
    cells.pass_ns(200_000_000);
    cells.tick();
    at_most(&mut cells, 0);
    assert!(cells.is_waited_for());
    while cells.is_waited_for() {
        cells.work();
        at_most(&mut cells, SCRUB_SLICE);
    }
    assert_eq!(info(&mut cells, "kv").state, CellState::Running);
}

#[test]
fn a_request_ends_with_the_connection_that_made_it() {
    let mut cells = dirty(2);
    run(&mut cells, large("kv", 4));
    let before = resources(&cells);
    begin(&mut cells, large("big", 30));
    cells.resize_memory("kv", Change::To(ByteSize(20 * MIB)), Mode::Apply).unwrap();
    assert_eq!(cells.machine().memory_free.0, before.memory_free.0 - 46 * MIB);
    cells.forget_requests();
    is_as_before(&mut cells, &before);
    assert!((cells.take_created(), cells.find("big").is_err()) == (Vec::new(), true));
}

#[test]
fn a_request_about_a_cell_ends_with_the_cell() {
    let mut cells = dirty(2);
    let before = resources(&cells);
    let report = run(&mut cells, large("kv", 4));
    let Ok(Resize::Pending(ticket)) = cells.resize_memory("kv", Change::To(ByteSize(20 * MIB)), Mode::Apply)
    else {
        panic!("there was zero memory")
    };
    let again = cells.resize_memory("kv", Change::To(ByteSize(8 * MIB)), Mode::Apply);
    assert_eq!(again, Err(ManagementError::BeingResized("kv".into())));
    says(&report, CellPhase::Exited);
    cells.on_notification();
    let wrong = ManagementError::WrongState { name: "kv".into(), state: CellState::Exited };
    assert_eq!(cells.take_resized(), [(ticket, Err(wrong.clone()))]);
    is_as_before(&mut cells, &before);
    let Ok(Created::Pending(ticket)) = cells.recreate("kv") else { panic!("there was zero memory") };
    cells.destroy("kv").unwrap();
    assert_eq!(cells.take_created(), [(ticket, Err(wrong))]);
    is_as_before(&mut cells, &before);
}

#[test]
fn a_second_recreation_replaces_the_pending_first() {
    let mut cells = dirty(2);
    let report = run(&mut cells, large("kv", 4));
    says(&report, CellPhase::Exited);
    cells.on_notification();
    let mut recreate = || match cells.recreate("kv") {
        Ok(Created::Pending(ticket)) => ticket,
        other => panic!("there was zero memory: {other:?}"),
    };
    let (first, second) = (recreate(), recreate());
    let wrong = ManagementError::WrongState { name: "kv".into(), state: CellState::Exited };
    assert_eq!(cells.take_created(), [(first, Err(wrong))]);
    cells.work_while_waited_for();
    let id = cells.find("kv").unwrap();
    assert_eq!(cells.take_created(), [(second, Ok(id))]);
}

#[test]
fn a_pending_request_is_refused_if_its_cores_were_taken_meanwhile() {
    let mut cells = dirty(2);
    let ticket = begin(&mut cells, CellSpec { cores: 2, ..large("big", 30) });
    let taken = cells.create(large("big", 4));
    assert_eq!(taken, Err(ManagementError::NameTaken("big".into())), "the name is taken already");
    run(&mut cells, large("thief", 2));
    cells.work_while_waited_for();
    let error = ManagementError::CoresExhausted { wanted: 2, free: 1 };
    assert_eq!(cells.take_created(), [(ticket, Err(error.clone()))]);
    assert_eq!(events(&cells).last(), Some(&JournalEvent::Refused(error)));
    every_chunk_has_one_owner(&cells);
    assert!(cells.find("big").is_err());
}

#[test]
fn the_image_of_a_pending_request_is_not_evicted() {
    let mut cells = dirty(2);
    begin(&mut cells, large("big", 30));
    assert_eq!(cells.images()[0].cells, 1);
    let free = cells.machine().memory_free.0;
    let error = cells.create(large("other", free / MIB + 2)).unwrap_err();
    assert!(matches!(error, ManagementError::MemoryExhausted { .. }), "{error:?}");
    cells.work_while_waited_for();
    assert!(cells.find("big").is_ok());
}

#[test]
fn a_restart_waits_without_a_deadline_and_is_cancelled_by_a_stop() {
    let mut cells = dirty(1);
    let before = resources(&cells);
    let report = run(&mut cells, CellSpec { restart: RestartPolicy::Always, ..large("kv", 50) });
    for is_stopped in [false, true] {
        let report = cells.fake().reports.values().next().cloned().unwrap_or_else(|| report.clone());
        crashes(&report, CrashKind::Panic, "oh");
        cells.on_notification();
        cells.pass_ns(1_000_000_000);
        cells.tick();
        assert!(cells.is_waited_for());
        assert_eq!(cells.next_deadline_ns(), None, "a pending restart has no deadline");
        if is_stopped {
            cells.stop("kv", 0).unwrap();
            return is_as_before(&mut cells, &before);
        }
        cells.work_while_waited_for();
        assert_eq!(info(&mut cells, "kv").state, CellState::Running);
    }
}

#[test]
fn a_restarted_supervisor_drops_pending_requests_and_nothing_else() {
    let mut cells = dirty(2);
    let report = run(&mut cells, CellSpec { restart: RestartPolicy::Always, ..large("kv", 20) });
    crashes(&report, CrashKind::Panic, "oh");
    cells.on_notification();
    cells.pass_ns(1_000_000_000);
    cells.tick();
    begin(&mut cells, large("big", 30));
    let mut cells = go_wrong(cells, 2, 1, |_| {});
    every_chunk_has_one_owner(&cells);
    assert!(!cells.is_waited_for());
    assert_eq!(cells.machine().memory_free.0, 64 * MIB - IMAGE);
    // The restart is still due.
    advance(&mut cells, 0);
    assert_eq!(info(&mut cells, "kv").state, CellState::Running);
    assert!(cells.find("big").is_err());
}
