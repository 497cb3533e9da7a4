//! A doubly linked list of blocks, through their records.

use super::info::PageNumber;
use super::ranges::{Range, Ranges};

/// A list of blocks. It is protected by the lock that protects its blocks' links (see [`super::info`]).
pub(crate) struct BlockList {
    first: PageNumber,
}

impl BlockList {
    /// Returns an empty list.
    pub const fn new() -> Self {
        Self { first: PageNumber::NONE }
    }

    /// Returns the first block.
    pub fn first(&self) -> Option<PageNumber> {
        (self.first != PageNumber::NONE).then_some(self.first)
    }

    /// Returns all blocks, the most recently added first.
    pub fn iter<'a>(&self, ranges: &'a Ranges) -> impl Iterator<Item = PageNumber> + use<'a> {
        core::iter::successors(self.first(), |block| {
            let next = ranges.find(*block)?.info(*block).next();
            (next != PageNumber::NONE).then_some(next)
        })
    }

    /// Adds a block, which is in `range`, at the front.
    pub fn push(&mut self, ranges: &Ranges, range: &Range, block: PageNumber) {
        let info = range.info(block);
        info.set_next(self.first);
        info.set_prev(PageNumber::NONE);
        if let Some(behind) = ranges.find(self.first) {
            behind.info(self.first).set_prev(block);
        }
        self.first = block;
    }

    /// Removes a block of the list, which is in `range`.
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
