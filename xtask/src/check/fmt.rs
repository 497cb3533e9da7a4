//! Formatting, according to `rustfmt.toml`.

use super::{Check, Findings};
use crate::cargo::{cargo, output};
use crate::error::Error;
use crate::workspace::Workspace;

pub const CHECK: Check =
    Check { name: "fmt", about: "all Rust files are formatted", remedy: "run: cargo fmt --all", run };

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let output = output(cargo(workspace).args(["fmt", "--all", "--", "--check", "--files-with-diff"]))?;
    let mut failures: Vec<String> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| format!("{} is not formatted", workspace.relative(line.as_ref())))
        .collect();
    if !output.status.success() && failures.is_empty() {
        failures.extend(String::from_utf8_lossy(&output.stderr).lines().map(str::to_owned));
    }
    Ok(Findings::of(failures))
}
