//! The image store: one copy for all cells of an image, never at a cell's expense.

use super::*;
use crate::fake::{every_chunk_has_one_owner, go_wrong, machine_of_nodes};
use crate::images::MAX_IDLE;
use isola_abi::id::NodeId;
use isola_abi::integrity::{PublicKey, Requirement, UnmetRequirement};
use isola_abi::management::{CorePlacement, Text};
use isola_supervisor_fake::image::Builder;

/// Returns an image that takes `len_mib` MiB of the inventory, different for each `number`.
pub(super) fn other_image(number: u8, len_mib: u64) -> Vec<u8> {
    let mut image = Builder::default();
    image.segments[1].2 = alloc::vec![number; (100 + (len_mib - 1) * MIB) as usize];
    image.segments[1].3 = 100 + (len_mib - 1) * MIB;
    image.segments[2].0 += 64 * MIB;
    image.build()
}

/// Returns the number of cells and the length in MiB, rounded up, of each stored image.
fn kept(cells: &Cells<FakeMachine>) -> Vec<(u32, u64)> {
    cells.images().iter().map(|image| (image.cells, image.len_bytes.div_ceil(MIB))).collect()
}

#[test]
fn one_copy_serves_all_cells_of_an_image() {
    let mut cells = machine(3);
    let total = cells.machine().memory_free;
    send(&mut cells, &image());
    assert_eq!(cells.machine().memory_free, total, "an idle image counts as free memory");
    for name in ["a", "b", "c"] {
        let network = NetworkSpec::None;
        cells.create_waiting(CellSpec { network, ..spec(name) }).unwrap();
        cells.start(name).unwrap();
    }
    assert_eq!((kept(&cells), cells.machine().memory_images), (alloc::vec![(3, 1)], ByteSize(2 * MIB)));
    assert_eq!(cells.machine().memory_free.0, total.0 - 3 * 4 * MIB - 2 * MIB);
    // A second upload does not add a copy.
    send(&mut cells, &image());
    assert_eq!(cells.machine().memory_images, ByteSize(2 * MIB));
    for (name, users) in [("a", 2), ("b", 1), ("c", 0)] {
        cells.stop(name, 0).unwrap();
        assert_eq!(kept(&cells), [(users, 1)]);
    }
    assert_eq!(cells.machine().memory_free, total, "ended cells hold no resources");
    cells.recreate_waiting("b").unwrap();
    assert_eq!(kept(&cells), [(1, 1)]);
    cells.destroy("b").unwrap();
    assert_eq!(kept(&cells), [(0, 1)]);
    assert_eq!(cells.machine().memory_free, total);
}

#[test]
fn cells_share_read_only_segments_unless_their_text_is_private() {
    let mut cells = machine(3);
    run(&mut cells, spec("a"));
    run(&mut cells, CellSpec { network: NetworkSpec::None, ..spec("b") });
    run(&mut cells, CellSpec { text: Text::Private, ..spec("own") });
    let (a, b, own) = (info(&mut cells, "a"), info(&mut cells, "b"), info(&mut cells, "own"));
    // Two pages of code, one of constants, five of variables.
    assert_eq!((a.image, a.text), (ByteSize(0x5000), ByteSize(0x3000)));
    assert_eq!((b.image, b.text), (a.image, a.text));
    assert_eq!((own.image, own.text), (ByteSize(0x8000), ByteSize(0)));
    for cell in [a.id, b.id, own.id] {
        assert_eq!(digest(&cells.fake().images[&cell]), digest(&image()));
    }
}

#[test]
fn cells_map_a_copy_of_their_image_on_their_own_node_until_the_last_of_them_ends() {
    let mut cells = machine_of_nodes(4, 2);
    let total = cells.machine().memory_free.0;
    let on = |node: u32, name: &str| CellSpec {
        placement: CorePlacement { node: Some(NodeId(node)), ..CorePlacement::default() },
        network: NetworkSpec::None,
        ..spec(name)
    };
    let taken = |cells: &Cells<FakeMachine>| {
        every_chunk_has_one_owner(cells);
        let machine = cells.machine();
        (machine.memory_images.0 / MIB, (total - machine.memory_free.0) / MIB)
    };
    run(&mut cells, on(0, "a"));
    assert_eq!(taken(&cells), (2, 6));
    run(&mut cells, on(1, "b"));
    run(&mut cells, on(1, "c"));
    assert_eq!(taken(&cells), (4, 16), "both cells share one copy");
    assert_eq!(kept(&cells), [(3, 1)], "the copy is not another image");
    for name in ["a", "b", "c"] {
        let (id, node) = (cells.find(name).unwrap(), u32::from(name != "a"));
        assert_eq!(digest(&cells.fake().images[&id]), digest(&image()));
        let text = cells.core.cell(id).and_then(OwnedCell::text).unwrap();
        assert_eq!(cells.core.inventory().memory.node_of(text.start), Some(NodeId(node)), "{name}");
    }
    cells.stop("a", 0).unwrap();
    cells.stop("b", 0).unwrap();
    assert_eq!(taken(&cells), (4, 8));
    // The next supervisor recovers the copy as text that a cell maps.
    let mut cells = go_wrong(cells, 4, 1, |_| {});
    assert_eq!(taken(&cells), (4, 8));
    cells.stop("c", 0).unwrap();
    assert_eq!(taken(&cells), (2, 0));
}

#[test]
fn no_copy_is_made_on_a_full_node_or_for_private_text() {
    let mut cells = machine_of_nodes(4, 2);
    let on_second = |name: &str, mib: u64, text| CellSpec {
        placement: CorePlacement { node: Some(NodeId(1)), ..CorePlacement::default() },
        memory: ByteSize(mib * MIB),
        network: NetworkSpec::None,
        text,
        ..spec(name)
    };
    run(&mut cells, on_second("own", 4, Text::Private));
    assert_eq!(cells.machine().memory_images, ByteSize(2 * MIB));
    run(&mut cells, on_second("all", 28, Text::Shared));
    assert_eq!(cells.machine().memory_images, ByteSize(2 * MIB));
    every_chunk_has_one_owner(&cells);
}

#[test]
fn a_copy_for_a_cell_that_cannot_be_built_is_released() {
    let mut cells = machine_of_nodes(4, 2);
    send(&mut cells, &image());
    let before = resources(&cells);
    cells.fake().build_error = Some(BuildError::DescriptorTooLong);
    let placement = CorePlacement { node: Some(NodeId(1)), ..CorePlacement::default() };
    assert!(cells.create_waiting(CellSpec { placement, ..spec("kv") }).is_err());
    assert_eq!(resources(&cells), before);
    every_chunk_has_one_owner(&cells);
}

#[test]
fn an_image_that_a_quarantined_cell_maps_is_not_evicted() {
    let mut cells = machine(3);
    run(&mut cells, spec("kv"));
    cells.fake().lost.insert(CoreId(1));
    cells.stop("kv", 0).unwrap();
    cells.destroy("kv").unwrap();
    assert_eq!(kept(&cells), [(0, 1)], "the image has no users");
    let other = send(&mut cells, &other_image(1, 1));
    let all = |mib| CellSpec { image: other, memory: ByteSize(mib * MIB), ..spec("large") };
    let exhausted = ManagementError::MemoryExhausted { wanted: ByteSize(58 * MIB), free: ByteSize(56 * MIB) };
    assert_eq!(cells.create_waiting(all(58)), Err(exhausted));
    cells.create_waiting(all(56)).unwrap();
    assert_eq!(kept(&cells), [(0, 1), (1, 1)]);
    // The image can be used for new cells like any other.
    cells.destroy("large").unwrap();
    cells.create_waiting(CellSpec { network: NetworkSpec::None, ..spec("again") }).unwrap();
    assert_eq!(cells.machine().memory_quarantined, ByteSize(4 * MIB));
}

#[test]
fn the_image_of_a_cell_that_is_recreated_at_once_gives_way_to_nobody() {
    let mut cells = machine(2);
    run(&mut cells, spec("kv"));
    cells.stop("kv", 0).unwrap();
    while cells.work() == Scrub::Unfinished {}
    assert_eq!(kept(&cells), [(0, 1)]);
    assert!(matches!(cells.recreate("kv"), Ok(Created::Done(_))), "enough memory is zero");
    assert_eq!(kept(&cells), [(1, 1)]);
    let other = send(&mut cells, &other_image(1, 1));
    let network = NetworkSpec::None;
    let all = CellSpec { image: other, memory: ByteSize(58 * MIB), network, ..spec("large") };
    assert!(matches!(cells.create_waiting(all), Err(ManagementError::MemoryExhausted { .. })));
}

#[test]
fn the_image_of_a_quarantined_cell_with_private_text_is_evicted() {
    let mut cells = machine(3);
    run(&mut cells, CellSpec { text: Text::Private, ..spec("kv") });
    cells.fake().lost.insert(CoreId(1));
    cells.stop("kv", 0).unwrap();
    let other = send(&mut cells, &other_image(1, 1));
    cells.create_waiting(CellSpec { image: other, memory: ByteSize(58 * MIB), ..spec("large") }).unwrap();
    assert_eq!(kept(&cells), [(1, 1)]);
}

#[test]
fn idle_images_are_evicted_for_new_cells_and_used_ones_are_not() {
    let mut cells = machine(2);
    let idle = send(&mut cells, &other_image(1, 3));
    create(&mut cells, CellSpec { memory: ByteSize(2 * MIB), ..spec("kv") }).unwrap();
    assert_eq!(kept(&cells), [(0, 3), (1, 1)]);
    // All memory but the other cell and its image.
    let all = CellSpec { memory: ByteSize(60 * MIB), ..spec("large") };
    let more = CellSpec { memory: ByteSize(62 * MIB), ..spec("large") };
    let exhausted = ManagementError::MemoryExhausted { wanted: ByteSize(62 * MIB), free: ByteSize(60 * MIB) };
    assert_eq!(cells.create_waiting(more), Err(exhausted));
    assert_eq!(kept(&cells).len(), 2, "a refused request evicts no image");
    cells.create_waiting(all).unwrap();
    assert_eq!(kept(&cells), [(2, 1)]);
    assert_eq!(cells.create_waiting(CellSpec { image: idle, ..spec("late") }), Err(ManagementError::NoImage));
    assert_eq!(cells.machine().memory_free, ByteSize(0));
}

#[test]
fn a_cell_can_be_created_from_the_only_idle_image() {
    let mut cells = machine(2);
    send(&mut cells, &image());
    let most = |mib| CellSpec { memory: ByteSize(mib * MIB), ..spec("kv") };
    let exhausted = ManagementError::MemoryExhausted { wanted: ByteSize(64 * MIB), free: ByteSize(62 * MIB) };
    assert_eq!(cells.create_waiting(most(64)), Err(exhausted), "the image cannot be both used and evicted");
    cells.create_waiting(most(62)).unwrap();
    assert_eq!(kept(&cells), [(1, 1)]);
}

#[test]
fn idle_images_are_evicted_for_growing_cells() {
    let mut cells = machine(2);
    let report = run(&mut cells, CellSpec { memory_max: Some(ByteSize(64 * MIB)), ..spec("kv") });
    says(&report, CellPhase::Running);
    send(&mut cells, &other_image(1, 3));
    run(&mut cells, CellSpec { memory: ByteSize(52 * MIB), network: NetworkSpec::None, ..spec("other") });
    // 64 - 4 - 2 - 4 - 52: the rest is the idle image's.
    while cells.work() == isola_supervisor_core::inventory::Scrub::Unfinished {}
    assert_eq!((kept(&cells), cells.core.inventory().memory.free()), (alloc::vec![(2, 1), (0, 3)], 2 * MIB));
    report.memory_request.make(4 * MIB, 4 * MIB, isola_abi::id::NodeId(0));
    cells.on_notification();
    while cells.work() == isola_supervisor_core::inventory::Scrub::Unfinished {}
    assert_eq!((kept(&cells), info(&mut cells, "kv").memory), (alloc::vec![(2, 1)], ByteSize(8 * MIB)));
}

#[test]
fn no_image_is_evicted_if_that_yields_no_block() {
    let mut cells = machine(2);
    let report = run(&mut cells, CellSpec { memory_max: Some(ByteSize(4 << 30)), ..spec("kv") });
    says(&report, CellPhase::Running);
    send(&mut cells, &other_image(1, 3));
    while cells.work() == isola_supervisor_core::inventory::Scrub::Unfinished {}
    let before = kept(&cells);
    assert_eq!(before, [(1, 1), (0, 3)]);
    // A block of 1 GiB, of 64 MiB in all; and one of 64 MiB, a part of which is in use.
    for mib in [1024, 64] {
        report.memory_request.make(mib * MIB, mib * MIB, isola_abi::id::NodeId(0));
        cells.on_notification();
        assert_eq!(kept(&cells), before, "{mib} MiB");
        let refused = |event: &JournalEvent| matches!(event, JournalEvent::GrowthRefused { .. });
        assert!(events(&cells).iter().any(refused));
    }
    let refused = cells.begin_image(64 * MIB);
    assert!(matches!(refused, Err(ManagementError::MemoryExhausted { .. })), "{refused:?}");
    assert_eq!(kept(&cells), before);
}

#[test]
fn the_most_recently_used_idle_images_are_kept() {
    let mut cells = machine(2);
    create(&mut cells, spec("kv")).unwrap();
    for number in 0..2 * MAX_IDLE as u8 {
        send(&mut cells, &other_image(number, 1));
    }
    // An eighth of 64 MiB, at 2 MiB each.
    let digests: Vec<ImageDigest> = cells.images().iter().map(|image| image.digest).collect();
    let expected: Vec<ImageDigest> = (12..16).map(|number| digest(&other_image(number, 1))).collect();
    assert_eq!(digests[1..], expected, "the idle images");
    cells.destroy("kv").unwrap();
    assert_eq!(
        cells.images().last().map(|image| image.digest),
        Some(spec("kv").image),
        "a released image is the most recently used"
    );
    // An image larger than the limit of idle images is stored until the next upload.
    let large = send(&mut cells, &other_image(99, 20));
    assert_eq!(cells.images().iter().map(|image| image.digest).collect::<Vec<_>>(), [large]);
    cells.create_waiting(CellSpec { image: large, memory: ByteSize(30 * MIB), ..spec("large") }).unwrap();
}

#[test]
fn a_cell_whose_image_was_evicted_needs_a_new_upload() {
    let mut cells = machine(2);
    run(&mut cells, spec("kv"));
    cells.stop("kv", 0).unwrap();
    let other = send(&mut cells, &other_image(1, 1));
    cells.create_waiting(CellSpec { image: other, memory: ByteSize(62 * MIB), ..spec("other") }).unwrap();
    cells.start("other").unwrap();
    assert_eq!(cells.recreate_waiting("kv"), Err(ManagementError::NoImage));
    assert_eq!(info(&mut cells, "kv").state, CellState::Killed);
    cells.stop("other", 0).unwrap();
    send(&mut cells, &image());
    cells.recreate_waiting("kv").unwrap();
    assert_eq!(kept(&cells), [(0, 1), (1, 1)]);
}

#[test]
fn an_image_that_violates_its_requirement_is_refused_and_changes_nothing() {
    let mut cells = machine(2);
    send(&mut cells, &image());
    let before = resources(&cells);
    let required = digest(b"another image");
    let requirement = Requirement { sha256: Some(required), ..Requirement::default() };
    let measured = digest(&image());
    let distrust = ManagementError::ImageNotTrusted(UnmetRequirement::Digest { required, measured });
    assert_eq!(
        cells.create_waiting(CellSpec { requirement: requirement.into(), ..spec("kv") }),
        Err(distrust)
    );
    let unsigned = Requirement { signed_by: Some(PublicKey([9; 32])), ..Requirement::default() };
    let distrust = ManagementError::ImageNotTrusted(UnmetRequirement::Unsigned);
    assert_eq!(cells.create_waiting(CellSpec { requirement: unsigned.into(), ..spec("kv") }), Err(distrust));
    assert_eq!((resources(&cells), cells.fake().actions.len()), (before, 0));
    let requirement = Requirement { sha256: Some(measured), ..Requirement::default() };
    cells.create_waiting(CellSpec { requirement: requirement.into(), ..spec("kv") }).unwrap();
}
