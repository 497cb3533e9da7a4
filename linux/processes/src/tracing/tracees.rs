//! The tracees of a process: attach and detach, the end of tracer or tracee, and the waits of the tracer.

use super::{Mode, Trace, Tracee};
use crate::Errno;
use crate::exit_status::ExitStatus;
use crate::family::{ChildSelector, ProcessorTime, WaitOptions, WaitedChild};
use crate::process::Process;
use crate::signals::{Signal, SignalInfo};
use crate::system::System;
use crate::thread::Thread;
use crate::thread_state::ThreadState;
use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::Ordering;
use isola_linux_abi::ptrace::PTRACE_O_EXITKILL;

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
