//! Execution of external programs.

use crate::error::BenchError;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs `program` to its end; returns its standard output.
///
/// # Errors
/// [`BenchError::ProgramMissing`]; [`BenchError::Program`] with its standard error.
pub fn run(program: &'static str, arguments: &[&str]) -> Result<String, BenchError> {
    run_in(Command::new(program).args(arguments))
}

/// As [`run`], for a command with further settings.
///
/// # Errors
/// As [`run`].
pub fn run_in(command: &mut Command) -> Result<String, BenchError> {
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| failed(command, &error.to_string()))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(failed(command, String::from_utf8_lossy(&output.stderr).trim()))
    }
}

/// Returns the error of a failed command.
fn failed(command: &Command, output: &str) -> BenchError {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let line = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    BenchError::Program { line, output: output.to_owned() }
}

/// Fails if one of `programs`, each with its Debian package, is not on PATH. The error has the command that installs
/// it.
///
/// # Errors
/// [`BenchError::ProgramMissing`].
pub fn need(programs: &[(&'static str, &'static str)]) -> Result<(), BenchError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> = std::env::split_paths(&path).collect();
    for &(program, package) in programs {
        if !folders.iter().any(|folder| folder.join(program).is_file()) {
            return Err(BenchError::ProgramMissing { program, package });
        }
    }
    Ok(())
}

/// Returns the folder of this program, in which `cargo xtask bench` places other programs.
///
/// # Errors
/// [`BenchError::File`] if the path of this program is unknown.
pub fn folder() -> Result<PathBuf, BenchError> {
    let this = std::env::current_exe().map_err(BenchError::file("/proc/self/exe"))?;
    Ok(this.parent().unwrap_or(Path::new(".")).to_owned())
}

/// Returns name and version of a crate in Cargo.lock.
pub fn locked_version(package: &str) -> Option<String> {
    let lock = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.lock")).ok()?;
    let (_, rest) = lock.split_once(&format!("name = \"{package}\"\nversion = \""))?;
    // Drops a commit id after a dash.
    Some(format!("{package} {}", rest.split(['"', '-']).next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_failed_program_quotes_it() {
        let error = run("sh", &["-c", "echo no such luck >&2; exit 3"]).unwrap_err().to_string();
        assert!(error.contains("sh -c") && error.contains("no such luck"), "{error}");
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        need(&[("sh", "dash")]).unwrap();
        let error = need(&[("sh", "dash"), ("no-such-program", "such-a-package")]).unwrap_err().to_string();
        assert!(
            error.contains("no-such-program") && error.contains("apt-get install such-a-package"),
            "{error}"
        );
    }
}
