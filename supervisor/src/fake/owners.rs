//! Who has which memory of the machine: seen from the pieces themselves, and not from what anybody counts.

use super::{FakeMachine, FakeSpace, MEMORY};
use crate::cells::{Cells, Parts};
use alloc::vec::Vec;
use isola_abi::id::PhysRange;

/// Sees that every chunk has exactly one owner: it is free, of one cell, of one cell that is out of use, withheld, or of an
/// image, which it is once however many cells stand on it. And that what is out of use is said to be.
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
        assert_eq!(range.start, next, "who has the memory before that?");
        next = range.end();
    }
    assert_eq!(next, MEMORY.end());

    let text = |space: &&FakeSpace| space.text.as_ref().map(|text| text.0.range);
    assert!(spaces().filter_map(text).all(|text| images.contains(&text)), "a cell stands on nothing");
    // An image goes with those that are out of use where nobody else uses it. What is withheld may have had one as well.
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
    assert_eq!(quarantined, expected, "is out of use");
}

impl FakeSpace {
    fn ranges(&self) -> impl Iterator<Item = PhysRange> {
        self.memory.iter().chain(&self.unplugged).map(|memory| memory.range)
    }
}
