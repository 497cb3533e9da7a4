//! `cargo xtask bench`: figures of Isola beside a Linux guest.
//!
//! The benchmarks are a separate program (package `isola-benches`) with its own options. This verb builds it,
//! optimised, with the images that it boots and the programs for native comparisons.

use std::ffi::OsString;

use crate::Verdict;
use crate::cargo::{cargo, succeeds};
use crate::error::Error;
use crate::images;
use crate::workspace::Workspace;

/// The package of the benchmarks.
const PACKAGE: &str = "isola-benches";
/// The benchmarks' program.
const PROGRAM: &str = "isola-bench";
/// The native groups of figures, and the arguments that build their programs.
const NATIVE: [(&str, &[&str]); 2] = [
    ("memory", &["--package=isola-memory-compare", "--features=peers"]),
    ("stack", &["--package=isola-stack-compare"]),
];
/// The groups with machines, and the images that they boot.
const WITH_MACHINES: [(&str, &[&str]); 18] = [
    ("boot", &["kv"]),
    ("cell", &["supervisor", "kv", "echo"]),
    ("elastic", &["supervisor", "kv", "echo", "regions"]),
    ("colocation", &["supervisor", "kv", "primes"]),
    ("grid", &["supervisor", "tenants", "kv", "echo"]),
    ("kv", &["kv", "echo"]),
    ("web", &["web"]),
    ("product", &["supervisor", "kv", "echo", "web", "netpipe"]),
    ("bulk", &["netpipe"]),
    ("netpipe", &["netpipe"]),
    ("connections", &["echo"]),
    ("pager", &["kv", "regions"]),
    ("linux", &["supervisor", "linux"]),
    ("link", &["supervisor", "channels"]),
    ("linux-servers", &["supervisor", "linux"]),
    ("loop", &["supervisor", "netpipe", "kv", "kv-client", "channels"]),
    ("service", &["supervisor", "block", "volume-client", "net", "tenants"]),
    (LIBRARY, &["kv", "costs"]),
];
/// The group that also runs in a process of the host.
const LIBRARY: &str = "library";
/// The variable with the folder of images.
const IMAGES: &str = "ISOLA_IMAGES";

/// The command line, which is passed to the benchmarks.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Groups and options; `cargo xtask bench --help` explains them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Builds everything needed, and runs the benchmarks.
pub fn run(args: &Args, workspace: &Workspace) -> Result<Verdict, Error> {
    let named = |word: &str| args.arguments.iter().any(|argument| argument == word);
    let tables = args.arguments.iter().any(|argument| argument.to_string_lossy().starts_with("--tables="));
    let only_asks = ["-h", "--help", "--tables"].iter().any(|word| named(word)) || tables;
    let with_machines = WITH_MACHINES.iter().any(|(group, _)| named(group));
    let native = NATIVE.iter().any(|(group, _)| named(group));
    let all = !with_machines && !native;
    if !only_asks && (with_machines || all) {
        let groups = WITH_MACHINES.iter().filter(|(group, _)| named(group) || all);
        let needed: Vec<&str> = groups.flat_map(|(_, images)| *images).copied().collect();
        images::build(workspace, |image| needed.contains(&image))?;
    }
    if !only_asks && (named(LIBRARY) || all) {
        images::build_hosted(workspace)?;
    }
    for (_, selection) in NATIVE.iter().filter(|(group, _)| !only_asks && (named(group) || all)) {
        let mut programs = cargo(workspace);
        programs
            .args(["build", "--quiet", "--release", images::OPTIMISED_AS_A_WHOLE, "--bins"])
            .args(*selection);
        if !succeeds(&mut programs)? {
            return Err(Error::BenchmarksNotBuilt);
        }
    }
    if !succeeds(cargo(workspace).args(["build", "--quiet", "--release", "--package", PACKAGE]))? {
        return Err(Error::BenchmarksNotBuilt);
    }
    let mut benchmarks = std::process::Command::new(workspace.image_folder().join(PROGRAM));
    benchmarks.args(&args.arguments).env(IMAGES, workspace.image_folder());
    Ok(if succeeds(&mut benchmarks)? { Verdict::Passed } else { Verdict::Failed })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group that is in no table would need all images.
    #[test]
    fn each_group_of_figures_has_its_images_or_programs() {
        let figures = include_str!("../../benches/src/figure.rs");
        let names: Vec<&str> = figures
            .lines()
            .filter_map(|line| {
                line.trim().strip_prefix("Self::")?.split_once(" => \"")?.1.strip_suffix("\",")
            })
            .collect();
        assert!(names.contains(&"loop") && names.contains(&"stack"), "{names:?}");
        let with_machines = WITH_MACHINES.iter().map(|(group, _)| *group);
        let known: Vec<&str> = with_machines.chain(NATIVE.iter().map(|(group, _)| *group)).collect();
        for name in names {
            assert!(known.contains(&name), "{name}");
        }
    }
}
