//! The largest size of a file, and of the two parts of the supervisor.
//!
//! A file has one topic: above [`LISTED_ABOVE_LINES`] lines the check lists it, so that its authors look for a second topic;
//! above [`FILE_LIMIT_LINES`] lines the check fails. The supervisor's core stays small enough to be read in a day.

use std::path::Path;

use super::{Check, Findings};
use crate::error::Error;
use crate::workspace::{self, Workspace};

pub const CHECK: Check = Check {
    name: "sizes",
    about: "no source file exceeds 800 lines, the supervisor's core 6,000, and the rest of the supervisor 7,600",
    remedy: "move the file's second topic into a separate file; move policy out of supervisor/core",
    run,
};

/// The number of lines above which a file is listed.
const LISTED_ABOVE_LINES: usize = 400;
/// The largest number of lines of a file.
const FILE_LIMIT_LINES: usize = 800;
/// The largest numbers of lines of the supervisor's trusted core, which owns all resources, and of its policy and
/// services, without tests and the simulated machine (docs/decisions/0062-supervisor-core-and-policy.md,
/// 0102-links-between-cells.md).
const PARTS: [(&str, usize); 2] = [(CORE, 6_000), ("supervisor", 7_600)];
const CORE: &str = "supervisor/core";

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
    for (part, end) in PARTS {
        let of_part = files.iter().filter(|(path, _)| part_of(Path::new(path)) == Some(part));
        let lines: usize = of_part.map(|(_, lines)| lines).sum();
        if lines > end {
            findings.failures.push(format!("{part}/: {lines} lines, at most {end} are allowed"));
        }
    }
    findings
}

/// Returns the part of the supervisor to which a file's lines count.
fn part_of(path: &Path) -> Option<&'static str> {
    let mut parts = PARTS.into_iter().map(|(part, _)| part);
    parts.find(|part| path.starts_with(part)).filter(|_| !is_for_tests(path))
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
    fn each_part_of_the_supervisor_is_counted_as_a_whole_without_its_tests() {
        let files = |folder: &str, count: usize| -> Vec<(String, usize)> {
            (0..count).map(|index| (format!("{folder}/{index}.rs"), 500)).collect()
        };
        for (folder, most) in
            [("supervisor/core/src", 12), ("supervisor/core/machine/src", 12), ("supervisor/src", 15)]
        {
            assert_eq!(judge(&files(folder, most)).failures.len(), 0, "{folder}");
            assert_eq!(judge(&files(folder, most + 1)).failures.len(), 1, "{folder}");
        }
        let both: Vec<_> =
            files("supervisor/core/src", 12).into_iter().chain(files("supervisor/src", 15)).collect();
        assert_eq!(judge(&both).failures.len(), 0);
        for uncounted in [
            "supervisors/a.rs",
            "supervisor/src/cells/tests/ends.rs",
            "supervisor/src/fake.rs",
            "supervisor/fake/src/death.rs",
            "supervisor/core/tests/untrusted_policy/links.rs",
        ] {
            let more: Vec<_> = both.iter().cloned().chain([(uncounted.into(), 500)]).collect();
            assert_eq!(judge(&more).failures.len(), 0, "{uncounted}");
        }
    }
}
