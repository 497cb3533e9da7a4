//! `isola logs`: prints a cell's output.

use super::follow::Follower;
use super::interrupt::Interrupts;
use super::{Context, Failure, complete, show, standalone};
use crate::output::printable::Console;
use clap::Args;
use std::process::ExitCode;

/// Prints the output of a cell
#[derive(Debug, Args)]
#[command(after_help = "\
The supervisor keeps the last 64 KiB of a cell's output until the cell is removed. If the cell has \
crashed, a description of the crash follows on the error output.

Examples:
  isola logs kv
  isola logs -f kv                        follow until the cell ends, or ^C
  isola logs --supervisor                 the supervisor's own log")]
pub(super) struct Arguments {
    /// The cell
    #[arg(add = complete::cells(), required_unless_present = "supervisor", conflicts_with = "supervisor")]
    cell: Option<String>,
    /// Continues until the cell ends
    #[arg(short, long)]
    follow: bool,
    /// Prints the supervisor's log
    #[arg(long, conflicts_with = "follow")]
    supervisor: bool,
}

pub(super) fn logs(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Some(name) = &arguments.cell else {
        let locked = crate::machine::LockedMachine::take(&context.root, &context.dir())?;
        context.output.console(&mut Console::default(), &std::fs::read(locked.dir.serial_log())?)?;
        return Ok(ExitCode::SUCCESS);
    };
    if let Some(machine) = standalone::find(context, name)? {
        return standalone::logs(context, &machine, arguments.follow);
    }
    let mut follower = Follower::new(context.dir(), name);
    let cell = if arguments.follow {
        let interrupts = Interrupts::count()?;
        follower.until_end(context, &mut || interrupts.check())?
    } else {
        Some(follower.turn(context)?)
    };
    if let Some(cell) = cell
        && let Some(crash) = &cell.crash
    {
        context.output.note(&show::crash_text(name, &show::crash(&context.dir(), &cell, crash)));
    }
    Ok(ExitCode::SUCCESS)
}
