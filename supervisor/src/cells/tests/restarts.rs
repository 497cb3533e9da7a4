//! Restarts by policy: when, how often, and when not.

use super::*;
use crate::cells::restart::{FIRST_DELAY_NS, LONGEST_DELAY_NS, STEADY_NS};
use crate::fake::machine_of_memory;
use isola_abi::management::RestartPolicy;
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const ON_FAILURE: RestartPolicy = RestartPolicy::OnFailure { most: None };

fn restarted(restart: RestartPolicy) -> CellSpec {
    CellSpec { restart, network: NetworkSpec::None, ..spec("kv") }
}

#[test]
fn a_restarted_cell_gets_its_device_back() {
    let mut cells = machine(4);
    let with_network = CellSpec { network: NetworkSpec::Dhcp, ..restarted(RestartPolicy::Always) };
    run(&mut cells, with_network);
    let device = info(&mut cells, "kv").device;
    assert!(device.is_some());
    exit(&mut cells, 1);
    assert_eq!(info(&mut cells, "kv").device, None);
    let other = CellSpec { network: NetworkSpec::Dhcp, ..spec("other") };
    run(&mut cells, other.clone());
    assert_eq!(
        cells.create(CellSpec { name: "third".into(), ..other }),
        Err(ManagementError::DevicesExhausted)
    );
    advance(&mut cells, 200);
    assert_eq!(info(&mut cells, "kv").device, device);
}

/// An event that ends a cell.
type Ending = fn(&mut Cells<FakeMachine>);

/// Returns the report of the cell, since it was last built.
fn report(cells: &mut Cells<FakeMachine>) -> Rc<Report> {
    cells.fake().reports.values().next().unwrap().clone()
}

fn exit(cells: &mut Cells<FakeMachine>, code: i32) {
    let report = report(cells);
    report.exit_code.store(code, Ordering::Relaxed);
    says(&report, CellPhase::Exited);
    cells.on_notification();
}

fn crash(cells: &mut Cells<FakeMachine>) {
    crashes(&report(cells), CrashKind::Panic, "oh");
    cells.on_notification();
}

/// Returns the time until the cell's restart, in ms.
fn due_in_ms(cells: &mut Cells<FakeMachine>) -> Option<u64> {
    let now = cells.fake().now.get();
    let unix_ns = info(cells, "kv").restarts.next_unix_ns?;
    Some((unix_ns - 1_000_000).saturating_sub(now).div_ceil(MS))
}

/// Lets time pass until the next attempt. Returns how long that was, in ms.
fn wait(cells: &mut Cells<FakeMachine>) -> u64 {
    let ms = due_in_ms(cells).expect("an attempt is due");
    advance(cells, ms - 1);
    let again = due_in_ms(cells);
    assert!(again.is_some_and(|rest| rest <= 2), "the attempt is still due in {again:?} ms");
    advance(cells, 2);
    ms
}

#[test]
fn a_restarted_cell_keeps_its_id_and_log() {
    let mut cells = machine(1);
    run(&mut cells, restarted(ON_FAILURE));
    let id = info(&mut cells, "kv").id;
    crate::logs::tests::print(&report(&mut cells), b"once\n");
    crash(&mut cells);
    let waiting = info(&mut cells, "kv");
    assert_eq!((waiting.state, waiting.memory, waiting.restarts.count), (CellState::Crashed, ByteSize(0), 0));
    assert_eq!(wait(&mut cells), FIRST_DELAY_NS / MS);
    let again = info(&mut cells, "kv");
    assert_eq!((again.id, again.state, again.restarts.count), (id, CellState::Running, 1));
    assert_eq!(again.restarts.next_unix_ns, None);
    crate::logs::tests::print(&report(&mut cells), b"twice\n");
    assert_eq!(cells.logs("kv", 0, usize::MAX).unwrap().bytes, b"once\ntwice\n");
    let due = JournalEvent::RestartDue { ends_in_row: 1, after_ns: FIRST_DELAY_NS };
    let crash = JournalEvent::Crash(CrashKind::Panic);
    assert_eq!(events(&cells)[3..], [crash, due, JournalEvent::Recreate, JournalEvent::Start]);
}

#[test]
fn restarts_depend_on_policy_and_end() {
    let most = |most| RestartPolicy::OnFailure { most: Some(most) };
    for (policy, after_success, after_failure) in [
        (RestartPolicy::No, false, false),
        (ON_FAILURE, false, true),
        (most(1), false, true),
        (most(0), false, false),
        (RestartPolicy::Always, true, true),
    ] {
        let ends: [(Ending, bool); 3] = [
            (|cells| exit(cells, 0), after_success),
            (|cells| exit(cells, 3), after_failure),
            (crash, after_failure),
        ];
        for (end, expected) in ends {
            let mut cells = machine(1);
            run(&mut cells, restarted(policy));
            end(&mut cells);
            assert_eq!(due_in_ms(&mut cells).is_some(), expected, "{policy}");
            assert_eq!(cells.next_deadline_ns().is_some(), expected);
        }
    }
}

#[test]
fn a_hung_cell_is_restarted() {
    let mut cells = machine(1);
    let report = run(&mut cells, CellSpec { watchdog_ms: 100, ..restarted(ON_FAILURE) });
    says(&report, CellPhase::Running);
    signs(&report, 0, CorePhase::Running, 1);
    for _ in 0..10 {
        advance(&mut cells, 30);
    }
    assert_eq!(info(&mut cells, "kv").state, CellState::Crashed);
    wait(&mut cells);
    assert_eq!(info(&mut cells, "kv").state, CellState::Running);
}

#[test]
fn delays_double_until_the_cell_has_run_for_the_steady_time() {
    let mut cells = machine(1);
    run(&mut cells, restarted(RestartPolicy::Always));
    let mut delays = Vec::new();
    for _ in 0..12 {
        exit(&mut cells, 0);
        delays.push(wait(&mut cells));
    }
    assert_eq!(delays[..5], [100, 200, 400, 800, 1600]);
    assert_eq!(delays[9..], [51_200, LONGEST_DELAY_NS / MS, LONGEST_DELAY_NS / MS]);
    advance(&mut cells, STEADY_NS / MS);
    crash(&mut cells);
    assert_eq!((wait(&mut cells), info(&mut cells, "kv").restarts.ends_in_row), (100, 1));
    assert_eq!(info(&mut cells, "kv").restarts.count, 13);
}

#[test]
fn a_cell_that_fails_too_often_in_a_row_is_not_restarted() {
    let mut cells = machine(1);
    run(&mut cells, restarted(RestartPolicy::OnFailure { most: Some(2) }));
    for _ in 0..2 {
        crash(&mut cells);
        wait(&mut cells);
    }
    advance(&mut cells, STEADY_NS / MS);
    for _ in 0..2 {
        crash(&mut cells);
        wait(&mut cells);
    }
    crash(&mut cells);
    assert_eq!(events(&cells).last(), Some(&JournalEvent::RestartsUsedUp { ends_in_row: 3 }));
    assert_eq!((due_in_ms(&mut cells), cells.next_deadline_ns()), (None, None));
    // A request restarts the cell all the same.
    cells.recreate_waiting("kv").unwrap();
    cells.start("kv").unwrap();
    assert_eq!(info(&mut cells, "kv").restarts, isola_abi::management::Restarts::default());
    crash(&mut cells);
    assert_eq!(wait(&mut cells), 100);
}

#[test]
fn a_stopped_cell_is_not_restarted() {
    let endings: [Ending; 5] = [
        |cells| assert!(matches!(cells.stop("kv", 0), Ok(Stop::Stopped(_)))),
        |cells| {
            cells.stop("kv", 1000).unwrap();
            exit(cells, 1);
        },
        |cells| {
            cells.stop("kv", 1000).unwrap();
            crash(cells);
        },
        // While the interrupted instruction of a hang is awaited.
        |cells| {
            let report = report(cells);
            says(&report, CellPhase::Running);
            signs(&report, 0, CorePhase::Running, 1);
            (0..5).for_each(|_| advance(cells, 30));
            cells.stop("kv", 1000).unwrap();
            crash(cells);
        },
        // While a restart is due.
        |cells| {
            crash(cells);
            assert!(matches!(cells.stop("kv", 1000), Ok(Stop::Stopped(_))));
            assert_eq!(events(cells).last(), Some(&JournalEvent::RestartCancelled));
        },
    ];
    for end in endings {
        let mut cells = machine(1);
        let before = resources(&cells);
        run(&mut cells, CellSpec { watchdog_ms: 100, ..restarted(RestartPolicy::Always) });
        end(&mut cells);
        assert!(info(&mut cells, "kv").state.has_ended());
        assert_eq!((due_in_ms(&mut cells), cells.next_deadline_ns()), (None, None));
        advance(&mut cells, 600_000);
        assert!(info(&mut cells, "kv").state.has_ended());
        assert_eq!(resources(&cells), before, "its image is idle");
    }
}

#[test]
fn a_cell_whose_place_is_taken_is_tried_again_and_its_image_kept() {
    let mut cells = machine(1);
    run(&mut cells, restarted(RestartPolicy::OnFailure { most: Some(1) }));
    crash(&mut cells);
    // All cores, and all memory besides the image that is kept for the restart.
    let thief = CellSpec { memory: ByteSize(62 * MIB), network: NetworkSpec::None, ..spec("thief") };
    cells.create_waiting(CellSpec { memory: ByteSize(64 * MIB), ..thief.clone() }).unwrap_err();
    create(&mut cells, thief).unwrap();
    cells.start("thief").unwrap();
    // A part of the first delay passed while the other cell's memory was scrubbed.
    assert!((70..=100).contains(&wait(&mut cells)));
    assert_eq!(wait(&mut cells), 200);
    let error = ManagementError::CoresExhausted { wanted: 1, free: 0 };
    let refused = JournalEvent::RestartRefused { error, after_ns: Some(400 * MS) };
    assert_eq!(events(&cells).last(), Some(&refused));
    assert_eq!(cells.journal().since(0).last().and_then(|entry| entry.cell.as_deref()), Some("kv"));
    cells.stop("thief", 0).unwrap();
    assert_eq!(wait(&mut cells), 400);
    let again = info(&mut cells, "kv");
    assert_eq!((again.state, again.restarts.count), (CellState::Running, 1), "refused attempts are not ends");
}

#[test]
fn a_permanent_error_ends_the_restarts() {
    let mut cells = machine(1);
    run(&mut cells, restarted(ON_FAILURE));
    crash(&mut cells);
    cells.fake().build_error = Some(BuildError::DescriptorTooLong);
    wait(&mut cells);
    assert!(matches!(events(&cells).last(), Some(JournalEvent::RestartRefused { after_ns: None, .. })));
    assert_eq!(cells.next_deadline_ns(), None);
}

#[test]
fn a_cell_that_awaits_a_restart_can_be_recreated_and_destroyed() {
    let mut cells = machine(1);
    let before = resources(&cells);
    run(&mut cells, restarted(ON_FAILURE));
    crash(&mut cells);
    cells.recreate_waiting("kv").unwrap();
    assert_eq!(cells.next_deadline_ns(), None, "the restart is cancelled");
    cells.start("kv").unwrap();
    crash(&mut cells);
    cells.destroy("kv").unwrap();
    assert_eq!((cells.next_deadline_ns(), resources(&cells)), (None, before));
}

/// An event of a cell.
#[derive(Clone, Copy, Debug)]
enum Turn {
    Exit(i32),
    Crash,
    Stop(u32),
    Start,
    Time(u64),
    Steal,
    GiveBack,
}

fn any_turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        (0..2i32).prop_map(Turn::Exit),
        Just(Turn::Crash),
        (0..50u32).prop_map(Turn::Stop),
        Just(Turn::Start),
        prop_oneof![0..500u64, 9_000..70_000u64].prop_map(Turn::Time),
        Just(Turn::Steal),
        Just(Turn::GiveBack),
    ]
}

proptest! {
    /// A cell runs or awaits a restart exactly while its policy requires it and no stop was requested. The image of a
    /// cell that awaits a restart is stored, and an attempt is never further away than the longest delay.
    #[test]
    fn policies_hold_for_all_sequences_of_events(
        policy in prop_oneof![
            Just(RestartPolicy::No),
            Just(ON_FAILURE),
            (0..4u32).prop_map(|most| RestartPolicy::OnFailure { most: Some(most) }),
            Just(RestartPolicy::Always),
        ],
        turns in proptest::collection::vec(any_turn(), 1..60),
    ) {
        let mut cells = machine_of_memory(1, 16);
        let before = resources(&cells);
        run(&mut cells, restarted(policy));
        let mut tries_left = None;
        let mut wanted = true;
        for turn in turns {
            let ran = info(&mut cells, "kv").state;
            let running = matches!(ran, CellState::Running | CellState::Stopping);
            let started_ns = info(&mut cells, "kv").started_unix_ns.unwrap() - 1_000_000;
            let steady = cells.fake().now.get() - started_ns >= STEADY_NS;
            let mut ended = |failed: bool| {
                let most = match policy {
                    RestartPolicy::No => return false,
                    RestartPolicy::Always => return true,
                    RestartPolicy::OnFailure { .. } if !failed => return false,
                    RestartPolicy::OnFailure { most: None } => return true,
                    RestartPolicy::OnFailure { most: Some(most) } => most,
                };
                let left = if steady { most } else { tries_left.unwrap_or(most) };
                tries_left = Some(left.saturating_sub(1));
                left > 0
            };
            match turn {
                Turn::Exit(code) if running => {
                    wanted &= ran == CellState::Running && ended(code != 0);
                    exit(&mut cells, code);
                }
                Turn::Crash if running => {
                    wanted &= ran == CellState::Running && ended(true);
                    crash(&mut cells);
                }
                Turn::Exit(_) | Turn::Crash => {}
                Turn::Stop(timeout_ms) => {
                    let _ = cells.stop("kv", timeout_ms);
                    wanted = false;
                }
                Turn::Start => {
                    if cells.recreate_waiting("kv").is_ok() {
                        cells.start("kv").unwrap();
                        (wanted, tries_left) = (true, None);
                    }
                }
                Turn::Time(ms) => advance(&mut cells, ms),
                Turn::Steal => {
                    let thief = CellSpec { name: "thief".into(), network: NetworkSpec::None, ..spec("thief") };
                    if cells.images().iter().any(|image| image.digest == thief.image) && cells.create_waiting(thief).is_ok() {
                        cells.start("thief").unwrap();
                    }
                }
                Turn::GiveBack => {
                    let _ = cells.stop("thief", 0);
                    let _ = cells.destroy("thief");
                }
            }
            let now = info(&mut cells, "kv");
            let waits = now.restarts.next_unix_ns;
            if wanted {
                prop_assert!(now.state == CellState::Running || waits.is_some(), "{:?}", now);
            } else {
                prop_assert!(now.state != CellState::Running && waits.is_none(), "{:?}", now);
            }
            if let Some(next) = waits {
                prop_assert!(now.state.has_ended());
                prop_assert!(cells.images().iter().any(|image| image.digest == now.spec.image && image.cells > 0));
                prop_assert!(next <= cells.fake().now.get() + 1_000_000 + LONGEST_DELAY_NS);
            }
        }
        for name in ["kv", "thief"] {
            let _ = cells.stop(name, 0);
            let _ = cells.destroy(name);
        }
        prop_assert_eq!(resources(&cells), before);
        prop_assert_eq!(cells.next_deadline_ns(), None);
    }
}
