//! `isola down`: ends machines.

use super::{Context, Failure, complete};
use crate::machine::state::MachineDir;
use crate::machine::{LockedMachine, MachineError, clean_up};
use crate::names::MachineName;
use crate::output::progress::Progress;
use clap::Args;
use std::process::ExitCode;

/// Ends a machine with all its cells
#[derive(Debug, Args)]
#[command(after_help = "\
It also removes the files of a machine that ended by itself; that is no error. It leaves alone machines whose \
record it cannot read, and folders that are not a machine's.

Examples:
  isola down
  isola down test
  isola down --all")]
pub(super) struct Arguments {
    /// The machines' names
    #[arg(add = complete::machines(), conflicts_with = "all")]
    names: Vec<MachineName>,
    /// Ends all machines of this user
    #[arg(long)]
    all: bool,
}

pub(super) fn down(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let dirs: Vec<MachineDir> = match &arguments.names[..] {
        _ if arguments.all => context.root.machines(),
        [] => vec![context.dir()],
        names => names.iter().map(|name| context.root.machine(name)).collect(),
    };
    let mut ended = Vec::new();
    let mut failed = None;
    for dir in dirs {
        match end(context, &dir) {
            Ok(()) => ended.push(dir.name.to_string()),
            // Another command has ended it since the list was made.
            Err(MachineError::NotUp { .. }) if arguments.all => {}
            Err(error) => failed = Some(Failure::from(error).report(&context.output)),
        }
    }
    context.output.answer(&ended, || ended.join("\n"))?;
    Ok(failed.unwrap_or(ExitCode::SUCCESS))
}

fn end(context: &Context, dir: &MachineDir) -> Result<(), MachineError> {
    let progress = Progress::waiting(&context.output, "ending the machine");
    progress.tick();
    let note = match LockedMachine::take(&context.root, dir) {
        Ok(locked) => return Ok(locked.down()?),
        Err(MachineError::Died { name, tail }) if tail.is_empty() => {
            format!("note: machine {name:?} had ended unexpectedly")
        }
        Err(MachineError::Died { name, tail }) => {
            format!("note: machine {name:?} had ended unexpectedly; the end of its log:\n{tail}")
        }
        Err(MachineError::Abandoned { name }) => {
            format!("note: machine {name:?} belonged to a command that has ended")
        }
        Err(error) => return Err(error),
    };
    clean_up(&context.root, dir)?;
    drop(progress);
    context.output.note(&note);
    Ok(())
}
