//! Distributions of cells, in cycles, as histograms in seconds.
//!
//! The bounds of a cell's buckets are cycles, and in seconds they would change with each calibration of the clock.
//! Series with other bounds are other series, and cannot be summed over machines. Therefore all machines have the same
//! bounds in seconds. An operation is in the first bucket that includes all durations of its bucket of the cell: the
//! histogram never shows a latency below the true one, and exceeds it by at most a fourth and one bucket.

use isola_abi::histogram::{BUCKETS, Distribution, least_of};

/// The number of operations by duration.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// The upper bounds in seconds, ascending, each with the number of operations above the bound before it. The last
    /// bound is infinite.
    pub buckets: Vec<(f64, u64)>,
    /// The estimated sum of all durations, in seconds.
    pub sum: f64,
}

/// The upper bounds of request latencies: seven per decade from 1 us to 10 s.
pub fn request_bounds() -> Vec<f64> {
    bounds(&[10, 15, 20, 30, 40, 60, 80], -7, 7)
}

/// The upper bounds of queueing delays, of which each core has a histogram: three per decade from 100 ns to 1 s.
pub fn queueing_bounds() -> Vec<f64> {
    bounds(&[10, 20, 50], -8, 7)
}

/// Returns the bounds `steps * 10^first`, and so on for this number of decades, with the start of the next decade.
fn bounds(steps: &[u32], first: i32, decades: i32) -> Vec<f64> {
    let all = (first..first + decades).flat_map(|decade| steps.iter().map(move |step| (*step, decade)));
    // Decimal text gives the nearest number, and therefore short labels.
    let number = |(step, decade): (u32, i32)| format!("{step}e{decade}").parse().unwrap_or(f64::INFINITY);
    all.chain([(10, first + decades)]).map(number).collect()
}

impl Histogram {
    /// Converts a distribution of cycles, of which `hz` are a second.
    pub fn new(distribution: &Distribution, bounds: &[f64], hz: u64) -> Self {
        let total = distribution.count();
        let mut below = 0;
        let mut bucket = |bound: f64, up_to: u64| {
            let count = up_to.saturating_sub(below);
            below = up_to;
            (bound, count)
        };
        let mut buckets: Vec<(f64, u64)> = bounds
            .iter()
            .map(|bound| {
                let cycles = (bound * hz as f64) as u64;
                bucket(*bound, total.saturating_sub(distribution.count_from(cycles)))
            })
            .collect();
        buckets.push(bucket(f64::INFINITY, total));
        Self { buckets, sum: sum_cycles(distribution) / hz as f64 }
    }

    /// Returns the number of operations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// Adds another histogram with the same bounds.
    pub fn add(&mut self, other: &Self) {
        let mut left = u64::MAX - self.count();
        for ((_, count), (_, more)) in self.buckets.iter_mut().zip(&other.buckets) {
            let more = left.min(*more);
            (*count, left) = (*count + more, left - more);
        }
        self.sum += other.sum;
    }
}

/// Estimates the sum of a distribution's durations, in cycles, from the middle of each bucket.
fn sum_cycles(distribution: &Distribution) -> f64 {
    let mut sum = 0.0;
    let mut from = distribution.count();
    for bucket in 0..BUCKETS {
        let (least, end) = (least_of(bucket), least_of(bucket + 1));
        let last = bucket + 1 == BUCKETS;
        let above = if last { 0 } else { distribution.count_from(end) };
        // The last bucket has no upper bound.
        let middle = if last { least as f64 } else { (least + end) as f64 / 2.0 };
        sum += from.saturating_sub(above) as f64 * middle;
        from = above;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_abi::histogram::Histogram as Counters;

    const HZ: u64 = 2_000_000_000;

    fn histogram(durations_ns: &[u64], bounds: &[f64]) -> Histogram {
        let counters = Counters::new();
        durations_ns.iter().for_each(|ns| counters.count(ns * (HZ / 1_000_000_000), 1));
        Histogram::new(&counters.read(), bounds, HZ)
    }

    /// Returns the number of operations up to a bound.
    fn up_to(histogram: &Histogram, bound: f64) -> u64 {
        histogram.buckets.iter().filter(|(upper, _)| *upper <= bound).map(|(_, count)| count).sum()
    }

    #[test]
    fn bounds_ascend_with_short_decimal_numbers() {
        for (bounds, first, last) in [(request_bounds(), 1e-6, 10.0), (queueing_bounds(), 1e-7, 1.0)] {
            assert!(bounds.is_sorted_by(|a, b| a < b), "{bounds:?}");
            assert_eq!((bounds[0], bounds[bounds.len() - 1]), (first, last));
            assert!(bounds.iter().all(|bound| format!("{bound:e}").len() <= 6), "{bounds:?}");
        }
    }

    #[test]
    fn operations_are_counted_at_or_above_their_duration() {
        let latencies = [900, 1_400, 70_000, 2_500_000, 20_000_000_000];
        let histogram = histogram(&latencies, &request_bounds());
        assert_eq!(histogram.count(), 5);
        for (bound, _) in &histogram.buckets {
            let at_most = latencies.iter().filter(|ns| **ns as f64 <= bound * 1e9).count() as u64;
            let surely = latencies.iter().filter(|ns| **ns as f64 * 1.25 <= bound * 1e9).count() as u64;
            let counted = up_to(&histogram, *bound);
            assert!(counted <= at_most, "{bound}: {counted} of {at_most}");
            assert!(counted >= surely || *bound == f64::INFINITY, "{bound}: {counted} of {surely}");
        }
        assert_eq!(up_to(&histogram, f64::INFINITY), 5);
        // The last two: one is longer than all finite bounds.
        assert_eq!(up_to(&histogram, 10.0), 4);
    }

    #[test]
    fn the_sum_is_within_an_eighth() {
        let histogram = histogram(&[1_000, 5_000, 300_000], &request_bounds());
        let exact = 306_000e-9;
        assert!((histogram.sum - exact).abs() <= exact / 8.0, "{}", histogram.sum);
    }

    #[test]
    fn hostile_counts_do_not_overflow() {
        let counters = Counters::new();
        counters.count(1_000, u64::MAX);
        counters.count(1 << 40, u64::MAX);
        let mut histogram = Histogram::new(&counters.read(), &request_bounds(), 1);
        histogram.add(&histogram.clone());
        assert_eq!(histogram.count(), u64::MAX);
        assert!(histogram.sum.is_finite());
        let sum = histogram.buckets.iter().try_fold(0_u64, |sum, (_, count)| sum.checked_add(*count));
        assert_eq!(sum, Some(u64::MAX));
    }
}
