//! `isola down`: ends machines.

use super::{Context, Failure, complete};
use crate::machine::state::MachineDir;
use crate::machine::{Held, MachineError};
use crate::names::MachineName;
use crate::output::progress::Progress;
use clap::Args;
use std::process::ExitCode;

/// Ends a machine with all its cells
#[derive(Debug, Args)]
#[command(after_help = "\
Whatever a machine left behind that ended by itself is cleaned up, too; that is no error.

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
    for dir in dirs {
        let progress = Progress::waiting(&context.output, "ending the machine");
        progress.tick();
        match Held::take(&context.root, &dir) {
            Ok(held) => held.down()?,
            Err(error @ (MachineError::Died { .. } | MachineError::Abandoned { .. })) => {
                drop(progress);
                context.output.note(&format!("note: {error}"));
            }
            // Between being listed and having a turn at it, another command has ended it.
            Err(MachineError::NotUp { .. }) if arguments.all => continue,
            Err(error) => return Err(error.into()),
        }
        ended.push(dir.name.to_string());
    }
    context.output.answer(&ended, || ended.join("\n"))?;
    Ok(ExitCode::SUCCESS)
}
