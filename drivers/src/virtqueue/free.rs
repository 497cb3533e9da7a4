//! The free descriptors, as a linked list in private memory: the device never sees it, and cannot bend it.

use alloc::vec::Vec;

/// The free descriptors of a queue. A chain is cut off its front, and put back there, as a whole: the links
/// within it stay as they are.
#[derive(Debug)]
pub(super) struct FreeList {
    links: Vec<u16>,
    first: u16,
    count: u16,
}

impl FreeList {
    /// All of `size` descriptors, in order.
    pub(super) fn new(size: u16) -> Self {
        Self { links: (1..=size).collect(), first: 0, count: size }
    }

    /// The descriptor that the next chain begins with; meaningless where none is free.
    #[inline]
    pub(super) fn first(&self) -> u16 {
        self.first
    }

    /// How many are free.
    #[inline]
    pub(super) fn count(&self) -> u16 {
        self.count
    }

    /// Which descriptor follows which.
    #[inline]
    pub(super) fn links(&self) -> &[u16] {
        &self.links
    }

    /// Cuts off the first `count` descriptors, of which `last` is the last.
    #[inline]
    pub(super) fn take(&mut self, last: u16, count: u16) {
        self.first = self.links.get(usize::from(last)).copied().unwrap_or(0);
        self.count = self.count.saturating_sub(count);
    }

    /// Puts back a chain of `count` descriptors from `head` to `last`.
    #[inline]
    pub(super) fn give_back(&mut self, head: u16, last: u16, count: u16) {
        if let Some(link) = self.links.get_mut(usize::from(last)) {
            *link = self.first;
        }
        self.first = head;
        self.count += count;
    }
}
