//! Threads that another process traces (ptrace(2)): their stops, and the tracer's access to them.
//!
//! ```text
//!   tracee's task:  program ── stop: registers to its Tracing ── waits ─────────── takes them back ── program
//!   tracer's calls:                        wait4 reports it ── reads, changes ── resume: wakes the task
//! ```
//!
//! A tracee stops in its own task (`stops`), at the points where Linux does: before it handles a signal, before and after a call,
//! after `clone` and `execve`, before its end. While it is stopped, its registers are in its [`Tracing`], where the tracer's calls
//! change them. All threads of the tracer may make these calls, not only the one that has attached.
//!
//! A traced thread serves no call at once. The tracer's end resumes its tracees.

pub mod registers;
mod stops;
mod tracees;

pub(crate) use self::stops::show_interruption;
pub use self::stops::{
    before_end, before_handler, call, clone_event, cloned, executed, group_stop, handler_entered,
    requested_stop, signal_stop, vfork_done,
};
pub use self::tracees::{attach, attach_child, detach, leads_process, thread_ended, tracer_ended, wait};

use crate::Errno;
use crate::exit_status::ExitStatus;
use crate::process::Process;
use crate::signals::{Signal, SignalFacts, SignalInfo};
use crate::thread_state::ThreadState;
use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use isola_linux_abi::ptrace::PTRACE_EVENT_STOP;
use isola_linux_memory::ProcessMemory;
use isola_user_mode::UserThread;
use spin::Mutex;

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
