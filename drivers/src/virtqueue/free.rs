//! The free descriptors, as a linked list in private memory, which the device cannot access.

use alloc::vec::Vec;

/// The free descriptors of a queue. A chain is removed from the front as a whole, and returned there as a whole: its
/// inner links stay as they are.
#[derive(Debug)]
pub(super) struct FreeList {
    links: Vec<u16>,
    first: u16,
    count: u16,
}

impl FreeList {
    /// Returns a list of all `size` descriptors, in order.
    pub(super) fn new(size: u16) -> Self {
        Self { links: (1..=size).collect(), first: 0, count: size }
    }

    /// Returns the first descriptor of the next chain. Meaningless if none is free.
    #[inline]
    pub(super) fn first(&self) -> u16 {
        self.first
    }

    /// Returns the number of free descriptors.
    #[inline]
    pub(super) fn count(&self) -> u16 {
        self.count
    }

    /// Returns the successor of each descriptor.
    #[inline]
    pub(super) fn links(&self) -> &[u16] {
        &self.links
    }

    /// Removes the first `count` descriptors, which end with `last`.
    #[inline]
    pub(super) fn take(&mut self, last: u16, count: u16) {
        self.first = self.links.get(usize::from(last)).copied().unwrap_or(0);
        self.count = self.count.saturating_sub(count);
    }

    /// Returns a chain of `count` descriptors from `head` to `last` to the list.
    #[inline]
    pub(super) fn give_back(&mut self, head: u16, last: u16, count: u16) {
        if let Some(link) = self.links.get_mut(usize::from(last)) {
            *link = self.first;
        }
        self.first = head;
        self.count += count;
    }
}
