//! What memory each activity uses, in the cell's ledger: counted where objects come and go in batches, so that the path
//! that every allocation takes knows nothing of it. See [`isola_abi::ledger::ActivityReport::memory_bytes`].

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use isola_abi::ledger::{self, ActivityReport};
use isola_abi::report::{CoreReport, Report};

/// Where it is written; nowhere so far.
pub(super) struct Ledger {
    /// The first core's record in the report.
    cores: AtomicPtr<CoreReport>,
    /// How many there are in a row; stored before that.
    count: AtomicUsize,
    /// The first core's counters; those of the others follow. Stored before `cores`.
    counters: AtomicPtr<ActivityReport>,
    /// How many counters a core has; stored before `cores`.
    slots: AtomicUsize,
}

impl Ledger {
    /// One that writes nothing.
    pub const fn new() -> Self {
        Self {
            cores: AtomicPtr::new(ptr::null_mut()),
            count: AtomicUsize::new(0),
            counters: AtomicPtr::new(ptr::null_mut()),
            slots: AtomicUsize::new(0),
        }
    }

    /// Writes there from now on.
    pub fn report_to(&self, report: &'static Report, ledger: ledger::Ledger<'static>) {
        let counters = ledger.counters();
        let slots = ledger.records().len();
        self.slots.store(slots, Ordering::Relaxed);
        self.counters.store(counters.as_ptr().cast_mut(), Ordering::Relaxed);
        let cores = report.cores.len().min(counters.len() / slots.max(1));
        self.count.store(cores, Ordering::Relaxed);
        self.cores.store(report.cores.as_ptr().cast_mut(), Ordering::Release);
    }

    /// The activity that runs on `core`, the one that calls, has `bytes` more, modulo 2^64.
    pub fn add(&self, core: usize, bytes: usize) {
        let cores = self.cores.load(Ordering::Acquire);
        if cores.is_null() || core >= self.count.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: both came from a reference that lives for good, to at least so many records.
        let activity = unsafe { &*cores.add(core) }.activity.load(Ordering::Relaxed) as usize;
        let slots = self.slots.load(Ordering::Relaxed);
        if activity < slots {
            let counters = self.counters.load(Ordering::Relaxed);
            // SAFETY: it came from a reference that lives for good, to `slots` counters for each of `count` cores.
            let activity = unsafe { &*counters.add(core * slots + activity) };
            // The core alone writes it.
            let before = activity.memory_bytes.load(Ordering::Relaxed);
            activity.memory_bytes.store(before.wrapping_add(bytes as u64), Ordering::Relaxed);
        }
    }

    /// It has `bytes` less.
    pub fn subtract(&self, core: usize, bytes: usize) {
        self.add(core, bytes.wrapping_neg());
    }
}
