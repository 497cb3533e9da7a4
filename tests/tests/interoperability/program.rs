//! Third-party programs.

use std::ffi::OsStr;
use std::process::{Child, Command, Output, Stdio};

/// The timeout of a client, in seconds.
const LIMIT_S: &str = "120";

/// Runs a program to its end and returns its standard output.
#[track_caller]
pub fn run<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> String {
    let output = output(program, arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{program}: {}\n{out}\n{err}", output.status);
    out
}

/// Runs a program to its end, and returns its output. Its status may be a failure.
#[track_caller]
pub fn output<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", LIMIT_S, program]).args(arguments).stdin(Stdio::null());
    command.output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// A running program, killed on drop.
pub struct RunningProgram(Child);

impl RunningProgram {
    /// Starts a program that stays in the foreground.
    #[track_caller]
    pub fn start<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap_or_else(|error| panic!("{program}: {error}")))
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
