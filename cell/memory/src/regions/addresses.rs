//! The allocator of an area's addresses: first fit.
//!
//! It records the end of all addresses that were ever used, because the page tables up to there may stay allocated.

use super::address_window::Extent;
use alloc::vec::Vec;

/// The taken ranges of an area, each with a value.
#[derive(Debug)]
pub(super) struct AddressRanges<T> {
    area: Extent,
    /// Sorted by address.
    taken: Vec<(Extent, T)>,
    used_end: usize,
}

impl<T> AddressRanges<T> {
    /// Returns an area without taken ranges.
    pub fn new(area: Extent) -> Self {
        Self { area, taken: Vec::new(), used_end: area.start }
    }

    /// Returns the number of taken ranges.
    pub fn len(&self) -> usize {
        self.taken.len()
    }

    /// Returns the number of ranges that can be taken without a larger vector.
    pub fn room(&self) -> usize {
        self.taken.capacity() - self.taken.len()
    }

    /// Moves the ranges to an empty vector with more capacity; returns the vector to drop.
    pub fn make_room(&mut self, mut larger: Vec<(Extent, T)>) -> Vec<(Extent, T)> {
        if larger.capacity() > self.taken.capacity() {
            larger.append(&mut self.taken);
            core::mem::swap(&mut larger, &mut self.taken);
        }
        larger
    }

    /// Returns the first address behind the area.
    pub fn end(&self) -> usize {
        self.area.end()
    }

    /// Returns the end of all ranges that were ever taken.
    pub fn used_end(&self) -> usize {
        self.used_end
    }

    /// Finds the first `len` free bytes at a multiple of `align` (a power of two).
    pub fn find_free(&self, len: usize, align: usize) -> Option<Extent> {
        let fits = |from: usize, to: usize| {
            let start = from.checked_next_multiple_of(align)?;
            (start.checked_add(len)? <= to).then_some(Extent { start, len })
        };
        let mut from = self.area.start;
        for (taken, _) in &self.taken {
            if let Some(found) = fits(from, taken.start) {
                return Some(found);
            }
            from = taken.end();
        }
        fits(from, self.area.end())
    }

    /// Takes a free range. The caller has made sure of the capacity.
    pub fn take(&mut self, range: Extent, value: T) {
        let index = self.taken.partition_point(|(taken, _)| taken.start < range.start);
        self.taken.insert(index, (range, value));
        self.used_end = self.used_end.max(range.end());
    }

    /// Returns the range that contains an address, and its value.
    #[inline]
    pub fn at(&mut self, address: usize) -> Option<(Extent, &mut T)> {
        let behind = self.taken.partition_point(|(taken, _)| taken.start <= address);
        let (range, value) = self.taken.get_mut(behind.checked_sub(1)?)?;
        (address < range.end()).then_some((*range, value))
    }

    /// Returns the ranges that end behind an address, in order.
    pub fn from(&self, address: usize) -> impl Iterator<Item = &(Extent, T)> {
        let first = self.taken.partition_point(|(taken, _)| taken.end() <= address);
        self.taken.get(first..).unwrap_or_default().iter()
    }

    /// Frees the range that begins at an address; returns its value.
    pub fn free(&mut self, address: usize) -> Option<T> {
        let index = self.taken.partition_point(|(taken, _)| taken.start < address);
        let found = self.taken.get(index).is_some_and(|(taken, _)| taken.start == address);
        found.then(|| self.taken.remove(index).1)
    }

    /// Returns all taken ranges with their values, by address.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Extent, &mut T)> {
        self.taken.iter_mut().map(|(range, value)| (*range, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AREA: Extent = Extent { start: 64, len: 256 };

    #[derive(Clone, Debug)]
    enum Step {
        Take(usize, u32),
        Free(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (1..40_usize, 0..5_u32).prop_map(|(len, align)| Step::Take(len, align)),
            (0..20_usize).prop_map(Step::Free)
        ];
        prop::collection::vec(step, 0..60)
    }

    proptest! {
        /// The model: an array with the owner of each address.
        #[test]
        fn an_address_has_one_owner_and_allocation_is_first_fit(steps in steps()) {
            let mut addresses = AddressRanges::new(AREA);
            let mut model = [None; 320];
            let mut starts: Vec<usize> = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Take(len, align) => {
                        let align = 1 << align;
                        let fits = |start: &usize| start.is_multiple_of(align) && (*start..start + len).all(|at| at < 320 && model[at].is_none());
                        let expected = (64..320).find(fits);
                        let found = addresses.find_free(len, align);
                        prop_assert_eq!(found.map(|range| range.start), expected);
                        if let Some(range) = found {
                            if addresses.room() == 0 {
                                prop_assert!(addresses.make_room(Vec::with_capacity(2 * starts.len() + 1)).is_empty());
                            }
                            addresses.take(range, number);
                            model[range.start..range.end()].fill(Some(number));
                            starts.push(range.start);
                            prop_assert!(addresses.used_end() >= range.end());
                        }
                    }
                    Step::Free(index) if !starts.is_empty() => {
                        let start = starts.swap_remove(index % starts.len());
                        let freed = addresses.free(start);
                        prop_assert_eq!(freed, model[start]);
                        model.iter_mut().filter(|owner| **owner == freed).for_each(|owner| *owner = None);
                        prop_assert_eq!(addresses.free(start), None);
                    }
                    Step::Free(_) => {}
                }
                for (address, owner) in model.iter().enumerate() {
                    prop_assert_eq!(addresses.at(address).map(|(_, value)| *value), *owner);
                }
            }
        }
    }
}
