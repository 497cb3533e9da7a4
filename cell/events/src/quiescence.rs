//! Work deferred until all events that now run, on any core, have ended: deferred reclamation (RCU; EbbRT 3.2.1).
//!
//! Data that several cores read without locks is changed by replacing it. The replaced version is freed in [`defer`]:
//! by then every core has been between two events, where no core holds a reference into such data. `isola-rcu` has
//! cells and tables on this basis.
//!
//! A grace period wakes no idle core and keeps none running: a halted core runs no event. Before it halts, a core
//! leaves its deferred work to the last core that comes to an event boundary. An event that never ends delays all
//! deferred work.

use crate::event::{EventTag, QueuedEvent, Work};
use crate::event_loop::EVENTS;
use crate::grace::{Batch, GracePeriods, Period};
use crate::halt::MayHalt;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::panic::Location;
use isola_ebbs::{CellEbb, Representative, current_core, platform};

static GRACE_PERIODS: CellEbb<CellGracePeriods> = CellEbb::new();

/// The grace periods of a cell.
struct CellGracePeriods {
    grace: GracePeriods<Deferred>,
}

impl Representative for CellGracePeriods {
    fn create() -> Self {
        Self { grace: GracePeriods::new(platform().descriptor().core_slot_count as usize) }
    }
}

/// Deferred work.
pub(crate) struct Deferred {
    work: Box<dyn FnOnce() + Send>,
    tag: EventTag,
    made_at: &'static Location<'static>,
}

/// A core's part in grace periods.
pub(crate) struct Quiescence {
    grace: &'static GracePeriods<Deferred>,
    core: usize,
    /// The latest period that this core has seen.
    seen: Cell<Period>,
    /// Whether deferred work waits on this core.
    pending: Cell<bool>,
    /// Work for the next period that this core requests; it requests one at a time.
    unrequested: RefCell<Vec<Deferred>>,
    waiting: RefCell<Option<Batch<Deferred>>>,
    /// The nesting depth of [`read`] in the running event.
    reads: Cell<u32>,
}

/// Runs `work` as a separate event, for the current activity, once all events that now run on any core have ended. It
/// runs on this core, or on any core if this one halts before.
#[track_caller]
pub fn defer(work: impl FnOnce() + Send + 'static) {
    let quiescence = &EVENTS.quiescence;
    let (work, tag) = (Box::new(work), EVENTS.current_tag());
    quiescence.unrequested.borrow_mut().push(Deferred { work, tag, made_at: Location::caller() });
    quiescence.pending.set(true);
}

/// Calls `reader`, which reads data that [`defer`] frees. A fiber cannot suspend meanwhile.
#[inline]
pub fn read<R>(reader: impl FnOnce() -> R) -> R {
    let reads = &EVENTS.quiescence.reads;
    reads.set(reads.get() + 1);
    let result = reader();
    reads.set(reads.get() - 1);
    result
}

/// Returns whether the running event is in a [`read`].
pub fn is_reading() -> bool {
    EVENTS.quiescence.reads.get() > 0
}

/// Distinguishes the cells of a process, whose grace periods are separate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Domain(usize);

impl Domain {
    /// Returns the domain of the calling core's cell.
    #[inline]
    pub fn current() -> Self {
        Self(core::ptr::from_ref(EVENTS.quiescence.grace).addr())
    }
}

impl Quiescence {
    /// Joins a running core.
    pub fn new() -> Self {
        let (grace, core) = (&GRACE_PERIODS.grace, current_core().0 as usize);
        Self {
            grace,
            core,
            seen: Cell::new(grace.join(core)),
            pending: Cell::new(false),
            unrequested: RefCell::default(),
            waiting: RefCell::default(),
            reads: Cell::new(0),
        }
    }

    /// Returns whether another core waits for an event boundary of this one.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.grace.requested() != self.seen.get()
    }

    /// Marks an event boundary of this core.
    #[inline]
    pub fn pass(&self) {
        let requested = self.grace.requested();
        if requested != self.seen.get() || self.pending.get() {
            self.advance(requested);
        }
    }

    #[cold]
    fn advance(&self, requested: Period) {
        if requested != self.seen.replace(requested) {
            self.grace.mark_seen(self.core, requested);
            self.grace.take_ended_orphans().into_iter().for_each(run);
        }
        let mut waiting = self.waiting.borrow_mut();
        if let Some(ended) = waiting.take_if(|batch| self.grace.has_ended(batch.period)) {
            run(ended);
        }
        let work = match waiting.is_none() {
            true => self.unrequested.take(),
            false => Vec::new(),
        };
        if !work.is_empty() {
            *waiting = Some(Batch { period: self.grace.request(), work });
        }
        self.pending.set(waiting.is_some());
    }

    /// Marks the core as about to halt. Returns whether it may: not if this has ended a period for which work waits.
    #[inline]
    pub fn leave(&self) -> MayHalt {
        if self.pending.replace(false) {
            self.orphan_work();
        }
        self.grace.leave(self.core);
        match self.grace.has_ended_orphans() {
            true => self.rejoin(),
            false => MayHalt::Yes,
        }
    }

    #[cold]
    fn rejoin(&self) -> MayHalt {
        self.join();
        self.grace.take_ended_orphans().into_iter().for_each(run);
        MayHalt::No
    }

    #[cold]
    fn orphan_work(&self) {
        if let Some(batch) = self.waiting.take() {
            self.grace.orphan(batch);
        }
        let work = self.unrequested.take();
        if !work.is_empty() {
            self.grace.orphan(Batch { period: self.grace.request(), work });
        }
    }

    /// Marks the core as running.
    pub fn join(&self) {
        self.seen.set(self.grace.join(self.core));
    }
}

/// Marks the calling core, which runs no event for now, as absent from grace periods.
pub(crate) fn mark_absent() {
    GRACE_PERIODS.grace.leave(current_core().0 as usize);
}

fn run(batch: Batch<Deferred>) {
    for Deferred { work, tag, made_at } in batch.work {
        EVENTS.enqueue(QueuedEvent { work: Work::Call(work), tag, made_at });
    }
}
