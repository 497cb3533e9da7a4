//! The memory of each activity, in the cell's ledger. Objects are counted when they move in batches, so the path of
//! every allocation has no accounting. See [`isola_abi::ledger::ActivityReport::memory_bytes`].

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use isola_abi::ledger::{self, ActivityReport};
use isola_abi::report::{CoreReport, Report};

/// The counters of the ledger; none until `report_to`.
pub(super) struct Ledger {
    /// The first core's record in the report, or null.
    cores: AtomicPtr<CoreReport>,
    /// The number of cores; stored before `cores`.
    count: AtomicUsize,
    /// The first core's counters; those of the other cores follow. Stored before `cores`.
    counters: AtomicPtr<ActivityReport>,
    /// The number of counters per core; stored before `cores`.
    slots: AtomicUsize,
}

impl Ledger {
    /// Returns one without counters.
    pub const fn new() -> Self {
        Self {
            cores: AtomicPtr::new(ptr::null_mut()),
            count: AtomicUsize::new(0),
            counters: AtomicPtr::new(ptr::null_mut()),
            slots: AtomicUsize::new(0),
        }
    }

    /// Counts in this ledger from now on.
    pub fn report_to(&self, report: &'static Report, ledger: ledger::Ledger<'static>) {
        let counters = ledger.counters();
        let slots = ledger.records().len();
        self.slots.store(slots, Ordering::Relaxed);
        self.counters.store(counters.as_ptr().cast_mut(), Ordering::Relaxed);
        let cores = report.cores.len().min(counters.len() / slots.max(1));
        self.count.store(cores, Ordering::Relaxed);
        self.cores.store(report.cores.as_ptr().cast_mut(), Ordering::Release);
    }

    /// Adds `bytes`, modulo 2^64, to the activity that runs on `core`, the calling core.
    pub fn add(&self, core: usize, bytes: usize) {
        let cores = self.cores.load(Ordering::Acquire);
        if cores.is_null() || core >= self.count.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: `cores` came from a `'static` reference to at least `count` records.
        let activity = unsafe { &*cores.add(core) }.activity.load(Ordering::Relaxed) as usize;
        let slots = self.slots.load(Ordering::Relaxed);
        if activity < slots {
            let counters = self.counters.load(Ordering::Relaxed);
            // SAFETY: `counters` came from a `'static` reference to `slots` counters for each of `count` cores.
            let activity = unsafe { &*counters.add(core * slots + activity) };
            // Only this core writes the counter.
            let before = activity.memory_bytes.load(Ordering::Relaxed);
            activity.memory_bytes.store(before.wrapping_add(bytes as u64), Ordering::Relaxed);
        }
    }

    /// Subtracts `bytes` from the activity that runs on `core`, the calling core.
    pub fn subtract(&self, core: usize, bytes: usize) {
        self.add(core, bytes.wrapping_neg());
    }
}
