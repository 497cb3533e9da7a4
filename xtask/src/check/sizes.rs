//! The largest size of a file, and of the supervisor.
//!
//! A file has one topic: above [`LISTED_ABOVE_LINES`] lines the check lists it, so that its authors look for a second
//! topic; above [`FILE_LIMIT_LINES`] lines the check fails. The supervisor stays small enough to be read in a day.

use std::path::Path;

use super::{Check, Findings};
use crate::error::Error;
use crate::workspace::{self, Workspace};

pub const CHECK: Check = Check {
    name: "sizes",
    about: "no source file exceeds 800 lines; the supervisor without its tests does not exceed 10,000",
    remedy: "move the file's second topic into a separate file",
    run,
};

/// The number of lines above which a file is listed.
const LISTED_ABOVE_LINES: usize = 400;
/// The largest number of lines of a file.
const FILE_LIMIT_LINES: usize = 800;
/// The largest number of lines of the supervisor without its tests and its simulated machine, which are not trusted
/// (docs/decisions/0040-supervisor-line-limit.md).
const SUPERVISOR_LIMIT_LINES: usize = 10_000;

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let mut files = Vec::new();
    for path in workspace.files_ending_in(&["rs", "s", "S", "ld"])? {
        files.push((workspace.relative(&path), workspace::read(&path)?.lines().count()));
    }
    Ok(judge(&files))
}

/// Returns the files that are too long, and the long ones, of `files` with their numbers of lines.
fn judge(files: &[(String, usize)]) -> Findings {
    let mut findings = Findings::default();
    for (path, lines) in files {
        if *lines > FILE_LIMIT_LINES {
            findings.failures.push(format!("{path}: {lines} lines, at most {FILE_LIMIT_LINES} are allowed"));
        } else if *lines > LISTED_ABOVE_LINES {
            findings.notes.push(format!(
                "{path}: {lines} lines, more than {LISTED_ABOVE_LINES}: does it have a second topic?"
            ));
        }
    }
    let supervisor: usize = files
        .iter()
        .filter(|(path, _)| Path::new(path).starts_with("supervisor") && !is_for_tests(Path::new(path)))
        .map(|(_, lines)| lines)
        .sum();
    if supervisor > SUPERVISOR_LIMIT_LINES {
        findings
            .failures
            .push(format!("supervisor/: {supervisor} lines, at most {SUPERVISOR_LIMIT_LINES} are allowed"));
    }
    findings
}

/// Returns whether a file of the supervisor is only for tests.
fn is_for_tests(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let folder = |folder: &str| path.iter().any(|part| part == folder);
    let folders = ["tests", "fuzz", "fake"];
    folders.into_iter().any(folder) || matches!(name, Some("tests.rs" | "fake.rs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge_one(path: &str, lines: usize) -> Findings {
        judge(&[(path.into(), lines)])
    }

    #[test]
    fn a_file_may_have_at_most_800_lines() {
        assert_eq!(judge_one("a.rs", FILE_LIMIT_LINES).failures.len(), 0);
        assert_eq!(judge_one("a.rs", FILE_LIMIT_LINES + 1).failures.len(), 1);
    }

    #[test]
    fn a_file_above_400_lines_is_listed_and_does_not_fail() {
        assert_eq!(judge_one("a.rs", LISTED_ABOVE_LINES), Findings::default());
        let findings = judge_one("a.rs", LISTED_ABOVE_LINES + 1);
        assert_eq!((findings.failures.len(), findings.notes.len()), (0, 1));
    }

    #[test]
    fn the_supervisor_is_counted_as_a_whole_without_its_tests() {
        let files = |count: usize| -> Vec<(String, usize)> {
            (0..count).map(|index| (format!("supervisor/src/{index}.rs"), 400)).collect()
        };
        assert_eq!(judge(&files(25)).failures.len(), 0);
        assert_eq!(judge(&files(26)).failures.len(), 1);
        assert_eq!(judge(&[("supervisors/a.rs".into(), 400)]).failures.len(), 0);
        let with_tests: Vec<_> =
            files(25).into_iter().chain([("supervisor/src/cells/tests/ends.rs".into(), 400)]).collect();
        assert_eq!(judge(&with_tests).failures.len(), 0);
        let with_fake: Vec<_> =
            files(25).into_iter().chain([("supervisor/src/fake/death.rs".into(), 400)]).collect();
        assert_eq!(judge(&with_fake).failures.len(), 0);
    }
}
