//! How much memory there is, and how much of it is in use.

use core::sync::atomic::Ordering;
use isola_abi::report::MemoryReport;

/// Figures of the page allocator, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageStatistics {
    /// All memory that was added.
    pub total_bytes: usize,
    /// Of it, handed out or used for records.
    pub used_bytes: usize,
    /// The most that was ever used.
    pub peak_bytes: usize,
    /// What may still be added.
    pub room_bytes: usize,
}

impl PageStatistics {
    /// Writes them into the cell's report.
    pub fn publish(&self, report: &MemoryReport) {
        report.total_bytes.store(self.total_bytes as u64, Ordering::Relaxed);
        report.used_bytes.store(self.used_bytes as u64, Ordering::Relaxed);
        report.peak_bytes.store(self.peak_bytes as u64, Ordering::Relaxed);
        report.room_bytes.store(self.room_bytes as u64, Ordering::Relaxed);
    }
}
