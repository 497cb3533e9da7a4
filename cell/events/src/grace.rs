//! Grace periods: how long what was unlinked has to stay in memory, because a core may still look at it.
//!
//! Between events a core looks at nothing. So a grace period ends when every core has been between two events since it was
//! asked for, or is halted: the loop's passes are the read-side's only cost (EbbRT 3.2.1).
//!
//! ```text
//! who unlinks                         core, between events
//!   unlink                              load requested (acquire)
//!   requested += 1 -> n (release)       where it is new: seen[core] := it (release)
//!   wait until every seen[core] >= n    core, about to halt
//!   (acquire), then free                seen[core] := AWAY, fence; see whether that ended a period
//!                                     core, up again
//!                                       seen[core] := requested, fence
//! ```
//!
//! A core that has seen `n` has seen what was unlinked before: what it looks at from there on is not that, and what it
//! looked at before happened before it said so. A core that comes up while the one who unlinks looks at `seen` has either
//! been seen, or sees what was unlinked: the fences of the two are in some order.
//!
//! **Nobody is woken for it.** Work that waits for a grace period is with the core that deferred it, which looks on each
//! pass. A core that is about to halt leaves its work behind as *orphans*, and whoever makes the last step, by seeing or
//! by halting, takes them: it steps, fences, and looks; of two that step at the same time, at least one sees the other's
//! step.

use crate::sync::{AtomicBool, AtomicU64, Lock, Ordering, fence};
use alloc::boxed::Box;
use alloc::vec::Vec;
use crossbeam_utils::CachePadded;

/// What a core that is halted has seen: everything.
const AWAY: u64 = u64::MAX;

/// The number of a grace period. They end in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Period(u64);

/// Work that waits for the end of a period.
pub(crate) struct Batch<W> {
    pub period: Period,
    pub work: Vec<W>,
}

/// The grace periods of a cell.
pub(crate) struct Grace<W> {
    requested: CachePadded<AtomicU64>,
    seen: Box<[CachePadded<AtomicU64>]>,
    has_orphans: AtomicBool,
    orphans: Lock<Vec<Batch<W>>>,
}

impl<W> Grace<W> {
    /// For that many cores, all of them halted.
    pub fn new(cores: usize) -> Self {
        Self {
            requested: CachePadded::new(AtomicU64::new(0)),
            seen: (0..cores).map(|_| CachePadded::new(AtomicU64::new(AWAY))).collect(),
            has_orphans: AtomicBool::new(false),
            orphans: Lock::default(),
        }
    }

    /// Asks for a period that begins now.
    pub fn request(&self) -> Period {
        let before = self.requested.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        Period(before + 1)
    }

    /// The latest period that was asked for.
    #[inline]
    pub fn requested(&self) -> Period {
        Period(self.requested.load(Ordering::Acquire))
    }

    /// Says that `core` is between events, and knows of `period`.
    pub fn see(&self, core: usize, period: Period) {
        self.seen[core].store(period.0, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Says that `core` halts.
    pub fn leave(&self, core: usize) {
        self.seen[core].store(AWAY, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Says that `core` is up. Returns the latest period, which it has seen.
    pub fn join(&self, core: usize) -> Period {
        let period = self.requested();
        self.seen[core].store(period.0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        period
    }

    /// Whether `period` has ended.
    pub fn has_ended(&self, period: Period) -> bool {
        self.seen.iter().all(|seen| seen.load(Ordering::Acquire) >= period.0)
    }

    /// Leaves work behind, before [`Self::leave`].
    pub fn leave_behind(&self, batch: Batch<W>) {
        self.orphans.with(|orphans| orphans.push(batch));
        self.has_orphans.store(true, Ordering::Relaxed);
    }

    /// Whether a core has left work behind whose period has ended: to be asked after [`Self::see`] and [`Self::leave`].
    pub fn has_ended_orphans(&self) -> bool {
        self.has_orphans.load(Ordering::Relaxed)
            && self.orphans.with(|orphans| orphans.iter().any(|batch| self.has_ended(batch.period)))
    }

    /// Takes the work of ended periods that cores have left behind.
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

    /// Two objects, of which a word says which one is linked.
    struct Linked {
        which: AtomicUsize,
        /// Loom finds accesses that are not ordered with a free, which writes.
        objects: [UnsafeCell<()>; 2],
        grace: Grace<()>,
    }

    impl Linked {
        fn new() -> Arc<Self> {
            let objects = [UnsafeCell::new(()), UnsafeCell::new(())];
            Arc::new(Self { which: AtomicUsize::new(0), objects, grace: Grace::new(2) })
        }

        /// An event that reads the linked object, on the core of that index.
        fn read(&self) {
            let which = self.which.load(Ordering::Acquire);
            self.objects[which].with(|_| ());
        }
    }

    #[test]
    fn what_a_core_may_read_is_not_freed() {
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
                            shared.grace.see(1, requested);
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
    fn a_core_that_comes_up_is_waited_for_or_does_not_see_what_was_unlinked() {
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
    fn what_a_core_that_halts_leaves_behind_is_taken_by_who_makes_the_last_step() {
        loom::model(|| {
            let grace = Arc::new(Grace::<u32>::new(2));
            let known = grace.join(0);
            grace.join(1);
            let other = {
                let grace = grace.clone();
                thread::spawn(move || {
                    let mut taken = 0;
                    let requested = grace.requested();
                    if requested != known {
                        grace.see(1, requested);
                        taken += grace.take_ended_orphans().len();
                    }
                    grace.leave(1);
                    taken + grace.take_ended_orphans().len()
                })
            };
            let period = grace.request();
            grace.leave_behind(Batch { period, work: Vec::new() });
            grace.leave(0);
            let taken = grace.take_ended_orphans().len();
            assert_eq!(taken + other.join().unwrap(), 1, "work that waited for a period is forgotten");
        });
    }
}
