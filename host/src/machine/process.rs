//! Processes that outlive the command that started them, distinguished from later processes with the same id.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The polling interval for a process's end.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A process. The start time and the scope of its id distinguish it from a later process with the same id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// The process id.
    pub pid: u32,
    /// The start time in clock ticks since the host booted (proc(5), `stat`, field 22).
    started_ticks: u64,
    /// The scope in which the process id is valid.
    scope: Scope,
}

/// The scope of a process id: the PID namespace, of one boot of one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Scope {
    /// machine-id(5) of the host; empty if it has none.
    machine_id: String,
    /// The boot, as `/proc/sys/kernel/random/boot_id` identifies it.
    boot_id: String,
    /// The PID namespace, as the link `/proc/self/ns/pid` names it.
    pid_namespace: String,
}

/// Whether a process runs, as far as this process can determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// The process runs.
    Runs,
    /// The process has ended.
    Ended,
    /// The process belongs to another host or another PID namespace, such as a container's.
    Unknown,
}

impl Process {
    /// Returns the running process with that id.
    pub fn of(pid: u32) -> Option<Self> {
        Some(Self { pid, started_ticks: started_ticks(pid)?, scope: Scope::own() })
    }

    /// Returns the current process, or `None` if `/proc` is not mounted.
    pub fn this() -> Option<Self> {
        Self::of(std::process::id())
    }

    /// Returns the QEMU process whose id is in the file `pid_file`, if its arguments name this file.
    pub fn from_pid_file(pid_file: &Path) -> Option<Self> {
        let pid = fs::read_to_string(pid_file).ok()?.trim().parse().ok()?;
        let process = Self::of(pid)?;
        writes_pid_file(pid, pid_file).then_some(process)
    }

    /// Returns all processes that were started with the option `-pidfile` and this file.
    pub fn with_pid_file(pid_file: &Path) -> Vec<Self> {
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|&pid| pid != std::process::id() && writes_pid_file(pid, pid_file))
            .filter_map(Self::of)
            .collect()
    }

    /// Returns whether the process runs.
    pub fn liveness(&self) -> Liveness {
        let own = Scope::own();
        if self.scope == own {
            let runs = started_ticks(self.pid) == Some(self.started_ticks);
            return if runs { Liveness::Runs } else { Liveness::Ended };
        }
        // No process survives its host's reboot.
        let rebooted = !own.machine_id.is_empty()
            && self.scope.machine_id == own.machine_id
            && self.scope.boot_id != own.boot_id;
        if rebooted { Liveness::Ended } else { Liveness::Unknown }
    }

    /// Returns whether the process is known to run.
    pub fn is_alive(&self) -> bool {
        self.liveness() == Liveness::Runs
    }

    /// Waits at most `limit` for the process to end. Returns whether it has ended.
    pub fn wait(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        while self.is_alive() {
            if Instant::now() >= end {
                return false;
            }
            sleep(POLL_INTERVAL);
        }
        true
    }

    /// Sends SIGTERM, and SIGKILL if the process does not end within `grace`. Returns whether it has ended.
    pub fn end(&self, grace: Duration) -> bool {
        self.signal(Signal::TERM);
        if self.wait(grace) {
            return true;
        }
        self.kill()
    }

    /// Sends SIGKILL. Returns whether the process has ended.
    pub fn kill(&self) -> bool {
        self.signal(Signal::KILL);
        self.wait(Duration::from_secs(5))
    }

    /// Sends a signal to this process and to no other: opens the pidfd first, then compares the start time.
    fn signal(&self, signal: Signal) {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return };
        if let Ok(handle) = pidfd_open(pid, PidfdFlags::empty())
            && self.is_alive()
        {
            // If the process ends in between, or belongs to another user, the caller's wait detects it.
            let _ = pidfd_send_signal(&handle, signal);
        }
    }
}

/// Returns the start time of a process; `None` if it does not exist or is a zombie.
fn started_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name in parentheses, which may itself contain spaces and parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    (!matches!(state, "Z" | "X")).then_some(())?;
    fields.nth(18)?.parse().ok()
}

/// Returns whether the process has the option `-pidfile` with this file; the file's path alone is not enough.
fn writes_pid_file(pid: u32, file: &Path) -> bool {
    let file = file.as_os_str().as_bytes();
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let arguments: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
    arguments.windows(2).any(|pair| pair == [b"-pidfile".as_slice(), file])
}

impl Scope {
    /// Returns the scope of this process.
    fn own() -> Self {
        let text = |path| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        Self {
            machine_id: text("/etc/machine-id"),
            boot_id: text("/proc/sys/kernel/random/boot_id"),
            pid_namespace: namespace.to_string_lossy().into_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// Starts a shell that waits for the end of its input, with further arguments.
    fn waiting(arguments: &[&str]) -> Child {
        Command::new("sh")
            .args(["-c", "read line", "sh"])
            .args(arguments)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap()
    }

    #[test]
    fn a_process_is_alive_until_its_end() {
        let file = Path::new("/nowhere/qemu.pid");
        let mut child = waiting(&["-pidfile", "/nowhere/qemu.pid", "-S"]);
        let process = Process::of(child.id()).unwrap();
        assert!(process.is_alive());
        // The process gets its arguments a little later than its id.
        while !Process::with_pid_file(file).contains(&process) {
            assert!(process.is_alive());
        }
        // The test has not reaped it: a zombie does not count as alive.
        assert!(process.end(Duration::from_secs(5)));
        assert!(!process.is_alive());
        child.wait().unwrap();
        assert_eq!(Process::of(child.id()), None);
    }

    /// A pager or an editor of the file is not QEMU.
    #[test]
    fn a_program_that_merely_names_the_pid_file_is_not_qemu() {
        let path = "/nowhere/at/all/qemu.pid";
        let mut readers =
            [waiting(&[path]), waiting(&["-f", path, "-pidfile"]), waiting(&["-pidfile=x", path])];
        let mut qemu = waiting(&["-pidfile", path]);
        let started = Process::of(qemu.id()).unwrap();
        while !Process::with_pid_file(Path::new(path)).contains(&started) {}
        assert_eq!(Process::with_pid_file(Path::new(path)), [started]);
        for child in readers.iter_mut().chain([&mut qemu]) {
            drop(child.stdin.take());
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_reused_process_id_is_another_process() {
        let this = Process::this().unwrap();
        let earlier = Process { started_ticks: this.started_ticks - 1, ..this.clone() };
        assert_eq!((this.liveness(), earlier.liveness()), (Liveness::Runs, Liveness::Ended));
        // Without the comparison, this would end the test.
        assert!(earlier.kill());
    }

    #[test]
    fn a_process_of_another_host_or_namespace_is_neither_alive_nor_ended() {
        let this = Process::this().unwrap();
        let elsewhere = |scope| Process { scope, ..this.clone() };
        let own = || Scope { machine_id: "m".into(), ..this.scope.clone() };
        let rebooted = elsewhere(Scope { boot_id: "another".into(), ..this.scope.clone() });
        let known = !this.scope.machine_id.is_empty();
        assert_eq!(rebooted.liveness(), if known { Liveness::Ended } else { Liveness::Unknown });
        for scope in [
            Scope { pid_namespace: "pid:[1]".into(), ..this.scope.clone() },
            Scope { boot_id: "another".into(), ..own() },
        ] {
            let process = elsewhere(scope);
            assert_eq!(process.liveness(), Liveness::Unknown);
            // Without the comparison, this would end the test.
            process.signal(Signal::KILL);
        }
    }

    #[test]
    fn a_pid_file_of_another_program_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("qemu.pid");
        fs::write(&file, format!("{}\n", std::process::id())).unwrap();
        assert_eq!(Process::from_pid_file(&file), None);
    }
}
