//! `cargo xtask suite NAME [PROGRAM...]`: runs a test suite of another project in Linux cells, and compares the results
//! with its list (`tests/suites/NAME/cases`).
//!
//! The runner is a test, `tests/tests/linux_suites.rs`; this verb builds the images that it needs and sets its variables.
//! `cargo xtask test machine --long` runs all suites.

use std::process::Command;

use crate::cargo::{cargo, succeeds};
use crate::error::Error;
use crate::workspace::Workspace;
use crate::{Verdict, images};

/// The command-line arguments.
#[derive(clap::Args)]
pub struct Args {
    /// The suite: a folder of tests/suites
    name: String,
    /// The programs of the suite; without one, all
    programs: Vec<String>,
    /// Runs the programs on this host's Linux, as root, and prints those that do not pass
    #[arg(long)]
    linux: bool,
    /// Writes the results into the list; a person has to explain new failures, marked with `?`
    #[arg(long, conflicts_with = "linux")]
    write: bool,
}

/// Runs the suite.
pub fn run(args: &Args, workspace: &Workspace) -> Result<Verdict, Error> {
    let mut command = cargo(workspace);
    command.args([
        "test",
        "--quiet",
        "--package",
        "isola-tests",
        "--test",
        "linux_suites",
        "--",
        "--nocapture",
    ]);
    command.env("ISOLA_SUITE", &args.name).env("ISOLA_SUITE_PROGRAMS", args.programs.join(" "));
    set(&mut command, "ISOLA_SUITE_LINUX", args.linux);
    set(&mut command, "ISOLA_SUITE_WRITE", args.write);
    if !args.linux && std::env::var_os("ISOLA_IMAGES").is_none() {
        images::build(workspace, |name| matches!(name, "linux" | "supervisor"))?;
        if !succeeds(cargo(workspace).args(["build", "--quiet", "--release", "--package", "isola-host"]))? {
            return Ok(Verdict::Failed);
        }
        command.env("ISOLA_IMAGES", workspace.image_folder());
        command.env("ISOLA_COMMAND", workspace.image_folder().join("isola"));
    }
    Ok(if succeeds(&mut command)? { Verdict::Passed } else { Verdict::Failed })
}

fn set(command: &mut Command, variable: &str, is_set: bool) {
    if is_set {
        command.env(variable, "1");
    } else {
        command.env_remove(variable);
    }
}
