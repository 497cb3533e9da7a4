//! A doubly linked list of blocks, by the links in their records.

use super::info::PageNumber;
use super::ranges::{Range, Ranges};

/// The list. Its owner is whoever holds the lock that its blocks' links belong to (see [`super::info`]).
pub(crate) struct BlockList {
    first: PageNumber,
}

impl BlockList {
    /// An empty list.
    pub const fn new() -> Self {
        Self { first: PageNumber::NONE }
    }

    /// The first block.
    pub fn first(&self) -> Option<PageNumber> {
        (self.first != PageNumber::NONE).then_some(self.first)
    }

    /// All blocks, the one that was put in last first.
    pub fn iter<'a>(&self, ranges: &'a Ranges) -> impl Iterator<Item = PageNumber> + use<'a> {
        core::iter::successors(self.first(), |block| {
            let next = ranges.find(*block)?.info(*block).next();
            (next != PageNumber::NONE).then_some(next)
        })
    }

    /// Puts a block, which is in `range`, at the front.
    pub fn push(&mut self, ranges: &Ranges, range: &Range, block: PageNumber) {
        let info = range.info(block);
        info.set_next(self.first);
        info.set_prev(PageNumber::NONE);
        if let Some(behind) = ranges.find(self.first) {
            behind.info(self.first).set_prev(block);
        }
        self.first = block;
    }

    /// Takes out a block of the list, which is in `range`.
    pub fn remove(&mut self, ranges: &Ranges, range: &Range, block: PageNumber) {
        let info = range.info(block);
        let (next, prev) = (info.next(), info.prev());
        if let Some(behind) = ranges.find(next) {
            behind.info(next).set_prev(prev);
        }
        match ranges.find(prev) {
            Some(before) => before.info(prev).set_next(next),
            None => self.first = next,
        }
    }
}
