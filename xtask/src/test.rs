//! `cargo xtask test`: all tests, with one line at the end that sums them up.
//!
//! 1. The checks of the tree.
//! 2. Unit, property and documentation tests of every package, on the host.
//! 3. Models of lock-free structures under loom, in packages that have any.
//! 4. The library OS's conformance checks under valgrind, if it is installed.
//! 5. Tests that boot machines in QEMU (package `isola-tests`), with the host tool and the images built before.
//! 6. Instruction counts of the most important paths, compared with `benches/gate.toml`.
//!
//! A stage that ends without a failed test (it does not compile, or is killed) counts as one failure. Tests whose
//! prerequisite this host lacks fail, unless `ISOLA_SKIP` names it ([`host`]). The last line reads
//! `N passed, N failed`, with `, N skipped` if tests were skipped.

mod host;
mod programs;
mod tally;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use clap::ValueEnum;
use isola_need::{LONG, Need, SKIPPED, skipped_tests};

use self::tally::Tally;
use crate::cargo::{cargo, name, succeeds};
use crate::error::Error;
use crate::workspace::Workspace;
use crate::{Verdict, check, gate, images};

/// The package of the tests that need a machine.
const MACHINE_TESTS: &str = "isola-tests";
/// The package of the library OS's conformance checks.
const CONFORMANCE: &str = "isola-conformance";
/// The package of the host tool.
const HOST_TOOL: &str = "isola-host";
/// The variable with the folder of images, for the host tool and the tests.
const IMAGES: &str = "ISOLA_IMAGES";
/// The variable with the path of the host tool, for the tests.
const COMMAND: &str = "ISOLA_COMMAND";

/// The command-line arguments.
#[derive(clap::Args)]
pub struct Args {
    /// The stages to run; all of them if none is named
    #[arg(value_enum)]
    stages: Vec<Stage>,
    /// Runs the long variants of tests: 1,000 moves of cores instead of 40, five minutes of load instead of ten seconds
    #[arg(long)]
    long: bool,
    /// Prints the Debian packages that tests of the stages need and this host lacks, and runs nothing
    #[arg(long, hide = true)]
    missing_packages: bool,
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
    /// Guest instructions, compared with benches/gate.toml
    Gate,
}

impl Stage {
    fn run(self, run: &Run<'_>) -> Result<Tally, Error> {
        match self {
            Self::Check => Ok(check::run_all(run.workspace).into()),
            Self::Host => run_host(run),
            Self::Models => run_models(run),
            Self::Memcheck => run_memcheck(run),
            Self::Machine => run_machine(run),
            Self::Gate => run.follow(&mut gate::command(run.workspace)?),
        }
    }

    /// Returns the prerequisites of its tests.
    fn needs(self) -> &'static [Need] {
        match self {
            Self::Check | Self::Models | Self::Gate => &[],
            Self::Host => {
                &[Need::Tap, Need::Memcached, Need::Libmemcached, Need::Prometheus, Need::E2fsprogs]
            }
            Self::Memcheck => &[Need::Valgrind],
            Self::Machine => &[
                Need::Tap,
                Need::Libmemcached,
                Need::HttpClients,
                Need::AddressServers,
                Need::E2fsprogs,
                Need::Busybox,
                Need::DebianPrograms,
                Need::LinuxServers,
            ],
        }
    }

    /// Returns the prerequisites that only its long variants have.
    fn long_needs(self) -> &'static [Need] {
        match self {
            Self::Machine => &[Need::LinuxRuntimes],
            _ => &[],
        }
    }
}

/// State that all stages of a run share.
struct Run<'a> {
    workspace: &'a Workspace,
    /// The prerequisites whose tests are skipped.
    skips: std::collections::BTreeSet<Need>,
    /// Whether tests run their long variants.
    long: bool,
}

/// Runs the stages and prints the sum.
pub fn run(args: &Args, workspace: &Workspace) -> Result<Verdict, Error> {
    let skips = isola_need::skips_of_environment().map_err(Error::Skip)?;
    let wanted = |stage: &Stage| args.stages.is_empty() || args.stages.contains(stage);
    let stages: Vec<Stage> = Stage::value_variants().iter().copied().filter(wanted).collect();
    let long_needs = |stage: &Stage| if args.long { stage.long_needs() } else { &[] };
    let needs = stages.iter().flat_map(|stage| stage.needs().iter().chain(long_needs(stage))).copied();
    let needs = needs.filter(|need| !skips.contains(need)).collect();
    if args.missing_packages {
        println!("{}", host::missing_packages(&needs).join(" "));
        return Ok(Verdict::Passed);
    }
    let missing: Vec<_> = needs.iter().filter_map(|need| need.missing()).collect();
    print!("{}", host::survey(&missing, &skips));
    let run = Run { workspace, skips, long: args.long };
    let mut sum = Tally::default();
    for stage in stages {
        let start = Instant::now();
        println!("=== {stage:?}");
        let tally = stage.run(&run).unwrap_or_else(|error| {
            println!("{error}");
            Tally::broken(format!("{stage:?}: {error}"))
        });
        println!("=== {stage:?}: {} ({:.0} s)\n", tally.line(), start.elapsed().as_secs_f64());
        sum.add(tally);
    }
    if sum.checks > 0 {
        println!("checks of the tree that passed: {}", sum.checks);
    }
    for skipped in &sum.skipped {
        println!("skipped: {skipped}");
    }
    for failure in &sum.failures {
        println!("failed: {failure}");
    }
    println!("{}", sum.line());
    Ok(if sum.failed == 0 { Verdict::Passed } else { Verdict::Failed })
}

fn run_host(run: &Run<'_>) -> Result<Tally, Error> {
    let arguments = ["test", "--workspace", "--no-fail-fast", "--exclude", MACHINE_TESTS];
    let mut sum = run.programs(cargo(run.workspace).args(arguments), &[])?;
    sum.add(run.follow(cargo(run.workspace).args(arguments).arg("--doc"))?);
    Ok(sum)
}

/// Runs the models, which are beside the code that they model. Other tests cannot run under loom, whose types work only
/// in a model.
fn run_models(run: &Run<'_>) -> Result<Tally, Error> {
    let mut sum = Tally::default();
    for package in run.workspace.members() {
        if !package.dependencies.iter().any(|dependency| dependency.name == "loom") {
            continue;
        }
        let mut command = cargo(run.workspace);
        command.args(["test", "--release", "--no-fail-fast", "--lib", "--package", &package.name]);
        command.env("RUSTFLAGS", "--cfg loom");
        command.env("CARGO_TARGET_DIR", run.workspace.metadata().target_directory.join("loom"));
        sum.add(run.follow(&mut command)?);
    }
    Ok(sum)
}

/// Runs the conformance checks on threads under memcheck, with so few cores that a run takes a minute: valgrind runs
/// one thread at a time.
fn run_memcheck(run: &Run<'_>) -> Result<Tally, Error> {
    if run.skips.contains(&Need::Valgrind) {
        let mut tally = Tally::default();
        tally.skipped.push("the conformance checks under memcheck (valgrind)".into());
        return Ok(tally);
    }
    if let Some(missing) = Need::Valgrind.missing() {
        return Ok(Tally::broken(format!("the conformance checks under memcheck: {missing}")));
    }
    let mut command = cargo(run.workspace);
    // Fair scheduling, because a core that waits for another one does not sleep.
    command.env(
        "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER",
        "valgrind --quiet --error-exitcode=9 --fair-sched=yes",
    );
    command.args(["test", "--package", CONFORMANCE, "--test", "hosted", "--"]);
    command.args(["--ignored", "page_faults_hold"]);
    run.follow(&mut command)
}

fn run_machine(run: &Run<'_>) -> Result<Tally, Error> {
    let workspace = run.workspace;
    if !workspace.members().iter().any(|package| package.name == MACHINE_TESTS) {
        println!("the tree has no {MACHINE_TESTS} yet");
        return Ok(Tally::default());
    }
    println!("{} images", images::build_for_tests(workspace)?.len());
    // With debug assertions, and as the tests of the host tool built it: a release build takes minutes.
    if !succeeds(cargo(workspace).args(["build", "--quiet", "--package", HOST_TOOL]))? {
        return Ok(Tally::broken("the host tool does not build".into()));
    }
    let environment = [
        (IMAGES, images::folder_for_tests(workspace)),
        (COMMAND, workspace.metadata().target_directory.join("debug/isola").into_std_path_buf()),
    ];
    run.programs(cargo(workspace).args(["test", "--package", MACHINE_TESTS]), &environment)
}

impl Run<'_> {
    /// Returns the file in which tests report that they were skipped.
    fn skipped(&self) -> PathBuf {
        self.workspace.metadata().target_directory.join("skipped-tests").into_std_path_buf()
    }

    /// Builds the programs of `command`, a `cargo test`, runs them with these variables added to their environment, and
    /// counts their tests.
    fn programs(&self, command: &mut Command, environment: &[(&str, PathBuf)]) -> Result<Tally, Error> {
        let Some(programs) = programs::build(self.workspace, command)? else {
            return Ok(Tally::broken("the tests do not compile; cargo says why above".into()));
        };
        let mut environment = [environment, &[(SKIPPED, self.skipped())]].concat();
        if self.long {
            environment.push((LONG, "1".into()));
        }
        self.counted(|| Ok(programs::run(programs, &environment)))
    }

    /// Runs `command`, a `cargo test` or a program with such output, prints its output and counts its tests.
    fn follow(&self, command: &mut Command) -> Result<Tally, Error> {
        command.env(SKIPPED, self.skipped());
        if self.long {
            command.env(LONG, "1");
        }
        self.counted(|| follow(command))
    }

    /// Runs tests, and moves those that report in [`Run::skipped`] that they were skipped from those that passed.
    fn counted(&self, tests: impl FnOnce() -> Result<Tally, Error>) -> Result<Tally, Error> {
        let skipped = self.skipped();
        // Removes the file of an earlier run. If that fails, its tests count as skipped, which the sum shows.
        let _ = std::fs::remove_file(&skipped);
        let mut tally = tests()?;
        tally.skip(skipped_tests(&skipped).map_err(|source| Error::Read { path: skipped, source })?);
        Ok(tally)
    }
}

/// Runs `command` to its end, prints its output and counts its tests.
fn follow(command: &mut Command) -> Result<Tally, Error> {
    let program = name(command);
    let broken = |source| Error::Start { program: program.clone(), source };
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(broken)?;
    let mut tally = Tally::default();
    if let Some(stdout) = child.stdout.take() {
        let mut lines = BufReader::new(stdout);
        let mut line = Vec::new();
        // A test may print invalid UTF-8, so the output is read as bytes.
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
