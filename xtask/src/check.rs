//! `cargo xtask check [NAME...]`: checks the laws of the tree.
//!
//! A check is a module with a `CHECK` constant; [`CHECKS`] lists them in the order of execution, the quick ones first.
//! A check returns [`Findings`]; this module prints them and sets the exit code. If a check lacks a tool or a network,
//! it says so, and does not count as passed.

mod advisories;
mod clippy;
mod compliance;
mod docs;
mod figures;
mod fmt;
mod image;
mod language;
mod layering;
mod licences;
mod manifests;
mod red_zone;
mod rooms;
mod sizes;
mod small_image;
mod spelling;
mod subjects;
mod switch;
mod test_targets;
mod testable;
mod text;
mod udp_only;
mod unsafety;

use std::time::Instant;

pub use self::docs::as_rustdoc;
use crate::Verdict;
use crate::error::Error;
use crate::workspace::Workspace;

/// Every check, in the order of execution.
const CHECKS: &[Check] = &[
    layering::CHECK,
    rooms::CHECK,
    manifests::CHECK,
    unsafety::CHECK,
    switch::CHECK,
    testable::CHECK,
    test_targets::CHECK,
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
    udp_only::CHECK,
    small_image::CHECK,
];

/// One check.
pub struct Check {
    /// Its name on the command line.
    name: &'static str,
    /// The condition that it verifies.
    about: &'static str,
    /// The remedy for a contributor.
    remedy: &'static str,
    /// Checks the tree.
    run: fn(&Workspace) -> Result<Findings, Error>,
}

/// The result of a check.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// The violations, one line each; empty if the check passes.
    pub failures: Vec<String>,
    /// Remarks that are no violations.
    pub notes: Vec<String>,
    /// The reason why the tree could not be checked, if so.
    pub not_checked: Option<String>,
}

impl Findings {
    /// Returns findings with only `failures`.
    pub fn of(failures: Vec<String>) -> Self {
        Self { failures, ..Self::default() }
    }

    /// Returns the findings of a check that could not run, because of `reason`.
    pub fn not_checked(reason: impl Into<String>) -> Self {
        Self { not_checked: Some(reason.into()), ..Self::default() }
    }
}

/// The command-line arguments.
#[derive(clap::Args)]
pub struct Args {
    /// The checks to run; all of them if none is named
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(CHECKS.iter().map(
        |check| clap::builder::PossibleValue::new(check.name).help(check.about))))]
    names: Vec<String>,
}

/// Runs the checks that `args` names and prints a line for each.
pub fn run(args: &Args, workspace: &Workspace) -> Result<Verdict, Error> {
    let tally = run_named(&args.names, workspace);
    Ok(if tally.failed.is_empty() { Verdict::Passed } else { Verdict::Failed })
}

/// The outcomes of several checks.
#[derive(Clone, Default, Debug)]
pub struct Tally {
    /// The number of checks that ran without violations.
    pub passed: u64,
    /// The names of checks with violations or errors.
    pub failed: Vec<&'static str>,
}

/// Runs all checks and prints a line for each.
pub fn run_all(workspace: &Workspace) -> Tally {
    run_named(&[], workspace)
}

/// Runs the checks of built images that build none themselves, and prints a line for each.
pub fn run_on_images(workspace: &Workspace) -> Verdict {
    let tally = run_named(&[udp_only::CHECK.name.to_owned()], workspace);
    if tally.failed.is_empty() { Verdict::Passed } else { Verdict::Failed }
}

fn run_named(names: &[String], workspace: &Workspace) -> Tally {
    let mut tally = Tally::default();
    for check in CHECKS.iter().filter(|check| names.is_empty() || names.iter().any(|name| name == check.name))
    {
        let start = Instant::now();
        let findings = (check.run)(workspace)
            .unwrap_or_else(|error| Findings::of(vec![format!("the check ended with an error: {error}")]));
        println!("{}", line(check, &findings, start.elapsed().as_secs_f64()));
        for note in &findings.notes {
            println!("    note: {note}");
        }
        for failure in &findings.failures {
            println!("    {failure}");
        }
        if !findings.failures.is_empty() {
            println!("    remedy: {}", check.remedy);
            tally.failed.push(check.name);
        } else if findings.not_checked.is_none() {
            tally.passed += 1;
        }
    }
    tally
}

/// Returns the line with a check's outcome.
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
    fn a_check_that_could_not_run_does_not_read_as_passed() {
        let line = line(&layering::CHECK, &Findings::not_checked("no network"), 0.0);
        assert!(line.contains("not checked: no network") && !line.contains("ok"), "{line}");
    }

    #[test]
    fn violations_outweigh_an_incomplete_check() {
        let findings =
            Findings { not_checked: Some("half of it".into()), ..Findings::of(vec!["bad".into()]) };
        assert!(line(&layering::CHECK, &findings, 0.0).contains("FAILED  (1 found"));
    }

    #[test]
    fn names_of_checks_are_unique() {
        let mut names: Vec<_> = CHECKS.iter().map(|check| check.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CHECKS.len());
    }
}
