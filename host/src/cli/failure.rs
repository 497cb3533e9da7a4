//! Why a command ends without having done what was asked.

use crate::output::{Format, Output, for_error_output};
use serde::Serialize;
use std::error::Error;
use std::io;
use std::process::ExitCode;

/// Exit code of what was refused, or failed.
pub(super) const REFUSED: u8 = 1;

/// Exit code of a command line that cannot be understood.
pub(super) const USAGE: u8 = 2;

/// A command's failure: what to say, and the exit code.
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
    /// A failure with a message.
    pub(super) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { message: Some(message.into()), code }
    }

    /// A failure that has been told already.
    pub(super) fn told(code: u8) -> Self {
        Self { message: None, code }
    }

    /// The same failure with another exit code, where it has the ordinary one.
    pub(super) fn or_code(self, code: u8) -> Self {
        if self.code == REFUSED { Self { code, ..self } } else { self }
    }

    /// Says it.
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
        // Whoever read the answer has read enough: `isola logs kv | head`.
        if let Some(io) = error.downcast_ref::<io::Error>()
            && io.kind() == io::ErrorKind::BrokenPipe
        {
            return Self::told(0);
        }
        Self::new(REFUSED, error.to_string())
    }
}
