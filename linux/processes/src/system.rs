//! The processes of a cell, and their shared state.

use crate::Errno;
use crate::cgroup::Group;
use crate::core_dump::CorePattern;
use crate::core_loads::CoreLoads;
use crate::direct_switch::Handoffs;
use crate::environment::Environment;
use crate::exit_status::ExitStatus;
use crate::family::{ChildNotice, Family, ProcessorTime};
use crate::futex::Futexes;
use crate::ipc::Ipc;
use crate::job_control::JobControl;
use crate::missing::MissingCalls;
use crate::process::Process;
use crate::signals::{Handler, SI_USER, Signal, SignalFacts, SignalInfo, SignalSet};
use crate::thread_state::ThreadState;
use crate::timers::Alarms;
use crate::tracing;
use crate::vdso::Vdso;
use crate::wait_queue::WaitQueue;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use isola_linux_abi::net::{AF_NETLINK, AF_UNIX};
use isola_linux_abi::numbers::SA_NOCLDSTOP;
use isola_linux_abi::numbers::SA_NOCLDWAIT;
use isola_linux_files::{Events, MemoryFiles, Namespace, Terminals, TmpFsOptions};
use isola_linux_memory::{BoxFuture, MemoryCharge};
use isola_linux_sockets::{Families, NetlinkFamily, SocketClock, UnixFamily};
use isola_user_mode::UserMode;
use spin::Mutex;

/// The processes of a cell, and their shared state.
pub struct System {
    /// The platform, which runs programs.
    pub user_mode: &'static dyn UserMode,
    /// The cell.
    pub environment: Arc<dyn Environment>,
    /// The account of the memory of all processes.
    pub memory_charge: Arc<dyn MemoryCharge>,
    /// The group of all processes: the root of the cgroup file system.
    pub root_group: Arc<Group>,
    /// The cores that execute threads.
    pub loads: CoreLoads,
    /// The threads with which cores continue when the present ones wait.
    pub handoffs: Handoffs,
    /// Woken when a process has ended, so that threads without memory try again.
    pub freed_memory: WaitQueue,
    /// When the system was created, in nanoseconds of the monotonic clock.
    pub started_ns: u64,
    /// The number of processes that have ended.
    pub ends: AtomicU64,
    /// The longest idle time that `/proc/uptime` has shown, in nanoseconds.
    pub(crate) shown_idle_ns: AtomicU64,
    /// The number of processes and threads that were created.
    pub created: AtomicU64,
    /// The mounts.
    pub namespace: Arc<Namespace>,
    /// The files of `memfd_create`.
    pub memory_files: MemoryFiles,
    /// The address families of sockets. The cell registers those of its networks.
    pub sockets: Arc<Families>,
    /// The unix sockets among them.
    pub unix_sockets: Arc<UnixFamily>,
    /// The terminals.
    pub terminals: Arc<Terminals>,
    /// The relations of processes.
    pub family: Mutex<Family<Arc<Process>>>,
    /// The threads that wait for words of memory.
    pub futexes: Futexes,
    /// The objects of System V inter-process communication.
    pub ipc: Ipc,
    /// The pages with which programs read clocks.
    pub(crate) vdso: Vdso,
    /// The alarms of timers.
    pub alarms: Arc<Alarms>,
    /// Calls that programs made and that do not exist.
    pub missing: MissingCalls,
    /// The host name.
    pub host_name: Mutex<String>,
    /// The names of core files.
    pub core_pattern: CorePattern,
    /// Whether calls are printed.
    pub traces: bool,
    /// How the first process has ended.
    ended: Mutex<Option<ExitStatus>>,
}

impl System {
    /// Creates a system without processes.
    pub fn new(
        user_mode: &'static dyn UserMode,
        environment: Arc<dyn Environment>,
        memory_charge: Arc<dyn MemoryCharge>,
        namespace: Arc<Namespace>,
        traces: bool,
    ) -> Arc<Self> {
        let started_ns = environment.monotonic_ns();
        let root_group = Group::root(&environment, memory_charge);
        let memory_files = MemoryFiles::new(TmpFsOptions::of_len(environment.memory().0 / 2));
        let host_name = Mutex::new(environment.host_name());
        let ipc = Ipc::new(environment.memory().0);
        let vdso = Vdso::new(&environment.clock_page());
        let alarms = Alarms::new(environment.clone());
        let sockets = Families::new(Arc::new(Clock(environment.clone())));
        let unix_sockets = UnixFamily::new();
        sockets.register(AF_UNIX, unix_sockets.clone());
        sockets.register(AF_NETLINK, NetlinkFamily::new(&sockets));
        let system = Arc::new(Self {
            user_mode,
            environment,
            memory_charge: root_group.charge(),
            root_group,
            loads: CoreLoads::default(),
            handoffs: Handoffs::new(),
            freed_memory: WaitQueue::default(),
            started_ns,
            shown_idle_ns: AtomicU64::new(0),
            ends: AtomicU64::new(0),
            created: AtomicU64::new(0),
            namespace,
            memory_files,
            sockets,
            unix_sockets,
            terminals: Terminals::new(),
            family: Mutex::default(),
            futexes: Futexes::default(),
            ipc,
            vdso,
            alarms,
            missing: MissingCalls::default(),
            host_name,
            core_pattern: CorePattern::default(),
            traces,
            ended: Mutex::new(None),
        });
        system.terminals.set_processes(Arc::new(JobControl(Arc::downgrade(&system))));
        system
    }

    /// Returns 16 random bytes.
    pub fn random_bytes(&self) -> [u8; 16] {
        let words = [self.environment.random(), self.environment.random()];
        core::array::from_fn(|index| words[index / 8].to_le_bytes()[index % 8])
    }

    /// Sends a signal to a process: to one of its threads that does not block it, or to the process as a whole until one
    /// unblocks it.
    ///
    /// # Errors
    /// [`Errno::EAGAIN`] if the queue of real-time signals is full.
    pub fn send(&self, process: &Arc<Process>, info: SignalInfo) -> Result<(), Errno> {
        self.send_to(process, None, info)
    }

    /// Sends a signal to a thread.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_to_thread(
        &self,
        process: &Arc<Process>,
        thread: &Arc<ThreadState>,
        info: SignalInfo,
    ) -> Result<(), Errno> {
        self.send_to(process, Some(thread), info)
    }

    fn send_to(
        &self,
        process: &Arc<Process>,
        thread: Option<&Arc<ThreadState>>,
        info: SignalInfo,
    ) -> Result<(), Errno> {
        let signal = info.signal;
        let threads = process.threads();
        match signal {
            Signal::SIGKILL => {
                process.end(ExitStatus::Killed { signal, dumps_core: false });
                return Ok(());
            }
            Signal::SIGCONT => {
                discard(process, &threads, SignalSet::STOPS);
                self.continue_process(process);
            }
            _ if SignalSet::STOPS.contains(signal) => {
                discard(process, &threads, SignalSet::of(Signal::SIGCONT));
            }
            _ => {}
        }
        let mut shared = process.signals.lock();
        let is_ignored = shared.actions.ignores(signal);
        let accepts = |thread: &&Arc<ThreadState>| thread.signals.lock().accepts(signal);
        match thread {
            Some(thread) => {
                let mut signals = thread.signals.lock();
                // A blocked signal stays pending although it is ignored: the action may change before it is unblocked.
                let is_seen = signals.awaited.contains(signal) || thread.tracing.is_traced();
                if is_ignored && signals.accepts(signal) && !is_seen {
                    return Ok(());
                }
                signals.pending.add(info)?;
                drop(signals);
                drop(shared);
                thread.interrupt();
            }
            None => {
                let taker = threads.iter().find(accepts).cloned();
                let is_seen = taker.as_ref().is_some_and(|thread| {
                    thread.signals.lock().awaited.contains(signal) || thread.tracing.is_traced()
                });
                if is_ignored && taker.is_some() && !is_seen {
                    return Ok(());
                }
                shared.pending.add(info)?;
                drop(shared);
                taker.iter().for_each(|thread| thread.interrupt());
            }
        }
        process.signal_events.notify(Events::IN);
        Ok(())
    }

    /// Stops a process because of a signal, and notifies its parent.
    pub fn stop_process(&self, process: &Arc<Process>, signal: Signal) {
        process.set_stopped(Some(signal));
        let status = ExitStatus::Stopped(signal);
        let tracer = process.tracer.lock().upgrade().map(|tracer| tracer.pid);
        let notice = {
            let mut family = self.family.lock();
            let notice = family.stop_or_continue(process.pid, status);
            if tracer == Some(family.parent(process.pid)) {
                // It waits for the stop as the tracer.
                family.take_report(process.pid);
            }
            notice
        };
        notice.into_iter().for_each(|notice| self.notify(notice, ProcessorTime::default()));
    }

    /// Returns whether a stop by this signal is void: of a terminal, for a group that no process could continue.
    pub fn ignores_stop(&self, process: &Process, signal: Signal) -> bool {
        let family = self.family.lock();
        signal != Signal::SIGSTOP && family.group(process.pid).is_ok_and(|group| family.is_orphaned(group))
    }

    fn continue_process(&self, process: &Arc<Process>) {
        process.set_stopped(None);
        let notice = self.family.lock().stop_or_continue(process.pid, ExitStatus::Continued);
        notice.into_iter().for_each(|notice| self.notify(notice, ProcessorTime::default()));
    }

    /// Records that all threads of a process have ended.
    pub fn process_ended(&self, process: &Arc<Process>, status: ExitStatus, time: ProcessorTime) {
        process.program.lock().memory = None;
        process.control.group().add_ended_time(time);
        process.control.close();
        process.aio.clear();
        process.timers.end(self, process);
        self.ipc.semaphores.end_process(process.pid, self.environment.unix_ns() / 1_000_000_000);
        self.leader_ends(process.pid);
        let (orphans, notices, orphaned) = {
            let mut family = self.family.lock();
            let orphans = family.children(process.pid);
            let mut groups = family.groups_beside(process.pid);
            groups.retain(|group| !family.is_orphaned(*group));
            let notices = family.end(process.pid, status, time);
            orphans.iter().for_each(|orphan| orphan.set_parent(family.parent(orphan.pid)));
            groups.retain(|group| family.is_orphaned(*group) && family.has_stopped(*group));
            (orphans, notices, groups)
        };
        process.set_ended();
        tracing::tracer_ended(process);
        for orphan in orphans {
            let number = orphan.parent_death_signal.load(Ordering::Relaxed);
            if let Ok(signal) = Signal::from_number(number.into()) {
                // A real-time signal can meet a full queue, and is lost then.
                let _ = self.send(&orphan, SignalInfo::sent(signal, SI_USER, process.pid, 0));
            }
        }
        orphaned.into_iter().for_each(|group| self.hang_up_group(group));
        for notice in notices {
            self.notify(notice, time);
        }
        process.release_parent();
        if process.pid == crate::family::INIT {
            *self.ended.lock() = Some(status);
        }
        process.changes.wake_all();
        self.ends.fetch_add(1, Ordering::SeqCst);
        self.freed_memory.wake_all();
    }

    /// Sends the signal of a child's change to its parent, and wakes the parent's waiting threads.
    fn notify(&self, notice: ChildNotice<Arc<Process>>, time: ProcessorTime) {
        let ChildNotice { parent, child, status, signal } = notice;
        let action = parent.signals.lock().actions.get(Signal::SIGCHLD);
        let has_ended = matches!(status, ExitStatus::Exited(_) | ExitStatus::Killed { .. });
        let reaps = signal == Some(Signal::SIGCHLD)
            && (action.handler == Handler::Ignore || action.has(SA_NOCLDWAIT));
        if has_ended && reaps {
            self.family.lock().reap(child);
        }
        if let Some(signal) = signal
            && (has_ended || !action.has(SA_NOCLDSTOP))
        {
            self.send_child_signal(&parent, signal, child, status, time);
        }
        parent.changes.wake_all();
    }

    /// Sends SIGCHLD to a tracer, and wakes its waiting threads.
    pub(crate) fn notify_tracer(&self, tracer: &Arc<Process>, tid: u32, status: ExitStatus) {
        let has_stopped = matches!(status, ExitStatus::Traced { .. });
        if !(has_stopped && tracer.signals.lock().actions.get(Signal::SIGCHLD).has(SA_NOCLDSTOP)) {
            self.send_child_signal(tracer, Signal::SIGCHLD, tid, status, ProcessorTime::default());
        }
        tracer.changes.wake_all();
    }

    fn send_child_signal(
        &self,
        to: &Arc<Process>,
        signal: Signal,
        child: u32,
        status: ExitStatus,
        time: ProcessorTime,
    ) {
        let (code, status) = status.code_and_status();
        let facts = SignalFacts::Child {
            pid: child,
            uid: 0,
            status,
            user_ticks: time.user_ns / 10_000_000,
            system_ticks: time.system_ns / 10_000_000,
        };
        // A standard signal never meets a full queue.
        let _ = self.send(to, SignalInfo { signal, code, errno: 0, facts });
    }

    /// Ends all processes, as the first one has ended.
    pub fn end_all(&self) {
        let processes: Vec<_> = self.family.lock().processes().map(|(_, process)| process.clone()).collect();
        for process in processes {
            process.end(ExitStatus::Killed { signal: Signal::SIGKILL, dumps_core: false });
        }
        self.alarms.cancel_all();
    }

    /// Returns how the first process has ended, once all processes have.
    pub fn ended_status(&self) -> Option<ExitStatus> {
        *self.ended.lock()
    }

    /// Requests the end of the first process, as `isola stop` does.
    pub fn request_stop(&self) {
        let first = self.family.lock().process(crate::family::INIT);
        if let Some(first) = first {
            let _ = self.send(&first, SignalInfo::sent(Signal::SIGTERM, SI_USER, 0, 0));
        }
    }
}

/// The clock of sockets.
struct Clock(Arc<dyn Environment>);

impl SocketClock for Clock {
    fn now_ns(&self) -> u64 {
        self.0.monotonic_ns()
    }

    fn sleep_until(&self, monotonic_ns: u64) -> BoxFuture<'static, ()> {
        self.0.sleep_until(monotonic_ns)
    }
}

/// Discards pending signals of a process and its threads.
fn discard(process: &Process, threads: &[Arc<ThreadState>], signals: SignalSet) {
    process.signals.lock().pending.discard(signals);
    for thread in threads {
        thread.signals.lock().pending.discard(signals);
    }
}

impl fmt::Debug for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("System")
    }
}
