//! `isola rm`: removes cells.

use super::{Context, Failure, complete, standalone};
use crate::cellctl;
use crate::machine::LockedMachine;
use crate::output::Format;
use clap::Args;
use std::ops::ControlFlow;
use std::process::ExitCode;

/// Removes cells that do not run, with their records
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The cells
    #[arg(required = true, add = complete::cells())]
    cells: Vec<String>,
    /// Stops running cells by force first
    #[arg(short, long)]
    force: bool,
}

pub(super) fn rm(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut removed = Vec::new();
    let mut failed = None;
    for name in &arguments.cells {
        match remove(context, name, arguments.force) {
            Ok(()) => {
                if context.output.format == Format::Table {
                    context.output.text(name)?;
                }
                removed.push(name);
            }
            Err(failure) => failed = Some(failure.report(&context.output)),
        }
    }
    if context.output.format == Format::Json {
        context.output.json(&removed)?;
    }
    Ok(failed.unwrap_or(ExitCode::SUCCESS))
}

fn remove(context: &Context, name: &str, force: bool) -> Result<(), Failure> {
    if let Some(machine) = standalone::find(context, name)? {
        if machine.is_running() && !force {
            return Err(cellctl::CellError::Running(name.to_owned()).into());
        }
        return Ok(machine.down()?);
    }
    if force {
        cellctl::stop(&context.root, &context.dir(), name, 0, &mut || ControlFlow::Continue(()))?;
    }
    let locked = LockedMachine::take_supervised(&context.root, &context.dir())?;
    let mut client = locked.client()?;
    let cell = cellctl::look_up(&locked, &mut client, name)?;
    Ok(cellctl::remove(&locked, &mut client, &cell)?)
}
