//! `cargo xtask test`: every test there is, and one line at the end that sums them up.
//!
//! 1. the checks of the tree, each one test;
//! 2. unit, property and documentation tests of every package, on the host;
//! 3. models of lock-free structures under loom, in the packages that have any;
//! 4. the library OS's conformance checks under valgrind, where it is installed;
//! 5. tests that boot machines in QEMU (package `isola-tests`), with the host tool and the images built anew.
//!
//! A stage that breaks down without a failed test (it does not compile, it is killed) counts as one failure.
//! The last line reads `N passed, N failed`, alone on its line.

mod tally;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use clap::ValueEnum;

use self::tally::Tally;
use crate::cargo::{cargo, name, succeeds};
use crate::error::Error;
use crate::workspace::{Image, Workspace};
use crate::{Verdict, check, images};

/// The tests that need a machine.
const MACHINE_TESTS: &str = "isola-tests";
/// The package of the library OS's conformance checks.
const CONFORMANCE: &str = "isola-conformance";
/// The package of the host tool.
const HOST_TOOL: &str = "isola-host";
/// Tells the host tool and the tests where the images are.
const IMAGES: &str = "ISOLA_IMAGES";
/// Tells the tests where the host tool is.
const COMMAND: &str = "ISOLA_COMMAND";

/// What the user typed.
#[derive(clap::Args)]
pub struct Args {
    /// The stages to run; all of them when none is named
    #[arg(value_enum)]
    stages: Vec<Stage>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Stage {
    /// The checks of `cargo xtask check`
    Check,
    /// Unit, property and documentation tests on the host
    Host,
    /// Models of lock-free structures under loom
    Models,
    /// The conformance checks of the library OS under valgrind's memcheck
    Memcheck,
    /// Tests that boot machines in QEMU
    Machine,
}

impl Stage {
    fn run(self, workspace: &Workspace) -> Result<Tally, Error> {
        match self {
            Self::Check => Ok(check::run_all(workspace).into()),
            Self::Host => run_host(workspace),
            Self::Models => run_models(workspace),
            Self::Memcheck => run_memcheck(workspace),
            Self::Machine => run_machine(workspace),
        }
    }
}

/// Runs the stages and prints the sum.
pub fn run(args: &Args, workspace: &Workspace) -> Result<Verdict, Error> {
    let wanted = |stage: Stage| args.stages.is_empty() || args.stages.contains(&stage);
    let mut sum = Tally::default();
    for stage in Stage::value_variants().iter().filter(|stage| wanted(**stage)) {
        let start = Instant::now();
        println!("=== {stage:?}");
        let tally = stage.run(workspace).unwrap_or_else(|error| {
            println!("{error}");
            Tally::broken(format!("{stage:?}: {error}"))
        });
        println!("=== {stage:?}: {} ({:.0} s)\n", tally.line(), start.elapsed().as_secs_f64());
        sum.add(tally);
    }
    for failure in &sum.failures {
        println!("failed: {failure}");
    }
    println!("{}", sum.line());
    Ok(if sum.failed == 0 { Verdict::Passed } else { Verdict::Failed })
}

fn run_host(workspace: &Workspace) -> Result<Tally, Error> {
    let mut command = cargo(workspace);
    command.args(["test", "--workspace", "--no-fail-fast", "--exclude", MACHINE_TESTS]);
    follow(&mut command)
}

/// Models stand beside what they are models of. Other tests are not for loom: its types work in a model alone.
fn run_models(workspace: &Workspace) -> Result<Tally, Error> {
    let mut sum = Tally::default();
    for package in workspace.members() {
        if !package.dependencies.iter().any(|dependency| dependency.name == "loom") {
            continue;
        }
        let mut command = cargo(workspace);
        command.args(["test", "--release", "--no-fail-fast", "--lib", "--package", &package.name]);
        command.env("RUSTFLAGS", "--cfg loom");
        command.env("CARGO_TARGET_DIR", workspace.metadata().target_directory.join("loom"));
        sum.add(follow(&mut command)?);
    }
    Ok(sum)
}

/// Runs the conformance checks on threads under memcheck: on so few cores that a run takes a minute, as valgrind runs one
/// thread at a time.
fn run_memcheck(workspace: &Workspace) -> Result<Tally, Error> {
    if !Command::new("valgrind")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
    {
        println!("skipped: valgrind is not installed");
        return Ok(Tally::default());
    }
    let mut command = cargo(workspace);
    // Fair scheduling: a core that waits for another does not sleep.
    command.env(
        "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER",
        "valgrind --quiet --error-exitcode=9 --fair-sched=yes",
    );
    command.args(["test", "--package", CONFORMANCE, "--test", "hosted", "--"]);
    command.args(["--ignored", "what_needs_no_page_faults_holds"]);
    follow(&mut command)
}

fn run_machine(workspace: &Workspace) -> Result<Tally, Error> {
    if !workspace.members().iter().any(|package| package.name == MACHINE_TESTS) {
        println!("the tree has no {MACHINE_TESTS} yet");
        return Ok(Tally::default());
    }
    let images: Vec<Image> = images::build(workspace, |_| true)?;
    images::build_hosted(workspace)?;
    println!("{} images", images.len());
    if !succeeds(cargo(workspace).args(["build", "--quiet", "--release", "--package", HOST_TOOL]))? {
        return Ok(Tally::broken("the host tool does not build".into()));
    }
    let mut command = cargo(workspace);
    command.args(["test", "--no-fail-fast", "--package", MACHINE_TESTS]);
    command.env(IMAGES, workspace.image_folder());
    command.env(COMMAND, workspace.image_folder().join("isola"));
    follow(&mut command)
}

/// Runs `command`, which is a `cargo test`, shows what it prints and counts its tests.
fn follow(command: &mut Command) -> Result<Tally, Error> {
    let program = name(command);
    let broken = |source| Error::Start { program: program.clone(), source };
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(broken)?;
    let mut tally = Tally::default();
    if let Some(stdout) = child.stdout.take() {
        let mut lines = BufReader::new(stdout);
        let mut line = Vec::new();
        // A test may print what is no text; reading by bytes keeps it from ending the run.
        while lines.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            let text = String::from_utf8_lossy(&line);
            print!("{text}");
            tally.take(text.trim_end());
            line.clear();
        }
    }
    let status = child.wait().map_err(broken)?;
    if !status.success() && tally.failed == 0 {
        let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
        tally.add(Tally::broken(format!("cargo {} ended with {status}", arguments.join(" "))));
    }
    Ok(tally)
}
