//! `cargo xtask check [NAME...]`: proves the laws of the tree.
//!
//! A check is a module with a `CHECK` constant; [`CHECKS`] lists them in the order in which they run, the
//! quick ones first. A check looks and returns [`Findings`]; what is printed, and the exit code, is here.
//! What a check cannot look at (a tool or a network that is not there) it says, and that never counts as
//! passed.

mod advisories;
mod clippy;
mod compliance;
mod docs;
mod figures;
mod fmt;
mod language;
mod layering;
mod licences;
mod manifests;
mod red_zone;
mod sizes;
mod spelling;
mod subjects;
mod switch;
mod text;
mod unsafety;

use std::time::Instant;

use crate::Verdict;
use crate::error::Error;
use crate::workspace::Workspace;

/// Every check, in the order in which they run.
const CHECKS: &[Check] = &[
    layering::CHECK,
    manifests::CHECK,
    unsafety::CHECK,
    switch::CHECK,
    sizes::CHECK,
    text::CHECK,
    compliance::CHECK,
    licences::CHECK,
    advisories::CHECK,
    spelling::CHECK,
    language::CHECK,
    subjects::CHECK,
    fmt::CHECK,
    clippy::CHECK,
    docs::CHECK,
    figures::CHECK,
    red_zone::CHECK,
];

/// One check.
pub struct Check {
    /// What it is called on the command line.
    name: &'static str,
    /// What holds when it passes.
    about: &'static str,
    /// What a contributor does when it fails.
    remedy: &'static str,
    /// Looks at the tree.
    run: fn(&Workspace) -> Result<Findings, Error>,
}

/// What a check saw.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// What breaks the law, one line each; empty when the check passes.
    pub failures: Vec<String>,
    /// What is worth knowing and breaks nothing.
    pub notes: Vec<String>,
    /// Why the check could not look, when it could not.
    pub not_checked: Option<String>,
}

impl Findings {
    /// Findings with nothing but `failures`.
    pub fn of(failures: Vec<String>) -> Self {
        Self { failures, ..Self::default() }
    }

    /// Findings of a check that could not look, because of `reason`.
    pub fn not_checked(reason: impl Into<String>) -> Self {
        Self { not_checked: Some(reason.into()), ..Self::default() }
    }
}

/// What the user typed.
#[derive(clap::Args)]
pub struct Args {
    /// The checks to run; all of them when none is named
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(CHECKS.iter().map(
        |check| clap::builder::PossibleValue::new(check.name).help(check.about))))]
    names: Vec<String>,
}

/// Runs the checks that `args` names and prints a line for each.
pub fn run(args: &Args, workspace: &Workspace) -> Result<Verdict, Error> {
    let tally = run_named(&args.names, workspace);
    Ok(if tally.failed.is_empty() { Verdict::Passed } else { Verdict::Failed })
}

/// Which checks ended how.
#[derive(Clone, Default, Debug)]
pub struct Tally {
    /// How many looked and found nothing.
    pub passed: u64,
    /// The names of those that found something, or broke down.
    pub failed: Vec<&'static str>,
}

/// Runs all checks and prints a line for each.
pub fn run_all(workspace: &Workspace) -> Tally {
    run_named(&[], workspace)
}

fn run_named(names: &[String], workspace: &Workspace) -> Tally {
    let mut tally = Tally::default();
    for check in CHECKS.iter().filter(|check| names.is_empty() || names.iter().any(|name| name == check.name))
    {
        let start = Instant::now();
        let findings = (check.run)(workspace)
            .unwrap_or_else(|error| Findings::of(vec![format!("the check broke down: {error}")]));
        println!("{}", line(check, &findings, start.elapsed().as_secs_f64()));
        for note in &findings.notes {
            println!("    note: {note}");
        }
        for failure in &findings.failures {
            println!("    {failure}");
        }
        if !findings.failures.is_empty() {
            println!("    what to do: {}", check.remedy);
            tally.failed.push(check.name);
        } else if findings.not_checked.is_none() {
            tally.passed += 1;
        }
    }
    tally
}

/// The line that says how a check ended.
fn line(check: &Check, findings: &Findings, seconds: f64) -> String {
    let name = check.name;
    match (&findings.not_checked, findings.failures.len()) {
        (Some(reason), 0) => format!("check {name:<11} not checked: {reason}"),
        (_, 0) => format!("check {name:<11} ok      ({seconds:.1} s)"),
        (_, count) => format!("check {name:<11} FAILED  ({count} found, {seconds:.1} s)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_could_not_look_does_not_read_as_passed() {
        let line = line(&layering::CHECK, &Findings::not_checked("no network"), 0.0);
        assert!(line.contains("not checked: no network") && !line.contains("ok"), "{line}");
    }

    #[test]
    fn findings_outweigh_what_could_not_be_looked_at() {
        let findings =
            Findings { not_checked: Some("half of it".into()), ..Findings::of(vec!["bad".into()]) };
        assert!(line(&layering::CHECK, &findings, 0.0).contains("FAILED  (1 found"));
    }

    #[test]
    fn every_check_has_its_own_name() {
        let mut names: Vec<_> = CHECKS.iter().map(|check| check.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CHECKS.len());
    }
}
