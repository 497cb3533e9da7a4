//! The documentation builds, and every link in it resolves. Private items are included: modules of a crate link to each
//! other, and readers have the source.

use super::{Check, Findings};
use crate::cargo::{cargo, errors, output};
use crate::error::Error;
use crate::workspace::Workspace;

pub const CHECK: Check = Check {
    name: "docs",
    about: "the documentation of every library builds without a warning",
    remedy: "fix the link or the markup that rustdoc names; cargo doc --workspace --no-deps --document-private-items shows all",
    run,
};

/// A link to a private item resolves, because private items are documented.
const FLAGS: &str = "-D warnings -A rustdoc::private_intra_doc_links";

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let mut command = cargo(workspace);
    command.args([
        "doc",
        "--quiet",
        "--message-format=short",
        "--keep-going",
        "--workspace",
        "--lib",
        "--no-deps",
    ]);
    command.env("RUSTDOCFLAGS", FLAGS);
    Ok(Findings::of(errors(&output(&mut command)?)))
}
