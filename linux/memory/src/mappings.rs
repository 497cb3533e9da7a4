//! All mappings of a process.

use crate::{Errno, Mapping};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The most mappings of a process, as `/proc/sys/vm/max_map_count` says.
pub const MAX_MAPPINGS: usize = 65_530;

/// All mappings of a process, in order. Neighbours with the same attributes are one mapping.
///
/// They are in an array: most processes have some tens of mappings, and a search in an array is short. A change of one among
/// [`MAX_MAPPINGS`] moves half a mebibyte.
#[derive(Default)]
pub(crate) struct Mappings {
    sorted: Vec<Arc<Mapping>>,
    /// The index of the mapping that [`Self::find_again`] found last.
    recent: usize,
    pages: u64,
    data_pages: u64,
    locked_pages: u64,
}

impl Mappings {
    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Returns the number of pages of all mappings.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Returns the number of pages that `RLIMIT_DATA` counts.
    pub fn data_pages(&self) -> u64 {
        self.data_pages
    }

    /// Returns the number of pages of locked mappings.
    pub fn locked_pages(&self) -> u64 {
        self.locked_pages
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Mapping> {
        self.sorted.iter().map(|mapping| &**mapping)
    }

    /// Returns the mappings as they can be shared with a child.
    pub fn shared(&self) -> &[Arc<Mapping>] {
        &self.sorted
    }

    /// Reserves memory for so many mappings more.
    pub fn reserve(&mut self, count: usize) {
        self.sorted.reserve(count);
    }

    /// Returns the index of the first mapping that begins at `address` or above.
    #[inline]
    fn index_from(&self, address: u64) -> usize {
        self.sorted.partition_point(|mapping| mapping.start < address)
    }

    /// Returns the index of the first mapping that ends above `address`.
    #[inline]
    fn index_above(&self, address: u64) -> usize {
        self.sorted.partition_point(|mapping| mapping.end <= address)
    }

    fn get(&self, index: usize) -> Option<&Mapping> {
        self.sorted.get(index).map(|mapping| &**mapping)
    }

    /// Returns the mapping that contains `address`.
    pub fn find(&self, address: u64) -> Option<&Mapping> {
        self.get(self.index_above(address)).filter(|mapping| mapping.start <= address)
    }

    /// Returns the mapping that contains `address`, and remembers it: most page faults are near the previous one.
    pub fn find_again(&mut self, address: u64) -> Option<Arc<Mapping>> {
        if let Some(recent) = self.sorted.get(self.recent)
            && (recent.start..recent.end).contains(&address)
        {
            return Some(Arc::clone(recent));
        }
        let index = self.index_above(address);
        let found = self.sorted.get(index).filter(|found| found.start <= address)?;
        self.recent = index;
        Some(Arc::clone(found))
    }

    /// Returns the last mapping that begins below `address`.
    pub fn before(&self, address: u64) -> Option<&Mapping> {
        self.get(self.index_from(address).checked_sub(1)?)
    }

    /// Returns the first mapping that begins at `address` or above.
    pub fn after(&self, address: u64) -> Option<&Mapping> {
        self.get(self.index_from(address))
    }

    /// Returns the mappings with addresses from `start` on, below `end`, in order.
    pub fn overlapping(&self, start: u64, end: u64) -> impl DoubleEndedIterator<Item = &Mapping> {
        self.overlapping_shared(start, end).iter().map(|mapping| &**mapping)
    }

    /// Does the same, and returns the mappings as other processes may have them, too.
    pub fn overlapping_shared(&self, start: u64, end: u64) -> &[Arc<Mapping>] {
        let first = self.index_above(start);
        let count = self.sorted[first..].partition_point(|mapping| mapping.start < end);
        &self.sorted[first..first + count]
    }

    /// Returns whether no address from `start` on, below `end`, is mapped.
    pub fn is_free(&self, start: u64, end: u64) -> bool {
        self.get(self.index_above(start)).is_none_or(|mapping| mapping.start >= end)
    }

    /// Returns whether all addresses from `start` on, below `end`, are mapped.
    pub fn covers(&self, start: u64, end: u64) -> bool {
        let mut next = start;
        for mapping in self.overlapping(start, end) {
            if mapping.start > next {
                return false;
            }
            next = mapping.end;
        }
        next >= end
    }

    /// Checks that a change of the range, which splits mappings at its borders, does not exceed the limit of mappings.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn check_split(&self, start: u64, end: u64) -> Result<(), Errno> {
        // Each border splits one mapping at most.
        if self.len() + 2 <= MAX_MAPPINGS {
            return Ok(());
        }
        let splits = [start, end].iter().filter(|address| self.is_within(**address)).count();
        if self.len() + splits > MAX_MAPPINGS { Err(Errno::ENOMEM) } else { Ok(()) }
    }

    /// Returns whether a mapping contains the address, and begins below it.
    fn is_within(&self, address: u64) -> bool {
        self.before(address).is_some_and(|mapping| address < mapping.end)
    }

    /// Removes all mappings from `start` on, below `end`. Mappings that lie partly within are split.
    pub fn take(&mut self, start: u64, end: u64) -> Vec<Mapping> {
        self.take_shared(start, end).into_iter().map(Arc::unwrap_or_clone).collect()
    }

    /// Does the same, and returns the mappings as other processes may have them, too.
    pub fn take_shared(&mut self, start: u64, end: u64) -> Vec<Arc<Mapping>> {
        if start >= end {
            return Vec::new();
        }
        self.split(start);
        self.split(end);
        let first = self.index_from(start);
        let count = self.sorted[first..].partition_point(|mapping| mapping.start < end);
        let taken: Vec<_> = self.sorted.drain(first..first + count).collect();
        taken.iter().for_each(|mapping| self.count(mapping, u64::wrapping_sub));
        taken
    }

    /// Adds a mapping at addresses that are free, and merges it with its neighbours.
    pub fn insert(&mut self, mut mapping: Mapping) {
        debug_assert!(mapping.start < mapping.end && self.is_free(mapping.start, mapping.end));
        let mut index = self.index_from(mapping.start);
        if let Some(before) = index.checked_sub(1)
            && self.sorted[before].continues_with(&mapping)
        {
            let mut merged = self.remove(before);
            merged.end = mapping.end;
            merged.was_writable |= mapping.was_writable;
            mapping = merged;
            index = before;
        }
        if self.get(index).is_some_and(|after| mapping.continues_with(after)) {
            let after = self.remove(index);
            mapping.end = after.end;
            mapping.was_writable |= after.was_writable;
        }
        self.count(&mapping, u64::wrapping_add);
        self.sorted.insert(index, Arc::new(mapping));
    }

    /// Adds a mapping behind all others, as it is in another process.
    pub fn push(&mut self, mapping: Arc<Mapping>) {
        debug_assert!(self.sorted.last().is_none_or(|last| last.end <= mapping.start));
        self.count(&mapping, u64::wrapping_add);
        self.sorted.push(mapping);
    }

    /// Changes all mappings from `start` on, below `end`. Mappings that lie partly within are split; mappings that are then
    /// equal are merged.
    pub fn change(&mut self, start: u64, end: u64, mut change: impl FnMut(&mut Mapping)) {
        for mut mapping in self.take(start, end) {
            change(&mut mapping);
            self.insert(mapping);
        }
        // The last of them is followed by a part that was split off, or by another mapping.
        let after = self.index_from(end);
        if self.get(after).is_some_and(|mapping| mapping.start == end) {
            let mapping = self.remove(after);
            self.insert(mapping);
        }
    }

    fn split(&mut self, address: u64) {
        let index = self.index_above(address);
        if let Some(mapping) = self.sorted.get_mut(index).filter(|mapping| mapping.start < address) {
            let upper = Arc::make_mut(mapping).split_off(address);
            self.sorted.insert(index + 1, Arc::new(upper));
        }
    }

    fn remove(&mut self, index: usize) -> Mapping {
        let mapping = Arc::unwrap_or_clone(self.sorted.remove(index));
        self.count(&mapping, u64::wrapping_sub);
        mapping
    }

    fn count(&mut self, mapping: &Mapping, add: fn(u64, u64) -> u64) {
        let pages = mapping.pages();
        self.pages = add(self.pages, pages);
        if mapping.is_data() {
            self.data_pages = add(self.data_pages, pages);
        }
        if mapping.attributes.locked {
            self.locked_pages = add(self.locked_pages, pages);
        }
    }
}
