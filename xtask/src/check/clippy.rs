//! Clippy over the two sets that are built apart: everything that runs on a host (tests, examples and the
//! libraries of image packages included), and the images.

use super::{Check, Findings};
use crate::cargo::{cargo, errors, output};
use crate::error::Error;
use crate::images;
use crate::workspace::Workspace;

pub const CHECK: Check = Check {
    name: "clippy",
    about: "clippy and the compiler have nothing to say about any package",
    remedy: "fix what clippy says; where it is wrong: #[expect(clippy::..., reason = \"...\")]",
    run,
};

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let mut failures = Vec::new();
    let host =
        ["clippy", "--quiet", "--message-format=short", "--keep-going", "--workspace", "--all-targets"];
    failures.extend(lint(workspace, &host.map(str::to_owned))?);
    let images = workspace.images();
    if !images.is_empty() {
        let mut arguments =
            ["clippy", "--quiet", "--message-format=short", "--keep-going"].map(str::to_owned).to_vec();
        arguments.extend(images::selection(&images));
        failures.extend(lint(workspace, &arguments)?);
    }
    Ok(Findings::of(failures))
}

/// What clippy says when it is called with `arguments`, a line each; nothing when all is well.
fn lint(workspace: &Workspace, arguments: &[String]) -> Result<Vec<String>, Error> {
    Ok(errors(&output(cargo(workspace).args(arguments).args(["--", "-D", "warnings"]))?))
}
