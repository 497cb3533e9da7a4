//! A thread: a task that runs the program and serves its traps.

use crate::credentials::Credentials;
use crate::exit_status::ExitStatus;
use crate::family::ProcessorTime;
use crate::process::{Demand, Process};
use crate::signals::{FaultFacts, Signal, SignalFacts, SignalInfo};
use crate::system::System;
use crate::thread_state::ThreadState;
use crate::timers::processor;
use crate::{Errno, calls, delivery, exit};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::Poll;
use isola_abi::user_context::UserRegisters;
use isola_linux_files::{self as files, AlarmKey, Caller, CallerIds, DescriptorTable, View};
use isola_linux_memory::{FaultError, ProcessMemory};
use isola_user_mode::{Trap, UserThread};

/// A thread of a process. Only its own task has it.
pub struct Thread {
    /// The processes of the cell.
    pub system: Arc<System>,
    /// Its process.
    pub process: Arc<Process>,
    /// The part that others use.
    pub state: Arc<ThreadState>,
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
    pub user: Box<dyn UserThread>,
    /// The word that is cleared at the thread's end, and whose waiters are woken; 0 for none.
    pub clear_tid: u64,
    /// The list of its robust futexes; 0 for none.
    pub robust_list: u64,
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
    /// It ends.
    End,
}

/// The length of the instruction SYSCALL, in bytes.
pub const SYSCALL_LEN: u64 = 2;

impl Thread {
    /// Runs the thread to its end.
    pub async fn run(mut self) {
        let state = self.state.clone();
        poll_fn(|context| {
            state.set_waker(context.waker());
            Poll::Ready(())
        })
        .await;
        self.attend_to_processor_timers();
        loop {
            if self.state.has_attention() {
                if self.process.timers.has_processor_timers() {
                    processor::check(&mut self);
                }
                if self.attend().await == Flow::End {
                    break;
                }
            }
            let before = self.system.environment.cycles().0;
            let trap = self.user.run();
            let after = self.system.environment.cycles().0;
            add(&self.state.user_cycles, after.wrapping_sub(before));
            match trap {
                Trap::SystemCall => self.call().await,
                Trap::PageFault { address, access } => {
                    if let Err(error) = self.memory.fault(address, access).await {
                        self.fault(error, address);
                    }
                }
                Trap::Exception { vector, error_code } => self.exception(vector, error_code),
                Trap::Interrupt => {
                    self.attend_to_processor_timers();
                    give_way().await;
                }
            }
            add(&self.state.system_cycles, self.system.environment.cycles().0.wrapping_sub(after));
        }
        exit::end_thread(self).await;
    }

    /// Makes the thread check timers by processor time before its program continues. Calls do not: an alarm interrupts the
    /// program when a timer may have expired.
    fn attend_to_processor_timers(&self) {
        if self.process.timers.has_processor_timers() {
            self.state.interrupt();
        }
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
        self.credentials = credentials;
    }

    /// Serves a system call.
    async fn call(&mut self) {
        let UserRegisters { rax: number, rdi, rsi, rdx, r10, r8, r9, .. } = *self.registers();
        let result = calls::serve(self, number, [rdi, rsi, rdx, r10, r8, r9]).await;
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
            && (self.process.demand(&self.state).is_some() || delivery::has_effect(self))
    }

    /// Handles the demands of others: the thread's end, a stop, signals.
    async fn attend(&mut self) -> Flow {
        loop {
            // Before the checks: later demands interrupt the thread again.
            self.state.take_attention();
            if self.exit_code.is_some() {
                return Flow::End;
            }
            match self.process.demand(&self.state) {
                Some(Demand::EndProcess(_) | Demand::EndThread) => return Flow::End,
                Some(Demand::Stop) => self.process.continued().await,
                None => match delivery::deliver(self).await {
                    delivery::Delivered::Nothing => return Flow::Continue,
                    delivery::Delivered::Handler | delivery::Delivered::Other => {}
                },
            }
        }
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
            FaultError::NoContents => (Signal::SIGBUS, BUS_ADRERR),
            FaultError::OutOfMemory => {
                self.system
                    .environment
                    .report(&alloc::format!("linux: out of memory: process {} is killed", self.process.pid));
                self.process.end(ExitStatus::Killed { signal: Signal::SIGKILL, dumps_core: false });
                return;
            }
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
        thread_time(&self.state, self.system.environment.cycles().1)
    }
}

/// Returns the processor time of a thread; `cycles` is the number of cycles in a second.
pub fn thread_time(state: &ThreadState, cycles: u64) -> ProcessorTime {
    let ns = |counter: &AtomicU64| {
        (u128::from(counter.load(Ordering::Relaxed)) * 1_000_000_000 / u128::from(cycles.max(1))) as u64
    };
    ProcessorTime { user_ns: ns(&state.user_cycles), system_ns: ns(&state.system_cycles) }
}

/// Adds to a counter of which this thread is the only writer.
fn add(counter: &AtomicU64, cycles: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(cycles), Ordering::Relaxed);
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
