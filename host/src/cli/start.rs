//! `isola start`: starts cells that have ended.

use super::interrupt::{INTERRUPTED, Interrupts};
use super::{Context, Failure, complete, stop};
use crate::cellctl::{self, CellError};
use crate::client::ClientError;
use crate::machine::LockedMachine;
use crate::output::progress::Progress;
use clap::Args;
use isola_abi::management::CellInfo;
use std::process::ExitCode;

/// Starts cells that have ended
#[derive(Debug, Args)]
#[command(after_help = "\
An ended cell holds no resources, so as many cores and as much memory as it had must be free, and a \
network device if it had one. It starts from its original image: the machine keeps that in its store as \
long as memory suffices, and isola has a copy. \
The new output is appended to the old.

Examples:
  isola start kv
  isola start kv primes")]
pub(super) struct Arguments {
    /// The cells
    #[arg(required = true, add = complete::cells())]
    cells: Vec<String>,
}

pub(super) fn start(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let interrupts = Interrupts::count()?;
    stop::each(context, &arguments.cells, |name| start_one(context, name, &interrupts).map(Some))
}

fn start_one(context: &Context, name: &str, interrupts: &Interrupts) -> Result<CellInfo, Failure> {
    let locked = LockedMachine::take_supervised(&context.root, &context.dir())?;
    let mut client = locked.client()?;
    let mut bar = None;
    let started = cellctl::start(&context.root, &locked, &mut client, name, &mut |sent, of| {
        bar.get_or_insert_with(|| Progress::bytes(&context.output, "sending the image", of)).at(sent);
        interrupts.check()
    });
    started.map_err(|error| match error {
        CellError::Client(ClientError::Interrupted) => {
            Failure::new(INTERRUPTED, "interrupted: the cell was not started")
        }
        error => error.into(),
    })
}
