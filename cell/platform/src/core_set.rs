//! The index of a core of a cell, and sets of cores.

use isola_abi::id::MAX_CORES;

/// The index of a core slot of this cell, and of the slot's vcore, in the order of the descriptor. Core 0 starts the
/// application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoreIndex(pub u32);

/// A set of cores of one cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CoreSet {
    bits: u64,
}

const _: () = assert!(MAX_CORES <= u64::BITS as usize);

impl CoreSet {
    /// Returns the set of the cores whose bits are set: bit `i` for core `i`.
    pub const fn from_bits(bits: u64) -> Self {
        Self { bits }
    }

    /// Returns the set of one core.
    pub const fn of(core: CoreIndex) -> Self {
        Self { bits: bit(core) }
    }

    /// Returns the set of the first `count` cores.
    pub const fn first(count: usize) -> Self {
        Self { bits: if count >= 64 { u64::MAX } else { (1 << count) - 1 } }
    }

    /// Returns the set as one bit per core.
    pub const fn bits(self) -> u64 {
        self.bits
    }

    /// Returns the number of cores.
    pub const fn len(self) -> usize {
        self.bits.count_ones() as usize
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.bits == 0
    }

    /// Returns whether `core` is in the set.
    pub const fn contains(self, core: CoreIndex) -> bool {
        self.bits & bit(core) != 0
    }

    /// Returns the set with `core`.
    #[must_use]
    pub const fn with(self, core: CoreIndex) -> Self {
        Self { bits: self.bits | bit(core) }
    }

    /// Returns whether the set has exactly one core.
    #[inline]
    pub const fn is_single(self) -> bool {
        self.bits.is_power_of_two()
    }

    /// Returns the set without `core`.
    #[must_use]
    pub const fn without(self, core: CoreIndex) -> Self {
        Self { bits: self.bits & !bit(core) }
    }
}

const fn bit(core: CoreIndex) -> u64 {
    match 1_u64.checked_shl(core.0) {
        Some(bit) => bit,
        None => 0,
    }
}

impl Iterator for CoreSet {
    type Item = CoreIndex;

    /// Removes and returns the lowest core.
    fn next(&mut self) -> Option<CoreIndex> {
        if self.bits == 0 {
            return None;
        }
        let core = CoreIndex(self.bits.trailing_zeros());
        self.bits &= self.bits - 1;
        Some(core)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_exactly_the_inserted_cores() {
        let set = CoreSet::of(CoreIndex(3)).with(CoreIndex(63)).with(CoreIndex(0)).without(CoreIndex(3));
        assert_eq!((set.len(), set.contains(CoreIndex(3))), (2, false));
        assert_eq!(set.map(|core| core.0).collect::<alloc::vec::Vec<_>>(), [0, 63]);
        assert!(!set.contains(CoreIndex(64)) && CoreSet::of(CoreIndex(64)).is_empty());
        assert_eq!((CoreSet::first(2).bits(), CoreSet::first(64).len()), (3, 64));
    }
}
