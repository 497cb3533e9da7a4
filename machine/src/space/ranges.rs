//! Sets of physical memory.

use alloc::vec::Vec;
use isola_abi::id::{PhysAddr, PhysRange};

/// A set of addresses, as ranges in ascending order that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RangeSet(Vec<PhysRange>);

fn range(start: PhysAddr, end: PhysAddr) -> PhysRange {
    PhysRange::new(start, end.0.saturating_sub(start.0))
}

impl RangeSet {
    /// Creates the union of `ranges`.
    pub(super) fn of(ranges: impl IntoIterator<Item = PhysRange>) -> Self {
        let mut set = Self::default();
        ranges.into_iter().for_each(|range| set.insert(range));
        set
    }

    /// Returns the ranges.
    pub(super) fn iter(&self) -> impl Iterator<Item = PhysRange> {
        self.0.iter().copied()
    }

    /// Adds a range, which may overlap the set.
    pub(super) fn insert(&mut self, more: PhysRange) {
        if more.len_bytes == 0 {
            return;
        }
        // The existing ranges that overlap or touch it.
        let first = self.0.partition_point(|at| at.end() < more.start);
        let behind = self.0.partition_point(|at| at.start <= more.end());
        let touched = self.0.get(first..behind).unwrap_or_default();
        let start = touched.first().map_or(more.start, |at| at.start.min(more.start));
        let end = touched.last().map_or(more.end(), |at| at.end().max(more.end()));
        self.0.splice(first..behind.max(first), [range(start, end)]);
    }

    /// Removes a range, which may lie partly or completely outside of the set.
    pub(super) fn remove(&mut self, gone: PhysRange) {
        if gone.len_bytes == 0 {
            return;
        }
        let first = self.0.partition_point(|at| at.end() <= gone.start);
        let behind = self.0.partition_point(|at| at.start < gone.end()).max(first);
        let met = self.0.get(first..behind).unwrap_or_default();
        let before = met.first().map(|at| range(at.start, gone.start));
        let after = met.last().map(|at| range(gone.end(), at.end()));
        let rest: Vec<PhysRange> =
            before.into_iter().chain(after).filter(|rest| rest.len_bytes > 0).collect();
        self.0.splice(first..behind, rest);
    }

    /// Returns whether the set contains all of the range.
    pub(super) fn contains(&self, all: PhysRange) -> bool {
        let behind = self.0.partition_point(|at| at.start <= all.start);
        let at = behind.checked_sub(1).and_then(|index| self.0.get(index));
        at.is_some_and(|at| all.end() <= at.end())
    }

    /// Returns whether the set contains any part of the range.
    pub(super) fn meets(&self, any: PhysRange) -> bool {
        self.0.iter().any(|at| at.start < any.end() && any.start < at.end())
    }

    /// Returns the difference of the two sets.
    pub(super) fn without(&self, other: &Self) -> Self {
        let mut rest = self.clone();
        other.iter().for_each(|range| rest.remove(range));
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    fn at(start: u64, len: u64) -> PhysRange {
        PhysRange::new(PhysAddr(start), len)
    }

    proptest! {
        #[test]
        fn a_range_set_behaves_like_a_set_of_addresses(
            steps in proptest::collection::vec((any::<bool>(), 0u64..60, 0u64..20), 0..30),
            (start, len) in (0u64..60, 1u64..10),
        ) {
            let (mut set, mut model) = (RangeSet::default(), BTreeSet::new());
            for (adds, start, len) in steps {
                if adds {
                    set.insert(at(start, len));
                    model.extend(start..start + len);
                } else {
                    set.remove(at(start, len));
                    model.retain(|at| !(start..start + len).contains(at));
                }
                let in_set: Vec<u64> = set.iter().flat_map(|at| at.start.0..at.end().0).collect();
                prop_assert!(in_set.iter().eq(model.iter()));
                prop_assert!(set.0.windows(2).all(|two| two[0].end() < two[1].start));
            }
            prop_assert_eq!(set.contains(at(start, len)), (start..start + len).all(|at| model.contains(&at)));
            prop_assert_eq!(set.meets(at(start, len)), (start..start + len).any(|at| model.contains(&at)));
            let other = RangeSet::of([at(start, len)]);
            prop_assert!(set.without(&other).iter().flat_map(|at| at.start.0..at.end().0)
                .eq(model.iter().copied().filter(|at| !(start..start + len).contains(at))));
        }
    }
}
