//! The published figures match the raw data, and are marked if the tree has changed since their measurement.
//!
//! The benchmarks check their own pages, with `--tables check`.

use super::{Check, Findings};
use crate::cargo::{cargo, output};
use crate::error::Error;
use crate::workspace::Workspace;

pub const CHECK: Check = Check {
    name: "figures",
    about: "the tables of figures match benches/data and mark old figures",
    remedy: "run: cargo xtask bench --tables write",
    run,
};

/// The benchmarks' message for a repository without history.
const NO_HISTORY: &str = "git cannot determine the changes";

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let mut command = cargo(workspace);
    command.args(["run", "--quiet", "--package=isola-benches", "--bin=isola-bench", "--", "--tables=check"]);
    let output = output(&mut command)?;
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Ok(findings(output.status.success(), &message))
}

/// Returns the findings in the benchmarks' `message`; `holds` is whether they succeeded.
fn findings(holds: bool, message: &str) -> Findings {
    match message.lines().find(|line| line.contains(NO_HISTORY)) {
        _ if holds => Findings::default(),
        Some(line) => Findings::not_checked(line),
        None => Findings::of(message.lines().map(str::to_owned).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_without_history_is_not_checked_and_a_wrong_table_fails() {
        assert_eq!(findings(true, ""), Findings::default());
        let shallow = findings(false, "bench: git cannot determine the changes: the clone is shallow");
        assert!(shallow.not_checked.is_some() && shallow.failures.is_empty());
        let wrong = findings(false, "bench: README.md does not match benches/data");
        assert_eq!(wrong.failures.len(), 1);
    }
}
