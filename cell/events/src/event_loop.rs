//! The loop of a core.
//!
//! ```text
//! pass:  1  interrupts let in and handled, due alarms run, messages of other cores queued
//!        2  one queued event
//!        3  where there was none: the idle handlers
//!        4  where they found nothing: the timer armed for the next alarm, halt
//! ```
//!
//! A core that has nothing to do is halted without any timer armed: it takes no interrupts and uses no cycles.

use crate::activity::{self, Accounting, Charge, add};
use crate::event::{EventTag, QueuedEvent, Work};
use crate::idle::{Idle, IdleHandlers};
use crate::interrupt::Handlers;
use crate::mailbox::{self, Mailbox, MayHalt, Message, Received};
use crate::task::Tasks;
use crate::timer::Timers;
use alloc::collections::VecDeque;
use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering;
use isola_abi::id::ActivityId;
use isola_abi::report::CorePhase;
use isola_ebbs::{Ebb, Representative, current_core, platform};
use isola_platform::CoreIndex;

pub(crate) static EVENTS: Ebb<EventLoop> = Ebb::new();

/// The event manager of a core.
pub(crate) struct EventLoop {
    queue: RefCell<VecDeque<QueuedEvent>>,
    exit: Cell<Option<i32>>,
    /// Of the running event, or of the last one.
    tag: Cell<EventTag>,
    pub tasks: Tasks,
    pub timers: Timers,
    pub handlers: Handlers,
    pub idle: IdleHandlers,
    pub accounting: Accounting,
}

impl Representative for EventLoop {
    fn create() -> Self {
        Self {
            queue: RefCell::new(VecDeque::new()),
            exit: Cell::new(None),
            tag: Cell::new(EventTag::new()),
            tasks: Tasks::default(),
            timers: Timers::default(),
            handlers: Handlers::default(),
            idle: IdleHandlers::default(),
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
    let mailbox = mailbox::of(core);
    if core == CoreIndex(0) {
        mailbox.finish_halt();
        activity::start();
    } else {
        while mailbox.prepare_halt() == MayHalt::Yes {
            platform().halt();
        }
        mailbox.finish_halt();
    }
    EVENTS.run(mailbox)
}

/// Ends the cell: every core leaves its loop after the event that it runs.
pub fn exit(code: i32) {
    let here = current_core();
    let cores = platform().descriptor().cores.len() as u32;
    (0..cores).map(CoreIndex).filter(|core| *core != here).for_each(|core| {
        mailbox::send(core, Message::Exit(code));
    });
    EVENTS.exit.set(Some(code));
}

impl EventLoop {
    /// Puts an event behind the others of this core.
    pub fn enqueue(&self, event: QueuedEvent) {
        self.queue.borrow_mut().push_back(event);
    }

    /// The tag of the running event.
    pub fn current_tag(&self) -> EventTag {
        self.tag.get()
    }

    /// Charges the rest of the running event to `activity`.
    pub fn retag(&self, activity: ActivityId) {
        self.tag.set(EventTag { activity, ..self.tag.get() });
        self.accounting.switch(Charge::Activity(activity));
    }

    fn run(&self, mailbox: &Mailbox) -> i32 {
        let report = self.accounting.report();
        self.set_phase(CorePhase::Running);
        loop {
            add(&report.passes, 1);
            self.handlers.run_pending(&self.accounting);
            self.timers.run_due(&self.accounting);
            self.receive(mailbox);
            if let Some(code) = self.exit.get() {
                self.accounting.switch(Charge::Loop);
                return code;
            }
            let event = self.queue.borrow_mut().pop_front();
            match event {
                Some(event) => self.run_event(event),
                None => self.idle(mailbox),
            }
        }
    }

    fn run_event(&self, event: QueuedEvent) {
        self.tag.set(event.tag);
        self.accounting.begin_event(event.tag.activity);
        match event.work {
            Work::Call(work) => work(),
            Work::Poll(task) => self.tasks.poll(task),
        }
        self.accounting.switch(Charge::Loop);
    }

    fn receive(&self, mailbox: &Mailbox) {
        // No more than were there at the start of the pass can be counted on to end: a bound keeps a flood
        // of messages from holding up the core's own events.
        for _ in 0..64 {
            match mailbox.receive() {
                Some(Received::Event(event)) => self.enqueue(event),
                Some(Received::Wake(task)) => self.tasks.schedule(task),
                Some(Received::Exit(code)) => self.exit.set(Some(code)),
                None => return,
            }
        }
    }

    fn idle(&self, mailbox: &Mailbox) {
        if self.idle.run() != Idle::MayHalt || !self.queue.borrow().is_empty() || self.exit.get().is_some() {
            return;
        }
        if mailbox.prepare_halt() == MayHalt::No {
            return;
        }
        if self.timers.arm() == MayHalt::Yes {
            self.set_phase(CorePhase::Halted);
            self.accounting.switch(Charge::Idle);
            platform().halt();
            self.accounting.switch(Charge::Loop);
            self.set_phase(CorePhase::Running);
        }
        mailbox.finish_halt();
    }

    fn set_phase(&self, phase: CorePhase) {
        self.accounting.report().phase.store(phase as u32, Ordering::Relaxed);
    }
}
