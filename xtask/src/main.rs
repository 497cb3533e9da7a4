//! `cargo xtask VERB`: what a contributor runs besides cargo itself.
//!
//! Each verb is a module with an `Args` (what clap parses) and a `run`; the table below is the only other
//! place that names it. A verb returns a [`Verdict`]: what it looked at may be wrong ([`Verdict::Failed`]
//! and exit code 1), or it could not look at all ([`error::Error`], exit code 2).
//!
//! Not here: how an image is linked (each image's `build.rs`), and which packages are images for
//! `./isola` (`cargo images`, in `.cargo/config.toml`; the check `manifests` proves the two agree).

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
mod test;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

use crate::error::Error;
use crate::workspace::Workspace;

/// Builds the command line from one line a verb.
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
    /// Proves the laws of the tree: layering, unsafe code, sizes, formatting, lints, licences, ...
    check => Check;
    /// Writes docs/compliance.md: which rules of RFCs the tests prove
    compliance => Compliance;
    /// Runs the fuzz targets of the parsers by libFuzzer (needs g++)
    fuzz => Fuzz;
    /// Counts guest instructions of requests, faults and cells, and compares them with benches/gate.toml
    gate => Gate;
    /// Builds every image of the tree and prints where it is and how large
    images => Images;
    /// Counts words that hide a sentence's subject, by crate; --write lowers the ceilings in xtask/language.toml
    language => Language;
    /// Changes a package in one place after the other, and lists the changes that no test notices
    mutants => Mutants;
    /// Runs every test there is: checks, host tests, tests on a machine in QEMU
    test => Test;
}

/// Tasks of the Isola tree besides building and running it.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

/// What a verb found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Everything that was asked for holds.
    Passed,
    /// Something does not hold; the verb has printed what, and what to do.
    Failed,
}

fn main() -> ExitCode {
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
