//! Runs an unmodified Linux program, and the processes that it creates.
//!
//! `linux [OPTION]... PROGRAM [ARGUMENT]...` with a volume at `/`: the root file system, below a layer in memory that has
//! all changes. Further volumes are mounted at their paths, and keep their changes. The cell ends with the program, with the exit code that a
//! shell shows.
#![no_std]
#![no_main]

mod cell;
mod network;
mod root;

use crate::cell::{CellEnvironment, CellOutput};
use isola::prelude::*;
use isola_linux::{Options, USAGE, User};
use isola_linux_files::Console;
use isola_linux_memory::FrameBudget;
use isola_linux_processes::credentials::Credentials;
use isola_linux_processes::loader::ProgramInput;
use isola_linux_processes::{Errno, FirstProgram, System, start};

extern crate alloc;

use alloc::sync::Arc;

isola::app!(main);

/// The exit codes of a shell for a program that cannot be executed, and one that does not exist.
const CANNOT_EXECUTE: ExitCode = ExitCode(126);
const NOT_FOUND: ExitCode = ExitCode(127);

async fn main(arguments: Arguments) -> ExitCode {
    let mut options = match Options::parse(arguments.iter()) {
        Ok(options) => options,
        Err(error) => {
            println!("linux: {error}\n{USAGE}");
            return ExitCode::USAGE;
        }
    };
    let Some(user_mode) = isola::user_mode() else {
        println!(
            "linux: the processor cannot run programs in user mode: docs/isolation.md lists its requirements"
        );
        return ExitCode::FAILURE;
    };
    isola_linux_files::set_clock(|| isola::unix_time().as_nanos() as u64);
    let console = Console::new(Arc::new(CellOutput));
    let root = match root::mount(&console, &options.tmpfs).await {
        Ok(root) => root,
        Err(error) => {
            println!("linux: {error}");
            return ExitCode::FAILURE;
        }
    };
    // Programs may use the free memory, which follows the cell's growth and shrink, but for a part that the kernel's own
    // work needs.
    let budget = FrameBudget::following(|| {
        let kept = isola::memory_total() / 16;
        isola::memory_free().saturating_sub(kept) as u64 / 4096
    });
    let system = System::new(
        user_mode,
        Arc::new(CellEnvironment),
        Arc::new(budget),
        root.namespace.clone(),
        options.traces,
    );
    if let Err(error) = root.mount_generated(&system).await {
        println!("linux: {error}");
        return ExitCode::FAILURE;
    }
    if let Err(error) = network::start(&system, &root).await {
        println!("linux: {error}");
        return ExitCode::FAILURE;
    }
    let user = match root.find_user(&options.user).await {
        Ok(user) => user,
        Err(error) => {
            println!("linux: -u {}: {error}", options.user);
            return ExitCode::USAGE;
        }
    };
    let home = if user.user == 0 { "/root" } else { "/" };
    options.add_default(&format!("HOME={}", user.home.as_deref().unwrap_or(home)));
    let stop = isola::events::spawn_task({
        let system = system.clone();
        async move {
            isola::stop_requested().await;
            system.request_stop();
        }
    });
    let code = run(&system, &console, &options, &user).await;
    drop(stop);
    if options.shows_missing {
        for (name, count) in system.missing.entries() {
            println!("linux: missing: {name} ({count} times)");
        }
    }
    // With its working directories and open files, which belong to volumes.
    drop((system, console));
    root.close().await;
    code
}

/// Runs the program at the first of its possible paths.
async fn run(system: &Arc<System>, console: &Arc<Console>, options: &Options, user: &User) -> ExitCode {
    let bytes = |texts: &[String]| texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
    let mut last = Errno::ENOENT;
    for path in options.candidates() {
        let program = FirstProgram {
            input: ProgramInput {
                arguments: bytes(&options.command),
                environment: bytes(&options.environment),
                path: path.into_bytes(),
            },
            directory: options.directory.as_bytes().to_vec(),
            credentials: Credentials::of(user.user, user.group, user.groups.clone()),
            standard_files: [console.open(), console.open(), console.open()],
        };
        match start(system, program).await {
            Ok(status) => return ExitCode(status.shell_code().into()),
            Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            Err(error) => last = error,
        }
    }
    let program = options.command.first().map_or("", String::as_str);
    println!("linux: {program} cannot be executed: {last}");
    if last == Errno::ENOENT { NOT_FOUND } else { CANNOT_EXECUTE }
}
