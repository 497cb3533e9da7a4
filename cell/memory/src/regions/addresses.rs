//! Which addresses of an area are taken.
//!
//! An area is handed out from below: first fit. It remembers how far it was ever used, since the page tables for
//! that much of it may stay.

use super::window::Extent;
use alloc::vec::Vec;

/// The ranges of an area that are taken, each with something that belongs to it.
#[derive(Debug)]
pub(super) struct Addresses<T> {
    area: Extent,
    /// By address.
    taken: Vec<(Extent, T)>,
    used_end: usize,
}

impl<T> Addresses<T> {
    /// An area of which nothing is taken.
    pub fn new(area: Extent) -> Self {
        Self { area, taken: Vec::new(), used_end: area.start }
    }

    /// How many ranges are taken.
    pub fn len(&self) -> usize {
        self.taken.len()
    }

    /// How many ranges can be taken before room has to be made.
    pub fn room(&self) -> usize {
        self.taken.capacity() - self.taken.len()
    }

    /// Makes room, by means of a vector that is empty and has more of it; returns one that may be dropped.
    pub fn make_room(&mut self, mut larger: Vec<(Extent, T)>) -> Vec<(Extent, T)> {
        if larger.capacity() > self.taken.capacity() {
            larger.append(&mut self.taken);
            core::mem::swap(&mut larger, &mut self.taken);
        }
        larger
    }

    /// The first address behind the area.
    pub fn end(&self) -> usize {
        self.area.end()
    }

    /// The end of what was ever taken.
    pub fn used_end(&self) -> usize {
        self.used_end
    }

    /// Where the first `len` bytes are that are free and begin at a multiple of `align` (a power of two).
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

    /// Takes a range that is free. There is room for it.
    pub fn take(&mut self, range: Extent, what: T) {
        let place = self.taken.partition_point(|(taken, _)| taken.start < range.start);
        self.taken.insert(place, (range, what));
        self.used_end = self.used_end.max(range.end());
    }

    /// What is taken at an address.
    #[inline]
    pub fn at(&mut self, address: usize) -> Option<(Extent, &mut T)> {
        let behind = self.taken.partition_point(|(taken, _)| taken.start <= address);
        let (range, what) = self.taken.get_mut(behind.checked_sub(1)?)?;
        (address < range.end()).then_some((*range, what))
    }

    /// The ranges that end behind an address, in order.
    pub fn from(&self, address: usize) -> impl Iterator<Item = &(Extent, T)> {
        let first = self.taken.partition_point(|(taken, _)| taken.end() <= address);
        self.taken.get(first..).unwrap_or_default().iter()
    }

    /// Makes what is taken at an address free.
    pub fn free(&mut self, address: usize) -> Option<T> {
        let index = self.taken.partition_point(|(taken, _)| taken.start < address);
        let found = self.taken.get(index).is_some_and(|(taken, _)| taken.start == address);
        found.then(|| self.taken.remove(index).1)
    }

    /// All that is taken, by address.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Extent, &mut T)> {
        self.taken.iter_mut().map(|(range, what)| (*range, what))
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
        /// The model: an array that says for each address who has it.
        #[test]
        fn addresses_belong_to_one_taker_and_the_first_fit_is_found(steps in steps()) {
            let mut addresses = Addresses::new(AREA);
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
                    prop_assert_eq!(addresses.at(address).map(|(_, what)| *what), *owner);
                }
            }
        }
    }
}
