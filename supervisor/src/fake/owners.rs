//! Checks the owners of all memory by the pieces of memory themselves, not by the supervisor's counts.

use super::{FakeMachine, FakeSpace, MEMORY};
use crate::cells::{Cells, Parts};
use alloc::vec::Vec;
use isola_abi::id::PhysRange;

/// Checks that every chunk has exactly one owner: the free memory, a cell, a quarantined cell, the withheld memory, or
/// an image, which counts once for all cells that map it. Also checks the reported memory out of use.
pub(crate) fn every_chunk_has_one_owner(cells: &Cells<FakeMachine>) {
    let quarantined = cells.machine().memory_quarantined.0;
    let Parts { effects: FakeMachine { withheld, leaked, .. }, memory, store, held, out_of_use } =
        cells.parts();
    let images = store.ranges();
    let spaces = || held.iter().chain(&out_of_use);
    let mut all: Vec<PhysRange> = spaces().flat_map(|space| space.ranges()).collect();
    all.extend(withheld.iter().chain(&images));
    all.extend(memory.free_ranges());
    all.sort_unstable();
    let mut next = MEMORY.start;
    for range in all {
        assert_eq!(range.start, next, "the memory before this range has no owner, or two");
        next = range.end();
    }
    assert_eq!(next, MEMORY.end());

    let text = |space: &&FakeSpace| space.text.as_ref().map(|text| text.0.range);
    assert!(
        spaces().filter_map(text).all(|text| images.contains(&text)),
        "a cell maps text that the store does not have"
    );
    // An image is out of use if only cells out of use map it. A cell whose memory is withheld may have mapped one as
    // well.
    let is_used = |image: &&PhysRange| {
        let stand_on = held.iter().filter_map(text).any(|text| text == **image);
        let mut kept = store.kept().into_iter().zip(store.list());
        stand_on || kept.any(|(kept, info)| kept.memory == **image && info.cells > 0)
    };
    let is_stuck = |image: &&PhysRange| {
        out_of_use.iter().filter_map(text).chain(leaked.iter().copied()).any(|text| text == **image)
    };
    let stuck = images.iter().filter(|image| is_stuck(image) && !is_used(image)).map(|image| image.len_bytes);
    let memory = out_of_use.iter().flat_map(|space| space.ranges()).chain(withheld.iter().copied());
    let expected = stuck.sum::<u64>() + memory.map(|range| range.len_bytes).sum::<u64>();
    assert_eq!(quarantined, expected, "the reported memory out of use");
}

impl FakeSpace {
    fn ranges(&self) -> impl Iterator<Item = PhysRange> {
        self.memory.iter().chain(&self.unplugged).map(|memory| memory.range)
    }
}
