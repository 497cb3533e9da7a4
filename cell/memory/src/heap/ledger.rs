//! What memory each activity uses, in the cell's report: counted where objects come and go in batches, so that the path
//! that every allocation takes knows nothing of it. See [`isola_abi::report::ActivityReport::memory_bytes`].

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use isola_abi::report::{CoreReport, Report};

/// Where it is written; nowhere so far.
pub(super) struct Ledger {
    /// The first core's record.
    cores: AtomicPtr<CoreReport>,
    /// How many there are in a row; stored before that.
    count: AtomicUsize,
}

impl Ledger {
    /// One that writes nothing.
    pub const fn new() -> Self {
        Self { cores: AtomicPtr::new(ptr::null_mut()), count: AtomicUsize::new(0) }
    }

    /// Writes there from now on.
    pub fn report_to(&self, report: &'static Report) {
        self.count.store(report.cores.len(), Ordering::Relaxed);
        self.cores.store(report.cores.as_ptr().cast_mut(), Ordering::Release);
    }

    /// The activity that runs on `core`, the one that calls, has `bytes` more, modulo 2^64.
    pub fn add(&self, core: usize, bytes: usize) {
        let cores = self.cores.load(Ordering::Acquire);
        if cores.is_null() || core >= self.count.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: both came from a reference that lives for good, to at least so many records.
        let core = unsafe { &*cores.add(core) };
        let activity = core.activity.load(Ordering::Relaxed) as usize;
        if let Some(activity) = core.activities.get(activity) {
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
