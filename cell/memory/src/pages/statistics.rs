//! Figures on the total memory and the memory in use.

use core::sync::atomic::Ordering;
use isola_abi::report::MemoryReport;

/// Figures of the page allocator, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageStatistics {
    /// All memory that was added.
    pub total_bytes: usize,
    /// The part of it that is allocated or used for records.
    pub used_bytes: usize,
    /// The maximum of `used_bytes` so far.
    pub peak_bytes: usize,
    /// The memory that may still be added.
    pub obtainable_bytes: usize,
}

impl PageStatistics {
    /// Writes the figures to the cell's report.
    pub fn publish(&self, report: &MemoryReport) {
        report.total_bytes.store(self.total_bytes as u64, Ordering::Relaxed);
        report.used_bytes.store(self.used_bytes as u64, Ordering::Relaxed);
        report.peak_bytes.store(self.peak_bytes as u64, Ordering::Relaxed);
        report.room_bytes.store(self.obtainable_bytes as u64, Ordering::Relaxed);
    }
}
