//! The event loop of a vcore: its state, its queue of events, and its begin and end on a core. `passes` has the passes.
//!
//! [`vcore_runner`](crate::vcore_runner) decides which core runs the loop, and for how long.

mod passes;

use crate::accounting::{Accounting, Charge};
use crate::event::{EventTag, QueuedEvent, StaticEvent};
use crate::halt::MayHalt;
use crate::idle::IdleHandlers;
use crate::interrupt::Handlers;
use crate::mailbox::{self, Mailbox, Notice};
use crate::overload::{LONG_QUEUE, Outbox};
use crate::presence::Presence;
use crate::pressure::PressureHandlers;
use crate::processor;
use crate::queue::{EventQueue, Fifo, Queue};
use crate::queueing::Queueing;
use crate::quiescence::{self, Quiescence};
use crate::reclaim;
use crate::scheduled_queue::ScheduledQueue;
use crate::task::Tasks;
use crate::timer::{Alarm, TIMERS, Timers};
use crate::trace::Tracing;
use crate::vcore_runner::{FIRST, RunEnd, VcoreRunner};
use crate::watchdog::Watchdog;
use crate::yielding::YieldLimits;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering;
use isola_abi::id::ActivityId;
use isola_abi::query::GridClient;
use isola_abi::report::CorePhase;
use isola_ebbs::{Ebb, Representative, VcoreIdentity, current_core, cycles, platform};
use isola_resources::{ClientStatistics, PROCESSOR};

/// The event manager of each core.
pub static EVENTS: Ebb<EventLoop> = Ebb::new();

/// The event manager of a core.
pub struct EventLoop {
    queue: RefCell<Queue>,
    /// The version of [`PROCESSOR`]'s settings that the queue follows.
    settings_version: Cell<u64>,
    /// An event that runs before the queue's: a static event that was created while the queue was empty.
    next: Cell<Option<&'static StaticEvent>>,
    /// Whether the outbox is non-empty. Most passes check only this flag.
    outbox_waits: Cell<bool>,
    /// The reading of the cycle counter when a program in user mode stopped last.
    program_stopped: Cell<u64>,
    /// The tag of the running event, or of the last one.
    tag: Cell<EventTag>,
    pub(crate) tasks: Tasks,
    timers: &'static Timers,
    pub(crate) handlers: Handlers,
    pub(crate) idle: IdleHandlers,
    pub(crate) outbox: Outbox,
    pub(crate) quiescence: Quiescence,
    pub(crate) watchdog: Watchdog,
    queueing: Queueing,
    pub(crate) pressure: PressureHandlers,
    pub(crate) presence: Presence,
    /// The notice that ends the present passes of the loop.
    notice: Cell<Notice>,
    /// Whether the core runs other vcores as well.
    is_visited: Cell<bool>,
    yield_limits: YieldLimits,
    /// Whether the platform has been informed that the vcore has nothing to do.
    is_idle: Cell<bool>,
    pub(crate) accounting: Accounting,
    pub(crate) tracing: Tracing,
}

impl Representative for EventLoop {
    fn create() -> Self {
        Self::on(Queue::Fifo(Fifo::default()))
    }
}

impl EventLoop {
    /// Creates an event manager that keeps its events in `queue`.
    pub fn with_queue(queue: impl EventQueue + 'static) -> Self {
        Self::on(Queue::Own(Box::new(queue)))
    }

    fn on(queue: Queue) -> Self {
        Self {
            queue: RefCell::new(queue),
            settings_version: Cell::new(0),
            next: Cell::new(None),
            outbox_waits: Cell::new(false),
            program_stopped: Cell::new(0),
            tag: Cell::new(EventTag::new()),
            tasks: Tasks::default(),
            timers: &TIMERS,
            handlers: Handlers::default(),
            idle: IdleHandlers::default(),
            outbox: Outbox::default(),
            quiescence: Quiescence::new(),
            watchdog: Watchdog::new(),
            queueing: Queueing::new(),
            pressure: PressureHandlers::new(),
            presence: Presence::default(),
            notice: Cell::new(Notice::from_u64(0)),
            is_visited: Cell::new(false),
            yield_limits: YieldLimits::new(),
            is_idle: Cell::new(true),
            accounting: Accounting::new(),
            tracing: Tracing::default(),
        }
    }
}

/// Runs the events of this vcore, and of the other vcores of its core, until the cell exits. Returns the exit code.
///
/// A core other than the cell's first halts until another core has work for it, and only then creates its
/// representatives. If the core is unplugged, this call resumes when another core is plugged into its slot.
pub fn run() -> i32 {
    let unwinding = EndOnUnwind;
    let mut identity = VcoreIdentity::take();
    if current_core() == FIRST {
        isola_activities::start();
        processor::start();
        reclaim::start();
    } else if identity.is_some() {
        quiescence::mark_absent();
    }
    loop {
        match VcoreRunner::enter(identity.take()).map_or_else(|ending| ending, VcoreRunner::run) {
            RunEnd::Exited(code) => {
                core::mem::forget(unwinding);
                return code;
            }
            RunEnd::Left(order) => platform().leave(order),
        }
    }
}

/// Ends the cell if an event unwinds out of its core's loop, as a panic in a process does: the other cores would run on.
struct EndOnUnwind;

impl Drop for EndOnUnwind {
    fn drop(&mut self) {
        exit(PANICKED);
    }
}

/// The exit code of a cell with a panic, as Rust's programs have.
const PANICKED: i32 = 101;

/// Ends the cell: every core leaves its loop after its running event. The first exit code counts.
pub fn exit(code: i32) {
    mailbox::all().end(code);
}

impl EventLoop {
    /// Queues an event behind the others of this core.
    pub(crate) fn enqueue(&self, event: QueuedEvent) {
        self.queue.borrow_mut().push(event, self.accounting.last_boundary());
    }

    /// Queues a static event behind the others of this core.
    #[inline]
    pub(crate) fn enqueue_static(&self, event: &'static StaticEvent) {
        let mut queue = self.queue.borrow_mut();
        if queue.lets_through() && self.next.get().is_none() {
            self.next.set(Some(event));
        } else {
            queue.push(event.queued(), self.accounting.last_boundary());
        }
    }

    /// Returns whether an event waits.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        self.next.get().is_some() || self.queue.borrow().has_runnable()
    }

    /// Returns whether an event waits, or a message to another core.
    #[inline]
    pub(crate) fn has_local_work(&self) -> bool {
        self.has_events() || self.outbox_waits.get()
    }

    /// Returns whether the running event should end soon: see [`must_yield`](crate::yielding::must_yield).
    #[inline]
    pub(crate) fn must_yield(&self) -> bool {
        if self.has_arrivals() || self.next.get().is_some() {
            return true;
        }
        let now = cycles();
        let spent = now.wrapping_sub(self.accounting.last_check());
        let YieldLimits { granularity_cycles, slice_cycles } = self.yield_limits;
        spent >= slice_cycles
            || now >= self.timers.next()
            || self.queue.borrow_mut().must_wait(spent, granularity_cycles, now)
    }

    /// Returns whether an interrupt is pending, or the loop has other work apart from events and alarms.
    #[inline]
    pub(crate) fn has_arrivals(&self) -> bool {
        platform().has_interrupts() || self.has_loop_work()
    }

    /// Returns whether the core has anything to do but the running event.
    #[inline]
    pub(crate) fn has_other_work(&self) -> bool {
        self.has_local_work() || self.must_yield()
    }

    /// Returns whether the loop has work apart from events, interrupts and alarms, or another vcore waits for its turn.
    #[inline]
    fn has_loop_work(&self) -> bool {
        let mailboxes = mailbox::all();
        mailboxes.notice() != self.notice.get()
            || !mailboxes.of(current_core()).is_empty()
            || !self.pressure.is_calm()
            || self.quiescence.is_due()
            || self.is_visited.get()
            || (self.outbox_waits.get() && self.outbox.is_due())
    }

    /// Charges the event that has just ended, and returns whether another may run.
    #[inline(always)]
    fn end_event(&self) -> bool {
        if self.accounting.has_more() {
            self.charge_event();
        }
        self.has_events()
    }

    #[cold]
    #[inline(never)]
    fn charge_event(&self) {
        self.accounting.end_event();
        if let Some(queue) = self.queue.borrow_mut().scheduled() {
            // The event began after the last check for arrivals, and ended at the last boundary.
            let (began, ended) = (self.accounting.last_check(), self.accounting.last_boundary());
            queue.event_ended(ended.wrapping_sub(began), ended);
        }
    }

    /// Follows the settings of [`PROCESSOR`], if they have changed.
    fn follow_policy(&self) {
        // Read first: a later change has another version.
        let version = PROCESSOR.version();
        if self.settings_version.replace(version) == version {
            return;
        }
        let (configuration, now) = (PROCESSOR.configuration(), self.accounting.last_boundary());
        let mut queue = self.queue.borrow_mut();
        if let Some(event) = self.next.take() {
            queue.push(event.queued(), now);
        }
        queue.configure(configuration, now, |configuration| {
            let alarm = Alarm::new(|| EVENTS.end_throttling());
            ScheduledQueue::new(configuration, alarm)
        });
        self.accounting.set_has_scheduler(queue.scheduled().is_some());
    }

    /// Lets activities run again that were at their limits.
    fn end_throttling(&self) {
        if let Some(queue) = self.queue.borrow_mut().scheduled() {
            queue.end_throttling();
        }
    }

    /// Returns whether the queue follows a policy for activities.
    #[inline]
    pub(crate) fn has_policy(&self) -> bool {
        self.accounting.has_scheduler()
    }

    /// Returns what each activity has received by the policy.
    pub(crate) fn grid_clients(&self) -> Vec<GridClient> {
        let core = current_core().0;
        self.queue.borrow_mut().scheduled().map(|queue| queue.report(core)).unwrap_or_default()
    }

    /// Returns what an activity has received by the policy.
    pub(crate) fn statistics(&self, activity: ActivityId) -> ClientStatistics {
        self.queue.borrow_mut().scheduled().map(|queue| queue.statistics(activity)).unwrap_or_default()
    }

    /// Returns the tag of the running event.
    pub(crate) fn current_tag(&self) -> EventTag {
        self.tag.get()
    }

    /// Charges the rest of the running event to `activity`.
    pub(crate) fn retag(&self, activity: ActivityId) {
        self.set_activity(activity);
        self.accounting.switch_activity(activity);
    }

    /// Sets the activity of the running event, which events that it creates inherit.
    pub(crate) fn set_activity(&self, activity: ActivityId) {
        if self.accounting.has_more() {
            self.note_work_for(activity);
        }
        self.tag.set(EventTag { activity, ..self.tag.get() });
    }

    #[cold]
    #[inline(never)]
    fn note_work_for(&self, activity: ActivityId) {
        if let Some(queue) = self.queue.borrow_mut().scheduled() {
            queue.work_for(activity);
        }
    }

    /// Returns whether the queue is so long that messages of other cores no longer lengthen it.
    pub(crate) fn is_long(&self) -> bool {
        self.queue.borrow().len() >= LONG_QUEUE
    }

    /// Makes the next passes flush the outbox, until it is empty.
    pub(crate) fn mark_outbox_waits(&self) {
        self.outbox_waits.set(true);
    }

    /// Charges the cycles since the last boundary. Returns the reading of the cycle counter.
    pub(crate) fn charge_so_far(&self) -> u64 {
        self.accounting.switch(Charge::Loop)
    }

    /// Prepares this vcore to run on a core that has just taken it over.
    pub(crate) fn begin(&self) {
        self.accounting.resume(cycles());
        self.timers.forget_armed();
        self.mark_running(mailbox::all().of(current_core()));
        self.presence.vcore_moved();
        // Messages that arrived meanwhile are seen in the first pass.
        self.accounting.switch(Charge::Loop);
    }

    /// Resumes the accounting after suspended contexts had this vcore's core: their time is not charged here.
    pub(crate) fn resume(&self) {
        self.accounting.resume(cycles());
        self.timers.forget_armed();
    }

    /// Prepares this vcore for its transfer: it leaves grace periods and counts as halted.
    pub(crate) fn end(&self) {
        while self.quiescence.leave() == MayHalt::No {}
        self.set_phase(CorePhase::Halted);
        platform().enter_idle();
        self.is_idle.set(true);
        self.accounting.switch(Charge::Loop);
    }

    /// Marks the vcore as running, if it was not.
    fn mark_running(&self, mailbox: &Mailbox) {
        mailbox.finish_halt();
        if self.is_idle.replace(false) {
            self.accounting.mark_idled();
            platform().exit_idle();
        }
        self.quiescence.join();
        self.set_phase(CorePhase::Running);
    }

    /// Begins to record this core's periods for the trace `number`.
    pub(crate) fn start_tracing(&self, number: u32) {
        if self.tracing.start(number, self.accounting.report()) {
            self.set_traced(true);
        }
    }

    /// Copies recorded periods to the reader of the trace, or ends the recording if the trace has ended.
    pub(crate) fn drain_trace(&self) {
        if !self.tracing.drain() {
            self.set_traced(false);
        }
    }

    fn set_traced(&self, is_traced: bool) {
        self.watchdog.set_inspects_all(is_traced);
        self.accounting.set_traced(is_traced);
    }

    fn set_phase(&self, phase: CorePhase) {
        self.accounting.report().phase.store(phase as u32, Ordering::Relaxed);
    }
}
