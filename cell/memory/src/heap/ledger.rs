//! The memory of each activity, in the cell's ledger. Objects are counted when they move in batches, so the path of
//! every allocation has no accounting. See [`isola_abi::ledger::ActivityReport::memory_bytes`].

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use isola_abi::ledger::{self, ActivityReport};
use isola_abi::report::{CoreReport, RECLAIM, Report};

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
    /// The word of the report that asks the loop for reclaim; stored before `cores`.
    demands: AtomicPtr<AtomicU32>,
    /// The most bytes of each activity, as many as there are slots; null without limits.
    limits: AtomicPtr<AtomicU64>,
}

impl Ledger {
    /// Returns one without counters.
    pub const fn new() -> Self {
        Self {
            cores: AtomicPtr::new(ptr::null_mut()),
            count: AtomicUsize::new(0),
            counters: AtomicPtr::new(ptr::null_mut()),
            slots: AtomicUsize::new(0),
            demands: AtomicPtr::new(ptr::null_mut()),
            limits: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Watches the limits from now on: an activity whose memory grows beyond its limit makes the loop's next pass look
    /// for memory to reclaim, and has no limit until a new one is stored. Ignores a list that has too few entries.
    pub fn watch(&self, limits: &'static [AtomicU64]) {
        if limits.len() >= self.slots.load(Ordering::Relaxed) {
            self.limits.store(limits.as_ptr().cast_mut(), Ordering::Release);
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
        self.demands.store(ptr::from_ref(&report.memory.pressure).cast_mut(), Ordering::Relaxed);
        self.cores.store(report.cores.as_ptr().cast_mut(), Ordering::Release);
    }

    /// Adds `bytes`, modulo 2^64, to the activity that runs on `core`, the calling core.
    pub fn add(&self, core: usize, bytes: usize) {
        let cores = self.cores.load(Ordering::Acquire);
        if cores.is_null() || core >= self.count.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: `cores` came from a `'static` reference to at least `count` records.
        let slot = unsafe { &*cores.add(core) }.activity.load(Ordering::Relaxed) as usize;
        self.add_to_slot(core, slot, bytes);
    }

    /// Returns the slot of the activity that runs on `core`, the calling core; `None` without a ledger.
    #[inline]
    pub fn current_slot(&self, core: usize) -> Option<u32> {
        let cores = self.cores.load(Ordering::Acquire);
        if cores.is_null() || core >= self.count.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: as in `add`.
        Some(unsafe { &*cores.add(core) }.activity.load(Ordering::Relaxed))
    }

    /// Adds `bytes`, modulo 2^64, to the activity at `slot`, from `core`, the calling core.
    pub fn add_to(&self, core: usize, slot: u32, bytes: usize) {
        // The counters are stored before `cores`.
        if !self.cores.load(Ordering::Acquire).is_null() && core < self.count.load(Ordering::Relaxed) {
            self.add_to_slot(core, slot as usize, bytes);
        }
    }

    /// The caller has seen `cores`, and `core` is less than `count`.
    #[inline(always)]
    fn add_to_slot(&self, core: usize, slot: usize, bytes: usize) {
        let slots = self.slots.load(Ordering::Relaxed);
        if slot < slots {
            let counters = self.counters.load(Ordering::Relaxed);
            // SAFETY: `counters` came from a `'static` reference to `slots` counters for each of `count` cores.
            let activity = unsafe { &*counters.add(core * slots + slot) };
            // Only this core writes the counter.
            let before = activity.memory_bytes.load(Ordering::Relaxed);
            activity.memory_bytes.store(before.wrapping_add(bytes as u64), Ordering::Relaxed);
            let limits = self.limits.load(Ordering::Acquire);
            if !limits.is_null() {
                // SAFETY: `limits` came from a `'static` reference to at least `slots` limits.
                self.compare(slot, unsafe { &*limits.add(slot) });
            }
        }
    }

    /// Compares the memory of the activity at `slot` with its limit.
    #[cold]
    fn compare(&self, slot: usize, limit: &AtomicU64) {
        let (slots, cores) = (self.slots.load(Ordering::Relaxed), self.count.load(Ordering::Relaxed));
        let counters = self.counters.load(Ordering::Relaxed);
        let of_cores = (0..cores).map(|core| {
            // SAFETY: as in `add`: `counters` has `slots` counters for each of `count` cores.
            let activity = unsafe { &*counters.add(core * slots + slot) };
            activity.memory_bytes.load(Ordering::Relaxed)
        });
        let used = of_cores.fold(0, u64::wrapping_add) as i64;
        let most = limit.load(Ordering::Relaxed);
        if used > 0 && used as u64 > most {
            limit.store(u64::MAX, Ordering::Relaxed);
            // SAFETY: stored before `cores`, which the caller has seen, from a `'static` reference.
            let demands = unsafe { &*self.demands.load(Ordering::Relaxed) };
            demands.fetch_or(RECLAIM, Ordering::SeqCst);
        }
    }

    /// Subtracts `bytes` from the activity that runs on `core`, the calling core.
    pub fn subtract(&self, core: usize, bytes: usize) {
        self.add(core, bytes.wrapping_neg());
    }
}
