//! `cargo xtask fuzz [TARGET] --seconds N`: the fuzz targets of the parsers of outside bytes.
//!
//! A fuzz target is a binary in a `fuzz/` folder beside the `src/` of the crate that it feeds, a package of
//! its own outside of the workspace (cargo-fuzz needs a nightly compiler, the tree does not). The same entry
//! points run under proptest in `cargo test`, so that no machine goes without.

use std::path::PathBuf;
use std::process::Command;

use toml::Value;

use crate::Verdict;
use crate::cargo::{output, succeeds};
use crate::error::Error;
use crate::manifest::Manifest;
use crate::workspace::Workspace;

/// What the user typed.
#[derive(clap::Args)]
pub struct Args {
    /// The target to run; all of them one after the other when none is named
    target: Option<String>,
    /// How long each target runs
    #[arg(long, default_value_t = 60, value_name = "N")]
    seconds: u32,
    /// Prints the targets and leaves
    #[arg(long)]
    list: bool,
}

/// A fuzz target.
struct Target {
    name: String,
    /// Its `fuzz/` folder.
    folder: PathBuf,
}

/// Runs the targets that `args` names.
pub fn run(args: &Args, workspace: &Workspace) -> Result<Verdict, Error> {
    let mut targets = targets(workspace)?;
    if args.list {
        for target in &targets {
            println!("{:<24} {}", target.name, workspace.relative(&target.folder));
        }
        return Ok(Verdict::Passed);
    }
    if let Some(name) = &args.target {
        let known = targets.iter().map(|target| target.name.as_str()).collect::<Vec<_>>().join(", ");
        targets.retain(|target| target.name == *name);
        if targets.is_empty() {
            return Err(Error::Unknown { kind: "fuzz target", name: name.clone(), known });
        }
    }
    need("a nightly toolchain", &["--version"], "rustup toolchain install nightly --profile minimal")?;
    need("cargo-fuzz", &["fuzz", "--version"], "cargo install --locked cargo-fuzz")?;
    let mut verdict = Verdict::Passed;
    for target in &targets {
        println!("fuzz {} for {} s", target.name, args.seconds);
        let mut command = nightly();
        command.current_dir(&target.folder).args(["fuzz", "run", "--fuzz-dir", ".", &target.name, "--"]);
        command.arg(format!("-max_total_time={}", args.seconds));
        if !succeeds(&mut command)? {
            println!(
                "fuzz {} FAILED: the input is in {}/artifacts",
                target.name,
                workspace.relative(&target.folder)
            );
            verdict = Verdict::Failed;
        }
    }
    Ok(verdict)
}

/// All fuzz targets of the tree, sorted by folder and name.
fn targets(workspace: &Workspace) -> Result<Vec<Target>, Error> {
    let mut targets = Vec::new();
    for path in workspace.files()? {
        let Some(folder) =
            path.parent().filter(|folder| folder.ends_with("fuzz") && path.ends_with("Cargo.toml"))
        else {
            continue;
        };
        let manifest = Manifest::read(&path)?;
        let binaries = manifest.get(&["bin"]).and_then(Value::as_array).into_iter().flatten();
        let names = binaries.filter_map(|binary| binary.get("name").and_then(Value::as_str));
        targets.extend(names.map(|name| Target { name: name.to_owned(), folder: folder.to_owned() }));
    }
    Ok(targets)
}

/// The nightly cargo, which does not take the flags of the stable one.
fn nightly() -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo"]);
    for name in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
        command.env_remove(name);
    }
    command
}

/// Fails with the line to type when the nightly cargo does not answer to `arguments`.
fn need(what: &'static str, arguments: &[&str], install: &'static str) -> Result<(), Error> {
    let answers = output(nightly().args(arguments)).is_ok_and(|output| output.status.success());
    if answers { Ok(()) } else { Err(Error::ToolMissing { what, install }) }
}
