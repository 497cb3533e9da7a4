//! The passes of a vcore's event loop.
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

use super::EventLoop;
use crate::accounting::{Charge, add};
use crate::event::{EventTag, QueuedEvent, Work};
use crate::halt::MayHalt;
use crate::idle::Idle;
use crate::mailbox::{self, Mailbox, Mailboxes, Message, Notice};
use crate::overload::MESSAGES_A_PASS;
use crate::program::{ProgramCore, ProgramOutcome};
use crate::queueing::CoreRequest;
use crate::vcore_runner::BUSY;
use core::panic::Location;
use core::sync::atomic::Ordering;
use isola_abi::report::CorePhase;
use isola_ebbs::{current_core, cycles, platform};
use isola_platform::{CoreIndex, PendingVectors};

/// The longest time of a program in user mode while its core has other work: this many times the time after which a
/// computation gives way.
const PROGRAM_SLICE: u64 = 8;

/// Passes of a vcore's loop before the next vcore's turn, on a core that runs several.
const PASSES_A_VISIT: u64 = 16;

impl EventLoop {
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
}

/// The outcome of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PassOutcome {
    /// An event ran, and there may be more work.
    Ran,
    /// No event is left.
    Idle,
}
