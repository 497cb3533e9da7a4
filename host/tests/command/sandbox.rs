//! An environment for each test: state, images, cache, and a fake QEMU.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// An environment for a test. Dropping it ends all its machines.
pub struct Sandbox {
    dir: TempDir,
    state: PathBuf,
    behaviour: &'static str,
}

/// The result of a command.
#[derive(Debug)]
pub struct Outcome {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Sandbox {
    pub fn new() -> Self {
        Self::with_behaviour("normal")
    }

    /// Creates an environment with a behaviour of QEMU: see `fake_qemu`.
    pub fn with_behaviour(behaviour: &'static str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let sandbox = Self { dir, state, behaviour };
        fs::create_dir(sandbox.images()).unwrap();
        for (number, image) in (0..).zip(["supervisor", "kv", "primes"]) {
            let mut bytes = cell_image();
            // A byte of the loaded data distinguishes them.
            bytes[290] = number;
            fs::write(sandbox.images().join(image), bytes).unwrap();
        }
        let program = std::env::current_exe().unwrap();
        let script = format!(
            r#"#!/bin/sh
case "$1" in
--version) echo "QEMU emulator version 7.2.22 (fake)"; exit ;;
-machine) printf 'microvm  microvm (i386)\nq35  Standard PC\n'; exit ;;
esac
pidfile=; daemonize=; previous=
for argument; do
    case "$previous" in -pidfile) pidfile=$argument ;; esac
    case "$argument" in -daemonize) daemonize=yes ;; esac
    previous=$argument
done
if [ "$FAKE_BEHAVIOUR" = refuses ]; then echo "qemu: no such thing" >&2; exit 1; fi
FAKE_ARGUMENTS=$(printf '%s\n' "$@")
export FAKE_ARGUMENTS
set -- {program:?} --ignored --exact --nocapture fake_qemu::serve -- -pidfile "$pidfile"
if [ -z "$daemonize" ]; then exec "$@" >/dev/null; fi
setsid "$@" </dev/null >/dev/null &
while ! [ -s "$pidfile" ]; do kill -0 $! || exit 1; sleep 0.01; done
"#
        );
        fs::write(sandbox.qemu(), script).unwrap();
        fs::set_permissions(sandbox.qemu(), fs::Permissions::from_mode(0o755)).unwrap();
        sandbox
    }

    /// Creates an environment with the machine `default` up.
    pub fn up() -> Self {
        let sandbox = Self::new();
        sandbox.isola(&["up", "--accel", "tcg"]).ok();
        sandbox
    }

    pub fn images(&self) -> PathBuf {
        self.dir.path().join("images")
    }

    pub fn state(&self) -> PathBuf {
        self.state.clone()
    }

    /// Returns the folder of the machines.
    pub fn machines(&self) -> PathBuf {
        self.state().join("machines")
    }

    /// Makes the path of the state longer than a socket address can be.
    pub fn lengthen_state_path(&mut self) {
        self.state = self.state.join("deep".repeat(40));
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn qemu(&self) -> PathBuf {
        self.dir.path().join("qemu")
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_isola"));
        command
            .args(arguments)
            .current_dir(self.dir.path())
            .env("ISOLA_STATE", self.state())
            .env("ISOLA_IMAGES", self.images())
            .env("ISOLA_VOLUMES", self.path("volumes"))
            .env("ISOLA_QEMU", self.qemu())
            .env("XDG_CACHE_HOME", self.dir.path().join("cache"))
            .env("FAKE_BEHAVIOUR", self.behaviour)
            .env_remove("ISOLA_MACHINE")
            .stdin(Stdio::null());
        command
    }

    pub fn isola(&self, arguments: &[&str]) -> Outcome {
        Outcome::from(self.command(arguments).output().unwrap())
    }

    /// Returns the answer of a command, as JSON.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let outcome = self.isola(&[&["-o", "json"], arguments].concat());
        assert_eq!(outcome.code, 0, "{arguments:?}: {outcome:?}");
        serde_json::from_str(&outcome.out).unwrap_or_else(|error| panic!("{error}: {outcome:?}"))
    }

    /// Starts a command without waiting for its end.
    pub fn spawn(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Returns the process id of the machine's QEMU.
    pub fn qemu_pid(&self, machine: &str) -> Option<u32> {
        fs::read_to_string(self.machines().join(machine).join("qemu.pid")).ok()?.trim().parse().ok()
    }

    /// Waits until a condition holds; fails the test after a minute.
    pub fn wait(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !condition() {
            assert!(Instant::now() < end, "timed out: {what}");
            sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let ended = self.isola(&["down", "--all"]);
        if !std::thread::panicking() {
            assert_eq!(ended.code, 0, "{ended:?}");
        }
    }
}

impl Outcome {
    pub fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Returns the standard output of a command that must succeed.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.out
    }

    /// Returns the error output of a command that must fail.
    #[track_caller]
    pub fn failed(self, code: i32, words: &str) -> String {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.err.contains(words), "{words:?} is not in {self:?}");
        self.err
    }
}

/// Returns whether a process runs.
pub fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// Sends a signal to a process by the shell's `kill`; after KILL, waits for the end of the process.
pub fn signal(name: &str, pid: u32) {
    let status = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status().unwrap();
    assert!(status.success());
    while name == "KILL" && is_alive(pid) {
        sleep(Duration::from_millis(5));
    }
}

/// Returns the smallest file that passes as a cell image: headers, one loadable segment, and Isola's note in it.
pub fn cell_image() -> Vec<u8> {
    let base = isola_abi::layout::IMAGE;
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    for word in [base, 64, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend([0; 4]);
    for half in [64_u16, 56, 2, 64, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    for (kind, flags, offset, len) in [(1_u32, 5_u32, 0, 300_u64), (4, 4, 176, 44)] {
        file.extend(kind.to_le_bytes());
        file.extend(flags.to_le_bytes());
        for word in [offset, base + offset, offset, len, len, 4] {
            file.extend(word.to_le_bytes());
        }
    }
    for word in [6, 24, isola_abi::note::TYPE] {
        file.extend(word.to_le_bytes());
    }
    file.extend(b"Isola\0\0\0");
    file.extend(isola_abi::VERSION.to_le_bytes());
    file.resize(300, 0);
    file
}
