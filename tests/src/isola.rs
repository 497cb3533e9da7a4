//! The `isola` command with private runtime and cache directories, so that its machines are invisible to other tests.
//!
//! The machines end with their [`Isola`], also if the test fails. If the test process is killed, a guard process reads
//! the end of its standard input, and ends the machines.

use crate::{images, wait};
use serde_json::Value;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use tempfile::TempDir;

/// The guard's script: at the end of its standard input it ends all machines and removes the directory.
const GUARD: &str = r#"cat; "$0" --quiet down --all; status=$?; rm -rf "$1"; exit $status"#;

/// An environment of the `isola` command with a runtime directory of its own.
pub struct Isola {
    folder: TempDir,
    guard: Child,
    alive: Option<ChildStdin>,
}

/// The result of a command.
#[derive(Debug)]
pub struct Outcome {
    /// The exit code; `None` if a signal ended the process.
    pub code: Option<i32>,
    /// The standard output.
    pub out: String,
    /// The standard error.
    pub err: String,
}

/// A running command, killed on drop.
#[derive(Debug)]
pub struct RunningCommand {
    child: Option<Child>,
}

impl Isola {
    /// Creates an environment without machines.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder for the machines");
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD]).arg(images::command()).arg(folder.path());
        // ^C at the terminal must end the test and not the guard that cleans up after it.
        guard.process_group(0);
        in_folder(&mut guard, &folder).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut guard = guard.spawn().expect("sh starts");
        let alive = guard.stdin.take();
        Self { folder, guard, alive }
    }

    /// Creates an environment with the machine `default` up, emulated, with further options.
    pub fn up(options: &[&str]) -> Self {
        let isola = Self::new();
        isola.run(&[&["up", "--accel", "tcg"], options].concat()).ok();
        isola
    }

    /// Runs a command to its end. After a timeout the exit code is 124.
    pub fn run(&self, arguments: &[&str]) -> Outcome {
        self.run_with(arguments, &[])
    }

    /// As [`Self::run`], with these variables in the command's environment.
    pub fn run_with(&self, arguments: &[&str], environment: &[(&str, &Path)]) -> Outcome {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", &wait::TIMEOUT.as_secs().to_string()]).arg(images::command());
        in_folder(&mut command, &self.folder).args(arguments).stdin(Stdio::null());
        command.envs(environment.iter().copied());
        Outcome::of(command.output().expect("timeout (package coreutils) starts"))
    }

    /// Runs a command and returns its JSON output.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let out = self.run(&[&["-o", "json"], arguments].concat()).ok();
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {out}"))
    }

    /// Returns a command, to be started with other standard streams.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(images::command());
        in_folder(&mut command, &self.folder).args(arguments).stdin(Stdio::null());
        command
    }

    /// Starts a command.
    pub fn spawn(&self, arguments: &[&str]) -> RunningCommand {
        let mut command = Command::new(images::command());
        in_folder(&mut command, &self.folder).args(arguments).stdin(Stdio::null());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("isola starts");
        RunningCommand { child: Some(child) }
    }

    /// Returns the folder of a machine, which need not exist.
    pub fn machine_folder(&self, machine: &str) -> std::path::PathBuf {
        self.folder.path().join("isola/machines").join(machine)
    }

    /// Returns the process id of a machine's QEMU, if it has one.
    pub fn qemu(&self, machine: &str) -> Option<u32> {
        fs::read_to_string(self.machine_folder(machine).join("qemu.pid")).ok()?.trim().parse().ok()
    }

    /// Returns the running processes whose command lines name this environment.
    fn machines(&self) -> Vec<u32> {
        let folder = self.folder.path().join("isola");
        let folder = folder.to_string_lossy();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let of_machine = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&*folder)
        };
        pids.filter(of_machine).collect()
    }

    /// Returns the state of a cell, as `isola inspect` prints it.
    #[track_caller]
    pub fn cell(&self, name: &str) -> Value {
        self.json(&["inspect", name])
    }

    /// Returns the owners of the machine's cores, and its free memory and devices.
    #[track_caller]
    pub fn inventory(&self) -> Value {
        let machine = self.json(&["inspect"]);
        let supervisor = &machine["supervisor"];
        serde_json::json!({
            "cores": supervisor["cores"],
            "memory": supervisor["free_bytes"],
            "devices": supervisor["free_devices"],
            "disks": supervisor["free_disks"],
        })
    }

    /// Waits until the inventory equals `before`. Memory of an ended cell is free again only after it has been
    /// scrubbed.
    #[track_caller]
    pub fn wait_for_inventory(&self, before: &Value) {
        let mut last = Value::Null;
        wait::until_true(&format!("the inventory is again {before}"), || {
            last = self.inventory();
            last == *before
        });
    }

    /// Waits until a cell has ended by itself, and returns its state.
    #[track_caller]
    pub fn wait_for_end(&self, cell: &str) -> Value {
        wait::until(&format!("{cell} ends"), || {
            let view = self.cell(cell);
            matches!(view["state"].as_str(), Some("exited" | "crashed" | "killed")).then_some(view)
        })
    }
}

impl Default for Isola {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Isola {
    fn drop(&mut self) {
        drop(self.alive.take());
        let status = self.guard.wait();
        if !std::thread::panicking() {
            assert!(status.is_ok_and(|status| status.success()), "`isola down --all` failed");
            assert!(self.machines().is_empty(), "processes of machines are left after `isola down --all`");
        }
    }
}

/// Sets the command's environment: its directories are in `folder`, and no variable of the user's configures it.
fn in_folder<'a>(command: &'a mut Command, folder: &TempDir) -> &'a mut Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ISOLA_") {
            command.env_remove(name);
        }
    }
    command
        .current_dir(folder.path())
        .env("XDG_RUNTIME_DIR", folder.path())
        .env("XDG_CACHE_HOME", folder.path())
        .env("XDG_DATA_HOME", folder.path())
        .env("ISOLA_IMAGES", images::for_users())
}

impl Outcome {
    fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Returns the standard output of a command that has succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        self.ended_with(0).out
    }

    /// Returns the outcome, and panics if the exit code is another.
    #[track_caller]
    pub fn ended_with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    /// Returns the standard error of a command that has failed with `code`; panics if it does not contain `words`.
    #[track_caller]
    pub fn failed(self, code: i32, words: &str) -> String {
        let stderr = self.ended_with(code).err;
        assert!(stderr.contains(words), "{words:?} is not in {stderr:?}");
        stderr
    }
}

impl RunningCommand {
    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.as_ref().expect("wait has not been called").id()
    }

    /// Sends the process a signal, by the shell's name for it.
    pub fn signal(&self, name: &str) {
        signal(name, self.id());
    }

    /// Waits for the end of the process.
    pub fn wait(mut self) -> Outcome {
        let child = self.child.take().expect("wait has not been called");
        Outcome::of(child.wait_with_output().expect("its output can be read"))
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Sends a signal to a process.
pub fn signal(name: &str, pid: u32) {
    let status = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status();
    assert!(status.is_ok_and(|status| status.success()), "signal {name} could not be sent to {pid}");
}

/// Returns whether a process exists and is neither a zombie nor dead.
pub fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}
