//! `isola stop` and `isola kill`: end the execution of cells; their records remain.

use super::interrupt::{INTERRUPTED, Interrupts};
use super::{Context, Failure, complete, show, standalone};
use crate::cellctl::{self, CellError};
use crate::client::ClientError;
use crate::output::progress::Progress;
use crate::output::view::CellView;
use crate::output::{Format, view};
use clap::Args;
use isola_abi::management::CellInfo;
use std::process::ExitCode;

/// Stops cells, by force after a timeout
#[derive(Debug, Args)]
#[command(after_help = "\
The resources of a stopped cell are free at once: cores, memory, device. Its output and usage remain until the cell \
is removed. Stopping a cell that does not run is no error.

Examples:
  isola stop kv
  isola stop --time 1 kv primes")]
pub(super) struct StopArguments {
    /// The cells
    #[arg(required = true, add = complete::cells())]
    cells: Vec<String>,
    /// The timeout, in seconds
    #[arg(short, long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=86_400))]
    time: u32,
}

/// Stops cells by force, at once
#[derive(Debug, Args)]
pub(super) struct KillArguments {
    /// The cells
    #[arg(required = true, add = complete::cells())]
    cells: Vec<String>,
}

pub(super) fn stop(context: &Context, arguments: &StopArguments) -> Result<ExitCode, Failure> {
    stop_all(context, &arguments.cells, arguments.time * 1000)
}

pub(super) fn kill(context: &Context, arguments: &KillArguments) -> Result<ExitCode, Failure> {
    stop_all(context, &arguments.cells, 0)
}

fn stop_all(context: &Context, names: &[String], timeout_ms: u32) -> Result<ExitCode, Failure> {
    let interrupts = Interrupts::count()?;
    each(context, names, |name| stop_one(context, name, timeout_ms, &interrupts))
}

fn stop_one(
    context: &Context,
    name: &str,
    timeout_ms: u32,
    interrupts: &Interrupts,
) -> Result<Option<CellInfo>, Failure> {
    if let Some(machine) = standalone::find(context, name)? {
        machine.end_qemu();
        return Ok(None);
    }
    let progress = Progress::waiting(&context.output, &format!("waiting for {name} to stop"));
    let stopped = cellctl::stop(&context.root, &context.dir(), name, timeout_ms, &mut || {
        progress.tick();
        interrupts.check()
    });
    match stopped {
        Ok(cell) => Ok(Some(cell)),
        Err(CellError::Client(ClientError::Interrupted)) => {
            Err(Failure::new(INTERRUPTED, "interrupted: the cell was asked to stop, and will"))
        }
        Err(error) => Err(error.into()),
    }
}

/// Applies an action to each cell, and continues after a failure. Prints the cells on which it succeeded.
pub(super) fn each(
    context: &Context,
    names: &[String],
    mut action: impl FnMut(&str) -> Result<Option<CellInfo>, Failure>,
) -> Result<ExitCode, Failure> {
    let mut views: Vec<CellView> = Vec::new();
    let mut failed = None;
    for name in names {
        match action(name) {
            Ok(cell) => {
                if context.output.format == Format::Table {
                    context.output.text(name)?;
                }
                let view = |cell: &CellInfo| -> view::CellView { show::cell(&context.dir(), cell) };
                views.extend(cell.as_ref().map(view));
            }
            Err(failure) => failed = Some(failure.report(&context.output)),
        }
    }
    if context.output.format == Format::Json {
        context.output.json(&views)?;
    }
    Ok(failed.unwrap_or(ExitCode::SUCCESS))
}
