//! The first process.

use crate::Errno;
use crate::control::Control;
use crate::credentials::Credentials;
use crate::exec::{execute, new_memory, open_program};
use crate::exit_status::ExitStatus;
use crate::family::INIT;
use crate::limits::Limits;
use crate::loader::ProgramInput;
use crate::process::Process;
use crate::signals::{SignalActions, SignalSet};
use crate::system::System;
use crate::thread::Thread;
use crate::thread_state::ThreadState;
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_abi::user_context::UserContext;
use isola_linux_abi::numbers::AT_FDCWD;
use isola_linux_files::{self as files, DescriptorTable, OnExec, OpenFile, View};
use isola_linux_memory::MemoryLimits;

/// The program of the first process.
pub struct FirstProgram {
    /// Arguments, environment, and the path of its file.
    pub input: ProgramInput,
    /// The working directory.
    pub directory: Vec<u8>,
    /// Its user and groups.
    pub credentials: Credentials,
    /// The open files with descriptors 0, 1 and 2.
    pub standard_files: [Arc<OpenFile>; 3],
}

/// Starts the first process, and returns how it ends. All others end with it.
///
/// # Errors
/// Those of the working directory and of the program's file.
pub async fn start(system: &Arc<System>, program: FirstProgram) -> Result<ExitStatus, Errno> {
    let limits = Limits::default();
    let memory_limits = MemoryLimits::default();
    let memory = new_memory(system, memory_limits, system.root_group.charge())?;
    let state = Arc::new(ThreadState::new(INIT, SignalSet::EMPTY, Vec::new()));
    let process = system.family.lock().add_process(None, None, |pid| {
        let control = Control::new(&system.environment, system.root_group.clone(), pid, b"init");
        Ok(Process::new(
            pid,
            state.clone(),
            SignalActions::default(),
            limits,
            control,
            system.environment.monotonic_ns(),
        ))
    })?;
    let account = process.control.account().ok_or(Errno::ESRCH)?;
    let descriptors = DescriptorTable::new();
    for file in program.standard_files {
        descriptors.install(file, OnExec::Keep, usize::MAX)?;
    }
    let user = Arc::clone(memory.space()).create_thread(UserContext::default());
    let mut thread = Thread {
        system: system.clone(),
        process: process.clone(),
        state,
        account,
        memory,
        files: Arc::new(descriptors),
        view: Arc::new(View::new(system.namespace.clone())),
        file_credentials: files::Credentials::root(),
        credentials: program.credentials.clone(),
        user,
        clear_tid: 0,
        robust_list: 0,
        has_parents_memory: false,
        interrupted_call: None,
        restart: None,
        processor_alarm: None,
        fault: Default::default(),
        exit_code: None,
        counted_cycles: 0,
    };
    process.show(&thread.files, &thread.view);
    thread.set_credentials(program.credentials);
    if let Err(error) = execute_first(&mut thread, &program.directory, program.input).await {
        process.control.close();
        system.family.lock().cancel(process.pid);
        return Err(error);
    }
    thread.start();
    let ended = || system.ended_status();
    Ok(process.changes.wait_until(ended).await)
}

/// Makes the first process execute its program.
async fn execute_first(thread: &mut Thread, directory: &[u8], input: ProgramInput) -> Result<(), Errno> {
    thread.caller().change_directory(directory).await?;
    let path = input.path.clone();
    let file = open_program(thread, AT_FDCWD, &path, 0).await?;
    execute(thread, file, input).await
}
