//! The JSON form of how long things took.

use isola_abi::histogram::Distribution;
use serde::Serialize;

/// How long things of one kind took, in cycles: what half of them, 99 of 100 and 999 of 1000 took no longer than; `null`
/// where there were none.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LatencyView {
    /// How many there were; of the events of a core a few are looked at only.
    pub count: u64,
    /// The median.
    pub p50_cycles: Option<u64>,
    /// The 99th percentile.
    pub p99_cycles: Option<u64>,
    /// The 99.9th percentile.
    pub p999_cycles: Option<u64>,
}

impl LatencyView {
    /// The JSON form of a distribution.
    pub fn new(distribution: &Distribution) -> Self {
        Self {
            count: distribution.count(),
            p50_cycles: distribution.quantile(500),
            p99_cycles: distribution.quantile(990),
            p999_cycles: distribution.quantile(999),
        }
    }
}
