//! The loop of a core.
//!
//! ```text
//! pass:  0  the boundary between two events: interrupts let in, deferred work looked at, where there is any
//!        1  interrupts handled, due alarms run, messages of other cores queued, what could not be sent to other cores
//!           sent now, who is to be told that memory runs low told
//!        2  one queued event
//!        3  where there was none, or it was the last: the idle handlers
//!        4  where they found nothing: the timer armed for the next alarm, halt
//! ```
//!
//! A core that has nothing to do is halted without any timer armed: it takes no interrupts and uses no cycles. Who runs
//! the loop, and for how long, says [`carrier`](crate::carrier).

use crate::activity::{self, Accounting, Charge, add};
use crate::carrier::{BUSY, Carrier, Ending, FIRST};
use crate::event::{EventTag, QueuedEvent, StaticEvent, Work};
use crate::halt::MayHalt;
use crate::idle::{Idle, IdleHandlers};
use crate::interrupt::Handlers;
use crate::mailbox::{self, Mailbox, Mailboxes, Message, Notice};
use crate::overload::{LONG_QUEUE, MESSAGES_A_PASS, Outbox};
use crate::presence::Presence;
use crate::pressure::PressureHandlers;
use crate::queue::{EventQueue, Fifo, Queue};
use crate::queueing::{Queueing, Wish};
use crate::quiescence::{self, Quiescence};
use crate::task::Tasks;
use crate::timer::{TIMERS, Timers};
use crate::watchdog::Watchdog;
use alloc::boxed::Box;
use core::cell::{Cell, RefCell};
use core::panic::Location;
use core::sync::atomic::Ordering;
use isola_abi::id::ActivityId;
use isola_abi::report::CorePhase;
use isola_ebbs::{CoreIdentity, Ebb, Representative, current_core, cycles, platform};
use isola_platform::{CoreIndex, PendingVectors};

/// Passes of a core's loop before the next one's turn, where a processor core runs several.
const PASSES_A_VISIT: u64 = 16;

/// The event manager of each core.
pub static EVENTS: Ebb<EventLoop> = Ebb::new();

/// The event manager of a core.
pub struct EventLoop {
    queue: RefCell<Queue>,
    /// The event that runs before those of the queue: a static event that was made while the queue was empty.
    next: Cell<Option<&'static StaticEvent>>,
    /// Whether there is anything in the outbox: what most passes have to look at.
    chores: Cell<bool>,
    /// Of the running event, or of the last one.
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
    /// Whether the platform was told that the core has nothing to do.
    rests: Cell<bool>,
    pub(crate) accounting: Accounting,
}

impl Representative for EventLoop {
    fn create() -> Self {
        Self::on(Queue::Fifo(Fifo::default()))
    }
}

impl EventLoop {
    /// An event manager that keeps its events in `queue`.
    pub fn with_queue(queue: impl EventQueue + 'static) -> Self {
        Self::on(Queue::Own(Box::new(queue)))
    }

    fn on(queue: Queue) -> Self {
        Self {
            queue: RefCell::new(queue),
            next: Cell::new(None),
            chores: Cell::new(false),
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
            rests: Cell::new(true),
            accounting: Accounting::new(),
        }
    }
}

/// Runs the events of this core, and of those that its processor core carries with it, until the cell exits. Returns the
/// exit code.
///
/// A core that is not the cell's first halts until another core has work for it, and only then makes its
/// representatives. Where its processor core is taken from the cell, this goes on when another comes in its place.
pub fn run() -> i32 {
    let mut identity = CoreIdentity::take();
    if current_core() == FIRST {
        activity::start();
    } else if identity.is_some() {
        quiescence::stay_away();
    }
    loop {
        match Carrier::come(identity.take()).map_or_else(|ending| ending, Carrier::run) {
            Ending::Exited(code) => return code,
            Ending::Left(order) => platform().leave(order),
        }
    }
}

/// Ends the cell: every core leaves its loop after the event that it runs. The first code counts.
pub fn exit(code: i32) {
    mailbox::all().end(code);
}

impl EventLoop {
    /// Puts an event behind the others of this core.
    pub(crate) fn enqueue(&self, event: QueuedEvent) {
        self.queue.borrow_mut().push(event);
    }

    /// Puts a static event behind the others of this core.
    #[inline]
    pub(crate) fn enqueue_static(&self, event: &'static StaticEvent) {
        let mut queue = self.queue.borrow_mut();
        if queue.lets_through() && self.next.get().is_none() {
            self.next.set(Some(event));
        } else {
            queue.push(event.queued());
        }
    }

    /// Returns whether an event waits.
    #[inline]
    fn has_events(&self) -> bool {
        self.next.get().is_some() || !self.queue.borrow().is_empty()
    }

    /// The tag of the running event.
    pub(crate) fn current_tag(&self) -> EventTag {
        self.tag.get()
    }

    /// Charges the rest of the running event to `activity`.
    pub(crate) fn retag(&self, activity: ActivityId) {
        self.set_activity(activity);
        self.accounting.switch(Charge::Activity(activity));
    }

    /// Sets whom the running event is for: what events that it makes inherit.
    pub(crate) fn set_activity(&self, activity: ActivityId) {
        self.tag.set(EventTag { activity, ..self.tag.get() });
    }

    /// Whether the queue is so long that it does not grow by what others send.
    pub(crate) fn is_long(&self) -> bool {
        self.queue.borrow().len() >= LONG_QUEUE
    }

    /// Has the next passes look at the outbox, until it is empty.
    pub(crate) fn has_chores(&self) {
        self.chores.set(true);
    }

    /// Runs this core, and no other, until there is another notice.
    pub(crate) fn run_alone(&self, mailboxes: &Mailboxes, notice: Notice) {
        let mailbox = mailboxes.of(current_core());
        self.rise(mailbox);
        let mut arrived = self.let_interrupts_in();
        while self.passes(mailboxes, mailbox, notice, u64::MAX, arrived) == Passed::Idle
            && mailboxes.notice() == notice
        {
            arrived = self.idle(mailboxes, mailbox, notice);
        }
    }

    /// A bounded number of passes, where a processor core runs several cores. `boundary` is the reading of the cycle
    /// counter from which on this one's time is. Returns when the next passes are due, and where its time ends.
    pub(crate) fn visit(&self, mailboxes: &Mailboxes, notice: Notice, boundary: u64) -> (u64, u64) {
        let mailbox = mailboxes.of(current_core());
        self.accounting.resume(boundary);
        self.rise(mailbox);
        let arrived = self.let_interrupts_in();
        let next = match self.passes(mailboxes, mailbox, notice, PASSES_A_VISIT, arrived) {
            Passed::Idle => self.may_rest(mailboxes, mailbox, notice),
            Passed::Ran => BUSY,
        };
        if next != BUSY {
            platform().rest();
            self.rests.set(true);
        }
        // It stands still while others have their turn, and does right to.
        self.set_phase(CorePhase::Halted);
        (next, self.accounting.switch(Charge::Idle))
    }

    /// Halts the processor core, of whose cores none has anything to do before `next`, in cycles. To be called on its own.
    /// Returns the reading of the cycle counter after it.
    pub(crate) fn halt_for_all(&self, next: u64, boundary: u64) -> u64 {
        self.accounting.resume(boundary);
        let now = self.accounting.switch(Charge::Idle);
        if self.timers.arm(next, now) == MayHalt::Yes {
            platform().halt();
        }
        self.accounting.switch(Charge::Loop)
    }

    /// The reading of the cycle counter up to which this core's time is charged.
    pub(crate) fn settle(&self) -> u64 {
        self.accounting.switch(Charge::Loop)
    }

    /// Another processor core runs this core from here on.
    pub(crate) fn begin(&self) {
        self.accounting.resume(cycles());
        self.timers.forget_armed();
        self.rise(mailbox::all().of(current_core()));
        self.presence.carried_by_another();
        // What others have for it by now is seen in its first pass.
        self.accounting.switch(Charge::Loop);
    }

    /// The processor core that runs this core was others' for a while, whose time it was.
    pub(crate) fn resume(&self) {
        self.accounting.resume(cycles());
        self.timers.forget_armed();
    }

    /// The processor core that runs this core runs it no longer.
    pub(crate) fn end(&self) {
        while self.quiescence.leave() == MayHalt::No {}
        self.set_phase(CorePhase::Halted);
        platform().rest();
        self.rests.set(true);
        self.accounting.switch(Charge::Loop);
    }

    /// The core is up, if it was not.
    fn rise(&self, mailbox: &Mailbox) {
        mailbox.finish_halt();
        if self.rests.replace(false) {
            self.accounting.has_rested();
            platform().rise();
        }
        self.quiescence.join();
        self.set_phase(CorePhase::Running);
    }

    /// Makes at least one pass and at most `most`, until there is nothing left to do or another notice. The first pass handles
    /// the interrupts in `arrived`. Inlined, so that a pass costs no call.
    #[inline(always)]
    fn passes(
        &self,
        mailboxes: &Mailboxes,
        mailbox: &Mailbox,
        notice: Notice,
        most: u64,
        mut arrived: PendingVectors,
    ) -> Passed {
        let mut left = most;
        loop {
            if self.pass(mailboxes, mailbox, arrived) == Passed::Idle {
                return Passed::Idle;
            }
            left -= 1;
            if left == 0 || mailboxes.notice() != notice {
                return Passed::Ran;
            }
            arrived = self.let_interrupts_in();
        }
    }

    /// Lets interrupts in and returns those that came. The caller hands them to the next pass, whose cycles up to its event are
    /// charged to them.
    #[inline(always)]
    fn let_interrupts_in(&self) -> PendingVectors {
        let arrived = platform().take_interrupts();
        if !arrived.is_empty() {
            self.accounting.switch(Charge::Interrupt);
        }
        arrived
    }

    /// What comes between two events, and the next one, where there is one.
    #[inline(always)]
    fn pass(&self, mailboxes: &Mailboxes, mailbox: &Mailbox, arrived: PendingVectors) -> Passed {
        self.quiescence.pass();
        add(&self.accounting.report().passes, 1);
        if !arrived.is_empty() {
            self.handlers.run(arrived, &self.accounting);
        }
        self.timers.run_due(&self.accounting);
        if !mailbox.is_empty() {
            self.receive(mailboxes, mailbox);
        }
        if self.chores.get() {
            self.do_chores();
        }
        self.pressure.look(&self.accounting);
        if let Some(event) = self.next.take() {
            self.run_event(event.tag, event.made_at, event.work);
        } else {
            let event = self.queue.borrow_mut().pop();
            let Some(QueuedEvent { work, tag, made_at }) = event else { return Passed::Idle };
            self.run_event(tag, made_at, || match work {
                Work::Call(work) => work(),
                Work::Poll(task) => self.tasks.poll(task),
                Work::Static(work) => work(),
            });
        }
        // A core that halts checks everything else that another pass would check: alarms, notices, deferred work.
        let is_last =
            !self.has_events() && mailbox.is_empty() && !self.chores.get() && self.pressure.is_calm();
        if is_last { Passed::Idle } else { Passed::Ran }
    }

    #[inline(always)]
    fn run_event(&self, tag: EventTag, made_at: &'static Location<'static>, work: impl FnOnce()) {
        self.tag.set(tag);
        let (began, looked) = self.accounting.begin_event(tag.activity);
        let passes = self.accounting.report().passes.load(Ordering::Relaxed);
        if self.queueing.must_look(passes) {
            self.look_at_waiting(passes, looked, began);
        }
        work();
        let ended = self.accounting.switch(Charge::Loop);
        let spent_cycles = ended.wrapping_sub(began);
        if self.watchdog.must_look(spent_cycles) {
            let report = self.accounting.report();
            self.watchdog.look(report, self.tag.get(), made_at, spent_cycles, ended);
        }
    }

    #[cold]
    #[inline(never)]
    fn do_chores(&self) {
        self.outbox.flush();
        self.chores.set(!self.outbox.is_empty());
    }

    /// Begins or ends a sample of how long events wait.
    #[cold]
    #[inline(never)]
    fn look_at_waiting(&self, passes: u64, looked: u64, began: u64) {
        let waiting = self.queue.borrow().len() as u64;
        if self.queueing.look(self.accounting.report(), passes, waiting, looked, began) == Wish::Yes {
            platform().report().core_requests.fetch_add(1, Ordering::Release);
            platform().ring_supervisor();
        }
    }

    /// Queues what other cores have sent: a bounded part of it, so that a flood of messages holds up neither the core's
    /// own events nor fills its memory.
    #[inline(never)]
    fn receive(&self, mailboxes: &Mailboxes, mailbox: &Mailbox) {
        let most = if self.is_long() { 1 } else { MESSAGES_A_PASS };
        let mut events = 0;
        for _ in 0..most {
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
            let mut waiting = mailbox.room.give_back(events);
            while waiting != 0 {
                mailboxes.wake(CoreIndex(waiting.trailing_zeros()));
                waiting &= waiting - 1;
            }
        }
    }

    /// Halts, unless there is something else than events to do. Returns the interrupts that came meanwhile, for the next pass.
    fn idle(&self, mailboxes: &Mailboxes, mailbox: &Mailbox, notice: Notice) -> PendingVectors {
        let next = self.may_rest(mailboxes, mailbox, notice);
        let halts = next != BUSY && {
            let now = self.accounting.switch(Charge::Idle);
            self.timers.arm(next, now) == MayHalt::Yes
        };
        let arrived = if halts { platform().sleep() } else { platform().take_interrupts() };
        mailbox.finish_halt();
        self.quiescence.join();
        self.set_phase(CorePhase::Running);
        // What time it is by then is what alarms ring by.
        self.accounting.end_idling(if arrived.is_empty() { Charge::Loop } else { Charge::Interrupt });
        arrived
    }

    /// Marks the core as halted, unless there is something to do. Returns the cycle count at which there will be: [`BUSY`], or
    /// when the first alarm is due.
    #[inline(always)]
    fn may_rest(&self, mailboxes: &Mailboxes, mailbox: &Mailbox, notice: Notice) -> u64 {
        // Only an idle handler can have made an event since the last pass.
        if self.idle.has_any() && (self.idle.run() != Idle::MayHalt || self.has_events()) {
            return BUSY;
        }
        if self.quiescence.leave() == MayHalt::No {
            return BUSY;
        }
        if mailboxes.prepare_halt_of(mailbox, notice) == MayHalt::No {
            return BUSY;
        }
        let must_stay = self.chores.get() && self.outbox.is_due();
        if must_stay {
            mailbox.finish_halt();
            return BUSY;
        }
        self.set_phase(CorePhase::Halted);
        self.timers.next()
    }

    fn set_phase(&self, phase: CorePhase) {
        self.accounting.report().phase.store(phase as u32, Ordering::Relaxed);
    }
}

/// What came of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passed {
    /// An event ran, and there may be more to do.
    Ran,
    /// No event is left.
    Idle,
}
