//! Sequence numbers: positions on a circle of 2^32 (RFC 9293 3.4).

use core::ops::{Add, AddAssign};

/// A position in one direction's byte stream. Comparisons hold for positions less than 2^31 apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Seq(pub u32);

impl Seq {
    /// Bytes from `earlier` to here, modulo 2^32.
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// How far this lies beyond `other`: 0 where it does not.
    #[inline]
    pub const fn beyond(self, other: Self) -> u32 {
        let ahead = self.0.wrapping_sub(other.0) as i32;
        if ahead < 0 { 0 } else { ahead as u32 }
    }

    /// This position moved back by `count`.
    pub const fn back(self, count: u32) -> Self {
        Self(self.0.wrapping_sub(count))
    }

    /// Whether this lies before `other`.
    pub const fn before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Whether this lies behind `other`.
    pub const fn after(self, other: Self) -> bool {
        other.before(self)
    }

    /// Whether this lies from `first` to `last`. Unlike the order, that holds however far away this lies: a mark that
    /// `una` has left behind long ago is not within what is under way, but looks to be ahead after 2^31 bytes.
    pub const fn within(self, first: Self, last: Self) -> bool {
        self.since(first) <= last.since(first)
    }

    /// The later one of the two.
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
    fn what_was_left_behind_long_ago_is_not_within() {
        let (first, last) = (Seq(u32::MAX - 5), Seq(10));
        assert!(first.within(first, last) && last.within(first, last) && Seq(0).within(first, last));
        for far in [1, 1 << 30, 1 << 31, 3 << 30] {
            assert!(!first.back(far).within(first, last), "{far}");
        }
        assert!(!(last + 1).within(first, last));
    }
}
