//! The number of pages in use, and the memory pressure that follows from it.
//!
//! Memory is *low* if less than a sixteenth of it is free, and *critical* if less than a thirty-second is. A level ends
//! when a quarter more than its mark is free: this hysteresis keeps the level stable while few pages come and go.
//!
//! Obtainable memory counts as present and free: a cell that may still grow is not short of memory.

use super::{PAGE_SIZE, PageStatistics};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use isola_abi::report::{MemoryPressure, MemoryReport, PRESSURE_LEVEL};

/// The counters, in pages. All nodes share each word; a core that changes one has just held a node's lock, beside which
/// another locked operation costs little.
pub(super) struct Usage<W = AtomicUsize, T = ReportedPressure> {
    total: W,
    used: W,
    peak: W,
    /// The pages that may still be added.
    obtainable: W,
    pressure: W,
    reported: T,
}

/// The place where the level is published, if any.
pub(super) trait PressureSink {
    /// Returns the level published last; `None` if there is no such place.
    fn last(&self) -> Option<MemoryPressure>;

    /// Publishes the level.
    fn publish(&self, level: MemoryPressure);
}

/// The report, or null.
pub(super) struct ReportedPressure(AtomicPtr<MemoryReport>);

impl ReportedPressure {
    fn report(&self) -> Option<&MemoryReport> {
        // SAFETY: the pointer is null, or came from a `'static` reference.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }
}

impl PressureSink for ReportedPressure {
    fn last(&self) -> Option<MemoryPressure> {
        MemoryPressure::from_u32(self.report()?.pressure.load(Ordering::SeqCst))
    }

    fn publish(&self, level: MemoryPressure) {
        if let Some(report) = self.report() {
            // The flags beside the level are not this layer's.
            let with_level = |word: u32| Some(word & !PRESSURE_LEVEL | level as u32);
            let _ = report.pressure.fetch_update(Ordering::SeqCst, Ordering::SeqCst, with_level);
        }
    }
}

/// A word that cores share: an atomic of the processor, or of a model checker.
pub(super) trait Word {
    fn load(&self, order: Ordering) -> usize;
    fn swap(&self, value: usize, order: Ordering) -> usize;
    fn fetch_add(&self, value: usize, order: Ordering) -> usize;
    fn fetch_sub(&self, value: usize, order: Ordering) -> usize;
    fn fetch_max(&self, value: usize, order: Ordering) -> usize;
}

macro_rules! word {
    ($atomic:ty) => {
        impl Word for $atomic {
            fn load(&self, order: Ordering) -> usize {
                <$atomic>::load(self, order)
            }
            fn swap(&self, value: usize, order: Ordering) -> usize {
                <$atomic>::swap(self, value, order)
            }
            fn fetch_add(&self, value: usize, order: Ordering) -> usize {
                <$atomic>::fetch_add(self, value, order)
            }
            fn fetch_sub(&self, value: usize, order: Ordering) -> usize {
                <$atomic>::fetch_sub(self, value, order)
            }
            fn fetch_max(&self, value: usize, order: Ordering) -> usize {
                <$atomic>::fetch_max(self, value, order)
            }
        }
    };
}

word!(AtomicUsize);

impl Usage {
    /// Returns the counters of no pages.
    pub const fn new() -> Self {
        Self {
            total: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            obtainable: AtomicUsize::new(0),
            pressure: AtomicUsize::new(MemoryPressure::None as usize),
            reported: ReportedPressure(AtomicPtr::new(ptr::null_mut())),
        }
    }

    /// Publishes the level in `report` from now on.
    pub fn report_to(&self, report: &'static MemoryReport) {
        report.pressure.store(self.pressure() as u32, Ordering::SeqCst);
        self.reported.0.store(ptr::from_ref(report).cast_mut(), Ordering::Release);
        self.update_pressure();
    }
}

impl<W: Word, T: PressureSink> Usage<W, T> {
    /// Adds `pages` pages, of which `used` are in use.
    pub fn add(&self, pages: usize, used: usize) {
        self.total.fetch_add(pages, Ordering::SeqCst);
        self.take(used);
    }

    /// Removes `pages` pages, of which `used` were in use.
    pub fn leave(&self, pages: usize, used: usize) {
        self.total.fetch_sub(pages, Ordering::SeqCst);
        self.give(used);
    }

    /// Sets the number of pages that may still be added.
    pub fn set_obtainable(&self, pages: usize) {
        self.obtainable.swap(pages, Ordering::SeqCst);
        self.update_pressure();
    }

    /// Counts an allocation.
    pub fn take(&self, pages: usize) {
        let used = self.used.fetch_add(pages, Ordering::SeqCst) + pages;
        if used > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(used, Ordering::Relaxed);
        }
        self.update_pressure();
    }

    /// Counts a free.
    pub fn give(&self, pages: usize) {
        self.used.fetch_sub(pages, Ordering::SeqCst);
        self.update_pressure();
    }

    /// Returns the memory pressure.
    pub fn pressure(&self) -> MemoryPressure {
        MemoryPressure::from_u32(self.pressure.load(Ordering::SeqCst) as u32).unwrap_or(MemoryPressure::None)
    }

    /// Returns the figures, in bytes.
    pub fn statistics(&self) -> PageStatistics {
        PageStatistics {
            total_bytes: self.total.load(Ordering::Relaxed) * PAGE_SIZE,
            used_bytes: self.used.load(Ordering::Relaxed) * PAGE_SIZE,
            peak_bytes: self.peak.load(Ordering::Relaxed) * PAGE_SIZE,
            obtainable_bytes: self.obtainable.load(Ordering::Relaxed) * PAGE_SIZE,
        }
    }

    /// Updates the level after a change. After one core has found the level right, another core may store a wrong one
    /// that it computed from an older count. Therefore a core that stores the level checks it again, and also checks
    /// the published level, which is a separate word. Sequential consistency guarantees that one of two such cores sees
    /// the other's change.
    fn update_pressure(&self) {
        loop {
            let before = self.pressure();
            let total = self.total.load(Ordering::SeqCst) + self.obtainable.load(Ordering::SeqCst);
            let now = level(total, total.saturating_sub(self.used.load(Ordering::SeqCst)), before);
            if now == before && self.reported.last().is_none_or(|reported| reported == now) {
                return;
            }
            self.pressure.swap(now as usize, Ordering::SeqCst);
            self.reported.publish(now);
        }
    }
}

/// Returns the level if `free` of `total` pages are free and the level was `before`.
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
    // A level rises at its mark, and falls only at the mark a quarter above.
    entered.max(before.min(left))
}

#[cfg(test)]
mod tests {
    use super::*;
    use MemoryPressure::{Critical, Low, None};

    #[test]
    fn a_level_begins_at_its_mark_and_ends_a_quarter_above() {
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
    fn obtainable_pages_count_as_free() {
        let usage = Usage::new();
        usage.add(3200, 3150);
        assert_eq!(usage.pressure(), Critical);
        usage.set_obtainable(32_000);
        assert_eq!((usage.pressure(), usage.statistics().obtainable_bytes), (None, 32_000 * PAGE_SIZE));
        usage.set_obtainable(0);
        assert_eq!(usage.pressure(), Critical);
    }

    #[test]
    fn an_allocator_without_memory_has_no_pressure() {
        assert_eq!(level(0, 0, None), None);
    }
}

#[cfg(all(test, loom))]
mod models {
    extern crate std;

    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    word!(loom::sync::atomic::AtomicUsize);

    /// A report for the model. loom treats SeqCst loads and stores as weaker ones, but not read-modify-write
    /// operations; hence only the latter are used.
    struct Report(loom::sync::atomic::AtomicUsize);

    impl PressureSink for Report {
        fn last(&self) -> Option<MemoryPressure> {
            MemoryPressure::from_u32(self.0.fetch_add(0, Ordering::SeqCst) as u32)
        }

        fn publish(&self, level: MemoryPressure) {
            self.0.swap(level as usize, Ordering::SeqCst);
        }
    }

    type Model = Usage<loom::sync::atomic::AtomicUsize, Report>;

    /// 64 pages, of which 6 are free. Memory is low below 4 free pages, until 5 are free, and critical below 2.
    fn usage() -> Arc<Model> {
        let word = loom::sync::atomic::AtomicUsize::new;
        let (total, used, peak, obtainable, pressure) = (word(64), word(58), word(58), word(0), word(0));
        Arc::new(Usage { total, used, peak, obtainable, pressure, reported: Report(word(0)) })
    }

    /// Checks the level after two cores ran concurrently.
    fn both(one: fn(&Model), other: fn(&Model), expected: MemoryPressure) {
        let mut builder = loom::model::Builder::new();
        // Explores all interleavings with at most this many preemptions; without a bound they take minutes.
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let usage = usage();
            let shared = usage.clone();
            let core = thread::spawn(move || one(&shared));
            other(&usage);
            core.join().unwrap();
            let used = usage.used.load(Ordering::SeqCst);
            assert_eq!(usage.pressure(), expected, "with {used} pages in use");
            assert_eq!(usage.reported.last(), Some(expected), "reported, with {used} pages in use");
        });
    }

    #[test]
    fn memory_is_not_low_once_all_of_it_is_free() {
        let take_and_give = |usage: &Model| {
            usage.take(3);
            usage.give(3);
        };
        both(take_and_give, |usage| usage.take(1), MemoryPressure::None);
    }

    #[test]
    fn memory_is_low_after_two_allocations_of_which_one_alone_is_allowed() {
        both(|usage| usage.take(2), |usage| usage.take(1), MemoryPressure::Low);
    }

    #[test]
    fn memory_is_low_after_a_large_allocation_and_a_small_free() {
        both(|usage| usage.take(5), |usage| usage.give(2), MemoryPressure::Low);
    }
}
