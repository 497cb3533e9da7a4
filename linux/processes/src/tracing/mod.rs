//! Threads that another process traces (ptrace(2)): their stops, and the tracer's access to them.
//!
//! ```text
//!   tracee's task:  program ── stop: registers to its Tracing ── waits ─────────── takes them back ── program
//!   tracer's calls:                        wait4 reports it ── reads, changes ── resume: wakes the task
//! ```
//!
//! A tracee stops in its own task ([`stop`]), at the points where Linux does: before it handles a signal, before and after a call,
//! after `clone` and `execve`, before its end. While it is stopped, its registers are in its [`Tracing`], where the tracer's calls
//! change them. All threads of the tracer may make these calls, not only the one that has attached.
//!
//! A traced thread serves no call at once. The tracer's end resumes its tracees.

pub mod registers;

use crate::Errno;
use crate::exit_status::ExitStatus;
use crate::family::{ChildSelector, ProcessorTime, WaitOptions, WaitedChild};
use crate::process::{Demand, Process};
use crate::signals::{SI_USER, Signal, SignalFacts, SignalInfo};
use crate::system::System;
use crate::thread::{InterruptedCall, Thread};
use crate::thread_state::ThreadState;
use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use core::fmt;
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Poll;
use isola_linux_abi::numbers::{CLONE_UNTRACED, CLONE_VFORK, SIGCHLD, SIGTRAP};
use isola_linux_abi::ptrace::*;
use isola_linux_memory::ProcessMemory;
use isola_user_mode::UserThread;
use spin::Mutex;

/// The trap flag: the program stops after an instruction.
const TRAP_FLAG: u64 = 1 << 8;
/// `orig_rax` of a thread that is in no call.
pub const NO_CALL: u64 = u64::MAX;

/// The part of a thread's state for its tracer.
#[derive(Default)]
pub struct Tracing {
    is_traced: AtomicBool,
    trace: Mutex<TraceSlot>,
}

#[derive(Default)]
struct TraceSlot {
    trace: Option<Box<Trace>>,
    /// Whether the thread has ended, so that no tracer can attach.
    has_ended: bool,
}

struct Trace {
    tracer: Weak<Process>,
    /// `PTRACE_O_*`.
    options: u32,
    /// Whether it began by `PTRACE_SEIZE`.
    is_seized: bool,
    mode: Mode,
    /// Whether the thread stops before its program continues (`PTRACE_INTERRUPT`).
    wants_stop: bool,
    /// Whether the thread runs although its process is stopped.
    ignores_stop: bool,
    /// Whether the tracer knows that the process is stopped, and lets it be (`PTRACE_LISTEN`).
    listens: bool,
    /// Whether the trace ends when the thread leaves its stop.
    is_released: bool,
    stop: Option<Stop>,
}

/// How a tracee was resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Until a signal or an event.
    Run,
    /// Also until the next call's begin or end.
    Calls,
    /// For one instruction.
    Step,
    /// Not: the process stays stopped.
    Listen,
}

/// A stopped tracee.
pub struct Stop {
    /// Its registers.
    pub user: Box<dyn UserThread>,
    /// Its memory.
    pub memory: Arc<ProcessMemory>,
    /// The reason, which the tracer may change.
    pub reason: Reason,
    /// Whether a wait of the tracer reports it.
    is_news: bool,
    is_resumed: bool,
    signal: Option<Signal>,
}

/// The reason of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The kind.
    pub kind: StopKind,
    /// The signal in the status of `wait4`; for a call, SIGTRAP with `PTRACE_O_TRACESYSGOOD` marked by 0x80.
    pub signal: u8,
    /// `PTRACE_EVENT_*`; 0 for none.
    pub event: u8,
    /// `orig_rax`: the number of the call in which the thread is, or [`NO_CALL`].
    pub call: u64,
    /// `PTRACE_GETSIGINFO`; `None` for the stop of a process.
    pub info: Option<SignalInfo>,
    /// `PTRACE_GETEVENTMSG`.
    pub message: u64,
}

/// The kind of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopKind {
    /// Before a signal is handled.
    Signal,
    /// The process is stopped.
    Group,
    /// Before a call.
    CallEntry,
    /// After a call.
    CallExit,
    /// An event.
    Event,
    /// Before the thread's end. Only SIGKILL ends the stop.
    End,
}

/// The tracer's decision about a stopped tracee.
struct Resumed {
    signal: Option<Signal>,
    reason: Reason,
}

/// A thread that a process traces.
pub struct Tracee {
    process: Arc<Process>,
    state: Arc<ThreadState>,
    /// The id and how it ended, for a thread whose end its tracer has not waited for.
    ended: Option<(u32, ExitStatus)>,
}

impl Reason {
    fn new(kind: StopKind, signal: u8, event: u32) -> Self {
        let code = i32::from(signal) | (event as i32) << 8;
        let facts = SignalFacts::Sender { pid: 0, uid: 0, value: 0 };
        let info = Some(SignalInfo { signal: Signal::SIGTRAP, code, errno: 0, facts });
        Self { kind, signal, event: event as u8, call: NO_CALL, info, message: 0 }
    }

    fn status(&self) -> ExitStatus {
        ExitStatus::Traced { signal: self.signal, event: self.event }
    }
}

impl Tracing {
    /// Returns whether the thread is traced.
    #[inline]
    pub fn is_traced(&self) -> bool {
        self.is_traced.load(Ordering::Relaxed)
    }

    fn read<T>(&self, read: impl FnOnce(&Trace) -> T) -> Option<T> {
        if !self.is_traced() {
            return None;
        }
        self.trace.lock().trace.as_deref().map(read)
    }

    /// Returns the tracer.
    pub fn tracer(&self) -> Option<Arc<Process>> {
        self.read(|trace| trace.tracer.upgrade()).flatten()
    }

    fn has_option(&self, option: u32) -> bool {
        self.read(|trace| trace.options & option != 0).unwrap_or(false)
    }

    fn is_mode(&self, mode: Mode) -> bool {
        self.read(|trace| trace.mode == mode).unwrap_or(false)
    }

    /// Returns whether the program executes one instruction.
    pub fn steps(&self) -> bool {
        self.is_mode(Mode::Step)
    }

    /// Returns whether the thread stops before its program continues.
    pub fn wants_stop(&self) -> bool {
        self.read(|trace| trace.wants_stop).unwrap_or(false)
    }

    /// Returns whether the thread is stopped for its tracer.
    pub fn is_stopped(&self) -> bool {
        self.read(|trace| trace.stop.is_some()).unwrap_or(false)
    }

    /// Returns whether the thread runs although its process is stopped.
    pub fn ignores_stop(&self) -> bool {
        self.read(|trace| trace.ignores_stop).unwrap_or(false)
    }

    /// Returns whether the thread has yet to report that its process is stopped.
    pub fn reports_stop(&self) -> bool {
        self.read(|trace| !trace.listens && !trace.ignores_stop).unwrap_or(false)
    }

    /// Follows a stop of the process, or its continuation.
    pub fn process_changes(&self, is_stopped: bool) {
        if let Some(trace) = self.trace.lock().trace.as_deref_mut() {
            trace.ignores_stop = false;
            if core::mem::take(&mut trace.listens) && !is_stopped {
                trace.wants_stop = true;
            }
        }
    }

    /// Gives the tracer access to the stopped thread.
    ///
    /// # Errors
    /// [`Errno::ESRCH`] if the thread is not stopped, or this is not its tracer.
    pub fn stopped<T>(&self, tracer: &Arc<Process>, access: impl FnOnce(&mut Stop) -> T) -> Result<T, Errno> {
        let mut slot = self.trace.lock();
        let trace = slot.of(tracer)?;
        trace.stop.as_mut().filter(|stop| !stop.is_resumed).map(access).ok_or(Errno::ESRCH)
    }

    /// Resumes the stopped thread with a signal, or without one.
    ///
    /// # Errors
    /// As [`Self::stopped`]; [`Errno::EIO`] for [`Mode::Listen`] in a stop of another kind.
    pub fn resume(&self, tracer: &Arc<Process>, mode: Mode, signal: Option<Signal>) -> Result<(), Errno> {
        let mut slot = self.trace.lock();
        let trace = slot.of(tracer)?;
        let stop = trace.stop.as_mut().filter(|stop| !stop.is_resumed).ok_or(Errno::ESRCH)?;
        if mode == Mode::Listen && stop.reason.event != PTRACE_EVENT_STOP as u8 {
            return Err(Errno::EIO);
        }
        stop.is_resumed = true;
        stop.signal = signal;
        match mode {
            Mode::Listen => trace.listens = true,
            _ if stop.reason.kind == StopKind::Group => trace.ignores_stop = true,
            _ => {}
        }
        trace.mode = if mode == Mode::Listen { Mode::Run } else { mode };
        Ok(())
    }

    /// Sets the options.
    ///
    /// # Errors
    /// As [`Self::stopped`].
    pub fn set_options(&self, tracer: &Arc<Process>, options: u32) -> Result<(), Errno> {
        let mut slot = self.trace.lock();
        let trace = slot.of(tracer)?;
        if trace.stop.is_none() {
            return Err(Errno::ESRCH);
        }
        trace.options = options;
        Ok(())
    }

    /// Makes the thread stop before its program continues. The caller interrupts it.
    ///
    /// # Errors
    /// [`Errno::ESRCH`] if this is not its tracer; [`Errno::EIO`] if it was not seized.
    pub fn request_stop(&self, tracer: &Arc<Process>) -> Result<(), Errno> {
        let mut slot = self.trace.lock();
        let trace = slot.of(tracer)?;
        if !trace.is_seized {
            return Err(Errno::EIO);
        }
        if !core::mem::take(&mut trace.listens) {
            trace.wants_stop = true;
        }
        Ok(())
    }

    /// Ends the trace. A stopped thread continues.
    fn release(&self) {
        let mut slot = self.trace.lock();
        let Some(trace) = slot.trace.as_deref_mut() else { return };
        match &mut trace.stop {
            Some(stop) => {
                stop.is_resumed = true;
                trace.is_released = true;
            }
            None => self.end(&mut slot),
        }
    }

    fn end(&self, slot: &mut TraceSlot) {
        slot.trace = None;
        self.is_traced.store(false, Ordering::Relaxed);
    }
}

impl TraceSlot {
    fn of(&mut self, tracer: &Arc<Process>) -> Result<&mut Trace, Errno> {
        let trace = self.trace.as_deref_mut().filter(|trace| !trace.is_released);
        trace.filter(|trace| trace.tracer.as_ptr() == Arc::as_ptr(tracer)).ok_or(Errno::ESRCH)
    }
}

/// Begins to trace a thread.
///
/// # Errors
/// [`Errno::EPERM`] if it is traced already; [`Errno::ESRCH`] if it, or the tracer, has ended.
pub fn attach(
    tracer: &Arc<Process>,
    process: &Arc<Process>,
    state: &Arc<ThreadState>,
    options: u32,
    is_seized: bool,
) -> Result<(), Errno> {
    // Before the thread can end as a tracee.
    let tracee = Tracee { process: process.clone(), state: state.clone(), ended: None };
    let begin = || {
        let mut slot = state.tracing.trace.lock();
        if slot.has_ended {
            return Err(Errno::ESRCH);
        }
        if slot.trace.is_some() {
            return Err(Errno::EPERM);
        }
        slot.trace = Some(Box::new(Trace {
            tracer: Arc::downgrade(tracer),
            options,
            is_seized,
            mode: Mode::Run,
            wants_stop: false,
            ignores_stop: false,
            listens: false,
            is_released: false,
            stop: None,
        }));
        state.tracing.is_traced.store(true, Ordering::SeqCst);
        Ok(())
    };
    tracer.tracees.lock().push(tracee);
    begin().inspect_err(|_| forget_latest(tracer, state))?;
    if state.tid() == process.pid {
        *process.tracer.lock() = Arc::downgrade(tracer);
    }
    if tracer.has_ended() {
        // It releases no tracees any more.
        detach(tracer, process, state);
        return Err(Errno::ESRCH);
    }
    // Calls that are served at once end.
    state.interrupt();
    Ok(())
}

/// Removes the latest entry of a thread: it may be the second one.
fn forget_latest(tracer: &Process, state: &Arc<ThreadState>) {
    let mut tracees = tracer.tracees.lock();
    if let Some(index) = tracees.iter().rposition(|tracee| Arc::ptr_eq(&tracee.state, state)) {
        tracees.swap_remove(index);
    }
}

/// Ends the trace of a thread, which continues if it is stopped.
pub fn detach(tracer: &Process, process: &Process, state: &Arc<ThreadState>) {
    forget_latest(tracer, state);
    release(process, state);
}

fn release(process: &Process, state: &Arc<ThreadState>) {
    if state.tid() == process.pid {
        *process.tracer.lock() = Weak::new();
    }
    state.tracing.release();
    state.wake_task();
    // The thread may stop with its process now.
    state.interrupt();
}

/// Releases the tracees of a process that has ended.
pub fn tracer_ended(tracer: &Process) {
    for Tracee { process, state, ended } in core::mem::take(&mut *tracer.tracees.lock()) {
        if ended.is_none() && state.tracing.has_option(PTRACE_O_EXITKILL) {
            process.end(ExitStatus::Killed { signal: Signal::SIGKILL, dumps_core: false });
        }
        release(&process, &state);
    }
}

/// Stops the thread, if it is traced, until its tracer resumes it or it has to end. `None` if no tracer has decided.
async fn stop(thread: &mut Thread, reason: Reason) -> Option<Resumed> {
    let (state, process) = (thread.state.clone(), thread.process.clone());
    let tracer = {
        let mut slot = state.tracing.trace.lock();
        let trace = slot.trace.as_deref_mut()?;
        let tracer = trace.tracer.upgrade()?;
        if trace.mode == Mode::Step {
            thread.registers().rflags &= !TRAP_FLAG;
        }
        let (user, memory) = (thread.user.take(), thread.memory.clone());
        trace.stop = Some(Stop { user, memory, reason, is_news: true, is_resumed: false, signal: None });
        // A tracer that ends sees the decision.
        if reason.kind == StopKind::Signal {
            trace.stop.as_mut()?.signal = Signal::from_number(reason.signal.into()).ok();
        }
        tracer
    };
    thread.system.notify_tracer(&tracer, state.tid(), reason.status());
    drop(tracer);
    let must_end = || match process.demand(&state) {
        Some(Demand::EndProcess(status)) => {
            let kill = ExitStatus::Killed { signal: Signal::SIGKILL, dumps_core: false };
            reason.kind != StopKind::End || status == kill
        }
        Some(Demand::EndThread) => true,
        Some(Demand::Stop) | None => false,
    };
    poll_fn(|_| {
        let slot = state.tracing.trace.lock();
        let stop = slot.trace.as_deref().and_then(|trace| trace.stop.as_ref());
        let is_over = stop.is_none_or(|stop| stop.is_resumed);
        drop(slot);
        if is_over || must_end() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    let mut slot = state.tracing.trace.lock();
    let trace = slot.trace.as_deref_mut()?;
    let stopped = trace.stop.take()?;
    let (steps, is_released) = (trace.mode == Mode::Step, trace.is_released);
    if is_released {
        state.tracing.end(&mut slot);
    }
    drop(slot);
    thread.user = stopped.user.into();
    if steps && !is_released {
        thread.registers().rflags |= TRAP_FLAG;
    }
    let signal = stopped.signal.filter(|_| stopped.is_resumed);
    Some(Resumed { signal, reason: stopped.reason })
}

/// Serves a call of a traced thread, which stops before and after it if its tracer wants that.
pub async fn call(thread: &mut Thread) {
    let mut number = thread.registers().rax;
    if thread.state.tracing.is_mode(Mode::Calls) {
        // As in Linux, for a tracer that makes the thread skip the call.
        thread.registers().rax = Errno::ENOSYS.to_result();
        let call = call_stop(thread, StopKind::CallEntry, number).await;
        number = call.unwrap_or(number);
        if ends(thread) {
            return;
        }
    }
    if number as i32 >= 0 {
        thread.serve(number).await;
    }
    if thread.exit_code.is_some() || ends(thread) {
        return;
    }
    if thread.state.tracing.is_mode(Mode::Calls) {
        show_interruption(thread);
        let call = call_stop(thread, StopKind::CallExit, number).await;
        follow_call(thread, call.unwrap_or(number));
    } else if thread.state.tracing.steps() {
        let facts = SignalFacts::Sender { pid: 0, uid: 0, value: 0 };
        thread.force(SignalInfo { signal: Signal::SIGTRAP, code: SI_USER, errno: 0, facts });
    }
}

/// Returns whether the thread has to end.
fn ends(thread: &Thread) -> bool {
    matches!(thread.process.demand(&thread.state), Some(Demand::EndProcess(_) | Demand::EndThread))
}

/// Stops before or after a call. Returns its number, which the tracer may have changed.
async fn call_stop(thread: &mut Thread, kind: StopKind, number: u64) -> Option<u64> {
    let mark = if thread.state.tracing.has_option(PTRACE_O_TRACESYSGOOD) { 0x80 } else { 0 };
    let message = match kind {
        StopKind::CallEntry => PTRACE_EVENTMSG_SYSCALL_ENTRY,
        _ => PTRACE_EVENTMSG_SYSCALL_EXIT,
    };
    let reason = Reason::new(kind, SIGTRAP as u8 | mark, 0);
    let resumed = stop(thread, Reason { call: number, message: message.into(), ..reason }).await?;
    if let Some(signal) = resumed.signal {
        let info = SignalInfo::sent(signal, SI_USER, tracer_id(thread), 0);
        // A standard signal never meets a full queue.
        let _ = thread.system.send_to_thread(&thread.process, &thread.state, info);
    }
    Some(resumed.reason.call)
}

fn tracer_id(thread: &Thread) -> u32 {
    thread.state.tracing.tracer().map_or(0, |tracer| tracer.pid)
}

/// Shows the tracer that a call was interrupted, by the code in RAX. A restart sets RAX.
pub(crate) fn show_interruption(thread: &mut Thread) -> u64 {
    let Some(InterruptedCall { number, errno }) = thread.interrupted_call else { return NO_CALL };
    thread.registers().rax = errno.to_result();
    number
}

/// Forgets that a call was interrupted if the tracer has set `orig_rax` to -1: it is not restarted.
fn follow_call(thread: &mut Thread, call: u64) {
    if call.cast_signed() < 0 {
        thread.interrupted_call = None;
    }
}

/// Stops a traced thread before it handles a signal. Returns the signal to handle.
pub async fn signal_stop(thread: &mut Thread, info: SignalInfo) -> Option<SignalInfo> {
    let call = show_interruption(thread);
    let reason = Reason::new(StopKind::Signal, info.signal.number(), 0);
    let Some(resumed) = stop(thread, Reason { call, info: Some(info), ..reason }).await else {
        return Some(info);
    };
    follow_call(thread, resumed.reason.call);
    let signal = resumed.signal?;
    let info = match resumed.reason.info {
        Some(info) if info.signal == signal => info,
        _ => SignalInfo::sent(signal, SI_USER, tracer_id(thread), 0),
    };
    let mut signals = thread.state.signals.lock();
    if signals.blocked.contains(signal) {
        let _ = signals.pending.add(info);
        return None;
    }
    Some(info)
}

/// Reports to the tracer that the process is stopped.
pub async fn group_stop(thread: &mut Thread, signal: Signal) {
    let is_seized = thread.state.tracing.read(|trace| trace.is_seized).unwrap_or(false);
    let event = if is_seized { PTRACE_EVENT_STOP } else { 0 };
    let reason = Reason::new(StopKind::Group, signal.number(), event);
    stop(thread, Reason { info: reason.info.filter(|_| is_seized), ..reason }).await;
}

/// Stops the thread, as its tracer has requested.
pub async fn requested_stop(thread: &mut Thread) {
    if let Some(trace) = thread.state.tracing.trace.lock().trace.as_deref_mut() {
        trace.wants_stop = false;
    }
    let call = show_interruption(thread);
    let reason = Reason::new(StopKind::Event, SIGTRAP as u8, PTRACE_EVENT_STOP);
    if let Some(resumed) = stop(thread, Reason { call, ..reason }).await {
        follow_call(thread, resumed.reason.call);
    }
}

/// Stops a thread that single steps, at the first instruction of a handler.
pub async fn handler_entered(thread: &mut Thread) {
    if thread.state.tracing.steps() {
        stop(thread, Reason::new(StopKind::Event, SIGTRAP as u8, 0)).await;
    }
}

/// Removes the trap flag before the registers of a thread that single steps are saved for a handler's return.
pub fn before_handler(thread: &mut Thread) {
    if thread.state.tracing.steps() {
        thread.registers().rflags &= !TRAP_FLAG;
    }
}

async fn event(thread: &mut Thread, event: u32, message: u64) {
    let reason = Reason::new(StopKind::Event, SIGTRAP as u8, event);
    stop(thread, Reason { message, ..reason }).await;
}

/// Returns the event of a `clone` for which the tracer waits; 0 for none.
pub fn clone_event(thread: &Thread, flags: u64, exit_signal: u64) -> u32 {
    let has = |flag: u32| flags & u64::from(flag) != 0;
    let (option, event) = match () {
        () if has(CLONE_UNTRACED) => return 0,
        () if has(CLONE_VFORK) => (PTRACE_O_TRACEVFORK, PTRACE_EVENT_VFORK),
        () if exit_signal == u64::from(SIGCHLD) => (PTRACE_O_TRACEFORK, PTRACE_EVENT_FORK),
        () => (PTRACE_O_TRACECLONE, PTRACE_EVENT_CLONE),
    };
    if thread.state.tracing.has_option(option) { event } else { 0 }
}

/// Traces the new thread or process of a traced thread, before it starts. It stops at its begin.
pub fn attach_child(thread: &Thread, process: &Arc<Process>, state: &Arc<ThreadState>) {
    let Some(tracer) = thread.state.tracing.tracer() else { return };
    let Some((options, is_seized)) = thread.state.tracing.read(|trace| (trace.options, trace.is_seized))
    else {
        return;
    };
    if attach(&tracer, process, state, options, is_seized).is_err() {
        return;
    }
    if is_seized {
        let _ = state.tracing.request_stop(&tracer);
    } else {
        let _ = state.signals.lock().pending.add(SignalInfo::kernel(Signal::SIGSTOP));
    }
    state.interrupt();
}

/// Stops a thread that has created another one.
pub async fn cloned(thread: &mut Thread, of: u32, child: u32) {
    if of != 0 {
        event(thread, of, child.into()).await;
    }
}

/// Stops a thread whose child of `vfork` has released it.
pub async fn vfork_done(thread: &mut Thread, child: u32) {
    if thread.state.tracing.has_option(PTRACE_O_TRACEVFORKDONE) {
        event(thread, PTRACE_EVENT_VFORK_DONE, child.into()).await;
    }
}

/// Gives the tracer of a thread that executes a program the entry of the process, as the thread is the only one now.
pub fn leads_process(thread: &Thread) {
    let (process, state) = (&thread.process, &thread.state);
    let former = core::mem::take(&mut *process.tracer.lock()).upgrade();
    if let Some(former) = former {
        former.tracees.lock().retain(|tracee| {
            !Arc::ptr_eq(&tracee.process, process)
                || tracee.state.tid() != process.pid
                || Arc::ptr_eq(&tracee.state, state)
        });
    }
    if let Some(tracer) = state.tracing.tracer() {
        *process.tracer.lock() = Arc::downgrade(&tracer);
    }
}

/// Reports the execution of a program. `former_tid` is the id of the thread before.
pub async fn executed(thread: &mut Thread, former_tid: u32) {
    if thread.state.tracing.has_option(PTRACE_O_TRACEEXEC) {
        event(thread, PTRACE_EVENT_EXEC, former_tid.into()).await;
    } else if thread.state.tracing.read(|trace| trace.is_seized) == Some(false) {
        let info = SignalInfo::sent(Signal::SIGTRAP, SI_USER, thread.process.pid, 0);
        // A standard signal never meets a full queue.
        let _ = thread.system.send_to_thread(&thread.process, &thread.state, info);
    }
}

/// Stops a thread before its end, if its tracer wants that. `status` is the end of its process, or its own.
pub async fn before_end(thread: &mut Thread, status: ExitStatus) {
    let kill = ExitStatus::Killed { signal: Signal::SIGKILL, dumps_core: false };
    if status != kill && thread.state.tracing.has_option(PTRACE_O_TRACEEXIT) {
        let reason = Reason::new(StopKind::End, SIGTRAP as u8, PTRACE_EVENT_EXIT);
        stop(thread, Reason { message: status.word().into(), ..reason }).await;
    }
}

/// Reports the end of a thread to its tracer; of a process's first thread when the process ends.
pub fn thread_ended(
    system: &System,
    process: &Arc<Process>,
    state: &Arc<ThreadState>,
    status: ExitStatus,
    is_last: bool,
) {
    let own = {
        let mut slot = state.tracing.trace.lock();
        slot.has_ended = true;
        slot.trace.as_deref().and_then(|trace| trace.tracer.upgrade())
    };
    if let Some(tracer) = own.filter(|_| state.tid() != process.pid) {
        report_end(system, &tracer, |tracee| Arc::ptr_eq(&tracee.state, state), status);
    }
    let leaders = process.tracer.lock().upgrade().filter(|_| is_last);
    let Some(tracer) = leaders else { return };
    let leads = |tracee: &Tracee| Arc::ptr_eq(&tracee.process, process) && tracee.state.tid() == process.pid;
    if system.family.lock().parent(process.pid) == tracer.pid {
        // It learns of the end as the parent.
        tracer.tracees.lock().retain(|tracee| !leads(tracee));
    } else {
        report_end(system, &tracer, leads, status);
    }
}

fn report_end(system: &System, tracer: &Arc<Process>, is_it: impl Fn(&Tracee) -> bool, status: ExitStatus) {
    let tid = {
        let mut tracees = tracer.tracees.lock();
        let Some(tracee) = tracees.iter_mut().find(|tracee| is_it(tracee)) else { return };
        let tid = tracee.state.tid();
        tracee.ended = Some((tid, status));
        tid
    };
    system.notify_tracer(tracer, tid, status);
}

/// Finds a tracee of a process that has stopped or ended. `None` without such a tracee; `Some(None)` if none has yet.
pub fn wait(
    system: &System,
    tracer: &Process,
    selector: ChildSelector,
    options: WaitOptions,
) -> Option<Option<WaitedChild<Arc<Process>>>> {
    let mut tracees = tracer.tracees.lock();
    let mut has_tracee = false;
    for index in 0..tracees.len() {
        let Tracee { process, state, ended } = &tracees[index];
        let tid = state.tid();
        let is_selected = match selector {
            ChildSelector::Any => true,
            ChildSelector::Process(wanted) => wanted == tid,
            ChildSelector::Group(group) => system.family.lock().group(process.pid) == Ok(group),
        };
        if !is_selected {
            continue;
        }
        has_tracee = true;
        let found = |pid, status| WaitedChild {
            pid,
            process: process.clone(),
            status,
            time: ProcessorTime::default(),
        };
        if let Some((tid, status)) = *ended {
            if options.exited {
                let found = found(tid, status);
                if !options.keeps {
                    tracees.swap_remove(index);
                }
                return Some(Some(found));
            }
            continue;
        }
        let mut slot = state.tracing.trace.lock();
        let stop = slot.trace.as_deref_mut().and_then(|trace| trace.stop.as_mut());
        if let Some(stop) = stop.filter(|stop| stop.is_news && !stop.is_resumed) {
            stop.is_news = options.keeps;
            return Some(Some(found(tid, stop.reason.status())));
        }
    }
    has_tracee.then_some(None)
}

impl fmt::Debug for Tracing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tracing({})", self.is_traced())
    }
}

impl fmt::Debug for Tracee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tracee({})", self.state.tid())
    }
}
