//! Checks the owners of all memory and cores by the pieces of memory and the cores themselves, not by the supervisor's
//! counts.

use crate::machine::FakeMachine;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use isola_abi::id::PhysRange;
use isola_abi::management::CoreOwner;
use isola_supervisor_core::TrustedCore;

/// Checks that every chunk has exactly one owner: the free memory, a cell, a quarantined cell, the withheld memory, or
/// an image, which counts once for all cells that map it. Also checks the reported memory out of use. `images` has the
/// memory of the image store, `used` that of images in use.
///
/// # Panics
/// Panics if a chunk has no owner, or two, or the reported number is wrong.
pub fn every_chunk_has_one_owner(
    core: &TrustedCore<FakeMachine>,
    images: &[PhysRange],
    used: &[PhysRange],
    reported_bytes: u64,
) {
    let state = core.hardware().state();
    let spaces = || state.spaces.values();
    let mut all: Vec<PhysRange> = spaces().flat_map(|space| space.ranges.iter().copied()).collect();
    all.extend(state.withheld.iter().chain(images));
    all.extend(core.inventory().memory.free_ranges());
    all.sort_unstable();
    let mut next = state.all.start;
    for range in all {
        assert_eq!(range.start, next, "the memory before this range has no owner, or two");
        next = range.end();
    }
    assert_eq!(next, state.all.end());

    assert!(
        spaces().filter_map(|space| space.text).all(|text| images.contains(&text)),
        "a cell maps text that the store does not have"
    );
    let texts = |is_quarantined| {
        let spaces = spaces().filter(move |space| space.is_quarantined == is_quarantined);
        spaces.filter_map(|space| space.text)
    };
    // An image is out of use if only cells out of use map it. A cell whose memory is withheld may have mapped one as
    // well.
    let is_used = |image: &PhysRange| texts(false).any(|text| text == *image) || used.contains(image);
    let is_stuck =
        |image: &PhysRange| texts(true).chain(state.leaked.iter().copied()).any(|text| text == *image);
    let stuck = images.iter().filter(|image| is_stuck(image) && !is_used(image)).map(|image| image.len_bytes);
    let quarantined = spaces().filter(|space| space.is_quarantined);
    let memory = quarantined.flat_map(|space| &space.ranges).chain(&state.withheld);
    let expected = stuck.sum::<u64>() + memory.map(|range| range.len_bytes).sum::<u64>();
    assert_eq!(reported_bytes, expected, "the reported memory out of use");
}

/// Checks that no two cells have the same core, and that the inventory names the cell of each.
///
/// # Panics
/// Panics if that is not so.
pub fn every_core_has_one_owner(core: &TrustedCore<FakeMachine>) {
    let mut owners = BTreeMap::new();
    for (id, cell) in core.cells() {
        for core in cell.cores().flatten() {
            assert_eq!(owners.insert(core, id), None, "two cells have core {core}");
        }
    }
    for info in core.inventory().cores.info() {
        match (owners.get(&info.id), info.owner) {
            (Some(cell), owner) => assert_eq!(CoreOwner::Cell(*cell), owner, "core {}", info.id),
            // A core that did not come back is lost once the ended cell is released.
            (None, CoreOwner::Cell(cell)) => {
                assert!(core.cell(cell).is_some_and(|cell| !cell.is_entered()), "core {}", info.id);
            }
            (None, _) => {}
        }
    }
}
