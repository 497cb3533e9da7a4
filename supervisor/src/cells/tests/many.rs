//! A machine of more cores than a cell can have, with a cell on almost each.

use super::moves::resize;
use super::*;
use crate::fake::{every_chunk_has_one_owner, go_wrong, machine_of_memory};
use isola_abi::management::{CorePlacement, RestartPolicy};

/// The cores besides the supervisor's.
const CORES: u32 = 200;

/// The most bytes of a checkpoint: `MAX_CHECKPOINT` of the package `isola-machine`.
const MAX_CHECKPOINT: usize = 48 << 10;

fn small(number: u32) -> CellSpec {
    let (memory, network) = (ByteSize(2 * MIB), NetworkSpec::None);
    CellSpec { memory, network, restart: RestartPolicy::Always, ..spec(&alloc::format!("cell-{number}")) }
}

fn core_ids(cells: &mut Cells<FakeMachine>, name: &str) -> Vec<u32> {
    info(cells, name).cores.iter().filter(|core| core.is_present).map(|core| core.id.0).collect()
}

#[test]
fn two_hundred_cells_run_resize_end_and_outlive_their_supervisor() {
    let mut cells = machine_of_memory(CORES, 512);
    let before = resources(&cells);
    let reports: Vec<_> = (0..CORES - 1).map(|number| run(&mut cells, small(number))).collect();
    assert_eq!(resize(&mut cells, "cell-0", Change::More(1)).unwrap().cores, [CoreId(CORES)]);
    let refused = Err(ManagementError::CoresExhausted { wanted: 1, free: 0 });
    assert_eq!(create(&mut cells, small(CORES)), refused);

    let mut cells = go_wrong(cells, CORES, 1, |_| {});
    every_chunk_has_one_owner(&cells);
    let all = list(&mut cells, Detail::Brief);
    assert_eq!(all.len(), CORES as usize - 1);
    assert!(all.iter().all(|cell| cell.state == CellState::Running));
    assert_eq!(core_ids(&mut cells, "cell-0"), [1, CORES]);
    assert_eq!(core_ids(&mut cells, "cell-198"), [CORES - 1]);
    assert_eq!(create(&mut cells, small(CORES)), refused);
    resize(&mut cells, "cell-0", Change::Less(1)).unwrap();
    run(&mut cells, small(CORES));
    assert_eq!(core_ids(&mut cells, "cell-200"), [CORES]);

    // All end and await their restarts, which the next supervisor knows.
    for report in &reports {
        crashes(report, CrashKind::Panic, "oh");
    }
    cells.on_notification();
    assert_eq!(cells.machine().cores.iter().filter(|core| core.owner == CoreOwner::Free).count(), 199);
    assert!(cells.fake().checkpoint.len() <= MAX_CHECKPOINT, "{}", cells.fake().checkpoint.len());
    let mut cells = go_wrong(cells, CORES, 2, |_| {});
    assert_eq!(list(&mut cells, Detail::Brief).len(), CORES as usize);
    advance(&mut cells, 60_000);
    assert!(list(&mut cells, Detail::Brief).iter().all(|cell| cell.state == CellState::Running));
    for cell in list(&mut cells, Detail::Brief) {
        cells.stop(&cell.spec.name, 0).unwrap();
        cells.destroy(&cell.spec.name).unwrap();
    }
    cells.work_while_waited_for();
    every_chunk_has_one_owner(&cells);
    assert_eq!(resources(&cells).cores, before.cores);
}

#[test]
fn a_cell_on_a_larger_machine_has_at_most_64_cores() {
    let mut cells = machine_of_memory(CORES, 512);
    let large = |name: &str, cores| CellSpec { cores, memory: ByteSize(32 * MIB), ..spec(name) };
    let Err(ManagementError::OutOfLimits(what)) = create(&mut cells, large("kv", 65)) else { panic!() };
    assert_eq!(what, "a cell has at most 64 cores, not 65");
    run(&mut cells, large("kv", 63));
    resize(&mut cells, "kv", Change::More(1)).unwrap();
    let Err(ManagementError::OutOfLimits(what)) = resize(&mut cells, "kv", Change::More(1)) else { panic!() };
    assert!(what.contains("1 to 64 cores, and has 64"), "{what}");
    assert_eq!(core_ids(&mut cells, "kv").len(), 64);
    // A second cell on named cores beyond the 64 of the first.
    let ids = (190..=CORES).map(CoreId).collect();
    let placement = CorePlacement { ids, ..CorePlacement::default() };
    run(&mut cells, CellSpec { placement, ..large("echo", 11) });
    let mut cells = go_wrong(cells, CORES, 1, |_| {});
    assert_eq!(core_ids(&mut cells, "echo"), (190..=CORES).collect::<Vec<_>>());
    assert_eq!(core_ids(&mut cells, "kv").len(), 64);
}

#[test]
fn a_machine_of_201_cores_records_201_cells() {
    let mut cells = machine_of_memory(CORES, 512);
    for number in 0..=CORES {
        run(&mut cells, CellSpec { restart: RestartPolicy::No, ..small(number) });
        cells.stop(&alloc::format!("cell-{number}"), 0).unwrap();
    }
    assert!(cells.find("cell-0").is_ok());
    run(&mut cells, small(CORES + 1));
    assert!(cells.find("cell-0").is_err() && cells.find("cell-1").is_ok());
    assert_eq!(list(&mut cells, Detail::Brief).len(), CORES as usize + 1);
}
