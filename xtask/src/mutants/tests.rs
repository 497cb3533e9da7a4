//! Runs single tests of the copy, each in a separate process, so that a mutant needs only the tests that reach it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::copy::{CHOSEN, RECORD, TreeCopy};
use crate::cargo::{name, output};
use crate::error::Error;

/// The time limit of a test without a mutant.
const LIMIT: Duration = Duration::from_secs(60);
/// The time limit of a test with a mutant: a multiple of its time without, plus a pause of a busy host.
const PATIENCE: u32 = 10;
const PAUSE: Duration = Duration::from_secs(5);
/// The memory limit of a test, in KiB: mutants fill queues without end.
const MEMORY_KIB: u32 = 4 << 20;

/// A test, and the results of its run without a mutant.
pub struct Test {
    program: PathBuf,
    folder: PathBuf,
    pub name: String,
    /// Its duration.
    pub took: Duration,
    /// The mutants that it reaches.
    pub reached: BTreeSet<usize>,
}

/// The outcome of a test.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TestOutcome {
    Passed,
    Failed,
    TimedOut,
}

/// Lists the tests of `program`.
pub fn list(program: &Path, folder: &Path) -> Result<Vec<Test>, Error> {
    let listing = output(Command::new(program).current_dir(folder).args(["--list", "--format", "terse"]))?;
    let listing = String::from_utf8_lossy(&listing.stdout).into_owned();
    let names = listing.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(names
        .map(|name| Test {
            program: program.to_owned(),
            folder: folder.to_owned(),
            name: name.to_owned(),
            took: Duration::ZERO,
            reached: BTreeSet::new(),
        })
        .collect())
}

impl Test {
    /// Runs the test without a mutant, and records its duration and the mutants that it reaches; returns whether it
    /// passed.
    pub fn record(&mut self, copy: &TreeCopy) -> Result<bool, Error> {
        let _ = fs::remove_file(&copy.reached);
        let start = Instant::now();
        let end = self.end(RECORD, LIMIT)?;
        self.took = start.elapsed();
        let numbers = fs::read(&copy.reached).unwrap_or_default();
        let numbers = numbers.as_chunks::<4>().0.iter().map(|number| u32::from_le_bytes(*number) as usize);
        self.reached = numbers.collect();
        Ok(end == TestOutcome::Passed)
    }

    /// Runs the test with a mutant.
    pub fn run(&self, mutant: usize) -> Result<TestOutcome, Error> {
        self.end(&mutant.to_string(), PAUSE + PATIENCE * self.took)
    }

    fn end(&self, chosen: &str, limit: Duration) -> Result<TestOutcome, Error> {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("ulimit -c 0; ulimit -d {MEMORY_KIB}; exec \"$@\"")).arg("sh");
        command.arg(&self.program).args(["--exact", &self.name]);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder).env(CHOSEN, chosen);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let spawned = command.spawn();
        let mut child = spawned.map_err(|source| Error::Start { program: name(&command), source })?;
        let start = Instant::now();
        let mut status: Option<ExitStatus> = None;
        while status.is_none() && start.elapsed() < limit {
            sleep(Duration::from_millis(2));
            status = child.try_wait().ok().flatten();
        }
        // Kills processes that the test started as well.
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        let _ = child.wait();
        Ok(match status {
            None => TestOutcome::TimedOut,
            Some(status) if status.success() => TestOutcome::Passed,
            Some(_) => TestOutcome::Failed,
        })
    }
}
