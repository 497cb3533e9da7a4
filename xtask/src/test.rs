//! `cargo xtask test`: all tests, with one line at the end that sums them up.
//!
//! 1. The checks of the tree.
//! 2. Unit, property and documentation tests of every package, on the host.
//! 3. Models of lock-free structures under loom, in packages that have any.
//! 4. The library OS's conformance checks under valgrind, beside those of 2.
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

use self::programs::{AT_A_TIME, TestProgram, WITH_MACHINES};
use self::tally::Tally;
use crate::cargo::{cargo, name, succeeds};
use crate::error::Error;
use crate::workspace::Workspace;
use crate::{Verdict, check, gate, images};

/// The package of the tests that need a machine.
const MACHINE_TESTS: &str = "isola-tests";
/// The package of the library OS's conformance checks.
const CONFORMANCE: &str = "isola-conformance";
/// The source file of those checks on threads.
const HOSTED_CHECKS: &str = "tests/hosted.rs";
/// The failure of a stage whose tests cargo could not build.
const NOT_COMPILED: &str = "the tests do not compile; cargo says why above";
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
    /// Its stages.
    stages: Vec<Stage>,
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
    let run = Run { workspace, stages, skips, long: args.long };
    let mut sum = Tally::default();
    for &stage in &run.stages {
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
    let mut tally = Tally::default();
    let built = programs::build(run.workspace, &mut run.whole_tree())?;
    let Some(mut programs) = built else { return Ok(Tally::broken(NOT_COMPILED.into())) };
    programs.retain(|program| program.package != MACHINE_TESTS);
    if run.stages.contains(&Stage::Memcheck) {
        // First: it runs one thread at a time, beside the other programs.
        match programs.iter().find(|program| program.is(CONFORMANCE, HOSTED_CHECKS)).cloned() {
            Some(program) => drop(programs.splice(0..0, under_memcheck(run, program, &mut tally))),
            None => tally.add(Tally::broken(format!("{CONFORMANCE} has no {HOSTED_CHECKS}"))),
        }
    }
    tally.add(run.programs(programs, AT_A_TIME, &[])?);
    let examples = ["test", "--workspace", "--no-fail-fast", "--doc"];
    tally.add(run.follow(cargo(run.workspace).args(examples))?);
    Ok(tally)
}

/// Runs the models, which are beside the code that they model. Other tests cannot run under loom, whose types work only
/// in a model.
fn run_models(run: &Run<'_>) -> Result<Tally, Error> {
    let mut command = cargo(run.workspace);
    command.args(["test", "--release", "--no-fail-fast", "--lib"]);
    for package in run.workspace.members() {
        if package.dependencies.iter().any(|dependency| dependency.name == "loom") {
            command.args(["--package", &package.name]);
        }
    }
    command.env("RUSTFLAGS", "--cfg loom");
    command.env("CARGO_TARGET_DIR", run.workspace.metadata().target_directory.join("loom"));
    match programs::build(run.workspace, &mut command)? {
        Some(programs) => run.programs(programs, AT_A_TIME, &[]),
        None => Ok(Tally::broken(NOT_COMPILED.into())),
    }
}

/// Runs the conformance checks on threads under memcheck.
fn run_memcheck(run: &Run<'_>) -> Result<Tally, Error> {
    if run.stages.contains(&Stage::Host) {
        println!("ran beside the tests of the stage host");
        return Ok(Tally::default());
    }
    let mut tally = Tally::default();
    let mut command = cargo(run.workspace);
    command.args(["test", "--package", CONFORMANCE, "--test", "hosted"]);
    let built = programs::build(run.workspace, &mut command)?;
    let Some(programs) = built else { return Ok(Tally::broken(NOT_COMPILED.into())) };
    let programs =
        programs.into_iter().filter_map(|program| under_memcheck(run, program, &mut tally)).collect();
    tally.add(run.programs(programs, AT_A_TIME, &[])?);
    Ok(tally)
}

/// Returns the program of the conformance checks as it runs under memcheck, with so few cores that a run takes a minute:
/// valgrind runs one thread at a time. Without valgrind it counts the reason, and returns `None`.
fn under_memcheck(run: &Run<'_>, program: TestProgram, tally: &mut Tally) -> Option<TestProgram> {
    if run.skips.contains(&Need::Valgrind) {
        tally.skipped.push("the conformance checks under memcheck (valgrind)".into());
        return None;
    }
    if let Some(missing) = Need::Valgrind.missing() {
        tally.add(Tally::broken(format!("the conformance checks under memcheck: {missing}")));
        return None;
    }
    // Fair scheduling, because a core that waits for another one does not sleep.
    let valgrind = ["valgrind", "--quiet", "--error-exitcode=9", "--fair-sched=yes"];
    Some(program.within(&valgrind, &["--ignored", "page_faults_hold"]))
}

fn run_machine(run: &Run<'_>) -> Result<Tally, Error> {
    let workspace = run.workspace;
    println!("{} images", images::build_for_tests(workspace)?.len());
    let mut command = if run.stages.contains(&Stage::Host) {
        // The stage has built the tests and the host tool. Another selection of packages would have other features, and
        // compile a part of both anew.
        run.whole_tree()
    } else {
        // With debug assertions: a release build takes minutes.
        if !succeeds(cargo(workspace).args(["build", "--quiet", "--package", HOST_TOOL]))? {
            return Ok(Tally::broken("the host tool does not build".into()));
        }
        let mut command = cargo(workspace);
        command.args(["test", "--package", MACHINE_TESTS]);
        command
    };
    let environment = [
        (IMAGES, images::folder_for_tests(workspace)),
        (COMMAND, workspace.metadata().target_directory.join("debug/isola").into_std_path_buf()),
    ];
    let built = programs::build(workspace, &mut command)?;
    let Some(mut programs) = built else { return Ok(Tally::broken(NOT_COMPILED.into())) };
    programs.retain(|program| program.package == MACHINE_TESTS);
    run.programs(programs, WITH_MACHINES, &environment)
}

impl Run<'_> {
    /// Returns the file in which tests report that they were skipped.
    fn skipped(&self) -> PathBuf {
        self.workspace.metadata().target_directory.join("skipped-tests").into_std_path_buf()
    }

    /// Returns the command that builds the tests of all packages.
    fn whole_tree(&self) -> Command {
        let mut command = cargo(self.workspace);
        command.args(["test", "--workspace", "--no-fail-fast"]);
        command
    }

    /// Runs `programs`, `at_a_time` at the same time, with these variables added to their environment, and counts their tests.
    fn programs(
        &self,
        programs: Vec<TestProgram>,
        at_a_time: usize,
        environment: &[(&str, PathBuf)],
    ) -> Result<Tally, Error> {
        let mut environment = [environment, &[(SKIPPED, self.skipped())]].concat();
        if self.long {
            environment.push((LONG, "1".into()));
        }
        let limit = if self.long { programs::LIMIT_OF_LONG } else { programs::LIMIT };
        self.counted(|| Ok(programs::run(programs, at_a_time, limit, &environment)))
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
