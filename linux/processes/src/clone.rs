//! `clone`: new threads and processes.

use crate::Errno;
use crate::calls::{install, unsupported};
use crate::family::{INIT, MOST_IDS};
use crate::process::Process;
use crate::process_file::ProcessFile;
use crate::rseq::Registration;
use crate::signals::{Signal, SignalActions};
use crate::thread::Thread;
use crate::thread_state::ThreadState;
use crate::tracing;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use isola_linux_abi::numbers::{
    CAP_SYS_ADMIN, CAP_SYS_RESOURCE, CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID, CLONE_CLEAR_SIGHAND,
    CLONE_DETACHED, CLONE_FILES, CLONE_FS, CLONE_IO, CLONE_PARENT, CLONE_PARENT_SETTID, CLONE_PIDFD,
    CLONE_SETTLS, CLONE_SIGHAND, CLONE_SYSVSEM, CLONE_THREAD, CLONE_UNTRACED, CLONE_VFORK, CLONE_VM,
    O_CLOEXEC, RLIMIT_NPROC,
};
use isola_user_mode::USER_END;

/// The arguments of `clone3`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloneRequest {
    /// `CLONE_*`.
    pub flags: u64,
    /// The signal for the parent at the child's end; 0 for none.
    pub exit_signal: u64,
    /// The child's stack pointer; 0 for that of the caller.
    pub stack_pointer: u64,
    /// Where the child's id is stored in the parent's memory.
    pub parent_tid: u64,
    /// Where the child's id is stored in the child's memory, and cleared at its end.
    pub child_tid: u64,
    /// The child's thread pointer.
    pub tls: u64,
    /// Where a descriptor of the child is stored.
    pub pidfd: u64,
}

/// The flags with an effect here. `CLONE_UNTRACED`, `CLONE_DETACHED`, `CLONE_SYSVSEM` and `CLONE_IO` concern
/// features that do not exist.
const KNOWN: u64 = CLONE_VM as u64
    | CLONE_FS as u64
    | CLONE_FILES as u64
    | CLONE_PARENT as u64
    | CLONE_PIDFD as u64
    | CLONE_SIGHAND as u64
    | CLONE_VFORK as u64
    | CLONE_THREAD as u64
    | CLONE_SYSVSEM as u64
    | CLONE_SETTLS as u64
    | CLONE_PARENT_SETTID as u64
    | CLONE_CHILD_CLEARTID as u64
    | CLONE_DETACHED as u64
    | CLONE_UNTRACED as u64
    | CLONE_CHILD_SETTID as u64
    | CLONE_IO as u64
    | CLONE_CLEAR_SIGHAND;

/// Creates a thread or process that continues after the call with 0. Returns its id.
///
/// # Errors
/// Those of clone(2).
pub async fn clone_thread(thread: &mut Thread, request: CloneRequest) -> Result<u64, Errno> {
    let has = |flag: u32| request.flags & u64::from(flag) != 0;
    if request.flags & !KNOWN != 0 {
        let unknown = request.flags & !KNOWN;
        return Err(unsupported(thread, &alloc::format!("clone flags {unknown:#x}"), Errno::EINVAL));
    }
    let is_thread = has(CLONE_THREAD);
    check_task_count(thread)?;
    let is_invalid = (is_thread && !has(CLONE_SIGHAND))
        || (has(CLONE_SIGHAND) && !has(CLONE_VM))
        || (has(CLONE_SIGHAND) && request.flags & CLONE_CLEAR_SIGHAND != 0)
        || (has(CLONE_PIDFD) && (is_thread || has(CLONE_DETACHED)))
        || (has(CLONE_PARENT) && thread.process.pid == INIT)
        || (has(CLONE_SETTLS) && request.tls >= USER_END);
    if is_invalid {
        return Err(Errno::EINVAL);
    }
    if has(CLONE_SIGHAND) && !is_thread {
        return Err(unsupported(thread, "clone with shared signal handlers of processes", Errno::EINVAL));
    }
    let exit_signal = match request.exit_signal {
        0 => None,
        number => Some(Signal::from_number(number)?),
    };
    let memory = if has(CLONE_VM) {
        thread.memory.clone()
    } else {
        let space = thread.system.user_mode.create_space().map_err(|_| Errno::ENOMEM)?;
        thread.memory.fork(space).await?
    };
    let mut user = thread.user.duplicate(memory.space().clone());
    let registers = &mut user.context_mut().registers;
    registers.rax = 0;
    if request.stack_pointer != 0 {
        registers.rsp = request.stack_pointer;
    }
    if has(CLONE_SETTLS) {
        registers.fs_base = request.tls;
    }
    let (tid, process, state) = if is_thread {
        let tid = thread.system.family.lock().add_thread(thread.process.pid)?;
        let state = new_state(thread, tid);
        if !thread.process.add_thread(state.clone()) {
            thread.system.family.lock().remove_thread(tid);
            return Err(Errno::EAGAIN);
        }
        (tid, thread.process.clone(), state)
    } else {
        new_process(thread, exit_signal, request.flags & CLONE_CLEAR_SIGHAND != 0, has(CLONE_PARENT))?
    };
    if !is_thread {
        process.program.lock().memory = Some(memory.clone());
    }
    let child = Box::new(Thread {
        system: thread.system.clone(),
        process: process.clone(),
        state,
        account: process.control.account().ok_or(Errno::EAGAIN)?,
        files: if has(CLONE_FILES) { thread.files.clone() } else { Arc::new(thread.files.fork()) },
        view: if has(CLONE_FS) { thread.view.clone() } else { Arc::new(thread.view.fork()) },
        credentials: thread.credentials.clone(),
        file_credentials: thread.file_credentials.clone(),
        user: user.into(),
        clear_tid: if has(CLONE_CHILD_CLEARTID) { request.child_tid } else { 0 },
        robust_list: 0,
        rseq: thread.rseq.filter(|_| !has(CLONE_VM)).map(Registration::of_child),
        has_parents_memory: has(CLONE_VM) && !is_thread,
        interrupted_call: None,
        restart: None,
        processor_alarm: None,
        fault: Default::default(),
        exit_code: None,
        counted_cycles: 0,
        wait: None,
        until_ns: None,
        returned: None,
        spare_waiter: None,
        unsettled: None,
        memory,
    });
    if has(CLONE_PIDFD) {
        let file = ProcessFile::open(process.clone(), 0);
        let installed = match install(thread, file, O_CLOEXEC) {
            Ok(descriptor) => {
                let bytes = (descriptor as u32).to_le_bytes();
                let written = thread.memory.write_bytes(request.pidfd, &bytes).await;
                written.inspect_err(|_| {
                    let _ = thread.files.close(descriptor as i32);
                })
            }
            Err(error) => Err(error),
        };
        if let Err(error) = installed {
            thread.system.family.lock().cancel(process.pid);
            return Err(error);
        }
    }
    if !is_thread {
        process.show(&child.files, &child.view);
    }
    // As in Linux, the child exists although a word cannot be written.
    if has(CLONE_PARENT_SETTID) {
        let _ = thread.memory.write_bytes(request.parent_tid, &tid.to_le_bytes()).await;
    }
    if has(CLONE_CHILD_SETTID) {
        let _ = child.memory.write_bytes(request.child_tid, &tid.to_le_bytes()).await;
    }
    thread.system.created.fetch_add(1, Ordering::Relaxed);
    let event = tracing::clone_event(thread, request.flags, request.exit_signal);
    if event != 0 {
        tracing::attach_child(thread, &process, &child.state);
    }
    child.place();
    child.start();
    tracing::cloned(thread, event, tid).await;
    if has(CLONE_VFORK) && !is_thread {
        // Not interrupted: the child runs on the caller's stack.
        process.parent_released().await;
        tracing::vfork_done(thread, tid).await;
    }
    Ok(tid.into())
}

/// Creates the state of a new thread: signals that the caller blocks are blocked.
fn new_state(thread: &Thread, tid: u32) -> Arc<ThreadState> {
    let blocked = thread.state.signals.lock().blocked;
    let state = ThreadState::new(tid, blocked, thread.state.name.lock().clone());
    state.allowed_cores.store(thread.state.allowed_cores.load(Ordering::Relaxed), Ordering::Relaxed);
    Arc::new(state)
}

/// Verifies that the user and the groups of the caller's process may have one more process or thread.
fn check_task_count(thread: &Thread) -> Result<(), Errno> {
    thread.system.check_task_limits(&thread.process)?;
    let limit = thread.process.limits.lock().soft(RLIMIT_NPROC);
    let is_exempt = thread.credentials.user.real == 0
        || thread.credentials.has(CAP_SYS_RESOURCE)
        || thread.credentials.has(CAP_SYS_ADMIN);
    // The number of ids limits all users.
    if is_exempt || limit >= u64::from(MOST_IDS) {
        return Ok(());
    }
    let user = thread.credentials.user.real;
    let processes: alloc::vec::Vec<Arc<Process>> = {
        let family = thread.system.family.lock();
        family.processes().map(|(_, process)| process.clone()).collect()
    };
    let own = processes.iter().filter(|process| process.user.lock().real == user);
    // A process that has ended counts until its parent has waited for it.
    let count: usize = own.map(|process| process.thread_count().max(1)).sum();
    if count as u64 >= limit { Err(Errno::EAGAIN) } else { Ok(()) }
}

/// Creates a child process.
fn new_process(
    thread: &Thread,
    exit_signal: Option<Signal>,
    clears_handlers: bool,
    is_sibling: bool,
) -> Result<(u32, Arc<Process>, Arc<ThreadState>), Errno> {
    let mut actions: SignalActions = thread.process.signals.lock().actions.clone();
    if clears_handlers {
        actions.reset_functions();
    }
    let limits = thread.process.limits.lock().clone();
    let program = thread.process.program.lock().clone();
    let now = thread.system.environment.monotonic_ns();
    let name = thread.state.name.lock().clone();
    let mut family = thread.system.family.lock();
    let mut first = None;
    let caller = thread.process.pid;
    // A sibling has the parent and the exit signal of the caller.
    let (parent, exit_signal) = match is_sibling {
        true => (family.parent(caller), family.exit_signal(caller)),
        false => (caller, exit_signal),
    };
    let process = family.add_process(Some(parent), exit_signal, |pid| {
        let state = new_state(thread, pid);
        first = Some(state.clone());
        let control = thread.process.control.for_child(pid, &name);
        Ok(Process::new(pid, state, actions, limits, control, now))
    })?;
    *process.program.lock() = program;
    let is_fixed = thread.process.has_fixed_addresses.load(Ordering::Relaxed);
    process.has_fixed_addresses.store(is_fixed, Ordering::Relaxed);
    *process.user.lock() = thread.credentials.user;
    *process.credentials.lock() = Some(thread.credentials.clone());
    let state = first.ok_or(Errno::EAGAIN)?;
    Ok((process.pid, process, state))
}
