//! `cargo xtask VERB`: the contributors' tasks besides cargo's own.
//!
//! Each verb is a module with an `Args` (for clap) and a `run`; only the table below also names it. A verb returns a
//! [`Verdict`], which may be that the tree violates a law ([`Verdict::Failed`], exit code 1), or an error that
//! prevented its work ([`error::Error`], exit code 2).
//!
//! Not here: the link of an image (each image's `build.rs`), and the list of images for `./isola` (`cargo images`, in
//! `.cargo/config.toml`; the check `manifests` verifies that the two agree).

mod bench;
mod cargo;
mod check;
mod compliance;
mod error;
mod fuzz;
mod gate;
mod images;
mod language;
mod manifest;
mod mutants;
mod source;
mod suite;
mod test;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

use crate::error::Error;
use crate::workspace::Workspace;

/// Builds the command line from one line for each verb.
macro_rules! verbs {
    ($($(#[doc = $about:literal])+ $module:ident => $verb:ident;)+) => {
        #[derive(clap::Subcommand)]
        enum Verb {
            $($(#[doc = $about])+ $verb($module::Args),)+
        }

        impl Verb {
            fn run(self, workspace: &Workspace) -> Result<Verdict, Error> {
                match self {
                    $(Verb::$verb(args) => $module::run(&args, workspace),)+
                }
            }
        }
    };
}

verbs! {
    /// Measures Isola beside a Linux guest: boot, cells, requests
    bench => Bench;
    /// Checks the laws of the tree: layering, unsafe code, sizes, formatting, lints, licences, ...
    check => Check;
    /// Writes docs/compliance.md, the rules of RFCs that tests prove
    compliance => Compliance;
    /// Runs the fuzz targets of the parsers with libFuzzer (needs g++)
    fuzz => Fuzz;
    /// Counts guest instructions of requests, faults and cells, and compares them with benches/gate.toml
    gate => Gate;
    /// Builds every image of the tree and prints sizes and paths
    images => Images;
    /// Counts words that hide a sentence's subject, by crate; --write lowers the ceilings in xtask/language.toml
    language => Language;
    /// Changes a package in one place at a time, and lists the changes that no test detects
    mutants => Mutants;
    /// Runs a test suite of another project in Linux cells, such as the kernel's selftests
    suite => Suite;
    /// Runs all tests: checks, host tests, tests on machines in QEMU
    test => Test;
}

/// Tasks of the Isola tree besides building and running it.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

/// The result of a verb.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// No violation.
    Passed,
    /// Violations; the verb has printed them with their remedies.
    Failed,
}

fn main() -> ExitCode {
    if let Some(code) = check::as_rustdoc() {
        return code;
    }
    let cli = Cli::parse();
    match Workspace::open().and_then(|workspace| cli.verb.run(&workspace)) {
        Ok(Verdict::Passed) => ExitCode::SUCCESS,
        Ok(Verdict::Failed) => ExitCode::from(1),
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::from(2)
        }
    }
}
