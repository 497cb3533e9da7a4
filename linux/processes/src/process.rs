//! A process: the state that its threads share.

use crate::asynchronous::AioContexts;
use crate::control::Control;
use crate::core_dump::DumpedThread;
use crate::credentials::{Credentials, Ids};
use crate::exit_status::ExitStatus;
use crate::family::ProcessorTime;
use crate::limits::Limits;
use crate::quick_calls::Answer;
use crate::signals::Signal;
use crate::signals::SignalActions;
use crate::thread_state::{ProcessSignals, ThreadState};
use crate::timers::ProcessTimers;
use crate::tracing::Tracee;
use crate::wait_queue::WaitQueue;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use isola_linux_files::{DescriptorTable, Events, LinkTarget, Pollee, View};
use isola_linux_memory::ProcessMemory;
use spin::Mutex;

/// A process. Its relations to others are in [`Family`](crate::family::Family).
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// The signals sent to it, and its actions.
    pub signals: Mutex<ProcessSignals>,
    /// The observers of its pending signals (`signalfd`).
    pub signal_events: Pollee,
    /// The observers of its end (`pidfd`).
    pub end_events: Pollee,
    /// The signal that it gets when its parent ends; 0 for none.
    pub parent_death_signal: AtomicU8,
    /// `PR_SET_DUMPABLE`.
    pub is_dumpable: AtomicBool,
    /// Whether its programs have the same addresses as ever (`ADDR_NO_RANDOMIZE`).
    pub has_fixed_addresses: AtomicBool,
    /// The commands for which `membarrier` is registered.
    pub barriers: AtomicU32,
    has_ended: AtomicBool,
    /// Its timers.
    pub timers: ProcessTimers,
    /// Its resource limits.
    pub limits: Mutex<Limits>,
    /// Its group, account and priority.
    pub control: Control,
    /// The program that it executes.
    pub program: Mutex<ProgramFacts>,
    /// The user ids of the thread that changed them last, for checks of signals.
    pub user: Mutex<Ids>,
    /// All of that thread's credentials, for `/proc`.
    pub credentials: Mutex<Option<Credentials>>,
    /// The open files of its first thread, for `/proc`.
    pub files: Mutex<Option<Weak<DescriptorTable>>>,
    /// The root and working directory of its first thread, for `/proc`.
    pub view: Mutex<Option<Weak<View>>>,
    /// Its contexts of Linux AIO.
    pub aio: AioContexts,
    /// The threads that it traces.
    pub tracees: Mutex<Vec<Tracee>>,
    /// The process that traces its first thread.
    pub tracer: Mutex<Weak<Self>>,
    /// When it was created, in nanoseconds of the monotonic clock.
    pub start_ns: u64,
    /// Tasks that wait for a change of a child, of the process's own state, or of its threads.
    pub changes: WaitQueue,
    state: Mutex<State>,
}

/// The program of a process, for `/proc/PID`.
#[derive(Clone, Default)]
pub struct ProgramFacts {
    /// Its file, to which `/proc/PID/exe` leads: the location, or the open file if it has none.
    pub executable: Option<LinkTarget>,
    /// The name that the first thread had at the process's end.
    pub name: Vec<u8>,
    /// The addresses of its arguments: of the first byte and behind the last.
    pub arguments: (u64, u64),
    /// The same of its environment.
    pub environment: (u64, u64),
    /// The same of its auxiliary vector.
    pub auxiliary: (u64, u64),
    /// Its memory; none after its end.
    pub memory: Option<Arc<ProcessMemory>>,
}

#[derive(Debug, Default)]
struct State {
    /// Its threads that have not ended.
    threads: Vec<Arc<ThreadState>>,
    /// The core file that is being written.
    dump: Option<Dump>,
    /// How the process ends, once that is decided.
    ending: Option<ExitStatus>,
    /// The thread that executes a new program, for which all others end.
    executing: Option<u32>,
    /// The signal that has stopped it.
    stop: Option<Signal>,
    /// Whether a group of the process is frozen.
    is_frozen: bool,
    /// The processor time of ended threads.
    ended_time: ProcessorTime,
    /// Whether the memory is no longer that of the parent, which waits for that after `vfork`.
    has_released_parent: bool,
}

/// The core file of a process while it is written.
#[derive(Debug, Default)]
struct Dump {
    /// The threads that have stopped for it.
    threads: Vec<DumpedThread>,
    /// Whether the process was killed meanwhile.
    is_cancelled: bool,
}

/// A demand that a thread meets before its program continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// End, as its process ends.
    EndProcess(ExitStatus),
    /// End, as another thread executes a new program.
    EndThread,
    /// Wait until the process continues.
    Stop,
}

impl Process {
    /// Creates a process with its first thread.
    pub fn new(
        pid: u32,
        first: Arc<ThreadState>,
        actions: SignalActions,
        limits: Limits,
        control: Control,
        start_ns: u64,
    ) -> Arc<Self> {
        let state = State { threads: alloc::vec![first], ..State::default() };
        let timers = ProcessTimers::default();
        timers.set_processor_limit(limits.processor_time());
        Arc::new(Self {
            pid,
            signals: Mutex::new(ProcessSignals { actions, ..ProcessSignals::default() }),
            signal_events: Pollee::new(),
            end_events: Pollee::new(),
            parent_death_signal: AtomicU8::new(0),
            is_dumpable: AtomicBool::new(true),
            has_fixed_addresses: AtomicBool::new(false),
            barriers: AtomicU32::new(0),
            has_ended: AtomicBool::new(false),
            timers,
            limits: Mutex::new(limits),
            control,
            program: Mutex::default(),
            user: Mutex::default(),
            credentials: Mutex::default(),
            files: Mutex::default(),
            view: Mutex::default(),
            aio: AioContexts::default(),
            tracees: Mutex::default(),
            tracer: Mutex::new(Weak::new()),
            start_ns,
            changes: WaitQueue::default(),
            state: Mutex::new(state),
        })
    }

    /// Records that it has ended.
    pub fn set_ended(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        self.end_events.notify(Events::IN);
    }

    /// Returns whether it has ended, also if its parent has not waited for it.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// Records the open files and directories of its first thread.
    pub fn show(&self, files: &Arc<DescriptorTable>, view: &Arc<View>) {
        *self.files.lock() = Some(Arc::downgrade(files));
        *self.view.lock() = Some(Arc::downgrade(view));
    }

    /// Returns its threads that have not ended, in the order of their creation.
    pub fn threads(&self) -> Vec<Arc<ThreadState>> {
        self.state.lock().threads.clone()
    }

    /// Sets the id that `getppid` returns to its threads. To be called with the lock of the family.
    pub fn set_parent(&self, parent: u32) {
        self.state.lock().threads.iter().for_each(|thread| thread.set_answer(Answer::Parent, parent));
    }

    /// Returns the number of its threads.
    pub fn thread_count(&self) -> usize {
        self.state.lock().threads.len()
    }

    /// Returns a thread by its id.
    pub fn thread(&self, tid: u32) -> Option<Arc<ThreadState>> {
        self.state.lock().threads.iter().find(|thread| thread.tid() == tid).cloned()
    }

    /// Adds a thread. Returns `false` if the process is ending or executes a new program: then the thread must not start.
    pub fn add_thread(&self, thread: Arc<ThreadState>) -> bool {
        let mut state = self.state.lock();
        let may_start = state.ending.is_none() && state.executing.is_none();
        if may_start {
            state.threads.push(thread);
        }
        may_start
    }

    /// Removes an ended thread. Returns whether it was the last.
    pub fn remove_thread(&self, thread: &Arc<ThreadState>) -> bool {
        let is_last = {
            let mut state = self.state.lock();
            state.threads.retain(|other| !Arc::ptr_eq(other, thread));
            state.threads.is_empty()
        };
        self.changes.wake_all();
        is_last
    }

    /// Decides how the process ends, and makes all threads end. The first decision counts.
    pub fn end(&self, status: ExitStatus) {
        let threads = {
            let mut state = self.state.lock();
            state.ending.get_or_insert(status);
            state.stop = None;
            if let (Some(dump), ExitStatus::Killed { signal: Signal::SIGKILL, .. }) =
                (&mut state.dump, status)
            {
                dump.is_cancelled = true;
            }
            state.threads.clone()
        };
        threads.iter().for_each(|thread| thread.interrupt());
        self.changes.wake_all();
    }

    /// Decides that the process ends when this thread has written a core file, and makes the other threads stop. Returns `false`
    /// if the process ends already, or executes a new program.
    pub fn begin_dump(&self, thread: &ThreadState, status: ExitStatus) -> bool {
        let threads = {
            let mut state = self.state.lock();
            if state.ending.is_some() || state.executing.is_some() {
                return false;
            }
            state.ending = Some(status);
            state.stop = None;
            state.dump = Some(Dump::default());
            state.threads.clone()
        };
        threads.iter().filter(|other| other.tid() != thread.tid()).for_each(|other| other.interrupt());
        self.changes.wake_all();
        true
    }

    /// Returns whether a core file of the process is being written.
    pub fn is_dumped(&self) -> bool {
        self.state.lock().dump.is_some()
    }

    /// Returns whether the process was killed while its core file is written.
    pub fn is_dump_cancelled(&self) -> bool {
        self.state.lock().dump.as_ref().is_some_and(|dump| dump.is_cancelled)
    }

    /// Adds a thread that has stopped for the core file.
    pub fn add_dumped(&self, thread: DumpedThread) {
        if let Some(dump) = &mut self.state.lock().dump {
            dump.threads.push(thread);
        }
        self.changes.wake_all();
    }

    /// Waits until all other threads have stopped for the core file, or have ended. Returns them.
    pub async fn all_dumped(&self, thread: &ThreadState) -> Vec<DumpedThread> {
        let all = || {
            let mut state = self.state.lock();
            let State { threads, dump: Some(dump), .. } = &mut *state else { return Some(Vec::new()) };
            let has_stopped = |other: &ThreadState| dump.threads.iter().any(|one| one.tid() == other.tid());
            let is_all = threads.iter().all(|other| other.tid() == thread.tid() || has_stopped(other));
            is_all.then(|| core::mem::take(&mut dump.threads))
        };
        self.changes.wait_until(all).await
    }

    /// Waits for the end of the dump.
    pub async fn dump_ended(&self) {
        self.changes.wait_until(|| (!self.is_dumped()).then_some(())).await;
    }

    /// Ends the dump: the process ends with this status.
    pub fn end_dump(&self, status: ExitStatus) {
        {
            let mut state = self.state.lock();
            state.ending = Some(status);
            state.dump = None;
        }
        self.changes.wake_all();
    }

    /// Returns whether a core file of the process may be written, and others may inspect it (`PR_SET_DUMPABLE`).
    pub fn is_dumpable(&self) -> bool {
        self.is_dumpable.load(Ordering::Relaxed)
    }

    /// Returns how the process ends, if that is decided.
    pub fn ending(&self) -> Option<ExitStatus> {
        self.state.lock().ending
    }

    /// Stops the process by a signal, or lets it continue.
    pub fn set_stopped(&self, by: Option<Signal>) {
        let threads = {
            let mut state = self.state.lock();
            state.stop = by.filter(|_| state.ending.is_none());
            state.threads.clone()
        };
        for thread in &threads {
            thread.tracing.process_changes(by.is_some());
            if by.is_some() || thread.tracing.wants_stop() {
                thread.interrupt();
            }
        }
        self.changes.wake_all();
    }

    /// Returns the signal that has stopped the process.
    pub fn stopped_by(&self) -> Option<Signal> {
        self.state.lock().stop
    }

    /// Freezes the process, or lets it continue. Its parent does not learn of it.
    pub fn set_frozen(&self, is_frozen: bool) {
        let (changes, threads) = {
            let mut state = self.state.lock();
            (core::mem::replace(&mut state.is_frozen, is_frozen) != is_frozen, state.threads.clone())
        };
        if changes && is_frozen {
            threads.iter().for_each(|thread| thread.interrupt());
        }
        if changes {
            self.changes.wake_all();
        }
    }

    /// Returns the demand that a thread meets before its program continues.
    pub fn demand(&self, thread: &ThreadState) -> Option<Demand> {
        let state = self.state.lock();
        match (state.ending, state.executing) {
            (Some(status), _) => Some(Demand::EndProcess(status)),
            (None, Some(tid)) if tid != thread.tid() => Some(Demand::EndThread),
            _ if state.is_frozen || (state.stop.is_some() && !thread.tracing.ignores_stop()) => {
                Some(Demand::Stop)
            }
            _ => None,
        }
    }

    /// Waits until a stopped or frozen process continues or ends, or its stop is to be reported to the thread's tracer.
    pub async fn continued(&self, thread: &ThreadState) {
        let continues = || {
            let is_stopped = {
                let state = self.state.lock();
                state.ending.is_none() && (state.stop.is_some() || state.is_frozen)
            };
            (!is_stopped || thread.tracing.reports_stop() || thread.tracing.wants_stop()).then_some(())
        };
        self.changes.wait_until(continues).await;
    }

    /// Ends all threads but that one, which executes a new program. Returns `false` if another does so already, or the
    /// process is ending.
    pub async fn end_other_threads(&self, thread: &ThreadState) -> bool {
        let others = {
            let mut state = self.state.lock();
            if state.ending.is_some() || state.executing.is_some() {
                return false;
            }
            state.executing = Some(thread.tid());
            state.threads.clone()
        };
        others.iter().filter(|other| other.tid() != thread.tid()).for_each(|other| other.interrupt());
        let is_alone = || {
            let state = self.state.lock();
            (state.threads.len() == 1 || state.ending.is_some()).then_some(state.ending.is_none())
        };
        let is_alone = self.changes.wait_until(is_alone).await;
        self.state.lock().executing = None;
        is_alone
    }

    /// Adds the processor time of an ended thread.
    pub fn add_ended_time(&self, time: ProcessorTime) {
        let mut state = self.state.lock();
        state.ended_time = state.ended_time.plus(time);
    }

    /// Returns the processor time of the threads that have ended.
    pub fn ended_time(&self) -> ProcessorTime {
        self.state.lock().ended_time
    }

    /// Lets the parent continue that waits after `vfork`.
    pub fn release_parent(&self) {
        self.state.lock().has_released_parent = true;
        self.changes.wake_all();
    }

    /// Waits until the process has memory of its own or has ended, for its parent after `vfork`.
    pub async fn parent_released(&self) {
        self.changes.wait_until(|| self.state.lock().has_released_parent.then_some(())).await;
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Process({})", self.pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signals::SignalSet;
    use core::future::Future;
    use core::pin::pin;
    use core::task::{Context, Poll, Waker};

    fn thread(tid: u32) -> Arc<ThreadState> {
        Arc::new(ThreadState::new(tid, SignalSet::EMPTY, Vec::new()))
    }

    fn process() -> (Arc<Process>, Arc<ThreadState>) {
        let first = thread(5);
        let environment = crate::test_environment::environment();
        let group =
            crate::cgroup::Group::root(&environment, Arc::new(isola_linux_memory::FrameBudget::new(1)));
        let control = Control::new(&environment, group, 5, b"test");
        (Process::new(5, first.clone(), SignalActions::default(), Limits::default(), control, 0), first)
    }

    #[test]
    fn the_first_decision_about_the_end_counts() {
        let (process, first) = process();
        assert_eq!(process.demand(&first), None);
        process.set_stopped(Some(Signal::SIGSTOP));
        assert_eq!(process.demand(&first), Some(Demand::Stop));
        let killed = ExitStatus::Killed { signal: Signal::SIGKILL, dumps_core: false };
        process.end(killed);
        process.end(ExitStatus::Exited(0));
        process.set_stopped(Some(Signal::SIGSTOP));
        assert_eq!(process.demand(&first), Some(Demand::EndProcess(killed)));
        assert!(first.take_attention() && !process.add_thread(thread(6)));
        assert!(process.remove_thread(&first));
    }

    #[test]
    fn a_new_program_starts_when_the_other_threads_have_ended() {
        let (process, first) = process();
        let second = thread(6);
        assert!(process.add_thread(second.clone()));
        let mut context = Context::from_waker(Waker::noop());
        let mut alone = pin!(process.end_other_threads(&second));
        assert!(alone.as_mut().poll(&mut context).is_pending());
        assert_eq!(process.demand(&first), Some(Demand::EndThread));
        assert_eq!(process.demand(&second), None);
        assert!(!process.add_thread(thread(7)));
        assert_eq!(pin!(process.end_other_threads(&first)).poll(&mut context), Poll::Ready(false));
        assert!(!process.remove_thread(&first));
        assert_eq!(alone.poll(&mut context), Poll::Ready(true));
        assert!(process.add_thread(thread(7)));
    }
}
