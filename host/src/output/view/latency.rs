//! The JSON form of latency distributions.

use isola_abi::histogram::Distribution;
use serde::Serialize;

/// A latency distribution in cycles, with its median, 99th and 99.9th percentiles; `null` if it has no samples.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LatencyView {
    /// The number of samples. The events of a core are only sampled, not all counted.
    pub count: u64,
    /// The median.
    pub p50_cycles: Option<u64>,
    /// The 99th percentile.
    pub p99_cycles: Option<u64>,
    /// The 99.9th percentile.
    pub p999_cycles: Option<u64>,
}

impl LatencyView {
    /// Creates the JSON form of a distribution.
    pub fn new(distribution: &Distribution) -> Self {
        Self {
            count: distribution.count(),
            p50_cycles: distribution.quantile(500),
            p99_cycles: distribution.quantile(990),
            p999_cycles: distribution.quantile(999),
        }
    }
}
