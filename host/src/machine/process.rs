//! Processes that outlive the command that started them, told apart from later ones of the same number.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How often a process is looked at while its end is waited for.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// A process: its number, and when it started, so that a number that is used again is not mistaken for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since the machine booted (proc(5), `stat`, field 22).
    started_ticks: u64,
    /// Which boot of the machine that was.
    boot_id: String,
}

impl Process {
    /// The process of that number, where one runs.
    pub fn of(pid: u32) -> Option<Self> {
        Some(Self { pid, started_ticks: started_ticks(pid)?, boot_id: boot_id() })
    }

    /// The process that asks.
    ///
    /// Returns `None` where `/proc` is not mounted.
    pub fn this() -> Option<Self> {
        Self::of(std::process::id())
    }

    /// The process whose number stands in the file `pid_file` and that was started with that file's path.
    pub fn from_pid_file(pid_file: &Path) -> Option<Self> {
        let pid = fs::read_to_string(pid_file).ok()?.trim().parse().ok()?;
        let process = Self::of(pid)?;
        has_argument(pid, pid_file).then_some(process)
    }

    /// All processes that were started with `argument` as one of their arguments.
    pub fn with_argument(argument: &Path) -> Vec<Self> {
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|&pid| pid != std::process::id() && has_argument(pid, argument))
            .filter_map(Self::of)
            .collect()
    }

    /// Whether it still runs.
    pub fn is_alive(&self) -> bool {
        started_ticks(self.pid) == Some(self.started_ticks) && boot_id() == self.boot_id
    }

    /// Waits for its end, at most for `limit`; returns whether it has ended.
    pub fn wait(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        while self.is_alive() {
            if Instant::now() >= end {
                return false;
            }
            sleep(LOOK_INTERVAL);
        }
        true
    }

    /// Ends it: asks first, and kills it where it does not go within `grace`. Returns whether it has ended.
    pub fn end(&self, grace: Duration) -> bool {
        self.signal(Signal::TERM);
        if self.wait(grace) {
            return true;
        }
        self.kill()
    }

    /// Kills it; returns whether it has ended.
    pub fn kill(&self) -> bool {
        self.signal(Signal::KILL);
        self.wait(Duration::from_secs(5))
    }

    /// Sends a signal to it and to no other: the handle is taken first and compared then.
    fn signal(&self, signal: Signal) {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return };
        if let Ok(handle) = pidfd_open(pid, PidfdFlags::empty())
            && self.is_alive()
        {
            // A process that ends in between, or belongs to someone else, is seen by the wait that follows.
            let _ = pidfd_send_signal(&handle, signal);
        }
    }
}

/// When the process started; `None` where there is none, or only its remains.
fn started_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name in parentheses, which may contain both spaces and parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    (!matches!(state, "Z" | "X")).then_some(())?;
    fields.nth(18)?.parse().ok()
}

fn has_argument(pid: u32, argument: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let wanted = argument.as_os_str().as_bytes();
    fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| line.split(|&b| b == 0).any(|part| part == wanted))
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_is_alive_until_it_is_ended() {
        let mut child =
            Command::new("sleep").arg("1000.25").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        assert!(process.is_alive());
        // A process has its arguments a little later than its number.
        while !Process::with_argument(Path::new("1000.25")).contains(&process) {
            assert!(process.is_alive());
        }
        // The test has not reaped it: what is left of an ended process does not count as alive.
        assert!(process.end(Duration::from_secs(5)));
        assert!(!process.is_alive());
        child.wait().unwrap();
        assert_eq!(Process::of(child.id()), None);
    }

    #[test]
    fn a_number_that_is_used_again_is_another_process() {
        let this = Process::this().unwrap();
        let earlier = Process { started_ticks: this.started_ticks - 1, ..this.clone() };
        let rebooted = Process { boot_id: "another".into(), ..this.clone() };
        assert!(this.is_alive());
        assert!(!earlier.is_alive() && !rebooted.is_alive());
        // Were the comparison missing, this would end the test.
        assert!(earlier.kill());
    }

    #[test]
    fn a_pid_file_of_another_program_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("qemu.pid");
        fs::write(&file, format!("{}\n", std::process::id())).unwrap();
        assert_eq!(Process::from_pid_file(&file), None);
    }
}
