//! Grace periods: the time for which unlinked data has to stay in memory because a core may still read it.
//!
//! Between events a core holds no reference to such data. So a grace period ends when every core has been between two
//! events since the request, or is halted: a check per pass of the loop is the readers' only cost (EbbRT 3.2.1).
//!
//! ```text
//! writer                              reader core, between events
//!   unlink                              load requested (acquire)
//!   requested += 1 -> n (release)       if it is new: seen[core] := it (release)
//!   wait until every seen[core] >= n    core, about to halt
//!   (acquire), then free                seen[core] := AWAY, fence; check whether that ended a period
//!                                     core, running again
//!                                       seen[core] := requested, fence
//! ```
//!
//! A core that has seen `n` has seen the unlink: it cannot reach the data afterwards, and its earlier reads happened
//! before it stored `seen`. If a core starts to run while the writer checks `seen`, the order of the two fences
//! decides: either the writer sees the core's entry, or the core sees the unlink.
//!
//! **A grace period wakes no core.** Deferred work stays with the core that deferred it, which checks in each pass. A
//! core that is about to halt leaves its work behind as *orphans*. The core that takes the last step (sees a period, or
//! halts) collects them: it steps, fences, and checks; of two cores that step at the same time, at least one sees the
//! other's step.

use crate::sync::{AtomicBool, AtomicU64, Lock, Ordering, fence};
use alloc::boxed::Box;
use alloc::vec::Vec;
use crossbeam_utils::CachePadded;

/// The `seen` value of a halted core: it has seen every period.
const AWAY: u64 = u64::MAX;

/// The number of a grace period. Periods end in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Period(u64);

/// Work that waits for the end of a period.
pub(crate) struct Batch<W> {
    pub period: Period,
    pub work: Vec<W>,
}

/// The grace periods of a cell.
pub(crate) struct GracePeriods<W> {
    requested: CachePadded<AtomicU64>,
    seen: Box<[CachePadded<AtomicU64>]>,
    has_orphans: AtomicBool,
    orphans: Lock<Vec<Batch<W>>>,
}

impl<W> GracePeriods<W> {
    /// Creates grace periods for `cores` cores, all of them halted.
    pub fn new(cores: usize) -> Self {
        Self {
            requested: CachePadded::new(AtomicU64::new(0)),
            seen: (0..cores).map(|_| CachePadded::new(AtomicU64::new(AWAY))).collect(),
            has_orphans: AtomicBool::new(false),
            orphans: Lock::default(),
        }
    }

    /// Requests a period that begins now.
    pub fn request(&self) -> Period {
        let before = self.requested.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        Period(before + 1)
    }

    /// Returns the latest requested period.
    #[inline]
    pub fn requested(&self) -> Period {
        Period(self.requested.load(Ordering::Acquire))
    }

    /// Marks `core` as between events and aware of `period`.
    pub fn mark_seen(&self, core: usize, period: Period) {
        self.seen[core].store(period.0, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Marks `core` as halted.
    pub fn leave(&self, core: usize) {
        self.seen[core].store(AWAY, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Marks `core` as running. Returns the latest period, which it has seen.
    pub fn join(&self, core: usize) -> Period {
        let period = self.requested();
        self.seen[core].store(period.0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        period
    }

    /// Returns whether `period` has ended.
    pub fn has_ended(&self, period: Period) -> bool {
        self.seen.iter().all(|seen| seen.load(Ordering::Acquire) >= period.0)
    }

    /// Leaves work behind, before [`Self::leave`].
    pub fn orphan(&self, batch: Batch<W>) {
        self.orphans.with(|orphans| orphans.push(batch));
        self.has_orphans.store(true, Ordering::Relaxed);
    }

    /// Returns whether an ended period has orphaned work. To be called after [`Self::mark_seen`] and [`Self::leave`].
    pub fn has_ended_orphans(&self) -> bool {
        self.has_orphans.load(Ordering::Relaxed)
            && self.orphans.with(|orphans| orphans.iter().any(|batch| self.has_ended(batch.period)))
    }

    /// Takes the orphaned work of ended periods.
    pub fn take_ended_orphans(&self) -> Vec<Batch<W>> {
        if !self.has_orphans.load(Ordering::Relaxed) {
            return Vec::new();
        }
        self.orphans.with(|orphans| {
            let (ended, waiting) =
                core::mem::take(orphans).into_iter().partition(|batch| self.has_ended(batch.period));
            *orphans = waiting;
            self.has_orphans.store(!orphans.is_empty(), Ordering::Relaxed);
            ended
        })
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::AtomicUsize;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    /// Two objects, and a word that says which one is linked.
    struct Linked {
        which: AtomicUsize,
        /// Loom detects reads that are not ordered before the free, modelled as a write.
        objects: [UnsafeCell<()>; 2],
        grace: GracePeriods<()>,
    }

    impl Linked {
        fn new() -> Arc<Self> {
            let objects = [UnsafeCell::new(()), UnsafeCell::new(())];
            Arc::new(Self { which: AtomicUsize::new(0), objects, grace: GracePeriods::new(2) })
        }

        /// Reads the linked object, as an event of a core.
        fn read(&self) {
            let which = self.which.load(Ordering::Acquire);
            self.objects[which].with(|_| ());
        }
    }

    #[test]
    fn an_object_is_not_freed_while_a_core_may_read_it() {
        loom::model(|| {
            let shared = Linked::new();
            let mut known = shared.grace.join(1);
            let reader = {
                let shared = shared.clone();
                thread::spawn(move || {
                    for _ in 0..2 {
                        shared.read();
                        let requested = shared.grace.requested();
                        if requested != known {
                            known = requested;
                            shared.grace.mark_seen(1, requested);
                        }
                    }
                    shared.grace.leave(1);
                })
            };
            shared.which.store(1, Ordering::Release);
            let period = shared.grace.request();
            while !shared.grace.has_ended(period) {
                thread::yield_now();
            }
            shared.objects[0].with_mut(|_| ());
            reader.join().unwrap();
        });
    }

    #[test]
    fn a_starting_core_delays_the_period_or_sees_the_unlink() {
        loom::model(|| {
            let shared = Linked::new();
            let reader = {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.grace.join(1);
                    shared.read();
                    shared.grace.leave(1);
                })
            };
            shared.which.store(1, Ordering::Release);
            let period = shared.grace.request();
            while !shared.grace.has_ended(period) {
                thread::yield_now();
            }
            shared.objects[0].with_mut(|_| ());
            reader.join().unwrap();
        });
    }

    #[test]
    fn orphans_of_a_halting_core_are_taken_by_the_core_with_the_last_step() {
        loom::model(|| {
            let grace = Arc::new(GracePeriods::<u32>::new(2));
            let known = grace.join(0);
            grace.join(1);
            let other = {
                let grace = grace.clone();
                thread::spawn(move || {
                    let mut taken = 0;
                    let requested = grace.requested();
                    if requested != known {
                        grace.mark_seen(1, requested);
                        taken += grace.take_ended_orphans().len();
                    }
                    grace.leave(1);
                    taken + grace.take_ended_orphans().len()
                })
            };
            let period = grace.request();
            grace.orphan(Batch { period, work: Vec::new() });
            grace.leave(0);
            let taken = grace.take_ended_orphans().len();
            assert_eq!(taken + other.join().unwrap(), 1, "the orphaned work is taken exactly once");
        });
    }
}
