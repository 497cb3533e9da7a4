//! Known vulnerabilities of dependencies, by cargo-deny and the RustSec database.
//!
//! The tool must be installed, and fetches the database with git. Without either, the check reports that it could not
//! run, which does not count as passed.

use serde::Deserialize;

use super::{Check, Findings};
use crate::cargo::{cargo, output};
use crate::error::Error;
use crate::workspace::Workspace;

pub const CHECK: Check = Check {
    name: "advisories",
    about: "no dependency has a known vulnerability or is withdrawn (needs cargo-deny and its database)",
    remedy: "cargo update -p CRATE; if there is no fixed version, choose another crate",
    run,
};

const INSTALL: &str = "cargo-deny is not installed (cargo install --locked cargo-deny)";

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    if !output(cargo(workspace).args(["deny", "--version"]))?.status.success() {
        return Ok(Findings::not_checked(INSTALL));
    }
    let output = output(cargo(workspace).args(["deny", "--format", "json", "check", "advisories"]))?;
    Ok(judge(&String::from_utf8_lossy(&output.stderr), output.status.success()))
}

/// A line of cargo-deny's JSON output: a `diagnostic` about a dependency, or a `log` line about itself.
#[derive(Deserialize)]
struct DenyLine {
    #[serde(rename = "type")]
    kind: String,
    fields: DenyFields,
}

#[derive(Deserialize)]
struct DenyFields {
    #[serde(default)]
    severity: String,
    #[serde(default)]
    level: String,
    #[serde(default)]
    message: String,
    advisory: Option<Advisory>,
}

#[derive(Deserialize)]
struct Advisory {
    id: String,
    package: String,
}

impl DenyFields {
    fn describe(&self) -> String {
        match &self.advisory {
            Some(Advisory { id, package }) => format!("{package}: {} ({id})", self.message),
            None => self.message.clone(),
        }
    }
}

/// Returns the findings in cargo-deny's `report`; `succeeded` is whether it exited with code 0.
fn judge(report: &str, succeeded: bool) -> Findings {
    let lines: Vec<DenyLine> = report.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let failures = lines.iter().filter(|line| line.kind == "diagnostic" && line.fields.severity == "error");
    let failures: Vec<String> = failures.map(|line| line.fields.describe()).collect();
    if succeeded || !failures.is_empty() {
        return Findings::of(failures);
    }
    let broken = lines.iter().find(|line| line.kind == "log" && line.fields.level == "ERROR");
    let reason = broken.map_or(report, |line| line.fields.message.as_str());
    Findings::not_checked(format!("cargo-deny could not run: {}", reason.lines().next().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VULNERABLE: &str = concat!(
        r#"{"type":"diagnostic","fields":{"severity":"error","message":"reads too far","#,
        r#""advisory":{"id":"RUSTSEC-1","package":"leaky","date":"2026-11-01"}}}"#
    );
    const UNREACHED: &str = r#"{"type":"log","fields":{"level":"ERROR","message":"failed to fetch advisory database\nno such host"}}"#;

    #[test]
    fn a_vulnerability_fails_the_check() {
        assert_eq!(judge(VULNERABLE, false), Findings::of(vec!["leaky: reads too far (RUSTSEC-1)".into()]));
    }

    #[test]
    fn an_unreachable_database_does_not_pass() {
        let findings = judge(UNREACHED, false);
        assert!(findings.failures.is_empty());
        let reason = "cargo-deny could not run: failed to fetch advisory database";
        assert_eq!(findings.not_checked.as_deref(), Some(reason));
    }

    #[test]
    fn a_tool_that_fails_silently_does_not_pass() {
        assert!(judge("", false).not_checked.is_some());
    }

    #[test]
    fn success_passes() {
        assert_eq!(judge("", true), Findings::default());
    }
}
