//! Failures of commands: messages and exit codes.

use crate::output::{Format, Output, for_error_output};
use serde::Serialize;
use std::error::Error;
use std::io;
use std::process::ExitCode;

/// Exit code of a command that was rejected or failed.
pub(super) const REFUSED: u8 = 1;

/// Exit code of an invalid command line.
pub(super) const USAGE: u8 = 2;

/// Exit code of `run` if the cell crashed, as a shell reports it for a program that aborts.
pub(super) const CRASHED: u8 = 134;

/// Exit code of `run` if the cell was stopped by force, as a shell reports it for a program that is killed.
pub(super) const KILLED: u8 = 137;

/// A command's failure: the message, and the exit code.
#[derive(Debug)]
pub(super) struct Failure {
    message: Option<String>,
    code: u8,
}

/// The JSON form of a failure, on the error output.
#[derive(Serialize)]
struct FailureView<'a> {
    error: &'a str,
    exit_code: u8,
}

impl Failure {
    /// Creates a failure with a message.
    pub(super) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { message: Some(message.into()), code }
    }

    /// Creates a failure without a message, as one was printed already.
    pub(super) fn already_printed(code: u8) -> Self {
        Self { message: None, code }
    }

    /// Returns the same failure with another exit code, if it has the ordinary one.
    pub(super) fn or_code(self, code: u8) -> Self {
        if self.code == REFUSED { Self { code, ..self } } else { self }
    }

    /// Returns the message; empty if one was printed already.
    pub(super) fn message(&self) -> &str {
        self.message.as_deref().unwrap_or_default().trim_end()
    }

    /// Prints the message and returns the exit code.
    pub(super) fn report(&self, output: &Output) -> ExitCode {
        match (&self.message, output.format) {
            (None, _) => {}
            (Some(error), Format::Table) => {
                let style = anstyle::AnsiColor::Red.on_default().bold();
                anstream::eprintln!("{style}error:{style:#} {}", for_error_output(error.trim_end()));
            }
            (Some(error), Format::Json) => {
                let view = FailureView { error: error.trim_end(), exit_code: self.code };
                eprintln!("{}", serde_json::to_string(&view).unwrap_or_default());
            }
        }
        ExitCode::from(self.code)
    }
}

impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let error: &(dyn Error + 'static) = &error;
        // The reader closed the pipe after it had enough, as in `isola logs kv | head`: a success.
        if let Some(io) = error.downcast_ref::<io::Error>()
            && io.kind() == io::ErrorKind::BrokenPipe
        {
            return Self::already_printed(0);
        }
        Self::new(REFUSED, error.to_string())
    }
}
