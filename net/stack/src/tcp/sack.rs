//! Selective acknowledgements on the wire, and what the receiving half reports with them (RFC 2018, RFC 2883).

use super::seq::Seq;
use alloc::boxed::Box;

/// Blocks that one segment carries at most (RFC 2018 3).
const MAX_BLOCKS: usize = 4;
/// Blocks that fit into a segment without timestamps, and into one with them (RFC 2018 3).
pub(crate) const BLOCKS_ALONE: u8 = MAX_BLOCKS as u8;
pub(crate) const BLOCKS_WITH_TIMESTAMPS: u8 = 3;

/// Bytes from `start` up to `end`, without `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub start: Seq,
    pub end: Seq,
}

impl Block {
    const EMPTY: Self = Self { start: Seq(0), end: Seq(0) };

    /// Whether the two overlap or touch.
    fn meets(self, other: Self) -> bool {
        !self.end.before(other.start) && !other.end.before(self.start)
    }

    /// Whether all of `other` lies within.
    pub fn covers(self, other: Self) -> bool {
        !other.start.before(self.start) && !other.end.after(self.end)
    }
}

/// The blocks of one segment, in their order. Few segments have any: those cost an allocation, and all others
/// one word.
#[derive(Clone, Debug, Default)]
pub(crate) struct SackBlocks(Option<Box<List>>);

#[derive(Clone, Debug)]
struct List {
    blocks: [Block; MAX_BLOCKS],
    count: u8,
}

impl SackBlocks {
    /// No blocks.
    pub const NONE: Self = Self(None);

    /// Adds a block, where there is room.
    pub fn push(&mut self, block: Block) {
        let list =
            self.0.get_or_insert_with(|| Box::new(List { blocks: [Block::EMPTY; MAX_BLOCKS], count: 0 }));
        if let Some(place) = list.blocks.get_mut(usize::from(list.count)) {
            *place = block;
            list.count += 1;
        }
    }

    /// The blocks.
    pub fn iter(&self) -> impl Iterator<Item = Block> + '_ {
        self.0.iter().flat_map(|list| list.blocks.iter().copied().take(usize::from(list.count)))
    }

    /// Whether there are none.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Bytes that they take in a header, with padding.
    #[inline]
    pub fn option_len(&self) -> usize {
        self.0.as_ref().map_or(0, |list| 4 + 8 * usize::from(list.count))
    }
}

/// What the receiving half has to report: exists only while there is something. The data itself lies in
/// [`reassembly`](super::reassembly).
#[derive(Debug, Default)]
pub(crate) struct Reports(Option<Box<Known>>);

#[derive(Debug)]
struct Known {
    /// Runs of data beyond the gap, the one that grew last first.
    runs: SackBlocks,
    /// Data that came in twice, and is to be told of once (RFC 2883).
    duplicate: Option<Block>,
}

impl Reports {
    /// Whether there is nothing to report.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Data beyond a gap came in and was kept.
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

    /// Data came in that was there already.
    pub fn came_twice(&mut self, block: Block) {
        self.known().duplicate.get_or_insert(block);
    }

    fn known(&mut self) -> &mut Known {
        self.0.get_or_insert_with(|| Box::new(Known { runs: SackBlocks::NONE, duplicate: None }))
    }

    /// The blocks for a segment that acknowledges all before `next` and has room for `room` blocks.
    #[inline]
    pub fn take(&mut self, next: Seq, room: usize) -> SackBlocks {
        if self.0.is_none() { SackBlocks::NONE } else { self.take_known(next, room) }
    }

    #[cold]
    fn take_known(&mut self, next: Seq, room: usize) -> SackBlocks {
        let mut told = SackBlocks::NONE;
        let Some(known) = &mut self.0 else { return told };
        if let Some(duplicate) = known.duplicate.take() {
            told.push(duplicate);
        }
        let mut left = SackBlocks::NONE;
        for run in known.runs.iter().filter(|run| run.end.after(next) && run.start.after(next)) {
            left.push(run);
            if told.iter().count() < room {
                told.push(run);
            }
        }
        known.runs = left;
        if known.runs.is_empty() {
            self.0 = None;
        }
        told
    }

    /// Nothing is to be reported any more.
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

    fn told(reports: &mut Reports, next: u32, room: usize) -> Vec<(u32, u32)> {
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
        assert_eq!(told(&mut reports, 0, 4), [(10, 25), (50, 60), (30, 40)]);
        reports.kept(block(25, 30));
        assert_eq!(told(&mut reports, 0, 1), [(10, 40)]);
        assert_eq!(told(&mut reports, 45, 4), [(50, 60)]);
        assert!(told(&mut reports, 60, 4).is_empty() && reports.0.is_none());
    }

    #[proves("RFC 2883 4", "a duplicate is the first block, and told of once.")]
    #[test]
    fn what_came_twice_is_told_of_once() {
        let mut reports = Reports::default();
        reports.kept(block(30, 40));
        reports.came_twice(block(1, 5));
        assert_eq!(told(&mut reports, 10, 3), [(1, 5), (30, 40)]);
        assert_eq!(told(&mut reports, 10, 3), [(30, 40)]);
        reports.clear();
        reports.came_twice(block(1, 5));
        assert_eq!(told(&mut reports, 10, 3), [(1, 5)]);
        assert!(reports.0.is_none());
    }
}
