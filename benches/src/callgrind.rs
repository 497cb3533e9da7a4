//! Counts the instructions of a process of the host, with valgrind's callgrind.

use crate::error::BenchError;
use crate::program;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Returns the number of instructions that a program executes from start to end.
///
/// # Errors
/// [`BenchError::ProgramMissing`] without valgrind; [`BenchError::Program`], [`BenchError::File`].
pub fn instructions(executable: &Path, arguments: &[&str]) -> Result<f64, BenchError> {
    program::need(&[("valgrind", "valgrind")])?;
    let log = tempfile::NamedTempFile::new().map_err(BenchError::file(std::env::temp_dir()))?;
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(format!("--log-file={}", log.path().display())).arg(executable).args(arguments);
    program::run_in(&mut command)?;
    let report = fs::read_to_string(log.path()).map_err(BenchError::file(log.path()))?;
    let collected = report.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    collected.ok_or_else(|| BenchError::Program { line: format!("{command:?}"), output: report })
}
