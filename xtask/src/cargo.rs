//! Runs cargo and other programs.
//!
//! Every cargo call goes through [`cargo`], so that all calls use the cargo that runs xtask, start in the root of the
//! tree, and use the tree's own compiler flags: `RUSTFLAGS` in the environment would silently replace those of
//! `.cargo/config.toml`, and images built without them use the red zone.

use std::env;
use std::process::{Command, Output};

use crate::error::Error;
use crate::workspace::Workspace;

/// Returns a cargo command in the root of the tree.
pub fn cargo(workspace: &Workspace) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace.root());
    command.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    command
}

/// Runs `command` to its end and collects its output.
pub fn output(command: &mut Command) -> Result<Output, Error> {
    command.output().map_err(|source| Error::Start { program: name(command), source })
}

/// Runs `command` to its end with xtask's output; returns whether it succeeded.
pub fn succeeds(command: &mut Command) -> Result<bool, Error> {
    let status = command.status().map_err(|source| Error::Start { program: name(command), source })?;
    Ok(status.success())
}

/// Returns the program of `command`, for messages.
pub fn name(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

/// Returns the errors in the output of a cargo call with `--message-format=short`, one line each, without warnings;
/// empty after success.
pub fn errors(output: &Output) -> Vec<String> {
    if output.status.success() {
        return Vec::new();
    }
    let message = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<String> =
        message.lines().filter(|line| line.contains("error")).map(str::to_owned).collect();
    if errors.is_empty() { message.lines().map(str::to_owned).collect() } else { errors }
}
