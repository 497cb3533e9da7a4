//! The stops of a tracee, in its own task: around calls, before signals, at events, and before its end.

use super::{Mode, NO_CALL, Reason, Stop, StopKind};
use crate::Errno;
use crate::exit_status::ExitStatus;
use crate::process::Demand;
use crate::signals::{SI_USER, Signal, SignalFacts, SignalInfo};
use crate::thread::{InterruptedCall, Thread};
use core::future::poll_fn;
use core::task::Poll;
use isola_linux_abi::numbers::{CLONE_UNTRACED, CLONE_VFORK, SIGCHLD, SIGTRAP};
use isola_linux_abi::ptrace::*;

/// The trap flag: the program stops after an instruction.
const TRAP_FLAG: u64 = 1 << 8;

/// The tracer's decision about a stopped tracee.
struct Resumed {
    signal: Option<Signal>,
    reason: Reason,
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
