//! `cargo xtask compliance`: writes `docs/compliance.md`, which rule of which RFC is proved by which test.
//!
//! A test names the rules that it proves, an attribute each: `#[proves("RFC 9293 3.8.6.1", "a shut window is probed")]`
//! (crate `isola-proves`, with which the compiler rejects a claim that is not above a test), or a line
//! `# RFC 9293 3.8.6.1: ...` at the head of a script of segments. The table is made from these and from nothing else.
//! [`collect`] finds them, [`render`] makes the document, and the check `compliance` proves it current.

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

/// What the user typed: nothing.
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

/// What all tests of the tree say that they prove.
#[derive(Default)]
pub struct Proofs {
    /// In the order of the files.
    pub found: Vec<Proof>,
    /// Claims that cannot be understood.
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

/// Where the document lies.
pub fn document(workspace: &Workspace) -> PathBuf {
    workspace.root().join(DOCUMENT)
}

/// Why the document does not show `proofs`; `None` where it does.
pub fn outdated(text: &str, proofs: &[Proof]) -> Option<String> {
    let wanted = render::document(proofs);
    let at = text.lines().zip(wanted.lines()).position(|(is, wanted)| is != wanted);
    match at {
        Some(at) => Some(format!("{DOCUMENT}:{}: is not what the tests say", at + 1)),
        None if text != wanted => Some(format!("{DOCUMENT}: does not end where it should")),
        None => None,
    }
}
