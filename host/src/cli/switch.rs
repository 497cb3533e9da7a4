//! `isola switch`: the process of a machine's switch. `isola up` starts it; users do not.

use super::Failure;
use super::failure::USAGE;
use crate::switch::control::SwitchSpec;
use crate::switch::process;
use clap::Args;
use std::process::ExitCode;

/// Moves frames between the network devices of the machine whose folder is the current one
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The parameters of the switch, as JSON
    spec: String,
}

pub(super) fn switch(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let spec: SwitchSpec =
        serde_json::from_str(&arguments.spec).map_err(|error| Failure::new(USAGE, error.to_string()))?;
    // A session of its own, so that the switch survives the end of the terminal of the command that starts it.
    rustix::process::setsid()?;
    process::run(&spec)?;
    Ok(ExitCode::SUCCESS)
}
