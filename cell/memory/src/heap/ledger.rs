//! What memory each activity uses, in the cell's report: counted where objects come and go in batches, so that the path
//! that every allocation takes knows nothing of it. See [`isola_abi::report::ActivityReport::memory_bytes`].

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use isola_abi::report::Report;

/// Where it is written; nowhere so far.
pub(super) struct Ledger {
    report: AtomicPtr<Report>,
}

impl Ledger {
    /// One that writes nothing.
    pub const fn new() -> Self {
        Self { report: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Writes there from now on.
    pub fn report_to(&self, report: &'static Report) {
        self.report.store(ptr::from_ref(report).cast_mut(), Ordering::Release);
    }

    /// The activity that runs on `core`, the one that calls, has `bytes` more, modulo 2^64.
    pub fn add(&self, core: usize, bytes: usize) {
        // SAFETY: it is null, or came from a reference that lives for good.
        let Some(report) = (unsafe { self.report.load(Ordering::Acquire).as_ref() }) else { return };
        let Some(core) = report.cores.get(core) else { return };
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
