//! Samples for profiles.

use super::*;

/// The number of samples of each core since the last call.
fn samples_of(cells: &mut Cells<FakeMachine>, core: u32) -> usize {
    let is_sample =
        |action: &mut Action| matches!(action, Action::Sample(cores) if cores.contains(&CoreId(core)));
    cells.fake().actions.extract_if(.., is_sample).count()
}

/// Lets time pass in steps of 100 us.
fn pass(cells: &mut Cells<FakeMachine>, ms: u64) {
    for _ in 0..10 * ms {
        cells.pass_ns(100_000);
        let now = cells.core().now_ns();
        if cells.next_deadline_ns().is_some_and(|deadline| deadline <= now) {
            cells.tick();
        }
    }
}

#[test]
fn all_cores_of_a_cell_are_sampled_at_the_rate_until_the_lease_ends() {
    let mut cells = machine(4);
    run(&mut cells, CellSpec { cores: 2, ..spec("kv") });
    run(&mut cells, spec("other"));
    assert_eq!(cells.next_deadline_ns(), None);
    // Each reading of the fake clock takes some time.
    let are_sampled = |cells: &mut Cells<FakeMachine>, expected: usize| {
        let both = Action::Sample(alloc::vec![CoreId(1), CoreId(2)]);
        assert!(
            cells.fake().actions.iter().all(|action| !matches!(action, Action::Sample(_)) || *action == both)
        );
        let count = samples_of(cells, 1);
        assert!(count.abs_diff(expected) <= 5, "{count} samples instead of {expected}");
    };
    cells.sample("kv", 100).unwrap();
    pass(&mut cells, 1000);
    are_sampled(&mut cells, 101);
    // The renewal changes no due time.
    cells.sample("kv", 100).unwrap();
    pass(&mut cells, 1500);
    are_sampled(&mut cells, 150);
    pass(&mut cells, 1000);
    are_sampled(&mut cells, 49);
    assert_eq!(cells.next_deadline_ns(), None, "the lease of 2 s is over");
}

#[test]
fn rate_0_ends_the_sampling() {
    let mut cells = machine(2);
    run(&mut cells, spec("kv"));
    cells.sample("kv", 1000).unwrap();
    pass(&mut cells, 10);
    cells.sample("kv", 0).unwrap();
    assert_eq!((samples_of(&mut cells, 1), cells.next_deadline_ns()), (11, None));
}

#[test]
fn a_late_tick_takes_one_sample() {
    let mut cells = machine(2);
    run(&mut cells, spec("kv"));
    cells.sample("kv", 1000).unwrap();
    cells.tick();
    cells.pass_ns(500_000_000);
    cells.tick();
    cells.tick();
    assert_eq!(samples_of(&mut cells, 1), 2);
}

#[test]
fn the_rate_of_a_core_and_that_of_all_cores_are_bounded() {
    let mut cells = machine(64);
    run(&mut cells, CellSpec { cores: 30, memory: ByteSize(16 * MIB), ..spec("a") });
    run(&mut cells, CellSpec { cores: 10, memory: ByteSize(16 * MIB), ..spec("b") });
    let refusal = |result: Result<(), ManagementError>| alloc::format!("{}", result.unwrap_err());
    assert!(refusal(cells.sample("a", 1001)).contains("at most 1000"));
    assert!(refusal(cells.sample("a", 1000)).contains("at most 666 per core are left"));
    cells.sample("a", 600).unwrap();
    assert!(refusal(cells.sample("b", 1000)).contains("at most 200 per core are left"));
    cells.sample("b", 200).unwrap();
    cells.sample("a", 600).unwrap();
    assert!(refusal(cells.sample("a", 601)).contains("at most 600"));
    cells.sample("a", 0).unwrap();
    cells.sample("b", 1000).unwrap();
}

#[test]
fn only_a_running_cell_is_sampled() {
    let mut cells = machine(2);
    assert!(matches!(cells.sample("kv", 99), Err(ManagementError::NoSuchCell(_))));
    create(&mut cells, spec("kv")).unwrap();
    assert!(matches!(cells.sample("kv", 99), Err(ManagementError::WrongState { .. })));
    cells.start("kv").unwrap();
    cells.sample("kv", 99).unwrap();
    pass(&mut cells, 100);
    let count = samples_of(&mut cells, 1);
    assert!((9..=12).contains(&count), "{count} samples in 100 ms at 99 Hz");
    cells.stop("kv", 0).unwrap();
    assert_eq!(cells.next_deadline_ns(), None);
    pass(&mut cells, 100);
    assert_eq!(samples_of(&mut cells, 1), 0);
    assert!(matches!(cells.sample("kv", 99), Err(ManagementError::WrongState { .. })));
}

#[test]
fn a_cell_that_should_stop_at_an_nmi_gets_none_for_samples() {
    let mut cells = machine(2);
    let report = run(&mut cells, CellSpec { watchdog_ms: 100, ..spec("kv") });
    says(&report, CellPhase::Running);
    signs(&report, 0, CorePhase::Running, 1);
    cells.sample("kv", 1000).unwrap();
    while !cells.fake().actions.contains(&Action::Examine(CoreId(1))) {
        cells.sample("kv", 1000).unwrap();
        pass(&mut cells, 1);
    }
    samples_of(&mut cells, 1);
    pass(&mut cells, 1);
    assert_eq!(samples_of(&mut cells, 1), 0);
    assert!(matches!(cells.sample("kv", 1000), Err(ManagementError::WrongState { .. })));
}
