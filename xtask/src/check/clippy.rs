//! Clippy on the two sets of packages with separate builds: host code (with tests, examples and the libraries of image
//! packages), and images.

use super::{Check, Findings};
use crate::cargo::{cargo, errors, output};
use crate::error::Error;
use crate::images;
use crate::workspace::Workspace;

pub const CHECK: Check = Check {
    name: "clippy",
    about: "clippy and the compiler have no warnings about any package",
    remedy: "fix the warning; if it is wrong: #[expect(clippy::..., reason = \"...\")]",
    run,
};

/// Lets programs without `std` compile in the profile of host programs, which unwind.
const WITHOUT_UNWINDING: &str = "--config=profile.dev.panic='abort'";

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let mut failures = Vec::new();
    let host =
        ["clippy", "--quiet", "--message-format=short", "--keep-going", "--workspace", "--all-targets"];
    failures.extend(lint(workspace, &host.map(str::to_owned))?);
    let images = workspace.images();
    if !images.is_empty() {
        let mut arguments =
            ["clippy", "--quiet", "--message-format=short", "--keep-going"].map(str::to_owned).to_vec();
        arguments.push(WITHOUT_UNWINDING.into());
        arguments.extend(images::selection(&images));
        failures.extend(lint(workspace, &arguments)?);
    }
    Ok(Findings::of(failures))
}

/// Runs clippy with `arguments`; returns its warnings, one line each.
fn lint(workspace: &Workspace, arguments: &[String]) -> Result<Vec<String>, Error> {
    Ok(errors(&output(cargo(workspace).args(arguments).args(["--", "-D", "warnings"]))?))
}
