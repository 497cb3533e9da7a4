//! `isola exec`: executes a command in a running cell.

use super::attach::{AttachOutcome, ProgramStreams, open_session, relay};
use super::failure::USAGE;
use super::interrupt::{INTERRUPTED, Interrupts};
use super::{Context, Failure, complete};
use clap::Args;
use isola_abi::session::{CommandSpec, SessionRequest};
use std::process::ExitCode;

/// Exit code if isola could not execute the command.
const NOT_RUN: u8 = 125;

/// Executes a command in a running cell with Linux programs
#[derive(Debug, Args)]
#[command(after_help = "\
The command runs beside the cell's program, in a session of its own, with the program's environment, working directory and \
user where no option says otherwise. If isola ends before it, the command gets SIGHUP.

The exit code is the command's, 128 and the number of the signal that ended it, 125 if isola could not reach the cell, \
126 if the command cannot be executed, 127 if it does not exist.

Examples:
  isola exec web -- ls -l /var/log
  isola exec -it web -- sh
  echo 'select 1' | isola exec -i db -- psql")]
pub(super) struct Arguments {
    /// The cell
    #[arg(add = complete::cells())]
    cell: String,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
    /// Passes standard input on; without it the command's input is empty
    #[arg(short, long)]
    interactive: bool,
    /// Gives the command a terminal
    #[arg(short, long)]
    tty: bool,
    /// Sets a variable of the environment
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<String>,
    /// The working directory
    #[arg(short, long, value_name = "DIRECTORY")]
    workdir: Option<String>,
    /// The ids of the user and the group, as in 1000:1000
    #[arg(short, long, value_name = "USER[:GROUP]", value_parser = ids)]
    user: Option<(u32, u32)>,
}

fn variable(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((name, _)) if !name.is_empty() => Ok(text.to_owned()),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

fn ids(text: &str) -> Result<(u32, u32), String> {
    let (user, group) = text.split_once(':').unwrap_or((text, "0"));
    let id =
        |text: &str| text.parse().map_err(|_| "write USER[:GROUP] with numbers, as in 1000:1000".to_owned());
    Ok((id(user)?, id(group)?))
}

pub(super) fn exec(context: &Context, arguments: Arguments) -> Result<ExitCode, Failure> {
    let streams = ProgramStreams { input: arguments.interactive, terminal: arguments.tty };
    if let Some(mistake) = streams.mistake() {
        return Err(Failure::new(USAGE, mistake));
    }
    let command = CommandSpec {
        arguments: arguments.command,
        environment: arguments.env,
        directory: arguments.workdir,
        user: arguments.user,
        has_input: arguments.interactive,
        terminal: arguments.tty.then(|| streams.size()),
    };
    execute(context, &arguments.cell, command, streams).map_err(|failure| failure.or_code(NOT_RUN))
}

fn execute(
    context: &Context,
    cell: &str,
    command: CommandSpec,
    streams: ProgramStreams,
) -> Result<ExitCode, Failure> {
    let interrupts = Interrupts::count()?;
    let session = open_session(context, cell, &SessionRequest::Execute(command))?;
    match relay(session, streams, &interrupts)? {
        AttachOutcome::Ended(code) => Ok(ExitCode::from(code)),
        AttachOutcome::Failed(text, code) => Err(Failure::new(code, text)),
        AttachOutcome::Interrupted => Err(Failure::already_printed(INTERRUPTED)),
        AttachOutcome::Lost(error) => {
            Err(Failure::new(NOT_RUN, format!("the connection to cell {cell:?} was lost: {error}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_and_ids_are_checked() {
        assert_eq!(variable("A=b=c"), Ok("A=b=c".to_owned()));
        assert!(variable("A").is_err() && variable("=b").is_err());
        assert_eq!((ids("5"), ids("5:6")), (Ok((5, 0)), Ok((5, 6))));
        assert!(ids("me").is_err() && ids("5:").is_err());
    }
}
