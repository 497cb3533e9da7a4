//! Selective acknowledgements on the wire, and the receiver's state for them (RFC 2018, RFC 2883).

use super::seq::Seq;
use alloc::boxed::Box;

/// Maximum number of SACK blocks in one segment (RFC 2018 3).
const MAX_BLOCKS: usize = 4;
/// Blocks that fit into a segment without timestamps, and into one with timestamps (RFC 2018 3).
pub(crate) const BLOCKS_ALONE: u8 = MAX_BLOCKS as u8;
pub(crate) const BLOCKS_WITH_TIMESTAMPS: u8 = 3;

/// The sequence numbers from `start` (inclusive) to `end` (exclusive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub start: Seq,
    pub end: Seq,
}

impl Block {
    const EMPTY: Self = Self { start: Seq(0), end: Seq(0) };

    /// Returns whether the blocks overlap or are adjacent.
    fn meets(self, other: Self) -> bool {
        !self.end.before(other.start) && !other.end.before(self.start)
    }

    /// Returns whether all of `other` is within this block.
    pub fn covers(self, other: Self) -> bool {
        !other.start.before(self.start) && !other.end.after(self.end)
    }
}

/// The blocks of one segment, in order. A segment with blocks costs an allocation; all others, the vast majority, one
/// word.
#[derive(Clone, Debug, Default)]
pub(crate) struct SackBlocks(Option<Box<List>>);

#[derive(Clone, Debug)]
struct List {
    blocks: [Block; MAX_BLOCKS],
    count: u8,
}

impl SackBlocks {
    /// An empty list.
    pub const NONE: Self = Self(None);

    /// Adds a block; a full list ignores it.
    pub fn push(&mut self, block: Block) {
        let list =
            self.0.get_or_insert_with(|| Box::new(List { blocks: [Block::EMPTY; MAX_BLOCKS], count: 0 }));
        if let Some(slot) = list.blocks.get_mut(usize::from(list.count)) {
            *slot = block;
            list.count += 1;
        }
    }

    /// Returns the blocks in order.
    pub fn iter(&self) -> impl Iterator<Item = Block> + '_ {
        self.0.iter().flat_map(|list| list.blocks.iter().copied().take(usize::from(list.count)))
    }

    /// Returns whether the list is empty.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the length of the option in a header, in bytes, with padding.
    #[inline]
    pub fn option_len(&self) -> usize {
        self.0.as_ref().map_or(0, |list| 4 + 8 * usize::from(list.count))
    }
}

/// The receiver's state for SACK. Allocated only while there is something to report. The data itself is in
/// [`reassembly`](super::reassembly).
#[derive(Debug, Default)]
pub(crate) struct Reports(Option<Box<ReceivedRuns>>);

#[derive(Debug)]
struct ReceivedRuns {
    /// Runs of data beyond the gap; the run that grew last is first.
    runs: SackBlocks,
    /// Data received twice, to be reported once (RFC 2883).
    duplicate: Option<Block>,
}

impl Reports {
    /// Returns whether there is nothing to report.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Records data that arrived beyond a gap and was stored.
    pub fn kept(&mut self, block: Block) {
        let known = self.known();
        let (mut grown, mut others) = (block, SackBlocks::NONE);
        for run in known.runs.iter() {
            if run.meets(grown) {
                let start = if run.start.before(grown.start) { run.start } else { grown.start };
                grown = Block { start, end: run.end.max(grown.end) };
            } else {
                others.push(run);
            }
        }
        known.runs = SackBlocks::NONE;
        known.runs.push(grown);
        others.iter().for_each(|run| known.runs.push(run));
    }

    /// Records data that was received before. Until it is reported, further duplicates are ignored.
    pub fn came_twice(&mut self, block: Block) {
        self.known().duplicate.get_or_insert(block);
    }

    fn known(&mut self) -> &mut ReceivedRuns {
        self.0.get_or_insert_with(|| Box::new(ReceivedRuns { runs: SackBlocks::NONE, duplicate: None }))
    }

    /// Returns the blocks for a segment that acknowledges all data before `next` and has room for `room` blocks.
    #[inline]
    pub fn take(&mut self, next: Seq, room: usize) -> SackBlocks {
        if self.0.is_none() { SackBlocks::NONE } else { self.take_known(next, room) }
    }

    #[cold]
    fn take_known(&mut self, next: Seq, room: usize) -> SackBlocks {
        let mut blocks = SackBlocks::NONE;
        let Some(known) = &mut self.0 else { return blocks };
        if let Some(duplicate) = known.duplicate.take() {
            blocks.push(duplicate);
        }
        let mut left = SackBlocks::NONE;
        for run in known.runs.iter().filter(|run| run.end.after(next) && run.start.after(next)) {
            left.push(run);
            if blocks.iter().count() < room {
                blocks.push(run);
            }
        }
        known.runs = left;
        if known.runs.is_empty() {
            self.0 = None;
        }
        blocks
    }

    /// Discards all reports.
    pub fn clear(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use isola_proves::proves;

    fn block(start: u32, end: u32) -> Block {
        Block { start: Seq(start), end: Seq(end) }
    }

    fn reported(reports: &mut Reports, next: u32, room: usize) -> Vec<(u32, u32)> {
        reports.take(Seq(next), room).iter().map(|block| (block.start.0, block.end.0)).collect()
    }

    #[proves(
        "RFC 2018 4",
        "the first block is the one that the newest segment belongs to, the others follow by age."
    )]
    #[test]
    fn the_run_that_grew_last_comes_first() {
        let mut reports = Reports::default();
        for (start, end) in [(10, 20), (30, 40), (50, 60), (20, 25)] {
            reports.kept(block(start, end));
        }
        assert_eq!(reported(&mut reports, 0, 4), [(10, 25), (50, 60), (30, 40)]);
        reports.kept(block(25, 30));
        assert_eq!(reported(&mut reports, 0, 1), [(10, 40)]);
        assert_eq!(reported(&mut reports, 45, 4), [(50, 60)]);
        assert!(reported(&mut reports, 60, 4).is_empty() && reports.0.is_none());
    }

    #[proves("RFC 2883 4", "a duplicate is the first block, and reported of once.")]
    #[test]
    fn a_duplicate_is_reported_once() {
        let mut reports = Reports::default();
        reports.kept(block(30, 40));
        reports.came_twice(block(1, 5));
        assert_eq!(reported(&mut reports, 10, 3), [(1, 5), (30, 40)]);
        assert_eq!(reported(&mut reports, 10, 3), [(30, 40)]);
        reports.clear();
        reports.came_twice(block(1, 5));
        assert_eq!(reported(&mut reports, 10, 3), [(1, 5)]);
        assert!(reports.0.is_none());
    }
}
