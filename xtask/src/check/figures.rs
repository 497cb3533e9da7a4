//! The published figures are those of the raw data, and marked where the tree has changed since they were taken.
//!
//! The benchmarks know their own pages: this runs them with `--tables check`.

use super::{Check, Findings};
use crate::cargo::{cargo, output};
use crate::error::Error;
use crate::workspace::Workspace;

pub const CHECK: Check = Check {
    name: "figures",
    about: "the tables of figures show benches/data, and which of them are old",
    remedy: "run: cargo xtask bench --tables write",
    run,
};

/// What the benchmarks say where the repository has no history.
const NO_HISTORY: &str = "git does not say what has changed";

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let mut command = cargo(workspace);
    command.args(["run", "--quiet", "--package=isola-benches", "--bin=isola-bench", "--", "--tables=check"]);
    let output = output(&mut command)?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Ok(findings(output.status.success(), &said))
}

/// What the benchmarks have found.
fn findings(holds: bool, said: &str) -> Findings {
    match said.lines().find(|line| line.contains(NO_HISTORY)) {
        _ if holds => Findings::default(),
        Some(line) => Findings::not_checked(line),
        None => Findings::of(said.lines().map(str::to_owned).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_without_history_is_not_checked_and_a_wrong_table_fails() {
        assert_eq!(findings(true, ""), Findings::default());
        let shallow = findings(false, "bench: git does not say what has changed: the clone is shallow");
        assert!(shallow.not_checked.is_some() && shallow.failures.is_empty());
        let wrong = findings(false, "bench: README.md does not show what benches/data says");
        assert_eq!(wrong.failures.len(), 1);
    }
}
