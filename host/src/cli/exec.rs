//! `isola exec`: executes a command in a running cell.

use super::attach::{AttachOutcome, ProgramStreams, open_session, relay};
use super::failure::USAGE;
use super::interrupt::{INTERRUPTED, Interrupts};
use super::root::environment;
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
  isola exec -u www-data -w /srv -e MODE=fast web -- id
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
    /// Sets a variable of the environment; NAME alone takes this command's
    #[arg(short, long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// The working directory
    #[arg(short, long, value_name = "DIRECTORY")]
    workdir: Option<String>,
    /// The user, by name or number: names are those of the cell's /etc/passwd and /etc/group
    #[arg(short, long, value_name = "USER[:GROUP]")]
    user: Option<String>,
}

pub(super) fn exec(context: &Context, arguments: Arguments) -> Result<ExitCode, Failure> {
    let streams = ProgramStreams { input: arguments.interactive, terminal: arguments.tty };
    if let Some(mistake) = streams.mistake() {
        return Err(Failure::new(USAGE, mistake));
    }
    let command = CommandSpec {
        arguments: arguments.command,
        environment: environment(&arguments.env)?,
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
