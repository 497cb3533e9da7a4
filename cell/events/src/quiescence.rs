//! Work that waits until no event that runs now, on any core, still does: deferred reclamation (RCU; EbbRT 3.2.1).
//!
//! What several cores read without locks is changed by replacing it, and what was replaced is let go of in
//! [`defer`]: every core has been between events by then, and nothing between events holds a reference into what it read.
//! `isola-rcu` has cells and tables that are built on that.
//!
//! No idle core is woken, and none stays up for it: a core that halts has no event, and leaves its deferred work to
//! whichever core is the last to come between events. On a core whose event never ends, all waits.

use crate::event::{EventTag, QueuedEvent, Work};
use crate::event_loop::EVENTS;
use crate::grace::{Batch, Grace, Period};
use crate::halt::MayHalt;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::panic::Location;
use isola_ebbs::{CellEbb, Representative, current_core, platform};

static PERIODS: CellEbb<Periods> = CellEbb::new();

/// The grace periods of a cell.
struct Periods {
    grace: Grace<Deferred>,
}

impl Representative for Periods {
    fn create() -> Self {
        Self { grace: Grace::new(platform().descriptor().core_places as usize) }
    }
}

/// Work that waits.
pub(crate) struct Deferred {
    work: Box<dyn FnOnce() + Send>,
    tag: EventTag,
    made_at: &'static Location<'static>,
}

/// A core's part in it.
pub(crate) struct Quiescence {
    grace: &'static Grace<Deferred>,
    core: usize,
    /// The latest period that this core has seen.
    seen: Cell<Period>,
    /// Whether anything waits here.
    pending: Cell<bool>,
    /// What waits for a period that is not asked for yet: one at a time is.
    fresh: RefCell<Vec<Deferred>>,
    waiting: RefCell<Option<Batch<Deferred>>>,
    /// How many [`read`]s the running event is in.
    reads: Cell<u32>,
}

/// Runs `work` as an event of its own, for the activity that defers it, once no event that runs now on any core still
/// does. It runs on this core, where that does not halt before; else on any.
#[track_caller]
pub fn defer(work: impl FnOnce() + Send + 'static) {
    let quiescence = &EVENTS.quiescence;
    let (work, tag) = (Box::new(work), EVENTS.current_tag());
    quiescence.fresh.borrow_mut().push(Deferred { work, tag, made_at: Location::caller() });
    quiescence.pending.set(true);
}

/// Calls `look`, which looks at what is let go of by [`defer`]. The event cannot be suspended meanwhile.
#[inline]
pub fn read<R>(look: impl FnOnce() -> R) -> R {
    let reads = &EVENTS.quiescence.reads;
    reads.set(reads.get() + 1);
    let result = look();
    reads.set(reads.get() - 1);
    result
}

/// Whether the running event is in a [`read`].
pub fn is_reading() -> bool {
    EVENTS.quiescence.reads.get() > 0
}

/// Tells the cells of a process apart: what is deferred in one is not waited for in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Domain(usize);

impl Domain {
    /// That of the calling core's cell.
    #[inline]
    pub fn current() -> Self {
        Self(core::ptr::from_ref(EVENTS.quiescence.grace).addr())
    }
}

impl Quiescence {
    /// The part of a core that is up.
    pub fn new() -> Self {
        let (grace, core) = (&PERIODS.grace, current_core().0 as usize);
        Self {
            grace,
            core,
            seen: Cell::new(grace.join(core)),
            pending: Cell::new(false),
            fresh: RefCell::default(),
            waiting: RefCell::default(),
            reads: Cell::new(0),
        }
    }

    /// The core is between two events.
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
            self.grace.see(self.core, requested);
            self.grace.take_ended_orphans().into_iter().for_each(run);
        }
        let mut waiting = self.waiting.borrow_mut();
        if let Some(ended) = waiting.take_if(|batch| self.grace.has_ended(batch.period)) {
            run(ended);
        }
        let work = match waiting.is_none() {
            true => self.fresh.take(),
            false => Vec::new(),
        };
        if !work.is_empty() {
            *waiting = Some(Batch { period: self.grace.request(), work });
        }
        self.pending.set(waiting.is_some());
    }

    /// The core is about to halt. Returns whether it may: not where that has ended a period for which work waits.
    #[inline]
    pub fn leave(&self) -> MayHalt {
        if self.pending.replace(false) {
            self.leave_work_behind();
        }
        self.grace.leave(self.core);
        match self.grace.has_ended_orphans() {
            true => self.come_back(),
            false => MayHalt::Yes,
        }
    }

    #[cold]
    fn come_back(&self) -> MayHalt {
        self.join();
        self.grace.take_ended_orphans().into_iter().for_each(run);
        MayHalt::No
    }

    #[cold]
    fn leave_work_behind(&self) {
        if let Some(batch) = self.waiting.take() {
            self.grace.leave_behind(batch);
        }
        let work = self.fresh.take();
        if !work.is_empty() {
            self.grace.leave_behind(Batch { period: self.grace.request(), work });
        }
    }

    /// The core is up.
    pub fn join(&self) {
        self.seen.set(self.grace.join(self.core));
    }
}

/// Says that the calling core, which has not run an event for now, looks at nothing.
pub(crate) fn stay_away() {
    PERIODS.grace.leave(current_core().0 as usize);
}

fn run(batch: Batch<Deferred>) {
    for Deferred { work, tag, made_at } in batch.work {
        EVENTS.enqueue(QueuedEvent { work: Work::Call(work), tag, made_at });
    }
}
