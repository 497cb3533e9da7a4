//! `cargo xtask gate`: guest instructions of the paths that matter, against `benches/gate.toml`.
//!
//! The package `isola-benches` counts them; here its program and the images are built. `cargo xtask test` runs it as a stage.

use std::process::Command;

use crate::Verdict;
use crate::cargo::{cargo, succeeds};
use crate::error::Error;
use crate::images;
use crate::workspace::Workspace;

/// The package, and its program.
const PACKAGE: &str = "isola-benches";
const PROGRAM: &str = "isola-gate";
/// The images that are counted.
const NEEDED: [&str; 6] = ["costs", "echo", "kv", "regions", "supervisor", "web"];
/// Tells the program where the images are.
const IMAGES: &str = "ISOLA_IMAGES";

/// What the user typed.
#[derive(clap::Args)]
pub struct Args {
    /// Writes the counts into benches/gate.toml
    #[arg(long)]
    write: bool,
}

/// Builds what is needed, and counts.
pub fn run(args: &Args, workspace: &Workspace) -> Result<Verdict, Error> {
    let mut command = command(workspace)?;
    if args.write {
        command.arg("--write");
    }
    Ok(if succeeds(&mut command)? { Verdict::Passed } else { Verdict::Failed })
}

/// The command that counts, with all that it needs built. It prints as `cargo test` does.
pub fn command(workspace: &Workspace) -> Result<Command, Error> {
    images::build(workspace, |image| NEEDED.contains(&image))?;
    let mut build = cargo(workspace);
    if !succeeds(build.args(["build", "--quiet", "--package", PACKAGE, "--bin", PROGRAM]))? {
        return Err(Error::BenchmarksNotBuilt);
    }
    let mut command = Command::new(workspace.metadata().target_directory.join("debug").join(PROGRAM));
    command.env(IMAGES, workspace.image_folder());
    Ok(command)
}
