//! How much of all pages is used, and whether that is too much.
//!
//! Memory is *low* when less than a sixteenth of it is free, and *critical* when less than a thirty-second is. It is no
//! longer so when a quarter more than that mark is free: a level does not come and go with every page.

use super::{PAGE_SIZE, PageStatistics};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use isola_abi::report::{MemoryPressure, MemoryReport};

/// The figures, in pages. Each is one word that all nodes share: whoever changes it has just held a node's lock, so that
/// another locked operation is little.
pub(super) struct Usage {
    total: AtomicUsize,
    used: AtomicUsize,
    peak: AtomicUsize,
    pressure: AtomicUsize,
    /// Where the level is told; null: nowhere.
    report: AtomicPtr<MemoryReport>,
}

impl Usage {
    /// Of no pages.
    pub const fn new() -> Self {
        Self {
            total: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            pressure: AtomicUsize::new(MemoryPressure::None as usize),
            report: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// There are `pages` more, of which `used` are.
    pub fn add(&self, pages: usize, used: usize) {
        self.total.fetch_add(pages, Ordering::SeqCst);
        self.take(used);
    }

    /// So many were handed out.
    pub fn take(&self, pages: usize) {
        let used = self.used.fetch_add(pages, Ordering::SeqCst) + pages;
        if used > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(used, Ordering::Relaxed);
        }
        self.judge();
    }

    /// So many came back.
    pub fn give(&self, pages: usize) {
        self.used.fetch_sub(pages, Ordering::SeqCst);
        self.judge();
    }

    /// How short memory is.
    pub fn pressure(&self) -> MemoryPressure {
        MemoryPressure::from_u32(self.pressure.load(Ordering::SeqCst) as u32).unwrap_or(MemoryPressure::None)
    }

    /// Has the level told there from now on.
    pub fn report_to(&self, report: &'static MemoryReport) {
        report.pressure.store(self.pressure() as u32, Ordering::Relaxed);
        self.report.store(ptr::from_ref(report).cast_mut(), Ordering::Release);
    }

    /// In bytes.
    pub fn statistics(&self) -> PageStatistics {
        PageStatistics {
            total_bytes: self.total.load(Ordering::Relaxed) * PAGE_SIZE,
            used_bytes: self.used.load(Ordering::Relaxed) * PAGE_SIZE,
            peak_bytes: self.peak.load(Ordering::Relaxed) * PAGE_SIZE,
        }
    }

    /// Brings the level up to date; after every change. Who finds it right may have looked before somebody else, who
    /// looked earlier at what is used, sets it wrong: that one looks again when he has. One order over all accesses
    /// (sequential consistency) has one of the two see the other's.
    fn judge(&self) {
        loop {
            let before = self.pressure();
            let total = self.total.load(Ordering::SeqCst);
            let now = level(total, total.saturating_sub(self.used.load(Ordering::SeqCst)), before);
            if now == before {
                return;
            }
            self.pressure.swap(now as usize, Ordering::SeqCst);
            // SAFETY: it is null, or came from a reference that lives for good.
            if let Some(report) = unsafe { self.report.load(Ordering::Acquire).as_ref() } {
                report.pressure.store(now as u32, Ordering::SeqCst);
            }
        }
    }
}

/// The level when `free` of `total` pages are, and it was `before`.
fn level(total: usize, free: usize, before: MemoryPressure) -> MemoryPressure {
    let [low, critical] = [total / 16, total / 32];
    let entered = match free {
        free if free < critical => MemoryPressure::Critical,
        free if free < low => MemoryPressure::Low,
        _ => MemoryPressure::None,
    };
    let left = match free {
        free if free < critical + critical / 4 => MemoryPressure::Critical,
        free if free < low + low / 4 => MemoryPressure::Low,
        _ => MemoryPressure::None,
    };
    // Worse at once, better only behind the second mark.
    entered.max(before.min(left))
}

#[cfg(test)]
mod tests {
    use super::*;
    use MemoryPressure::{Critical, Low, None};

    #[test]
    fn a_level_comes_at_its_mark_and_goes_a_quarter_later() {
        let mut usage = None;
        for (free, expected) in [
            (3200, None),
            (200, None),
            (199, Low),
            (220, Low),
            (250, None),
            (249, None),
            (150, Low),
            (100, Low),
            (99, Critical),
            (124, Critical),
            (125, Low),
            (90, Critical),
            (0, Critical),
            (240, Low),
            (3200, None),
            (1, Critical),
            (3200, None),
        ] {
            usage = level(3200, free, usage);
            assert_eq!(usage, expected, "{free} of 3200 free");
        }
    }

    #[test]
    fn without_memory_there_is_no_pressure() {
        assert_eq!(level(0, 0, None), None);
    }
}
