//! Latency histograms: counters by buckets of cycles. One core increments them; other cores and the supervisor read
//! them at any time.
//!
//! Buckets are log-linear, four per doubling, from 64 cycles to 2^35. From the fifth bucket on, a bucket's width is at
//! most a fourth of its lower bound. The first buckets are 64 cycles wide and include all shorter durations; the last
//! one includes all longer ones. Counters only grow; the distribution of an interval is the difference of two readings
//! ([`Distribution::since`]).
//!
//! ```text
//!   bucket   0   1   2   3   4   5   6   7   8   9   10  11  12      16          111
//!   from     0   64  128 192 256 320 384 448 512 640 768 896 1024    2048        7 * 2^32   cycles
//! ```

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use serde::{Deserialize, Serialize};

/// The number of buckets.
pub const BUCKETS: usize = 112;

/// The width of the narrowest buckets, in cycles, as a power of two.
const UNIT_BITS: u32 = 6;

/// The number of buckets per doubling, as a power of two.
const FINE_BITS: u32 = 2;

/// The durations of one kind of operation on one core.
#[repr(C)]
#[derive(Debug)]
pub struct Histogram {
    /// The number of operations, by bucket.
    pub counts: [AtomicU64; BUCKETS],
}

/// A reading of one [`Histogram`], or the sum of several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distribution {
    /// The non-empty buckets, in order, with their counts.
    buckets: Vec<(u8, u64)>,
}

/// Returns the bucket of a duration in cycles.
#[inline]
pub const fn bucket_of(cycles: u64) -> usize {
    let units = cycles >> UNIT_BITS;
    // The lowest bit is set so that the shift is 0 for the narrow buckets.
    let shift = (units >> FINE_BITS | 1).ilog2();
    let bucket = (shift << FINE_BITS) as usize + (units >> shift) as usize;
    if bucket < BUCKETS { bucket } else { BUCKETS - 1 }
}

/// Returns a bucket's lower bound, in cycles.
pub const fn least_of(bucket: usize) -> u64 {
    let fine = 1 << FINE_BITS;
    if bucket < fine {
        return (bucket as u64) << UNIT_BITS;
    }
    let shift = bucket / fine - 1;
    ((bucket - shift * fine) as u64) << (shift as u32 + UNIT_BITS)
}

impl Histogram {
    /// Returns an empty histogram.
    pub const fn new() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; BUCKETS] }
    }

    /// Counts `times` operations of `cycles` cycles each. Only one core may call this: a load and a store, no locked
    /// instruction.
    #[inline]
    pub fn count(&self, cycles: u64, times: u64) {
        let count = &self.counts[bucket_of(cycles)];
        count.store(count.load(Ordering::Relaxed).wrapping_add(times), Ordering::Relaxed);
    }

    /// Returns the present counts.
    pub fn read(&self) -> Distribution {
        let mut buckets = Vec::new();
        // A plain loop: tests of the supervisor, without optimisation, read millions of counts.
        for (bucket, count) in self.counts.iter().enumerate() {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                buckets.push((bucket as u8, count));
            }
        }
        Distribution { buckets }
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Distribution {
    /// Returns the number of operations; saturates.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// Returns the number of operations in the bucket of `cycles` and all later ones.
    pub fn count_from(&self, cycles: u64) -> u64 {
        let from = bucket_of(cycles);
        let longer = self.buckets.iter().filter(|(bucket, _)| usize::from(*bucket) >= from);
        longer.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// Returns the duration in cycles that `per_mille` of a thousand operations do not exceed: 990 is the 99th
    /// percentile. Interpolates linearly within a bucket. Returns `None` for an empty distribution.
    pub fn quantile(&self, per_mille: u32) -> Option<u64> {
        let wanted = u128::from(self.count()) * u128::from(per_mille.min(1000));
        let rank = (wanted.div_ceil(1000) as u64).max(1);
        let mut before = 0_u64;
        for (bucket, count) in &self.buckets {
            let up_to = before.saturating_add(*count);
            if up_to >= rank {
                let bucket = usize::from(*bucket).min(BUCKETS - 1);
                let (least, end) = (least_of(bucket), least_of(bucket + 1));
                let part = u128::from(end - least) * u128::from(rank - before) / u128::from(*count);
                return Some(least + part as u64);
            }
            before = up_to;
        }
        None
    }

    /// Adds another distribution; counts saturate.
    pub fn add(&mut self, other: &Self) {
        for (bucket, count) in &other.buckets {
            match self.buckets.binary_search_by_key(bucket, |(bucket, _)| *bucket) {
                Ok(index) => self.buckets[index].1 = self.buckets[index].1.saturating_add(*count),
                Err(index) => self.buckets.insert(index, (*bucket, *count)),
            }
        }
    }

    /// Returns the operations since an earlier reading of the same counters. If any count is lower than before, the
    /// counters have restarted, and the result is the whole reading.
    pub fn since(&self, earlier: &Self) -> Self {
        let of = |from: &Self, bucket: u8| {
            let index = from.buckets.binary_search_by_key(&bucket, |(bucket, _)| *bucket);
            index.map_or(0, |index| from.buckets[index].1)
        };
        if earlier.buckets.iter().any(|(bucket, count)| of(self, *bucket) < *count) {
            return self.clone();
        }
        let new = self.buckets.iter().map(|(bucket, count)| (*bucket, count - of(earlier, *bucket)));
        Self { buckets: new.filter(|(_, count)| *count > 0).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn distribution(values: impl IntoIterator<Item = u64>) -> Distribution {
        let histogram = Histogram::new();
        values.into_iter().for_each(|cycles| histogram.count(cycles, 1));
        histogram.read()
    }

    #[test]
    fn buckets_are_contiguous_and_at_most_a_fourth_of_their_lower_bound_wide() {
        for bucket in 0..BUCKETS {
            let (least, end) = (least_of(bucket), least_of(bucket + 1));
            assert_eq!((bucket_of(least), bucket_of(end - 1)), (bucket, bucket));
            assert!(end - least == 64 || end - least <= least / 4, "bucket {bucket}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(least_of(BUCKETS), 1 << 35);
    }

    #[test]
    fn an_empty_distribution_has_no_percentiles() {
        assert_eq!(Distribution::default().quantile(990), None);
    }

    #[test]
    fn since_returns_the_difference_and_detects_restarted_counters() {
        let (first, second) = (distribution([100, 5000]), distribution([100, 5000, 5000, 90_000]));
        assert_eq!(second.since(&first), distribution([5000, 90_000]));
        assert_eq!(first.since(&second), first);
        let mut sum = first.clone();
        sum.add(&second.since(&first));
        assert_eq!(sum, second);
    }

    #[test]
    fn hostile_counts_do_not_overflow() {
        let mut lies = Distribution { buckets: alloc::vec![(3, u64::MAX), (200, u64::MAX), (255, 7)] };
        lies.add(&lies.clone());
        assert_eq!(lies.count(), u64::MAX);
        assert!(lies.quantile(1000).is_some() && lies.quantile(u32::MAX).is_some());
    }

    proptest! {
        #[test]
        fn a_percentile_is_within_a_fourth_of_the_true_one(
            mut values in proptest::collection::vec(256_u64..1 << 34, 1..300), per_mille in 1_u32..=1000,
        ) {
            let found = distribution(values.iter().copied()).quantile(per_mille).unwrap();
            values.sort_unstable();
            let rank = (values.len() * per_mille as usize).div_ceil(1000);
            let exact = values[rank - 1];
            prop_assert!(found.abs_diff(exact) <= exact.div_ceil(4), "{found} for {exact}");
        }
    }
}
