//! Tags: points on a scaled time, by which policies order their members.

use isola_abi::grid::{Rate, Weight};

/// Bits behind the binary point of a tag and of a scale.
const FRACTION: u32 = 32;

/// A point on a scaled time: virtual time for shares, nanoseconds for rates. Both have a binary fraction of 32 bits, so
/// that small costs at high rates are not rounded away. Tags saturate; at the steepest scale (one unit per second)
/// after costs of 2^66 units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tag(u128);

/// The scaled time per unit of cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale(u64);

impl Scale {
    /// Returns the virtual time per unit of cost of a member with that weight. A member with the default weight takes
    /// one unit of virtual time for each. The relative error is at most 10^-7.
    pub fn of_weight(weight: Weight) -> Self {
        Self((u64::from(Weight::DEFAULT.get()) << FRACTION) / u64::from(weight.get()))
    }

    /// Returns the nanoseconds per unit of cost at that rate. The relative error is at most 10^-6.
    pub fn of_rate(rate: Rate) -> Self {
        Self((1_000_000_000 << FRACTION) / rate.units())
    }

    fn of(self, cost: u64) -> u128 {
        u128::from(self.0) * u128::from(cost)
    }
}

impl Tag {
    /// Returns the tag of a time in nanoseconds.
    pub fn at_ns(ns: u64) -> Self {
        Self(u128::from(ns) << FRACTION)
    }

    /// Returns the first whole nanosecond that is not before the tag.
    pub fn to_ns(self) -> u64 {
        let ns = self.0.saturating_add((1 << FRACTION) - 1) >> FRACTION;
        ns.try_into().unwrap_or(u64::MAX)
    }

    /// Returns the tag that lies `cost` later on that scale.
    #[inline]
    pub fn after(self, cost: u64, scale: Scale) -> Self {
        Self(self.0.saturating_add(scale.of(cost)))
    }

    /// Returns the tag that lies `cost` earlier on that scale.
    #[inline]
    pub fn before(self, cost: u64, scale: Scale) -> Self {
        Self(self.0.saturating_sub(scale.of(cost)))
    }

    /// Returns the tag with a cost of `actual` in place of `charged`.
    pub fn corrected(self, charged: u64, actual: u64, scale: Scale) -> Self {
        Self(self.0.saturating_add(scale.of(actual)).saturating_sub(scale.of(charged)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_converts_to_the_nanosecond_at_which_it_has_passed() {
        let fast = Scale::of_rate(Rate::per_second(3_000_000_000).unwrap());
        assert_eq!(Tag::at_ns(7).to_ns(), 7);
        assert_eq!(Tag::at_ns(7).after(1, fast).to_ns(), 8);
        // The scale is rounded down, so that three units end just before the nanosecond.
        assert_eq!(Tag::at_ns(7).after(3, fast).to_ns(), 8);
        assert!(
            (10_000_000_000..=10_000_000_007).contains(&Tag::at_ns(7).after(30_000_000_000, fast).to_ns())
        );
        let slow = Scale::of_rate(Rate::per_second(1).unwrap());
        assert_eq!(Tag::at_ns(0).after(u64::MAX, slow).to_ns(), u64::MAX);
    }

    #[test]
    fn a_correction_replaces_the_charged_cost() {
        let scale = Scale::of_weight(Weight::new(300).unwrap());
        let start = Tag::at_ns(1_000);
        assert_eq!(start.after(50, scale).corrected(50, 20, scale), start.after(20, scale));
        assert_eq!(start.after(50, scale).corrected(50, 70, scale), start.after(70, scale));
        assert_eq!(Tag::default().corrected(1, 0, scale), Tag::default());
    }
}
