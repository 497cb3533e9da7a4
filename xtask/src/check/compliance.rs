//! The table of rules that tests prove is what the tests say.

use super::{Check, Findings};
use crate::compliance;
use crate::error::Error;
use crate::workspace::{self, Workspace};

pub const CHECK: Check = Check {
    name: "compliance",
    about: "docs/compliance.md shows which rules of RFCs the tests prove",
    remedy: "correct the lines that are named, then run: cargo xtask compliance",
    run,
};

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let proofs = compliance::proofs(workspace)?;
    let text = workspace::read(&compliance::document(workspace))?;
    let mut failures = proofs.failures;
    failures.extend(compliance::outdated(&text, &proofs.found));
    Ok(Findings::of(failures))
}
