//! `cargo xtask gate`: compares guest instructions of the most important paths with the baseline in
//! `benches/gate.toml`.
//!
//! The package `isola-benches` counts them; this verb builds its program and the images. `cargo xtask test` runs it as
//! a stage.

use std::process::Command;

use crate::Verdict;
use crate::cargo::{cargo, succeeds};
use crate::error::Error;
use crate::images;
use crate::workspace::Workspace;

/// The program, of the package `isola-benches`.
const PROGRAM: &str = "isola-gate";
/// The images with counted paths.
pub const NEEDED: [&str; 7] = ["costs", "echo", "kv", "programs", "regions", "supervisor", "web"];
/// The variable with the folder of images.
const IMAGES: &str = "ISOLA_IMAGES";

/// The command-line arguments.
#[derive(clap::Args)]
pub struct Args {
    /// Writes the counts to benches/gate.toml, the new baseline
    #[arg(long)]
    write: bool,
}

/// Builds everything needed, and counts.
pub fn run(args: &Args, workspace: &Workspace) -> Result<Verdict, Error> {
    let mut command = command(workspace)?;
    if args.write {
        command.arg("--write");
    }
    Ok(if succeeds(&mut command)? { Verdict::Passed } else { Verdict::Failed })
}

/// Builds everything needed, and returns the command that counts. Its output has the format of `cargo test`.
pub fn command(workspace: &Workspace) -> Result<Command, Error> {
    images::build(workspace, |image| NEEDED.contains(&image))?;
    // With the features of the whole tree, so that nearly all libraries are those of the tests.
    if !succeeds(cargo(workspace).args(["build", "--quiet", "--workspace", "--bin", PROGRAM]))? {
        return Err(Error::BenchmarksNotBuilt);
    }
    let mut command = Command::new(workspace.metadata().target_directory.join("debug").join(PROGRAM));
    command.env(IMAGES, workspace.image_folder());
    Ok(command)
}
