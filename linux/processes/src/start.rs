//! Processes that no other process creates: the first one, and commands beside it.

use crate::Errno;
use crate::control::Control;
use crate::credentials::Credentials;
use crate::exec::{execute, new_memory, open_program};
use crate::exit_status::ExitStatus;
use crate::family::{ChildSelector, INIT, WaitOptions};
use crate::limits::Limits;
use crate::loader::ProgramInput;
use crate::process::Process;
use crate::signals::{Signal, SignalActions, SignalSet};
use crate::system::System;
use crate::thread::Thread;
use crate::thread_state::ThreadState;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_abi::user_context::UserContext;
use isola_linux_abi::numbers::AT_FDCWD;
use isola_linux_files::{self as files, DescriptorTable, OnExec, OpenFile, View};
use isola_linux_memory::MemoryLimits;

/// The program of a process that no other creates.
pub struct FirstProgram {
    /// Arguments, environment, and the path of its file.
    pub input: ProgramInput,
    /// The working directory.
    pub directory: Vec<u8>,
    /// Its user and groups.
    pub credentials: Credentials,
    /// The open files with descriptors 0, 1 and 2. If the first is a terminal, it is the controlling terminal.
    pub standard_files: [Arc<OpenFile>; 3],
}

/// Starts the first process, and returns how it ends. All others end with it.
///
/// # Errors
/// Those of the working directory and of the program's file.
pub async fn start(system: &Arc<System>, program: FirstProgram) -> Result<ExitStatus, Errno> {
    let process = start_process(system, program, StartOrder::First).await?;
    let ended = || system.ended_status();
    Ok(process.changes.wait_until(ended).await)
}

/// A process that was started beside the first one, in a session of its own.
pub struct StartedCommand {
    system: Arc<System>,
    process: Arc<Process>,
}

/// Starts a process beside the first one, as `isola exec` does.
///
/// # Errors
/// [`Errno::ESRCH`] if the first process does not run; those of [`start`].
pub async fn start_command(system: &Arc<System>, program: FirstProgram) -> Result<StartedCommand, Errno> {
    let process = start_process(system, program, StartOrder::Beside).await?;
    Ok(StartedCommand { system: system.clone(), process })
}

impl StartedCommand {
    /// Returns the id of the process.
    pub fn pid(&self) -> u32 {
        self.process.pid
    }

    /// Waits until the process has ended.
    pub async fn ended(&self) -> ExitStatus {
        let pid = self.process.pid;
        let options = WaitOptions { exited: true, stopped: false, continued: false, keeps: false };
        let ended = || match self.system.family.lock().wait(0, ChildSelector::Process(pid), options) {
            Ok(child) => child.map(|child| child.status),
            Err(_) => Some(ExitStatus::Killed { signal: Signal::SIGKILL, dumps_core: false }),
        };
        self.process.changes.wait_until(ended).await
    }

    /// Ends the process as a hang-up of its terminal does, without a terminal: its group gets SIGHUP.
    pub fn hang_up(&self) {
        self.system.signal_group(self.process.pid, Signal::SIGHUP);
    }
}

/// Whether a process is the first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StartOrder {
    First,
    Beside,
}

async fn start_process(
    system: &Arc<System>,
    program: FirstProgram,
    order: StartOrder,
) -> Result<Arc<Process>, Errno> {
    let limits = Limits::default();
    let memory_limits = MemoryLimits::default();
    let memory =
        new_memory(system, Some(system.environment.random()), memory_limits, system.root_group.charge())?;
    let created_ns = system.environment.monotonic_ns();
    let (process, state) = {
        let mut family = system.family.lock();
        if order == StartOrder::Beside && (family.process(INIT).is_none() || family.is_zombie(INIT)) {
            return Err(Errno::ESRCH);
        }
        let mut first = None;
        let process = family.add_process(None, None, |pid| {
            let state = Arc::new(ThreadState::new(pid, SignalSet::EMPTY, Vec::new()));
            first = Some(state.clone());
            let control = Control::new(&system.environment, system.root_group.clone(), pid, b"init");
            Ok(Process::new(pid, state, SignalActions::default(), limits, control, created_ns))
        })?;
        (process, first.ok_or(Errno::EAGAIN)?)
    };
    let account = process.control.account().ok_or(Errno::ESRCH)?;
    let descriptors = DescriptorTable::new();
    if let Some(terminal) = program.standard_files[0].terminal() {
        terminal.terminal().give_to(process.pid, process.pid);
    }
    for file in program.standard_files {
        descriptors.install(file, OnExec::Keep, usize::MAX)?;
    }
    let user = Arc::clone(memory.space()).create_thread(UserContext::default());
    let mut thread = Box::new(Thread {
        system: system.clone(),
        process: process.clone(),
        state,
        account,
        memory,
        files: Arc::new(descriptors),
        view: Arc::new(View::new(system.namespace.clone())),
        file_credentials: files::Credentials::root(),
        credentials: program.credentials.clone(),
        user: user.into(),
        clear_tid: 0,
        robust_list: 0,
        rseq: None,
        has_parents_memory: false,
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
    });
    process.show(&thread.files, &thread.view);
    thread.set_credentials(program.credentials);
    if let Err(error) = execute_first(&mut thread, &program.directory, program.input).await {
        process.control.close();
        system.family.lock().cancel(process.pid);
        return Err(error);
    }
    thread.start();
    Ok(process)
}

/// Makes the first process execute its program.
async fn execute_first(thread: &mut Thread, directory: &[u8], input: ProgramInput) -> Result<(), Errno> {
    thread.caller().change_directory(directory).await?;
    let path = input.path.clone();
    let file = open_program(thread, AT_FDCWD, &path, 0).await?;
    execute(thread, file, input).await
}
