//! Refused requests, which change nothing.

use super::*;
use alloc::string::ToString;
use alloc::vec;
use isola_abi::management::{CorePlacement, TakenCore, TakenCoreOwner};

#[test]
fn impossible_specifications_are_refused_and_change_nothing() {
    use ManagementError::*;
    let mut cells = machine(2);
    run(&mut cells, spec("kv"));
    let before = resources(&cells);
    // The image takes a chunk until the cell exists.
    let free = ByteSize(58 * MIB);
    let damaged = |change: fn(&mut CellSpec)| {
        let mut spec = spec("new");
        change(&mut spec);
        spec
    };
    for (spec, error) in [
        (spec("kv"), NameTaken("kv".into())),
        (spec("-"), BadName("-".into())),
        (damaged(|spec| spec.cores = 0), OutOfLimits("a cell needs at least one core".into())),
        (damaged(|spec| spec.cores = 2), CoresExhausted { wanted: 2, free: 1 }),
        (damaged(|spec| spec.cores = 64), CoresExhausted { wanted: 64, free: 1 }),
        (damaged(|spec| spec.cores = 65), OutOfLimits("a cell has at most 64 cores, not 65".into())),
        (damaged(|spec| spec.memory.0 = 61 * MIB), MemoryExhausted { wanted: ByteSize(61 * MIB), free }),
        (damaged(|spec| spec.memory.0 = u64::MAX), MemoryExhausted { wanted: ByteSize(u64::MAX), free }),
    ] {
        assert_eq!(create(&mut cells, spec), Err(error));
        assert_eq!(resources(&cells), before);
    }
    create(&mut cells, spec("second")).unwrap();
    assert_eq!(create(&mut cells, spec("third")), Err(CoresExhausted { wanted: 1, free: 0 }));
}

#[test]
fn a_refusal_of_named_cores_names_their_owners() {
    let mut cells = machine(3);
    run(&mut cells, spec("kv"));
    let before = resources(&cells);
    let named = |ids: [u32; 3]| {
        let placement = CorePlacement { ids: ids.map(CoreId).to_vec(), ..CorePlacement::default() };
        CellSpec { cores: 3, placement, ..spec("new") }
    };
    let taken = vec![
        TakenCore { id: CoreId(0), by: TakenCoreOwner::Supervisor },
        TakenCore { id: CoreId(1), by: TakenCoreOwner::Cell("kv".into()) },
    ];
    let refused = create(&mut cells, named([0, 1, 2])).unwrap_err();
    assert_eq!(refused, ManagementError::CoresTaken { wanted: 3, taken });
    assert!(refused.to_string().contains("core 1 is cell \"kv\"'s"), "{refused}");
    assert_eq!(resources(&cells), before);
    let two = CellSpec { cores: 2, network: NetworkSpec::None, ..named([3, 1, 2]) };
    assert!(create(&mut cells, two).is_ok(), "two of three are free");
}

#[test]
fn exhausted_devices_matter_only_to_cells_with_a_network() {
    let mut cells = machine(3);
    run(&mut cells, spec("a"));
    run(&mut cells, spec("b"));
    assert_eq!(create(&mut cells, spec("c")), Err(ManagementError::DevicesExhausted));
    run(&mut cells, CellSpec { network: NetworkSpec::None, ..spec("c") });
}

#[test]
fn the_refusal_of_too_little_memory_names_the_least() {
    let mut cells = machine(2);
    let mut bytes = isola_supervisor_fake::image::Builder::default();
    bytes.segments[2].3 = 3 * MIB;
    let image = send(&mut cells, &bytes.build());
    let tight = |memory| CellSpec { image, memory: ByteSize(memory), ..spec("kv") };
    let Err(ManagementError::MemoryTooSmall { wanted, least }) = cells.create_waiting(tight(2 * MIB)) else {
        panic!("2 MiB are too little");
    };
    assert_eq!((wanted, least), (ByteSize(2 * MIB), ByteSize(4 * MIB)));
    cells.create_waiting(tight(least.0)).unwrap();
}

#[test]
fn invalid_and_missing_images_are_refused() {
    let mut cells = machine(2);
    let before = resources(&cells);
    assert_eq!(cells.create_waiting(spec("kv")), Err(ManagementError::NoImage));
    let bytes = image();
    cells.begin_image(bytes.len() as u64).unwrap();
    cells.append_image(0, &bytes[..100]).unwrap();
    while cells.measure() {}
    assert_eq!(cells.create_waiting(spec("kv")), Err(ManagementError::NoImage), "the upload is incomplete");
    let noise = send(&mut cells, &[0; 5000]);
    let rejected = ManagementError::ImageRejected(ImageFault::NotElf);
    assert_eq!(cells.create_waiting(CellSpec { image: noise, ..spec("kv") }), Err(rejected));
    assert_eq!(cells.create_waiting(spec("kv")), Err(ManagementError::NoImage), "another image was uploaded");
    assert_eq!(resources(&cells), before);
}

#[test]
fn a_cell_that_cannot_be_built_returns_all_resources() {
    let mut cells = machine(2);
    let before = resources(&cells);
    cells.fake().build_error = Some(BuildError::TooSmall { least_bytes: 5 * MIB });
    let too_small = ManagementError::MemoryTooSmall { wanted: ByteSize(4 * MIB), least: ByteSize(6 * MIB) };
    assert_eq!(create(&mut cells, spec("kv")), Err(too_small));
    cells.fake().build_error = Some(BuildError::DescriptorTooLong);
    assert!(matches!(create(&mut cells, spec("kv")), Err(ManagementError::OutOfLimits(_))));
    assert_eq!(resources(&cells), before);
}

#[test]
fn a_failed_recreation_can_be_repeated_and_the_cell_destroyed() {
    let mut cells = machine(2);
    let before = resources(&cells);
    run(&mut cells, spec("kv"));
    cells.stop("kv", 0).unwrap();
    cells.fake().build_error = Some(BuildError::DescriptorTooLong);
    assert!(cells.recreate_waiting("kv").is_err());
    assert_eq!(info(&mut cells, "kv").state, CellState::Killed);
    assert_eq!(resources(&cells), before);
    cells.fake().build_error = None;
    cells.recreate_waiting("kv").unwrap();
    cells.start("kv").unwrap();
    cells.stop("kv", 0).unwrap();
    cells.destroy("kv").unwrap();
    assert_eq!(resources(&cells), before);
}

#[test]
fn requests_for_missing_cells_and_cells_in_the_wrong_state_are_refused() {
    let mut cells = machine(2);
    let missing = ManagementError::NoSuchCell("x".into());
    assert_eq!(cells.start("x").unwrap_err(), missing);
    assert_eq!(cells.stop("x", 0).unwrap_err(), missing);
    assert_eq!(cells.destroy("x").unwrap_err(), missing);
    let wrong = |state| ManagementError::WrongState { name: "kv".into(), state };
    create(&mut cells, spec("kv")).unwrap();
    assert_eq!(cells.stop("kv", 0).unwrap_err(), wrong(CellState::Created));
    cells.start("kv").unwrap();
    assert_eq!(cells.start("kv").unwrap_err(), wrong(CellState::Running));
    assert_eq!(cells.destroy("kv").unwrap_err(), wrong(CellState::Running));
    cells.stop("kv", 1000).unwrap();
    assert_eq!(cells.destroy("kv").unwrap_err(), wrong(CellState::Stopping));
}
