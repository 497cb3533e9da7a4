//! All mappings of a process.

use crate::{Errno, Mapping};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The most mappings of a process, as `/proc/sys/vm/max_map_count` says.
pub const MAX_MAPPINGS: usize = 65_530;

/// All mappings of a process, in order. Neighbours with the same attributes are one mapping.
#[derive(Default)]
pub(crate) struct Mappings {
    by_start: BTreeMap<u64, Arc<Mapping>>,
    /// The mapping that [`Self::find_again`] found last, if it has not changed since.
    recent: Option<Arc<Mapping>>,
    pages: u64,
    data_pages: u64,
    locked_pages: u64,
}

impl Mappings {
    pub fn len(&self) -> usize {
        self.by_start.len()
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
        self.by_start.values().map(|mapping| &**mapping)
    }

    /// Returns the mapping that contains `address`.
    pub fn find(&self, address: u64) -> Option<&Mapping> {
        self.by_start
            .range(..=address)
            .next_back()
            .map(|(_, mapping)| &**mapping)
            .filter(|mapping| address < mapping.end)
    }

    /// Returns the mapping that contains `address`, and remembers it: most page faults are near the previous one.
    pub fn find_again(&mut self, address: u64) -> Option<Arc<Mapping>> {
        if let Some(recent) = &self.recent
            && (recent.start..recent.end).contains(&address)
        {
            return Some(Arc::clone(recent));
        }
        let (_, found) =
            self.by_start.range(..=address).next_back().filter(|(_, found)| address < found.end)?;
        self.recent = Some(Arc::clone(found));
        Some(Arc::clone(found))
    }

    /// Returns the last mapping that begins below `address`.
    pub fn before(&self, address: u64) -> Option<&Mapping> {
        self.by_start.range(..address).next_back().map(|(_, mapping)| &**mapping)
    }

    /// Returns the first mapping that begins at `address` or above.
    pub fn after(&self, address: u64) -> Option<&Mapping> {
        self.by_start.range(address..).next().map(|(_, mapping)| &**mapping)
    }

    /// Returns the mappings with addresses from `start` on, below `end`, in order.
    pub fn overlapping(&self, start: u64, end: u64) -> impl DoubleEndedIterator<Item = &Mapping> {
        let first = self.find(start).map_or(start, |mapping| mapping.start);
        self.by_start.range(first..end.max(first)).map(|(_, mapping)| &**mapping)
    }

    /// Returns whether no address from `start` on, below `end`, is mapped.
    pub fn is_free(&self, start: u64, end: u64) -> bool {
        self.overlapping(start, end).next().is_none()
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
        let splits = [start, end].iter().filter(|address| self.is_within(**address)).count();
        if self.len() + splits > MAX_MAPPINGS { Err(Errno::ENOMEM) } else { Ok(()) }
    }

    /// Returns whether a mapping contains the address, and begins below it.
    fn is_within(&self, address: u64) -> bool {
        self.before(address).is_some_and(|mapping| address < mapping.end)
    }

    /// Removes all mappings from `start` on, below `end`. Mappings that lie partly within are split.
    pub fn take(&mut self, start: u64, end: u64) -> Vec<Mapping> {
        if start >= end {
            return Vec::new();
        }
        self.split(start);
        self.split(end);
        let starts: Vec<u64> = self.by_start.range(start..end).map(|(start, _)| *start).collect();
        starts.into_iter().filter_map(|start| self.remove(start)).collect()
    }

    /// Adds a mapping at addresses that are free, and merges it with its neighbours.
    pub fn insert(&mut self, mut mapping: Mapping) {
        debug_assert!(mapping.start < mapping.end && self.is_free(mapping.start, mapping.end));
        let before = self
            .before(mapping.start)
            .filter(|before| before.continues_with(&mapping))
            .map(|before| before.start);
        if let Some(mut merged) = before.and_then(|start| self.remove(start)) {
            merged.end = mapping.end;
            merged.was_writable |= mapping.was_writable;
            mapping = merged;
        }
        let after =
            self.after(mapping.end).filter(|after| mapping.continues_with(after)).map(|after| after.start);
        if let Some(after) = after.and_then(|start| self.remove(start)) {
            mapping.end = after.end;
            mapping.was_writable |= after.was_writable;
        }
        self.count(&mapping, u64::wrapping_add);
        self.by_start.insert(mapping.start, Arc::new(mapping));
    }

    /// Changes all mappings from `start` on, below `end`. Mappings that lie partly within are split; mappings that are then
    /// equal are merged.
    pub fn change(&mut self, start: u64, end: u64, mut change: impl FnMut(&mut Mapping)) {
        for mut mapping in self.take(start, end) {
            change(&mut mapping);
            self.insert(mapping);
        }
        // The last of them is followed by a part that was split off, or by another mapping.
        if let Some(after) = self.by_start.get(&end).map(|mapping| mapping.start)
            && let Some(mapping) = self.remove(after)
        {
            self.insert(mapping);
        }
    }

    fn split(&mut self, address: u64) {
        if !self.is_within(address) {
            return;
        }
        self.recent = None;
        if let Some((_, mapping)) = self.by_start.range_mut(..address).next_back() {
            let upper = Arc::make_mut(mapping).split_off(address);
            self.by_start.insert(address, Arc::new(upper));
        }
    }

    fn remove(&mut self, start: u64) -> Option<Mapping> {
        self.recent = None;
        let mapping = Arc::unwrap_or_clone(self.by_start.remove(&start)?);
        self.count(&mapping, u64::wrapping_sub);
        Some(mapping)
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
