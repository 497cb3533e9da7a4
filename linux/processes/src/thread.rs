//! A thread: a task that runs the program and serves its traps.

use crate::account::Account;
use crate::calls::CallResult;
use crate::cgroup::bandwidth::Grant;
use crate::credentials::Credentials;
use crate::direct_switch::{CallWait, Ran, Resumption, resumed, run_programs};
use crate::environment::{TaskMaker, TaskPlacement};
use crate::family::ProcessorTime;
use crate::futex::FutexWaiter;
use crate::process::{Demand, Process};
use crate::quick_calls::Answer;
use crate::rseq::{self, Registration};
use crate::signals::{FaultFacts, Signal, SignalFacts, SignalInfo};
use crate::system::System;
use crate::thread_state::ThreadState;
use crate::timers::processor;
use crate::tracing::registers::Arguments;
use crate::{Errno, calls, delivery, exit, meter, tracing};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::future::{Future, poll_fn};
use core::ops::{Deref, DerefMut};
use core::pin::pin;
use core::sync::atomic::Ordering;
use core::task::Poll;
use isola_abi::user_context::UserRegisters;
use isola_linux_files::{self as files, AlarmKey, Caller, CallerIds, DescriptorTable, View};
use isola_linux_memory::{BoxFuture, FaultError, ProcessMemory};
use isola_user_mode::{FlushGeneration, Trap, TrapAnswer, UserThread};

/// A thread of a process. Only its own task has it.
pub struct Thread {
    /// The processes of the cell.
    pub system: Arc<System>,
    /// Its process.
    pub process: Arc<Process>,
    /// The part that others use.
    pub state: Arc<ThreadState>,
    /// The account of its task's cycles.
    pub account: Arc<Account>,
    /// The memory of its process.
    pub memory: Arc<ProcessMemory>,
    /// Its open files.
    pub files: Arc<DescriptorTable>,
    /// Its root, working directory and umask.
    pub view: Arc<View>,
    /// Its users, groups and capabilities.
    pub credentials: Credentials,
    /// The same for accesses to files.
    pub file_credentials: files::Credentials,
    /// Its registers in its address space.
    pub user: ProgramSlot,
    /// The word that is cleared at the thread's end, and whose waiters are woken; 0 for none.
    pub clear_tid: u64,
    /// The list of its robust futexes; 0 for none.
    pub robust_list: u64,
    /// Its restartable sequences, if it has registered some.
    pub rseq: Option<Registration>,
    /// Whether the memory is that of the parent, which waits (`vfork`).
    pub has_parents_memory: bool,
    /// The call that a signal has interrupted, until its restart is decided.
    pub interrupted_call: Option<InterruptedCall>,
    /// The call that `restart_syscall` continues.
    pub restart: Option<Restart>,
    /// The alarm that interrupts the program to check timers by processor time.
    pub processor_alarm: Option<AlarmKey>,
    /// The exception that caused the latest fault signal.
    pub fault: FaultFacts,
    /// The code with which the program ended this thread.
    pub exit_code: Option<u8>,
    /// The cycles that a limited group has counted.
    pub counted_cycles: u64,
    /// The wait of a call that was served at once.
    pub wait: Option<CallWait>,
    /// The limit of time of a wait that continues.
    pub until_ns: Option<u64>,
    /// The trap with which another task has given the thread back.
    pub returned: Option<Trap>,
    /// A former waiter, for the next wait.
    pub spare_waiter: Option<FutexWaiter>,
    /// The flush of TLBs that has to be over before the program continues.
    pub unsettled: Option<FlushGeneration>,
}

/// The registers of a thread in its address space. While the program runs, the platform has them: what serves traps at once
/// ([`calls::serve_at_once`]) must not access them.
pub struct ProgramSlot(Option<Box<dyn UserThread>>);

impl ProgramSlot {
    pub(crate) fn take(&mut self) -> Box<dyn UserThread> {
        self.0.take().expect(SLOT_IS_FULL)
    }
}

const SLOT_IS_FULL: &str = "the registers of a thread are accessed while its program runs";

impl From<Box<dyn UserThread>> for ProgramSlot {
    fn from(user: Box<dyn UserThread>) -> Self {
        Self(Some(user))
    }
}

impl Deref for ProgramSlot {
    type Target = dyn UserThread;

    fn deref(&self) -> &Self::Target {
        self.0.as_deref().expect(SLOT_IS_FULL)
    }
}

impl DerefMut for ProgramSlot {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.0.as_deref_mut().expect(SLOT_IS_FULL)
    }
}

/// A call that was interrupted and continues with the rest of its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// A sleep.
    Sleep {
        /// Its end, in nanoseconds of the monotonic clock.
        until_ns: u64,
        /// Where the rest of the time is stored; 0 for nowhere.
        remaining: u64,
    },
    /// `poll`.
    Poll {
        /// The list of descriptors.
        list: u64,
        /// Its length.
        count: u32,
        /// The end of the wait, in nanoseconds of the monotonic clock.
        until_ns: u64,
    },
    /// A wait for a futex.
    Futex {
        /// Address of the word.
        word: u64,
        /// Its expected value.
        expected: u32,
        /// The bits.
        bits: u32,
        /// `FUTEX_PRIVATE_FLAG`, if it was set.
        flags: u32,
        /// The end of the wait, in nanoseconds of the monotonic clock.
        until_ns: u64,
    },
}

/// A call that a signal has interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptedCall {
    /// Its number.
    pub number: u64,
    /// The restart code.
    pub errno: Errno,
}

/// A wait ended because the thread has a signal to handle, or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

impl From<Interrupted> for Errno {
    fn from(_: Interrupted) -> Self {
        Self::ERESTARTSYS
    }
}

/// Whether the thread continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// It runs its program.
    Continue,
    /// Its task ends, and it continues in a new one: on another core, or for another account.
    Move,
    /// It ends.
    End,
}

/// The length of the instruction SYSCALL, in bytes.
pub const SYSCALL_LEN: u64 = 2;

impl Thread {
    /// Runs the thread to its end.
    pub async fn run(mut self: Box<Self>) {
        let state = self.state.clone();
        poll_fn(|context| {
            state.set_waker(context.waker());
            Poll::Ready(())
        })
        .await;
        self.attend_to_processor_timers();
        // Ends the run of the program when a limited group is to be asked again.
        let mut timer = None;
        // Another core, perhaps.
        rseq::note_interruption(&mut self);
        loop {
            if rseq::is_due(&self) {
                rseq::resume(&mut self).await;
            }
            if self.state.has_attention() {
                if self.process.timers.has_processor_timers() {
                    processor::check(&mut self);
                }
                match self.attend().await {
                    Flow::Continue => {}
                    Flow::Move => return self.start(),
                    Flow::End => break,
                }
            }
            if self.process.control.is_limited() && !self.has_time(&mut timer).await {
                continue;
            }
            let trap = match run_programs(self) {
                Ran::Trap(thread, trap) => {
                    self = thread;
                    trap
                }
                Ran::Parked => {
                    let (thread, resumption) = resumed(&state).await;
                    self = thread;
                    match resumption {
                        Resumption::Continue => continue,
                        Resumption::Interrupted => {
                            let number = self.registers().rax;
                            self.end_call(number, Err(calls::interruption(number)));
                            continue;
                        }
                        // The thread has waited for its turn already.
                        Resumption::Trap(Trap::Interrupt) => {
                            rseq::note_interruption(&mut self);
                            self.state.is_preempted.store(false, Ordering::Relaxed);
                            match self.idle_core() {
                                Some(core) => return self.move_to(core),
                                None => continue,
                            }
                        }
                        Resumption::Trap(trap) => trap,
                    }
                }
            };
            if trap != Trap::SystemCall {
                rseq::note_interruption(&mut self);
            }
            match trap {
                Trap::SystemCall => self.call().await,
                Trap::PageFault { address, access } => {
                    self.process.control.faults.fetch_add(1, Ordering::Relaxed);
                    match self.memory.fault(address, access).await {
                        Ok(()) => {}
                        Err(FaultError::OutOfMemory) => self.find_memory().await,
                        Err(error) => self.fault(error, address),
                    }
                }
                Trap::Exception { vector, error_code } => self.exception(vector, error_code),
                // The loop does the other work.
                Trap::Served => {
                    let flush = self.unsettled.take();
                    self.memory.settle(flush).await;
                }
                Trap::Interrupt => {
                    self.attend_to_processor_timers();
                    match self.idle_core() {
                        Some(core) => return self.move_to(core),
                        None => self.give_way().await,
                    }
                }
            }
        }
        exit::end_thread(self).await;
    }

    /// Runs the program until a trap that is not served at once.
    pub(crate) fn run_program(&mut self) -> Trap {
        self.until_ns = None;
        if self.system.traces || self.state.tracing.is_traced() {
            return self.user.run();
        }
        let mut user = self.user.take();
        let state = self.state.clone();
        let trap = user.run_with(state.quick_calls(), &mut |trap, registers| self.answer(trap, registers));
        self.user = user.into();
        trap
    }

    /// Serves a trap at once, if that needs no wait: the program continues without a poll of this task's future.
    fn answer(&mut self, trap: Trap, registers: &UserRegisters) -> TrapAnswer {
        // A limited group is asked before each run.
        if self.process.control.is_limited() {
            return TrapAnswer::Unserved;
        }
        let answer = match trap {
            Trap::SystemCall => {
                let UserRegisters { rax: number, rdi, rsi, rdx, r10, r8, r9, .. } = *registers;
                calls::serve_at_once(self, number, [rdi, rsi, rdx, r10, r8, r9])
            }
            Trap::PageFault { address, access } if self.memory.fault_at_once(address, access) => {
                self.process.control.faults.fetch_add(1, Ordering::Relaxed);
                TrapAnswer::Resume(0)
            }
            _ => TrapAnswer::Unserved,
        };
        match answer {
            TrapAnswer::Resume(result) if self.state.has_attention() => TrapAnswer::Stop(result),
            answer => answer,
        }
    }

    /// Makes the thread check timers by processor time before its program continues. Calls do not: an alarm interrupts the
    /// program when a timer may have expired.
    pub(crate) fn attend_to_processor_timers(&self) {
        if self.process.timers.has_processor_timers() {
            self.state.interrupt();
        }
    }

    /// Lets other events run.
    pub async fn give_way(&self) {
        self.state.is_preempted.store(true, Ordering::Relaxed);
        give_way().await;
        self.state.is_preempted.store(false, Ordering::Relaxed);
    }

    /// Continues the thread in a new task on another core.
    fn move_to(self: Box<Self>, core: usize) {
        self.state.core.store(core as u32, Ordering::Relaxed);
        self.start();
    }

    /// Runs the thread in a task of its own, on its core and for its process's account.
    pub fn start(mut self: Box<Self>) {
        if let Some(account) = self.process.control.account() {
            self.account = account;
        }
        self.set_answers();
        let environment = self.system.environment.clone();
        // Before the new task can run.
        self.state.meter.end(environment.cycles().0);
        let cores = environment.cores();
        let core = self.state.core.load(Ordering::Relaxed) as usize;
        let placement = TaskPlacement {
            core: (core < 64 && cores >> core & 1 != 0).then_some(core),
            activity: self.account.activity(),
        };
        let task: TaskMaker = Box::new(move || Box::pin(meter::metered(self)));
        environment.spawn(task, placement);
    }

    /// Sets the results of quick calls: the parent's id changes if it ends, the others in the thread itself.
    fn set_answers(&self) {
        let (state, process) = (&self.state, &self.process);
        state.set_answer(Answer::Process, process.pid);
        // The end of the parent changes it under the same lock.
        let family = self.system.family.lock();
        state.set_answer(Answer::Parent, family.parent(process.pid));
        drop(family);
        self.set_answers_of_credentials();
    }

    fn set_answers_of_credentials(&self) {
        let Credentials { user, group, .. } = &self.credentials;
        self.state.set_answer(Answer::User, user.real);
        self.state.set_answer(Answer::EffectiveUser, user.effective);
        self.state.set_answer(Answer::Group, group.real);
        self.state.set_answer(Answer::EffectiveGroup, group.effective);
    }

    /// Chooses the core of a new thread: one of the allowed cores that has nothing to do, or else any of them in turn.
    pub fn place(&self) {
        let environment = &self.system.environment;
        let cores = environment.cores();
        let allowed = match self.state.allowed_cores.load(Ordering::Relaxed) & cores {
            0 => cores,
            allowed => allowed,
        };
        let in_turn = || {
            let turn = self.system.created.load(Ordering::Relaxed) % u64::from(allowed.count_ones().max(1));
            let rest = (0..turn).fold(allowed, |rest, _| rest & (rest - 1));
            rest.trailing_zeros() as usize
        };
        let core = self.system.loads.idle_core(environment.halted_cores() & allowed).unwrap_or_else(in_turn);
        self.state.core.store(core as u32, Ordering::Relaxed);
    }

    /// Returns a core that has nothing to do, if other work waits for this one.
    fn idle_core(&self) -> Option<usize> {
        let environment = &self.system.environment;
        let allowed = self.state.allowed_cores.load(Ordering::Relaxed);
        if !environment.has_competition() {
            return None;
        }
        self.system.loads.idle_core(environment.halted_cores() & allowed & !(1 << environment.current_core()))
    }

    /// Asks the groups of the process that have a limit whether the program may continue, and waits if it may not. Returns
    /// `false` if something else has to be done first.
    async fn has_time(&mut self, timer: &mut Option<BoxFuture<'static, ()>>) -> bool {
        let environment = self.system.environment.clone();
        let (now, per_second) = environment.cycles();
        let total = self.state.meter.total(now);
        let used = total.saturating_sub(core::mem::replace(&mut self.counted_cycles, total));
        let used_ns = ns_of(used, per_second);
        let now_ns = environment.monotonic_ns();
        let mut slice_ns = u64::MAX;
        let mut until_ns = None;
        for group in self.process.control.group().with_ancestors() {
            match group.bandwidth(now_ns, used_ns) {
                Grant::Run(ns) => slice_ns = slice_ns.min(ns),
                Grant::WaitUntil(end_ns) => until_ns = until_ns.max(Some(end_ns)),
            }
        }
        if let Some(until_ns) = until_ns {
            *timer = None;
            // A signal is handled at once.
            let _ = self.interruptible(environment.sleep_until(until_ns)).await;
            return false;
        }
        if slice_ns < u64::MAX {
            // The timer makes the program leave ring 3.
            let mut end = environment.sleep_until(now_ns + slice_ns);
            poll_fn(|context| Poll::Ready(_ = end.as_mut().poll(context))).await;
            *timer = Some(end);
        }
        true
    }

    /// Ends the thread after the call.
    pub fn end(&mut self, code: u8) {
        self.exit_code = Some(code);
        self.state.interrupt();
    }

    /// Returns the registers.
    pub fn registers(&mut self) -> &mut UserRegisters {
        &mut self.user.context_mut().registers
    }

    /// Returns the thread as calls of files need it.
    pub fn caller(&self) -> Caller<'_> {
        Caller {
            view: &self.view,
            credentials: &self.file_credentials,
            descriptors: &self.files,
            ids: CallerIds { process: self.process.pid, thread: self.state.tid() },
        }
    }

    /// Sets the credentials.
    pub fn set_credentials(&mut self, credentials: Credentials) {
        self.file_credentials = files::Credentials {
            user: credentials.user.files,
            group: credentials.group.files,
            groups: credentials.groups.clone(),
            capabilities: credentials.capabilities.effective,
        };
        // Others check it before they send a signal.
        *self.process.user.lock() = credentials.user;
        *self.process.credentials.lock() = Some(credentials.clone());
        self.credentials = credentials;
        self.set_answers_of_credentials();
    }

    async fn call(&mut self) {
        if self.state.tracing.is_traced() {
            return tracing::call(self).await;
        }
        let number = self.registers().rax;
        self.serve(number).await;
    }

    /// Serves a system call.
    pub(crate) async fn serve(&mut self, number: u64) {
        let Arguments(words) = Arguments::from(&*self.registers());
        let result = calls::serve(self, number, words).await;
        self.end_call(number, result);
    }

    /// Sets the result of a call.
    fn end_call(&mut self, number: u64, result: CallResult) {
        match result {
            Ok(value) => self.registers().rax = value,
            Err(errno) if errno >= Errno::ERESTARTSYS => {
                self.interrupted_call = Some(InterruptedCall { number, errno });
                // The restart is decided before the program continues.
                self.state.interrupt();
            }
            Err(errno) => self.registers().rax = errno.to_result(),
        }
    }

    /// Waits for a future until a signal has to be handled. A result that is ready counts before a signal.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub async fn interruptible<F: Future>(&self, future: F) -> Result<F::Output, Interrupted> {
        let mut future = pin!(future);
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Ok(value)),
            Poll::Pending if self.is_interrupted() => Poll::Ready(Err(Interrupted)),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// As [`Self::interruptible`], until a time of the monotonic clock. Returns `None` at that time.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub async fn interruptible_until<F: Future>(
        &self,
        until_ns: Option<u64>,
        future: F,
    ) -> Result<Option<F::Output>, Interrupted> {
        let Some(until_ns) = until_ns else { return self.interruptible(future).await.map(Some) };
        let mut timer = self.system.environment.sleep_until(until_ns);
        let mut future = pin!(future);
        self.interruptible(poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending => timer.as_mut().poll(context).map(|()| None),
        }))
        .await
    }

    /// Returns whether a wait has to end.
    pub fn is_interrupted(&self) -> bool {
        self.state.has_attention()
            && (self.process.demand(&self.state).is_some()
                || self.state.tracing.wants_stop()
                || delivery::has_effect(self))
    }

    /// Handles the demands of others: the thread's end, a stop, signals.
    async fn attend(&mut self) -> Flow {
        loop {
            // Before the checks: later demands interrupt the thread again.
            self.state.take_attention();
            if self.exit_code.is_some() {
                return Flow::End;
            }
            let demand = self.process.demand(&self.state);
            // A thread that has to end need not move.
            if let Some(Demand::EndProcess(_) | Demand::EndThread) = demand {
                return Flow::End;
            }
            if !self.process.control.has_account(&self.account) || !self.has_allowed_core() {
                // The new task checks for signals.
                self.state.interrupt();
                return Flow::Move;
            }
            if self.state.tracing.wants_stop() {
                tracing::requested_stop(self).await;
                continue;
            }
            match demand {
                Some(_) => match self.process.stopped_by().filter(|_| self.state.tracing.reports_stop()) {
                    Some(signal) => tracing::group_stop(self, signal).await,
                    None => self.process.continued(&self.state).await,
                },
                None => match delivery::deliver(self).await {
                    delivery::Delivered::Nothing => return Flow::Continue,
                    delivery::Delivered::Handler | delivery::Delivered::Other => {}
                },
            }
        }
    }

    /// Returns whether the thread may run on its core. Otherwise chooses another one.
    fn has_allowed_core(&self) -> bool {
        let environment = &self.system.environment;
        let allowed = self.state.allowed_cores.load(Ordering::Relaxed) & environment.cores();
        // All allowed cores have left the cell: as in Linux, the thread then runs anywhere.
        if allowed == 0 || allowed >> environment.current_core() & 1 != 0 {
            return true;
        }
        let idle = self.system.loads.idle_core(environment.halted_cores() & allowed);
        let core = idle.unwrap_or(allowed.trailing_zeros() as usize);
        self.state.core.store(core as u32, Ordering::Relaxed);
        false
    }

    /// Sends the signal of a page fault.
    fn fault(&mut self, error: FaultError, address: u64) {
        /// `si_code` of SIGSEGV and SIGBUS.
        const SEGV_MAPERR: i32 = 1;
        const SEGV_ACCERR: i32 = 2;
        const BUS_ADRERR: i32 = 2;
        let (signal, code) = match error {
            FaultError::NotMapped => (Signal::SIGSEGV, SEGV_MAPERR),
            FaultError::NotPermitted => (Signal::SIGSEGV, SEGV_ACCERR),
            FaultError::NoContents | FaultError::OutOfMemory => (Signal::SIGBUS, BUS_ADRERR),
        };
        self.fault = FaultFacts { vector: 14, error_code: 0, address };
        self.force(SignalInfo { signal, code, errno: 0, facts: SignalFacts::Fault { address } });
    }

    /// Sends the signal of an exception.
    fn exception(&mut self, vector: u8, error_code: u64) {
        let address = self.registers().rip;
        /// `si_code` of the signals, from Linux's `uapi/asm-generic/siginfo.h`.
        const FPE_INTDIV: i32 = 1;
        const FPE_FLTINV: i32 = 7;
        const ILL_ILLOPN: i32 = 2;
        const TRAP_TRACE: i32 = 2;
        const BUS_ADRALN: i32 = 1;
        let fault = SignalFacts::Fault { address };
        let (signal, code, facts) = match vector {
            0 => (Signal::SIGFPE, FPE_INTDIV, fault),
            1 => (Signal::SIGTRAP, TRAP_TRACE, fault),
            16 | 19 => (Signal::SIGFPE, FPE_FLTINV, fault),
            6 => (Signal::SIGILL, ILL_ILLOPN, fault),
            17 => (Signal::SIGBUS, BUS_ADRALN, SignalFacts::Fault { address: 0 }),
            3 => (Signal::SIGTRAP, crate::signals::SI_KERNEL, SignalFacts::Fault { address: 0 }),
            _ => (Signal::SIGSEGV, crate::signals::SI_KERNEL, SignalFacts::Fault { address: 0 }),
        };
        self.fault = FaultFacts { vector: vector.into(), error_code, address: 0 };
        self.force(SignalInfo { signal, code, errno: 0, facts });
    }

    /// Sends a signal that the program cannot continue without: if it is blocked or ignored, the process ends.
    pub fn force(&mut self, info: SignalInfo) {
        delivery::force(self, info);
    }

    /// Returns the processor time of the thread.
    pub fn time(&self) -> ProcessorTime {
        thread_time(&self.state, self.system.environment.cycles())
    }
}

/// Returns the processor time of a thread; `clock` is the cycle counter, and the number of its cycles in a second.
pub fn thread_time(state: &ThreadState, clock: (u64, u64)) -> ProcessorTime {
    let (user, system) = state.meter.read(clock.0);
    ProcessorTime { user_ns: ns_of(user, clock.1), system_ns: ns_of(system, clock.1) }
}

/// Returns the time of a number of cycles, in nanoseconds.
fn ns_of(cycles: u64, per_second: u64) -> u64 {
    (u128::from(cycles) * 1_000_000_000 / u128::from(per_second.max(1))) as u64
}

/// Lets other events run.
pub async fn give_way() {
    let mut has_waited = false;
    poll_fn(|context| {
        if has_waited {
            return Poll::Ready(());
        }
        has_waited = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl fmt::Debug for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Thread({} of process {})", self.state.tid(), self.process.pid)
    }
}
