//! `cargo xtask fuzz [TARGET] --seconds N`: runs the fuzz targets of `fuzz/` with libFuzzer.
//!
//! libFuzzer needs a C++ compiler and code with edge counters. The stable compiler can generate such code: `-C passes`
//! selects LLVM's pass for it, and libFuzzer's crate has the rest. No nightly toolchain and no cargo-fuzz is needed.
//! Integer overflow and debug assertions end a run, as in tests.
//!
//! Inputs that reach new code are collected in `target/fuzz/corpus`. `--keep` reduces them to a small set with the same
//! coverage, and writes that to `fuzz/corpus`, which the tests of `fuzz/` run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Verdict;
use crate::cargo::{cargo, output, succeeds};
use crate::error::Error;
use crate::workspace::{Workspace, read};

/// The package that links the targets with libFuzzer, and its program.
const DRIVER: &str = "fuzz/driver";
const PROGRAM: &str = "isola-fuzz-driver";
/// An explicit target triple, so that build scripts are not instrumented.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";
/// Edge coverage with counters and traced comparisons, as libFuzzer expects (LLVM, SanitizerCoverage).
const FLAGS: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
    "-Cdebug-assertions",
    "-Coverflow-checks",
];
/// The largest size of a target's corpus in the tree, in bytes.
const MAX_KEPT_BYTES: usize = 64 << 10;

/// The command-line arguments.
#[derive(clap::Args)]
pub struct Args {
    /// The target to run; all in sequence if none is named
    target: Option<String>,
    /// The time for each target, in s
    #[arg(long, default_value_t = 60, value_name = "N")]
    seconds: u32,
    /// Prints the targets and exits
    #[arg(long)]
    list: bool,
    /// Reduces the inputs of earlier runs, and writes them to fuzz/corpus; runs no target
    #[arg(long)]
    keep: bool,
}

/// The folders of a target.
struct Folders {
    /// Inputs that reached new code.
    found: PathBuf,
    /// Inputs that made the target fail.
    failures: PathBuf,
    /// The inputs of the tree, one file each.
    kept: PathBuf,
}

/// Runs the targets that `args` names.
pub fn run(args: &Args, workspace: &Workspace) -> Result<Verdict, Error> {
    let mut targets = targets(workspace)?;
    if args.list {
        println!("{}", targets.join("\n"));
        return Ok(Verdict::Passed);
    }
    if let Some(name) = &args.target {
        let known = targets.join(", ");
        targets.retain(|target| target == name);
        if targets.is_empty() {
            return Err(Error::Unknown { kind: "fuzz target", name: name.clone(), known });
        }
    }
    let program = build(workspace)?;
    let mut verdict = Verdict::Passed;
    for target in &targets {
        let folders = Folders::of(workspace, target)?;
        let corpus = workspace.root().join("fuzz/corpus").join(target);
        if args.keep {
            let inputs = reduced(&program, target, &folders)?;
            println!("{target}: {} inputs", inputs.len());
            write(&corpus, &joined(&inputs))?;
            continue;
        }
        for (number, input) in split(&fs::read(&corpus).unwrap_or_default()).iter().enumerate() {
            write(&folders.kept.join(number.to_string()), input)?;
        }
        println!("=== {target} for {} s", args.seconds);
        let mut command = driver(&program, target);
        command.arg(format!("-max_total_time={}", args.seconds));
        command.arg(format!("-artifact_prefix={}/", folders.failures.display()));
        // An input that exceeds these limits of time or memory is a finding as well.
        command.args(["-timeout=10", "-rss_limit_mb=2048", "-max_len=4096", "-print_final_stats=1"]);
        if !succeeds(command.args([&folders.found, &folders.kept]))? {
            println!("{target} FAILED: the input is in {}", workspace.relative(&folders.failures));
            verdict = Verdict::Failed;
        }
    }
    Ok(verdict)
}

/// Returns the names of the targets in the table of `fuzz/src/lib.rs`.
fn targets(workspace: &Workspace) -> Result<Vec<String>, Error> {
    let table = read(&workspace.root().join("fuzz/src/lib.rs"))?;
    let rows = table.lines().filter_map(|line| line.trim().strip_prefix("Target { name: \""));
    Ok(rows.filter_map(|row| Some(row.split_once('"')?.0.to_owned())).collect())
}

/// Builds the driver; returns its path.
fn build(workspace: &Workspace) -> Result<PathBuf, Error> {
    let compiler = Command::new("c++").arg("--version").stdout(Stdio::null()).status();
    if !compiler.is_ok_and(|status| status.success()) {
        return Err(Error::ToolMissing { what: "a C++ compiler", install: "apt-get install g++" });
    }
    let folder = workspace.metadata().target_directory.as_std_path().join("fuzz");
    let mut command = cargo(workspace);
    command.current_dir(workspace.root().join(DRIVER));
    command.env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\u{1f}")).env("CARGO_TARGET_DIR", &folder);
    command.args(["build", "--release", "--target", TRIPLE]);
    if !succeeds(&mut command)? {
        return Err(Error::FuzzTargetsNotBuilt);
    }
    Ok(folder.join(TRIPLE).join("release").join(PROGRAM))
}

fn driver(program: &Path, target: &str) -> Command {
    let mut command = Command::new(program);
    command.env("ISOLA_FUZZ_TARGET", target);
    command
}

/// Returns a small set of inputs with the coverage of all, the shortest first, within [`MAX_KEPT_BYTES`].
fn reduced(program: &Path, target: &str, folders: &Folders) -> Result<Vec<Vec<u8>>, Error> {
    let few = folders.found.with_extension("few");
    let _ = fs::remove_dir_all(&few);
    make(&few)?;
    output(driver(program, target).arg("-set_cover_merge=1").args([&few, &folders.found, &folders.kept]))?;
    let mut inputs = Vec::new();
    let entries = fs::read_dir(&few).map_err(|source| Error::Read { path: few.clone(), source })?;
    for entry in entries.flatten() {
        let path = entry.path();
        inputs.push(fs::read(&path).map_err(|source| Error::Read { path, source })?);
    }
    inputs.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    let mut len = 0;
    inputs.retain(|input| {
        len += 4 + input.len();
        len <= MAX_KEPT_BYTES
    });
    Ok(inputs)
}

/// Returns the inputs in sequence, each after its length in four bytes, little-endian.
fn joined(inputs: &[Vec<u8>]) -> Vec<u8> {
    inputs.iter().flat_map(|input| [&(input.len() as u32).to_le_bytes(), &input[..]].concat()).collect()
}

/// Returns the inputs of a corpus file, without a truncated one at its end.
fn split(mut file: &[u8]) -> Vec<&[u8]> {
    let mut inputs = Vec::new();
    while let Some((len, rest)) = file.split_first_chunk::<4>() {
        let Some((input, rest)) = rest.split_at_checked(u32::from_le_bytes(*len) as usize) else { break };
        inputs.push(input);
        file = rest;
    }
    inputs
}

impl Folders {
    fn of(workspace: &Workspace, target: &str) -> Result<Self, Error> {
        let root = workspace.metadata().target_directory.as_std_path().join("fuzz");
        let folder = |kind: &str| root.join(kind).join(target);
        let folders = Self { found: folder("corpus"), failures: folder("failures"), kept: folder("kept") };
        let _ = fs::remove_dir_all(&folders.kept);
        for folder in [&folders.found, &folders.failures, &folders.kept] {
            make(folder)?;
        }
        Ok(folders)
    }
}

fn make(folder: &Path) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(|source| Error::Write { path: folder.to_owned(), source })
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    fs::write(path, bytes).map_err(|source| Error::Write { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_corpus_is_read_as_written_without_a_truncated_end() {
        let inputs = vec![vec![], vec![1], vec![2; 300]];
        let file = joined(&inputs);
        assert_eq!(split(&file), inputs);
        assert_eq!(split(&file[..file.len() - 1]), inputs[..2]);
        assert!(split(&[1, 0]).is_empty());
    }

    #[test]
    fn the_table_of_targets_is_found() {
        let targets = targets(&Workspace::open().unwrap()).unwrap();
        assert!(targets.len() > 20 && targets.contains(&"net_frames".to_owned()), "{targets:?}");
    }
}
