//! Runs test programs, those that take longest first, and two at a time if they start no machines.
//!
//! `cargo test` runs one program after the other. Many programs end with a single long test, and others wait for timers
//! or for a machine to boot; meanwhile processors are idle. The order keeps a long program from running alone at the end
//! ([decision 0112](../../../docs/decisions/0112-time-of-the-tests.md)).
//!
//! A program runs as `cargo test` runs it: in the folder of its package, with the tests' default number of threads. Its
//! output is printed when it ends, so that outputs do not mix; the name of a test that runs for a minute is printed at
//! once. A program that runs longer than permitted is killed, and counts as a failure.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::path::PathBuf;
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{panic, thread};

use cargo_metadata::{Artifact, Message};

use super::tally::Tally;
use crate::cargo::name;
use crate::error::Error;
use crate::workspace::Workspace;

/// The number of programs without machines that run at the same time. Each has a thread for each processor, so that two fill
/// the pauses of each other, and more would only delay tests with time limits.
pub const AT_A_TIME: usize = 2;

/// The same for programs with machines. Their tests compare latencies, and two programs have up to four machines, with ten
/// processors, on a host of two.
pub const WITH_MACHINES: usize = 1;

/// The longest time of a program: several times that of the longest one. It ends a test that waits for ever.
pub const LIMIT: Duration = Duration::from_secs(900);

/// The same with the long variants of tests.
pub const LIMIT_OF_LONG: Duration = Duration::from_secs(4 * 3600);

/// The programs that took longest on two processors, by package and source file. An obsolete row costs time only.
const LONGEST_FIRST: &[(&str, &str)] = &[
    // Tests of machines.
    ("isola-tests", "tests/services/main.rs"),
    ("isola-tests", "tests/supervisor_restart.rs"),
    ("isola-tests", "tests/command/main.rs"),
    ("isola-tests", "tests/interoperability/main.rs"),
    ("isola-tests", "tests/supervisor.rs"),
    ("isola-tests", "tests/linux_programs.rs"),
    ("isola-tests", "tests/programs.rs"),
    ("isola-tests", "tests/linux.rs"),
    ("isola-tests", "tests/linux_terminal.rs"),
    ("isola-tests", "tests/stress.rs"),
    ("isola-tests", "tests/machine.rs"),
    ("isola-tests", "tests/chaos/main.rs"),
    // Tests on the host.
    ("isola", "tests/reach.rs"),
    ("isola-host", "tests/command/main.rs"),
    ("isola-supervisor", "src/lib.rs"),
    ("isola-volumes", "tests/power.rs"),
    ("isola-drivers", "src/lib.rs"),
    ("isola-events", "tests/trace.rs"),
    ("isola-net-stack", "tests/linux/main.rs"),
    ("isola-messenger", "tests/over_channels.rs"),
    ("isola-messenger", "tests/pacing.rs"),
    ("isola-host", "src/lib.rs"),
    ("isola-volumes", "tests/volume.rs"),
];

/// A program with tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TestProgram {
    /// The name of its package.
    pub package: String,
    /// Its source file, relative to the folder.
    source: String,
    /// The folder of its package, in which it runs.
    folder: PathBuf,
    /// Its file.
    path: PathBuf,
    /// The program and arguments in front of it, such as those of valgrind.
    runner: Vec<String>,
    /// Its arguments.
    arguments: Vec<String>,
}

/// Builds the test programs of `command`, a `cargo test` without the argument `--no-run`, and returns them in the order in
/// which they should start; `None` if they do not compile, and cargo has printed the reason.
///
/// # Errors
/// [`Error::Start`].
pub fn build(workspace: &Workspace, command: &mut Command) -> Result<Option<Vec<TestProgram>>, Error> {
    let program = name(command);
    let broken = |source| Error::Start { program: program.clone(), source };
    command.args(["--no-run", "--message-format=json-render-diagnostics"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(broken)?;
    let mut programs = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        for message in Message::parse_stream(BufReader::new(stdout)) {
            if let Message::CompilerArtifact(artifact) = message.map_err(broken)? {
                programs.extend(program_of(workspace, artifact));
            }
        }
    }
    if !child.wait().map_err(broken)?.success() {
        return Ok(None);
    }
    programs.sort_by_key(|program| rank(&program.package, &program.source));
    Ok(Some(programs))
}

/// Returns the test program that a message of cargo reports, if it reports one.
fn program_of(workspace: &Workspace, artifact: Artifact) -> Option<TestProgram> {
    let path = artifact.executable.filter(|_| artifact.profile.test)?.into_std_path_buf();
    let folder = artifact.manifest_path.parent()?;
    let source = artifact.target.src_path.strip_prefix(folder).unwrap_or(&artifact.target.src_path);
    let package = workspace.metadata().packages.iter().find(|package| package.id == artifact.package_id)?;
    Some(TestProgram {
        package: package.name.to_string(),
        source: source.to_string(),
        folder: folder.to_path_buf().into_std_path_buf(),
        path,
        ..TestProgram::default()
    })
}

/// Returns the position of a program in the order of starts.
fn rank(package: &str, source: &str) -> usize {
    LONGEST_FIRST.iter().position(|row| *row == (package, source)).unwrap_or(LONGEST_FIRST.len())
}

/// Runs `programs`, `at_a_time` at the same time and each for at most `limit`, with these variables added to their environment,
/// prints their output, and counts their tests.
pub fn run(
    programs: Vec<TestProgram>,
    at_a_time: usize,
    limit: Duration,
    environment: &[(&str, PathBuf)],
) -> Tally {
    let waiting = Mutex::new(VecDeque::from(programs));
    let sum = Mutex::new(Tally::default());
    let take = || waiting.lock().ok()?.pop_front();
    let work = || {
        while let Some(program) = take() {
            let start = Instant::now();
            let (output, tally) = program.run(limit, environment);
            // A panic of a thread here is a defect of xtask, which ends it.
            let mut sum = sum.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let seconds = start.elapsed().as_secs_f64();
            println!("--- {} ({seconds:.1} s)\n{output}", program.title());
            sum.add(tally);
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..at_a_time).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            worker.join().unwrap_or_else(|reason| panic::resume_unwind(reason));
        }
    });
    sum.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl TestProgram {
    /// Returns whether it is the program of this package and source file.
    pub fn is(&self, package: &str, source: &str) -> bool {
        self.package == package && self.source == source
    }

    /// Returns the program as it runs with `arguments` in another one, which has the program's path as an argument.
    pub fn within(self, runner: &[&str], arguments: &[&str]) -> Self {
        let words = |words: &[&str]| words.iter().map(|word| word.to_string()).collect();
        Self { runner: words(runner), arguments: words(arguments), ..self }
    }

    /// Returns the name under which its output is printed.
    fn title(&self) -> String {
        let runner = self.runner.first().map(|name| format!(" in {name}")).unwrap_or_default();
        format!("{} {}{runner}", self.package, self.source)
    }

    /// Returns the command that runs it.
    fn command(&self) -> Command {
        let mut command = match self.runner.split_first() {
            None => Command::new(&self.path),
            Some((runner, options)) => {
                let mut command = Command::new(runner);
                command.args(options).arg(&self.path);
                command
            }
        };
        command.args(&self.arguments).current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }

    /// Runs it to its end, or until `limit` has passed; returns its output and its counts.
    fn run(&self, limit: Duration, environment: &[(&str, PathBuf)]) -> (String, Tally) {
        let mut output = String::new();
        let mut tally = Tally::default();
        let reason = match self.follow(limit, environment, &mut output, &mut tally) {
            Ok(Some(status)) if status.success() || tally.failed > 0 => return (output, tally),
            Ok(Some(status)) => format!("{} ended with {status}", self.title()),
            Ok(None) => format!("{} had not ended after {} s", self.title(), limit.as_secs()),
            Err(error) => format!("{}: {}: {error}", self.title(), self.path.display()),
        };
        tally.add(Tally::broken(reason));
        (output, tally)
    }

    /// Runs it to its end, and adds to its output and its counts. `None`: it was killed after `limit`.
    fn follow(
        &self,
        limit: Duration,
        environment: &[(&str, PathBuf)],
        output: &mut String,
        tally: &mut Tally,
    ) -> io::Result<Option<ExitStatus>> {
        let deadline = Instant::now() + limit;
        let mut errors = tempfile::tempfile()?;
        let mut command = self.command();
        command.envs(environment.iter().map(|(key, value)| (key, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors.try_clone()?);
        let mut child = command.spawn()?;
        let lines = child.stdout.take().map(lines_of);
        let mut is_late = false;
        while let Some(lines) = &lines
            && !is_late
        {
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(text) => {
                    if text.contains(" has been running for over ") {
                        print!("{}: {text}", self.title());
                    }
                    tally.take(text.trim_end());
                    output.push_str(&text);
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => is_late = true,
            }
        }
        if is_late {
            child.kill()?;
        }
        let status = child.wait()?;
        errors.rewind()?;
        let mut printed = Vec::new();
        errors.read_to_end(&mut printed)?;
        output.push_str(&String::from_utf8_lossy(&printed));
        Ok(Some(status).filter(|_| !is_late))
    }
}

/// Returns the lines of a program's output as they are printed. A thread reads them, as a process that the program has
/// started may keep the output open after the program's end.
fn lines_of(stdout: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut lines = BufReader::new(stdout);
        let mut line = Vec::new();
        // A test may print invalid UTF-8, so the output is read as bytes.
        while lines.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    /// A test program of one shell script.
    fn script(folder: &Path, source: &str, text: &str) -> TestProgram {
        let path = folder.join(source);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        TestProgram {
            package: "p".into(),
            source: source.into(),
            folder: folder.to_owned(),
            path,
            ..TestProgram::default()
        }
    }

    #[test]
    fn tests_of_all_programs_are_counted_and_failures_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let good = script(folder.path(), "good", "echo 'test result: ok. 3 passed; 0 failed; 0 ignored'");
        let lines = "echo 'test a::b ... FAILED'; echo 'test result: FAILED. 1 passed; 1 failed'; exit 101";
        let bad = script(folder.path(), "bad", lines);
        let tally = run(vec![good, bad], AT_A_TIME, LIMIT, &[]);
        assert_eq!((tally.passed, tally.failed), (4, 1));
        assert_eq!(tally.failures, ["a::b"]);
    }

    #[test]
    fn a_program_that_dies_or_does_not_start_is_one_failure() {
        let folder = tempfile::tempdir().unwrap();
        let dies = script(folder.path(), "dies", "echo 'test a ... ok'; kill -9 $$");
        let mut absent = script(folder.path(), "absent", "");
        absent.path = folder.path().join("nothing");
        let tally = run(vec![dies, absent], AT_A_TIME, LIMIT, &[]);
        assert_eq!((tally.passed, tally.failed), (0, 2));
        let failures = tally.failures.join("\n");
        assert!(failures.contains("p dies ended with signal: 9"), "{failures}");
        assert!(failures.contains("p absent: ") && failures.contains("No such file"), "{failures}");
    }

    #[test]
    fn a_program_that_does_not_end_is_killed_and_is_one_failure() {
        let folder = tempfile::tempdir().unwrap();
        // The second process keeps the output open.
        let program = script(folder.path(), "waits", "echo 'test a ... ok'; sleep 60 & wait");
        let start = Instant::now();
        let (output, tally) = program.run(Duration::from_secs(1), &[]);
        assert!(start.elapsed() < Duration::from_secs(30));
        assert_eq!((output.as_str(), tally.failed), ("test a ... ok\n", 1));
        assert_eq!(tally.failures, ["p waits had not ended after 1 s"]);
    }

    #[test]
    fn a_program_has_its_folder_its_variables_and_no_input() {
        let folder = tempfile::tempdir().unwrap();
        let text = "test \"$PWD\" = \"$CARGO_MANIFEST_DIR\" && test \"$SPECIAL\" = x && ! read line && \
                    echo out && echo err >&2";
        let (output, tally) =
            script(folder.path(), "program", text).run(LIMIT, &[("SPECIAL", PathBuf::from("x"))]);
        assert_eq!((output.as_str(), tally), ("out\nerr\n", Tally::default()));
    }

    #[test]
    fn a_program_runs_within_another_one() {
        let folder = tempfile::tempdir().unwrap();
        let program = script(folder.path(), "program", "echo $0 $*").within(&["sh", "-e"], &["a", "b"]);
        let (output, _) = program.run(LIMIT, &[]);
        assert_eq!(output, format!("{} a b\n", folder.path().join("program").display()));
        assert_eq!(program.title(), "p program in sh");
    }

    #[test]
    fn two_programs_run_at_the_same_time() {
        let folder = tempfile::tempdir().unwrap();
        // Each waits for the file of the other.
        let text = |own: &str, other: &str| {
            format!(
                "touch {own}; for i in $(seq 200); do test -e {other} && exit 0; sleep 0.05; done; exit 1"
            )
        };
        let programs = vec![
            script(folder.path(), "a", &text("a.ran", "b.ran")),
            script(folder.path(), "b", &text("b.ran", "a.ran")),
        ];
        let start = Instant::now();
        assert_eq!(run(programs, AT_A_TIME, LIMIT, &[]).failures, [""; 0]);
        assert!(start.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn programs_with_a_row_start_in_its_order_and_before_others() {
        assert_eq!(rank("isola-tests", "tests/services/main.rs"), 0);
        assert!(rank("isola", "tests/reach.rs") < rank("isola-volumes", "tests/volume.rs"));
        assert_eq!(rank("isola", "tests/other.rs"), LONGEST_FIRST.len());
    }
}
