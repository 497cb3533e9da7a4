//! Sequence numbers: positions modulo 2^32 (RFC 9293 3.4).

use core::ops::{Add, AddAssign};

/// A position in the byte stream of one direction. Comparisons are valid for positions less than 2^31 apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Seq(pub u32);

impl Seq {
    /// Returns the number of bytes from `earlier` to `self`, modulo 2^32.
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Returns the distance by which `self` is ahead of `other`, or 0 if it is not ahead.
    #[inline]
    pub const fn beyond(self, other: Self) -> u32 {
        let ahead = self.0.wrapping_sub(other.0) as i32;
        if ahead < 0 { 0 } else { ahead as u32 }
    }

    /// Returns this position moved back by `count`.
    pub const fn back(self, count: u32) -> Self {
        Self(self.0.wrapping_sub(count))
    }

    /// Returns whether `self` is before `other`.
    pub const fn before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Returns whether `self` is after `other`.
    pub const fn after(self, other: Self) -> bool {
        other.before(self)
    }

    /// Returns whether `self` is in `first..=last`. Unlike the comparisons, the result is valid at any distance: a
    /// position that `una` passed long ago is not in the flight, but compares as ahead once it is 2^31 bytes behind.
    pub const fn within(self, first: Self, last: Self) -> bool {
        self.since(first) <= last.since(first)
    }

    /// Returns the later of the two.
    pub const fn max(self, other: Self) -> Self {
        if self.before(other) { other } else { self }
    }
}

impl Add<u32> for Seq {
    type Output = Self;

    fn add(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }
}

impl AddAssign<u32> for Seq {
    fn add_assign(&mut self, count: u32) {
        *self = *self + count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_proves::proves;

    #[proves("RFC 9293 3.4", "comparisons of sequence numbers are modulo 2**32")]
    #[test]
    fn order_holds_across_the_wrap() {
        let low = Seq(u32::MAX - 5);
        let high = low + 10;
        assert!(low.before(high) && high.after(low) && !high.before(low) && !low.before(low));
        assert_eq!((high.since(low), high.back(10), low.max(high)), (10, low, high));
    }

    #[test]
    fn positions_far_behind_are_not_within() {
        let (first, last) = (Seq(u32::MAX - 5), Seq(10));
        assert!(first.within(first, last) && last.within(first, last) && Seq(0).within(first, last));
        for far in [1, 1 << 30, 1 << 31, 3 << 30] {
            assert!(!first.back(far).within(first, last), "{far}");
        }
        assert!(!(last + 1).within(first, last));
    }
}
