//! Runs an unmodified Linux program, and the processes that it creates.
//!
//! `linux [OPTION]... PROGRAM [ARGUMENT]...` with a volume at `/`: the root file system, below a layer in memory that has
//! all changes. Further volumes are mounted at their paths, and keep their changes. The cell ends with the program, with
//! the exit code that a shell shows.
#![no_std]
#![no_main]

mod cell;
mod memory;
mod network;
mod root;
mod services;
mod sessions;

use crate::cell::{CellEnvironment, CellOutput, start_errors};
use crate::sessions::{KernelEnds, Sessions, StandardFiles};
use isola::prelude::*;
use isola_linux::{Options, USAGE};
use isola_linux_files::Console;
use isola_linux_memory::FrameBudget;
use isola_linux_processes::credentials::Credentials;
use isola_linux_processes::loader::ProgramInput;
use isola_linux_processes::{Errno, FirstProgram, System, start};

extern crate alloc;

use alloc::sync::Arc;
use core::time::Duration;

isola::app!(main);

/// The time after which the first program has started, and the memory that its start has used is given back.
const AFTER_START: Duration = Duration::from_secs(2);

/// The exit codes of a shell for a program that cannot be executed, and one that does not exist.
const CANNOT_EXECUTE: u8 = 126;
const NOT_FOUND: u8 = 127;

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
    let budget = Arc::new(budget);
    memory::account_for(&budget, root.volumes());
    let holders = memory::give_back(root.volumes());
    let system =
        System::new(user_mode, Arc::new(CellEnvironment), budget, root.namespace.clone(), options.traces);
    if let Err(error) = root.mount_generated(&system).await {
        println!("linux: {error}");
        return ExitCode::FAILURE;
    }
    if let Err(error) = network::start(&system, &root).await {
        println!("linux: {error}");
        return ExitCode::FAILURE;
    }
    if let Err(error) = services::start(&root).await {
        println!("linux: {error}");
        return ExitCode::FAILURE;
    }
    let user = match root::find_user(&root.namespace, &options.user).await {
        Ok(user) => user,
        Err(error) => {
            println!("linux: -u {}: {error}", options.user);
            return ExitCode::USAGE;
        }
    };
    options.set_identity(user);
    let stop = isola::events::spawn_task({
        let system = system.clone();
        async move {
            isola::stop_requested().await;
            system.request_stop();
        }
    });
    isola::events::spawn_task(async {
        isola::events::sleep(AFTER_START).await;
        memory::release_after_start();
    })
    .detach();
    let code = run(&system, &console, &options).await;
    drop(stop);
    if options.shows_missing {
        for (name, count) in system.missing.entries() {
            println!("linux: missing: {name} ({count} times)");
        }
    }
    // With its working directories and open files, which belong to volumes.
    drop((system, console, holders));
    root.close().await;
    code
}

/// Runs the program at the first of its possible paths.
async fn run(system: &Arc<System>, console: &Arc<Console>, options: &Options) -> ExitCode {
    let (ends, files) = if options.attaches {
        match KernelEnds::create(system, options.has_terminal, &options.identity) {
            Ok((ends, files)) => (Some(ends), files),
            Err(error) => {
                println!("linux: no terminal can be created: {error}");
                return ExitCode::FAILURE;
            }
        }
    } else {
        (None, [console.open(), console.open(), console.open()])
    };
    let sessions = Sessions::begin(system, options, ends);
    if options.attaches && !sessions.attached().await {
        println!("linux: no command has attached to its standard input");
        return ExitCode::FAILURE;
    }
    let mut last = None;
    let mut code = None;
    for program in programs(options, &files) {
        match start(system, program).await {
            Ok(status) => {
                code = Some(status.shell_code());
                break;
            }
            Err(error) => last = start_errors(last, error),
        }
    }
    drop(files);
    let code = code.unwrap_or_else(|| {
        let (text, code) = not_executed(options.command.first().map_or("", String::as_str), last);
        println!("linux: {text}");
        code
    });
    if options.attaches {
        sessions.program_ended(code).await;
    }
    ExitCode(code.into())
}

/// Returns the possible programs of a command, with these open files.
fn programs<'a>(options: &'a Options, files: &'a StandardFiles) -> impl Iterator<Item = FirstProgram> + 'a {
    let bytes = |texts: &[String]| texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
    let identity = &options.identity;
    options.candidates().into_iter().map(move |path| FirstProgram {
        input: ProgramInput {
            arguments: bytes(&options.command),
            environment: bytes(&options.environment),
            path: path.into_bytes(),
        },
        directory: options.directory.as_bytes().to_vec(),
        credentials: Credentials::of(identity.user, identity.group, identity.groups.clone()),
        standard_files: files.clone(),
    })
}

/// Returns why no path of a program could be executed, and the exit code of a shell.
fn not_executed(program: &str, error: Option<Errno>) -> (String, u8) {
    let error = error.unwrap_or(Errno::ENOENT);
    let code = if error == Errno::ENOENT { NOT_FOUND } else { CANNOT_EXECUTE };
    (format!("{program} cannot be executed: {error}"), code)
}
