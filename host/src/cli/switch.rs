//! `isola switch`: the process of a machine's switch, which `isola up` starts and users do not.

use super::Failure;
use super::failure::USAGE;
use crate::switch::control::SwitchSpec;
use crate::switch::process;
use clap::Args;
use std::process::ExitCode;

/// Moves frames between the network devices of the machine whose folder is the current one
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// What the switch is made from, as JSON
    spec: String,
}

pub(super) fn switch(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let spec: SwitchSpec =
        serde_json::from_str(&arguments.spec).map_err(|error| Failure::new(USAGE, error.to_string()))?;
    // It stays when the terminal of the command that starts it closes.
    rustix::process::setsid()?;
    process::run(&spec)?;
    Ok(ExitCode::SUCCESS)
}
