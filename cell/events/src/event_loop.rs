//! The event loop of a vcore.
//!
//! ```text
//! pass:  0  boundary between two events: take pending interrupts; check deferred work, if there is any
//!        1  run interrupt handlers and due alarms; queue messages of other cores; retry sends that found no room;
//!           call memory-pressure handlers
//!        2  run one queued event
//!        3  if there was none, or it was the last: run the idle handlers
//!        4  if they found no work: arm the timer for the next alarm, and halt
//! ```
//!
//! An idle core without alarms halts without an armed timer: it takes no interrupts and uses no cycles.
//! [`vcore_runner`](crate::vcore_runner) decides which core runs the loop, and for how long.

use crate::accounting::{Accounting, Charge, add};
use crate::event::{EventTag, QueuedEvent, StaticEvent, Work};
use crate::halt::MayHalt;
use crate::idle::{Idle, IdleHandlers};
use crate::interrupt::Handlers;
use crate::mailbox::{self, Mailbox, Mailboxes, Message, Notice};
use crate::overload::{LONG_QUEUE, MESSAGES_A_PASS, Outbox};
use crate::presence::Presence;
use crate::pressure::PressureHandlers;
use crate::processor;
use crate::program::{ProgramCore, ProgramOutcome};
use crate::queue::{EventQueue, Fifo, Queue};
use crate::queueing::{CoreRequest, Queueing};
use crate::quiescence::{self, Quiescence};
use crate::reclaim;
use crate::scheduled_queue::ScheduledQueue;
use crate::task::Tasks;
use crate::timer::{Alarm, TIMERS, Timers};
use crate::trace::Tracing;
use crate::vcore_runner::{BUSY, FIRST, RunEnd, VcoreRunner};
use crate::watchdog::Watchdog;
use crate::yielding::YieldLimits;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::panic::Location;
use core::sync::atomic::Ordering;
use isola_abi::id::ActivityId;
use isola_abi::query::GridClient;
use isola_abi::report::CorePhase;
use isola_ebbs::{Ebb, Representative, VcoreIdentity, current_core, cycles, platform};
use isola_platform::{CoreIndex, PendingVectors};
use isola_resources::{ClientStatistics, PROCESSOR};

/// The longest time of a program in user mode while its core has other work: this many times the time after which a
/// computation gives way.
const PROGRAM_SLICE: u64 = 8;

/// Passes of a vcore's loop before the next vcore's turn, on a core that runs several.
const PASSES_A_VISIT: u64 = 16;

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
        if platform().has_interrupts() || self.has_loop_work() || self.next.get().is_some() {
            return true;
        }
        let now = cycles();
        let spent = now.wrapping_sub(self.accounting.last_check());
        let YieldLimits { granularity_cycles, slice_cycles } = self.yield_limits;
        spent >= slice_cycles
            || now >= self.timers.next()
            || self.queue.borrow_mut().must_wait(spent, granularity_cycles, now)
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

    /// Runs this vcore only, until the notice changes.
    pub(crate) fn run_alone(&self, mailboxes: &Mailboxes, notice: Notice) {
        let mailbox = mailboxes.of(current_core());
        self.notice.set(notice);
        self.is_visited.set(false);
        self.mark_running(mailbox);
        self.follow_policy();
        let mut arrived = self.open_interrupt_window();
        while self.passes(mailboxes, mailbox, notice, u64::MAX, arrived) == PassOutcome::Idle
            && mailboxes.notice() == notice
        {
            arrived = self.idle(mailboxes, mailbox, notice);
        }
    }

    /// Runs a bounded number of passes, on a core with several vcores. `boundary` is the reading of the cycle counter
    /// from which cycles are charged to this vcore. Returns when the next passes are due, and the reading at which this
    /// vcore's time ends.
    pub(crate) fn visit(&self, mailboxes: &Mailboxes, notice: Notice, boundary: u64) -> (u64, u64) {
        let mailbox = mailboxes.of(current_core());
        self.notice.set(notice);
        self.is_visited.set(true);
        self.accounting.resume(boundary);
        self.mark_running(mailbox);
        self.follow_policy();
        let arrived = self.open_interrupt_window();
        let next = match self.passes(mailboxes, mailbox, notice, PASSES_A_VISIT, arrived) {
            PassOutcome::Idle => self.prepare_to_halt(mailboxes, mailbox, notice),
            PassOutcome::Ran => BUSY,
        };
        if next != BUSY {
            platform().enter_idle();
            self.is_idle.set(true);
        }
        // The vcore makes no passes while other vcores have their turn. As halted, it does not count as hung.
        self.set_phase(CorePhase::Halted);
        (next, self.accounting.switch(Charge::Idle))
    }

    /// Halts a core none of whose vcores has work before `next`, in cycles. To be called on the home vcore. Returns the
    /// reading of the cycle counter afterwards.
    pub(crate) fn halt_for_all(&self, next: u64, boundary: u64) -> u64 {
        self.accounting.resume(boundary);
        let now = self.accounting.switch(Charge::Idle);
        if self.timers.arm(next, now) == MayHalt::Yes {
            platform().halt();
        }
        self.accounting.switch(Charge::Loop)
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

    /// Runs between one and `max_passes` passes, until no work is left or the notice changes. The first pass handles
    /// the interrupts in `arrived`. Inlined, so that a pass costs no call.
    #[inline(always)]
    fn passes(
        &self,
        mailboxes: &Mailboxes,
        mailbox: &Mailbox,
        notice: Notice,
        max_passes: u64,
        mut arrived: PendingVectors,
    ) -> PassOutcome {
        let mut left = max_passes;
        loop {
            if self.pass(mailboxes, mailbox, arrived) == PassOutcome::Idle {
                return PassOutcome::Idle;
            }
            left -= 1;
            if left == 0 || mailboxes.notice() != notice {
                return PassOutcome::Ran;
            }
            arrived = self.open_interrupt_window();
        }
    }

    /// Opens an interrupt window and returns the interrupts that arrived. The caller hands them to the next pass, whose
    /// cycles up to its event are charged to them.
    #[inline(always)]
    fn open_interrupt_window(&self) -> PendingVectors {
        let arrived = platform().take_interrupts();
        if !arrived.is_empty() {
            self.accounting.switch(Charge::Interrupt);
        }
        arrived
    }

    /// Does the work between two events, then runs the next event, if there is one.
    #[inline(always)]
    fn pass(&self, mailboxes: &Mailboxes, mailbox: &Mailbox, arrived: PendingVectors) -> PassOutcome {
        self.quiescence.pass();
        add(&self.accounting.report().passes, 1);
        if !arrived.is_empty() {
            self.handlers.run(arrived, &self.accounting);
            self.accounting.end_handlers();
        }
        self.timers.run_due(&self.accounting);
        if !mailbox.is_empty() {
            self.receive(mailboxes, mailbox);
        }
        if self.outbox_waits.get() {
            self.flush_outbox();
        }
        self.pressure.check(&self.accounting);
        if let Some(event) = self.next.take() {
            self.run_event(event.tag, event.made_at, event.work);
        } else {
            let event = self.queue.borrow_mut().pop(self.accounting.last_boundary());
            let Some(QueuedEvent { work, tag, made_at }) = event else { return PassOutcome::Idle };
            self.run_event(tag, made_at, || match work {
                Work::Call(work) => work(),
                Work::Poll(task) => self.tasks.poll(task),
                Work::Static(work) => work(),
            });
        }
        // A core that halts checks everything else that another pass would check: alarms, notices, deferred work.
        let is_last =
            !self.end_event() && mailbox.is_empty() && !self.outbox_waits.get() && self.pressure.is_calm();
        if is_last { PassOutcome::Idle } else { PassOutcome::Ran }
    }

    #[inline(always)]
    fn run_event(&self, tag: EventTag, made_at: &'static Location<'static>, work: impl FnOnce()) {
        self.tag.set(tag);
        let (began, looked) = self.accounting.begin_event(tag.activity);
        let passes = self.accounting.report().passes.load(Ordering::Relaxed);
        if self.queueing.must_sample(passes) {
            self.sample_queueing_delay(passes, looked, began);
        }
        work();
        let ended = self.accounting.switch(Charge::Loop);
        let spent_cycles = ended.wrapping_sub(began);
        if self.watchdog.must_inspect(spent_cycles) {
            self.inspect(made_at, spent_cycles, ended);
        }
    }

    /// Inspects an event that was long, or each event during a trace.
    #[cold]
    #[inline(never)]
    fn inspect(&self, made_at: &'static Location<'static>, spent_cycles: u64, ended: u64) {
        let tag = self.tag.get();
        // A program in user mode delays no other event.
        let in_ring_0 = spent_cycles.min(ended.wrapping_sub(self.program_stopped.get()));
        self.watchdog.inspect(self.accounting.report(), tag, made_at, in_ring_0, ended);
        if self.accounting.is_traced() {
            let waiting = self.queue.borrow().len() + usize::from(self.next.get().is_some());
            let activity = self.accounting.charged_activity();
            self.tracing.event_ended(tag, activity, made_at, waiting, spent_cycles, ended);
        }
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

    #[cold]
    #[inline(never)]
    fn flush_outbox(&self) {
        self.outbox.flush();
        self.outbox_waits.set(!self.outbox.is_empty());
    }

    /// Begins or ends a sample of the queueing delay.
    #[cold]
    #[inline(never)]
    fn sample_queueing_delay(&self, passes: u64, looked: u64, began: u64) {
        let waiting = self.queue.borrow().len() as u64;
        if self.queueing.sample(self.accounting.report(), passes, waiting, looked, began) == CoreRequest::Yes
        {
            platform().report().core_requests.fetch_add(1, Ordering::Release);
            platform().notify_supervisor();
        }
    }

    /// Queues messages from other cores, a bounded number per pass, so that a flood of messages neither delays the
    /// core's own events nor fills its memory.
    #[inline(never)]
    fn receive(&self, mailboxes: &Mailboxes, mailbox: &Mailbox) {
        let max_messages = if self.is_long() { 1 } else { MESSAGES_A_PASS };
        let mut events = 0;
        for _ in 0..max_messages {
            match mailbox.receive() {
                Some(Message::Event(event)) => {
                    self.enqueue(event.queued());
                    events += 1;
                }
                Some(Message::Wake(task)) => self.tasks.schedule(task),
                Some(Message::CoresChanged) => self.presence.cores_changed(),
                None => break,
            }
        }
        if events > 0 {
            let mut waiting = mailbox.room.release(events);
            while waiting != 0 {
                mailboxes.wake(CoreIndex(waiting.trailing_zeros()));
                waiting &= waiting - 1;
            }
        }
    }

    /// Halts, unless work other than events is left. Returns the interrupts that arrived meanwhile, for the next pass.
    fn idle(&self, mailboxes: &Mailboxes, mailbox: &Mailbox, notice: Notice) -> PendingVectors {
        let next = self.prepare_to_halt(mailboxes, mailbox, notice);
        let halts = next != BUSY && {
            let now = self.accounting.switch(Charge::Idle);
            self.timers.arm(next, now) == MayHalt::Yes
        };
        let arrived = if halts { platform().sleep() } else { platform().take_interrupts() };
        mailbox.finish_halt();
        self.quiescence.join();
        self.set_phase(CorePhase::Running);
        // Alarms are compared with this reading, taken after the halt.
        self.accounting.end_idling(if arrived.is_empty() { Charge::Loop } else { Charge::Interrupt });
        arrived
    }

    /// Marks the core as halted, unless work is left. Returns the cycle count at which work is due: [`BUSY`], or the
    /// deadline of the first alarm.
    #[inline(always)]
    fn prepare_to_halt(&self, mailboxes: &Mailboxes, mailbox: &Mailbox, notice: Notice) -> u64 {
        // Since the last pass only an idle handler can have created an event.
        if self.idle.has_any() && (self.idle.run() != Idle::MayHalt || self.has_events()) {
            return BUSY;
        }
        if self.quiescence.leave() == MayHalt::No {
            return BUSY;
        }
        if mailboxes.prepare_halt_of(mailbox, notice) == MayHalt::No {
            return BUSY;
        }
        let must_stay = self.outbox_waits.get() && self.outbox.is_due();
        if must_stay {
            mailbox.finish_halt();
            return BUSY;
        }
        self.set_phase(CorePhase::Halted);
        self.timers.next()
    }

    /// Calls `run`, during which this core counts as halted in the middle of the running event, unless the core has other
    /// work. See [`run_program`](crate::program::run_program).
    pub(crate) fn run_program(&self, run: impl FnOnce(&ProgramCore<'_>)) -> ProgramOutcome {
        let mailboxes = mailbox::all();
        let mailbox = mailboxes.of(current_core());
        // The program shares the core with what waits: it runs to the end of its event's slice, never not at all.
        let shares_core = self.has_local_work()
            || self.is_visited.get()
            || (self.idle.has_any() && (self.idle.run() != Idle::MayHalt || self.has_events()));
        let until = self.program_end(shares_core);
        let may_halt = self.timers.arm_by(until);
        if may_halt == MayHalt::No || self.quiescence.leave() == MayHalt::No {
            return ProgramOutcome::HasOtherWork;
        }
        if mailboxes.prepare_halt_of(mailbox, self.notice.get()) == MayHalt::No {
            self.quiescence.join();
            return ProgramOutcome::HasOtherWork;
        }
        self.set_phase(CorePhase::Halted);
        run(&ProgramCore::new(self, until, shares_core));
        mailbox.finish_halt();
        self.quiescence.join();
        self.set_phase(CorePhase::Running);
        add(&self.accounting.report().passes, 1);
        self.program_stopped.set(cycles());
        ProgramOutcome::Ran
    }

    /// Returns the reading of the cycle counter at which a program has to stop.
    #[inline]
    pub(crate) fn program_end(&self, shares_core: bool) -> u64 {
        let slice_end = match shares_core {
            true => {
                let slice = PROGRAM_SLICE * self.yield_limits.granularity_cycles;
                self.accounting.last_check().saturating_add(slice)
            }
            false => u64::MAX,
        };
        self.timers.next().min(slice_end)
    }

    /// Returns the deadline of the first alarm, in cycles.
    pub(crate) fn next_alarm(&self) -> u64 {
        self.timers.next()
    }

    /// Arms the timer for the end of the program's time, unless that has come.
    pub(crate) fn may_run_until(&self, until: u64) -> bool {
        self.timers.arm_by(until) == MayHalt::Yes
    }

    fn set_phase(&self, phase: CorePhase) {
        self.accounting.report().phase.store(phase as u32, Ordering::Relaxed);
    }
}

/// The outcome of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PassOutcome {
    /// An event ran, and there may be more work.
    Ran,
    /// No event is left.
    Idle,
}
