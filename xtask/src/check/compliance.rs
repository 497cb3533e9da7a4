//! The table of rules in `docs/compliance.md` matches the claims of the tests.

use super::{Check, Findings};
use crate::compliance;
use crate::error::Error;
use crate::workspace::{self, Workspace};

pub const CHECK: Check = Check {
    name: "compliance",
    about: "docs/compliance.md shows the rules of RFCs that the tests prove",
    remedy: "correct the named lines, then run: cargo xtask compliance",
    run,
};

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let proofs = compliance::proofs(workspace)?;
    let text = workspace::read(&compliance::document(workspace))?;
    let mut failures = proofs.failures;
    failures.extend(compliance::outdated(&text, &proofs.found));
    Ok(Findings::of(failures))
}
