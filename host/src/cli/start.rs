//! `isola start`: starts cells that have ended.

use super::{Context, Failure, complete, stop};
use crate::cellctl;
use crate::machine::Held;
use clap::Args;
use std::process::ExitCode;

/// Starts cells that have ended, from the beginning, with the memory and cores that they hold
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The cells
    #[arg(required = true, add = complete::cells())]
    cells: Vec<String>,
}

pub(super) fn start(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    stop::each(context, &arguments.cells, |name| {
        let held = Held::take_supervised(&context.root, &context.dir())?;
        Ok(Some(cellctl::start(&context.root, &held, &mut held.client()?, name)?))
    })
}
