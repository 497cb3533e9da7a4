//! `cargo xtask compliance`: writes `docs/compliance.md`, a table of RFC rules and the tests that prove them.
//!
//! A test claims a rule with an attribute, `#[proves("RFC 9293 3.8.6.1", "a shut window is probed")]` (crate
//! `isola-proves`, with which the compiler rejects a claim that is not above a test), or with a line
//! `# RFC 9293 3.8.6.1: ...` at the head of a script of segments. The table contains these claims only. [`collect`]
//! finds them, [`render`] formats the document, and the check `compliance` verifies that it is current.

mod collect;
mod render;
mod title;

use std::path::PathBuf;

pub use self::collect::Proof;
use self::collect::{of_rust, of_script};
use crate::Verdict;
use crate::error::Error;
use crate::source::tokens;
use crate::workspace::{self, Workspace};

/// The folders whose tests prove rules of RFCs.
const FOLDERS: [&str; 3] = ["apps", "net", "tests"];
/// The document.
const DOCUMENT: &str = "docs/compliance.md";

/// The command-line arguments: none.
#[derive(clap::Args)]
pub struct Args {}

/// Writes the document.
pub fn run(_args: &Args, workspace: &Workspace) -> Result<Verdict, Error> {
    let proofs = proofs(workspace)?;
    for failure in &proofs.failures {
        println!("{failure}");
    }
    let path = document(workspace);
    std::fs::write(&path, render::document(&proofs.found)).map_err(|source| Error::Write { path, source })?;
    println!("{DOCUMENT}: {} rules are named", proofs.found.len());
    Ok(if proofs.failures.is_empty() { Verdict::Passed } else { Verdict::Failed })
}

/// The claims of all tests in the tree.
#[derive(Default)]
pub struct Proofs {
    /// In the order of the files.
    pub found: Vec<Proof>,
    /// Malformed claims.
    pub failures: Vec<String>,
}

/// Reads all tests of the tree.
pub fn proofs(workspace: &Workspace) -> Result<Proofs, Error> {
    let mut proofs = Proofs::default();
    for path in workspace.files_ending_in(&["rs", "script"])? {
        let name = workspace.relative(&path);
        if !FOLDERS.iter().any(|folder| name.starts_with(&format!("{folder}/"))) {
            continue;
        }
        let read = match name.ends_with(".script") {
            true => of_script(&name, &workspace::read(&path)?),
            false => of_rust(&name, tokens(&path)?),
        };
        proofs.found.extend(read.found);
        proofs.failures.extend(read.failures);
    }
    Ok(proofs)
}

/// Returns the path of the document.
pub fn document(workspace: &Workspace) -> PathBuf {
    workspace.root().join(DOCUMENT)
}

/// Returns the difference between the document and `proofs`; `None` if there is none.
pub fn outdated(text: &str, proofs: &[Proof]) -> Option<String> {
    let wanted = render::document(proofs);
    let at = text.lines().zip(wanted.lines()).position(|(is, wanted)| is != wanted);
    match at {
        Some(at) => Some(format!("{DOCUMENT}:{}: does not match the claims of the tests", at + 1)),
        None if text != wanted => Some(format!("{DOCUMENT}: does not end as expected")),
        None => None,
    }
}
