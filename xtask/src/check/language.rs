//! The rates of words that hide a sentence's subject stay below each crate's ceilings.

use super::{Check, Findings};
use crate::error::Error;
use crate::language;
use crate::language::ceilings::{self, Ceilings};
use crate::workspace::Workspace;

pub const CHECK: Check = Check {
    name: "language",
    about: "no crate or folder of pages exceeds its ceilings in xtask/language.toml",
    remedy: "give the sentences a named subject and an active verb; cargo xtask language prints the table",
    run,
};

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let ceilings = Ceilings::read(&ceilings::path(workspace))?;
    Ok(Findings::of(ceilings.failures(&language::measure(workspace)?)))
}
