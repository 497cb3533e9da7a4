//! The loop of a core.
//!
//! ```text
//! pass:  0  the boundary between two events: deferred work looked at, where there is any
//!        1  interrupts let in and handled, due alarms run, messages of other cores queued, what could not be sent to
//!           other cores sent now, who is to be told that memory runs low told
//!        2  one queued event
//!        3  where there was none: the idle handlers
//!        4  where they found nothing: the timer armed for the next alarm, halt
//! ```
//!
//! A core that has nothing to do is halted without any timer armed: it takes no interrupts and uses no cycles.

use crate::activity::{self, Accounting, Charge, add};
use crate::event::{EventTag, QueuedEvent, Work};
use crate::halt::MayHalt;
use crate::idle::{Idle, IdleHandlers};
use crate::interrupt::Handlers;
use crate::mailbox::{self, Mailbox, Mailboxes, Message};
use crate::overload::{LONG_QUEUE, MESSAGES_A_PASS, Outbox};
use crate::pressure::PressureHandlers;
use crate::queue::{EventQueue, Fifo, Queue};
use crate::queueing::Queueing;
use crate::quiescence::{self, Quiescence};
use crate::task::Tasks;
use crate::timer::{TIMERS, Timers};
use crate::watchdog::Watchdog;
use alloc::boxed::Box;
use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering;
use isola_abi::id::ActivityId;
use isola_abi::report::CorePhase;
use isola_ebbs::{Ebb, Representative, current_core, platform};
use isola_platform::CoreIndex;

/// The event manager of each core.
pub static EVENTS: Ebb<EventLoop> = Ebb::new();

/// The event manager of a core.
pub struct EventLoop {
    queue: RefCell<Queue>,
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
            pressure: PressureHandlers::default(),
            accounting: Accounting::new(),
        }
    }
}

/// Runs this core's events until the cell exits. Returns the exit code.
///
/// A core that is not the cell's first halts until another core has work for it, and only then makes its
/// representatives.
pub fn run() -> i32 {
    let core = current_core();
    let mailboxes = mailbox::all();
    if core == CoreIndex(0) {
        activity::start();
    } else {
        quiescence::stay_away();
        while mailboxes.prepare_halt(core) == MayHalt::Yes {
            platform().halt();
        }
    }
    mailboxes.of(core).finish_halt();
    EVENTS.run(mailboxes)
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

    /// The tag of the running event.
    pub(crate) fn current_tag(&self) -> EventTag {
        self.tag.get()
    }

    /// Charges the rest of the running event to `activity`.
    pub(crate) fn retag(&self, activity: ActivityId) {
        self.tag.set(EventTag { activity, ..self.tag.get() });
        self.accounting.switch(Charge::Activity(activity));
    }

    /// Whether the queue is so long that it does not grow by what others send.
    pub(crate) fn is_long(&self) -> bool {
        self.queue.borrow().len() >= LONG_QUEUE
    }

    /// Has the next passes look at the outbox, until it is empty.
    pub(crate) fn has_chores(&self) {
        self.chores.set(true);
    }

    fn run(&self, mailboxes: &Mailboxes) -> i32 {
        let mailbox = mailboxes.of(current_core());
        let report = self.accounting.report();
        self.quiescence.join();
        self.set_phase(CorePhase::Running);
        loop {
            self.quiescence.pass();
            add(&report.passes, 1);
            self.handlers.run_pending(&self.accounting);
            self.timers.run_due(&self.accounting);
            if !mailbox.is_empty() {
                self.receive(mailboxes, mailbox);
            }
            if self.chores.get() {
                self.outbox.flush();
                self.chores.set(!self.outbox.is_empty());
            }
            self.pressure.look(&self.accounting);
            if let Some(code) = mailboxes.exit_code() {
                self.accounting.switch(Charge::Loop);
                return code;
            }
            let event = self.queue.borrow_mut().pop();
            match event {
                Some(event) => self.run_event(event),
                // What time it is by then is what alarms ring by.
                None if self.idle(mailboxes, mailbox) == Halted::No => self.accounting.end_idling(),
                None => {}
            }
        }
    }

    fn run_event(&self, event: QueuedEvent) {
        self.tag.set(event.tag);
        let (began, looked) = self.accounting.begin_event(event.tag.activity);
        let passes = self.accounting.report().passes.load(Ordering::Relaxed);
        if self.queueing.must_look(passes) {
            let waiting = self.queue.borrow().len() as u64;
            self.queueing.look(self.accounting.report(), passes, waiting, looked, began);
        }
        match event.work {
            Work::Call(work) => work(),
            Work::Poll(task) => self.tasks.poll(task),
        }
        let ended = self.accounting.switch(Charge::Loop);
        let spent_cycles = ended.wrapping_sub(began);
        if self.watchdog.must_look(spent_cycles) {
            let report = self.accounting.report();
            self.watchdog.look(report, self.tag.get(), event.made_at, spent_cycles, ended);
        }
    }

    /// Queues what other cores have sent: a bounded part of it, so that a flood of messages holds up neither the core's
    /// own events nor fills its memory.
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

    fn idle(&self, mailboxes: &Mailboxes, mailbox: &Mailbox) -> Halted {
        if self.idle.run() != Idle::MayHalt || !self.queue.borrow().is_empty() {
            return Halted::No;
        }
        if self.quiescence.leave() == MayHalt::No {
            return Halted::No;
        }
        let halted = self.halt(mailboxes, mailbox);
        self.quiescence.join();
        halted
    }

    fn halt(&self, mailboxes: &Mailboxes, mailbox: &Mailbox) -> Halted {
        if mailboxes.prepare_halt(current_core()) == MayHalt::No {
            return Halted::No;
        }
        let must_stay = self.chores.get() && self.outbox.is_due();
        let may_halt = !must_stay && self.timers.arm() == MayHalt::Yes;
        if may_halt {
            self.set_phase(CorePhase::Halted);
            self.accounting.switch(Charge::Idle);
            platform().halt();
            self.accounting.end_idling();
            self.set_phase(CorePhase::Running);
        }
        mailbox.finish_halt();
        if may_halt { Halted::Yes } else { Halted::No }
    }

    fn set_phase(&self, phase: CorePhase) {
        self.accounting.report().phase.store(phase as u32, Ordering::Relaxed);
    }
}

/// Whether a core was halted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Halted {
    Yes,
    No,
}
