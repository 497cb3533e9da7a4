//! `isola logs`: prints a cell's output.

use super::follow::{Follower, start_of_last};
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
  isola logs -n 20 -f kv                  begin with the last 20 lines
  isola logs --supervisor                 the supervisor's own log")]
pub(super) struct Arguments {
    /// The cell
    #[arg(add = complete::cells(), required_unless_present = "supervisor", conflicts_with = "supervisor")]
    cell: Option<String>,
    /// Continues until the cell ends
    #[arg(short, long)]
    follow: bool,
    /// Begins with the last lines
    #[arg(short = 'n', long, value_name = "LINES")]
    tail: Option<usize>,
    /// Prints the supervisor's log
    #[arg(long, conflicts_with = "follow")]
    supervisor: bool,
}

pub(super) fn logs(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Some(name) = &arguments.cell else {
        let locked = crate::machine::LockedMachine::take(&context.root, &context.dir())?;
        let log = std::fs::read(locked.dir.serial_log())?;
        let first = arguments.tail.map_or(0, |lines| start_of_last(lines, &log));
        context.output.console(&mut Console::default(), &log[first..])?;
        return Ok(ExitCode::SUCCESS);
    };
    if let Some(machine) = standalone::find(context, name)? {
        return standalone::logs(context, &machine, arguments.follow, arguments.tail);
    }
    let mut follower = Follower::new(context.dir(), name).beginning_at_last_lines(arguments.tail);
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
