//! Commit subjects have one form and fit into a line of `git log`.
//!
//! The check reads the commits after [`BASE`], because earlier subjects have other forms. It does not run in a clone
//! without that commit. A reviewer must verify that the verb is an imperative.

use std::process::Command;

use super::{Check, Findings};
use crate::cargo::output;
use crate::error::Error;
use crate::workspace::Workspace;

pub const CHECK: Check = Check {
    name: "subjects",
    about: "commit subjects have the form `area: imperative`, in at most 72 characters",
    remedy: "reword the commit: git commit --amend, or git rebase --interactive for an earlier one",
    run,
};

/// The last commit that is exempt.
const BASE: &str = "4a60e745d550d1bf12b7348227ad2aeecc3700b2";
/// The largest length of a subject, in characters.
const SUBJECT_END: usize = 72;

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let git = |arguments: &[&str]| output(Command::new("git").current_dir(workspace.root()).args(arguments));
    let Ok(ancestor) = git(&["merge-base", "--is-ancestor", BASE, "HEAD"]) else {
        return Ok(Findings::not_checked("git is not installed"));
    };
    if !ancestor.status.success() {
        return Ok(Findings::not_checked(format!("commit {BASE} is not in the history of this clone")));
    }
    let log = git(&["log", "--no-merges", "--format=%h %s", &format!("{BASE}..HEAD")])?;
    Ok(judge(&String::from_utf8_lossy(&log.stdout)))
}

/// Returns the findings for the commits in `log`, which has a line with hash and subject for each.
fn judge(log: &str) -> Findings {
    let commits = log.lines().filter_map(|line| line.split_once(' '));
    let failures =
        commits.filter_map(|(hash, subject)| Some(format!("{hash}: {}: {subject}", wrong(subject)?)));
    Findings::of(failures.collect())
}

/// Returns the fault of `subject`; `None` if it has none.
fn wrong(subject: &str) -> Option<String> {
    let length = subject.chars().count();
    if length > SUBJECT_END {
        return Some(format!("{length} characters, at most {SUBJECT_END} are allowed"));
    }
    let Some((areas, change)) = subject.split_once(": ") else {
        return Some("has no `area: `".into());
    };
    if !areas.split(", ").all(is_area) {
        return Some("does not begin with an area, or areas with `, ` between them".into());
    }
    let is_verb =
        change.split(' ').next().is_some_and(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '-'));
    if !is_verb || !change.contains(' ') {
        return Some("does not state after the area what the commit does, in lower case".into());
    }
    change.ends_with('.').then(|| "ends with a full stop".into())
}

/// Returns whether `word` can name an area: a crate, or a folder of the tree.
fn is_area(word: &str) -> bool {
    !word.is_empty()
        && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "/-_.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_with_an_imperative_pass() {
        for subject in [
            "docs: follow renamed files",
            "web, files: refuse lines that end in LF alone",
            "net/stack/compare: re-use buffers",
            ".ci: install socat: tests need it",
        ] {
            assert_eq!(wrong(subject), None, "{subject}");
        }
    }

    #[test]
    fn other_forms_fail() {
        for subject in [
            "follow renamed files",
            "docs:follow renamed files",
            "Docs: follow renamed files",
            "the docs: follow renamed files",
            "docs, : follow renamed files",
            ": follow renamed files",
            "docs: Follow renamed files",
            "docs: files",
            "docs: follow renamed files.",
        ] {
            assert!(wrong(subject).is_some(), "{subject}");
        }
    }

    #[test]
    fn a_subject_has_at_most_72_characters() {
        let subject = |length: usize| format!("docs: follow {}", "é".repeat(length - "docs: follow ".len()));
        assert_eq!(wrong(&subject(SUBJECT_END)), None);
        assert!(wrong(&subject(SUBJECT_END + 1)).is_some());
    }

    #[test]
    fn each_commit_with_a_wrong_subject_is_named() {
        let findings = judge("abc1234 docs: follow renamed files\ndef5678 Fix\n");
        assert_eq!(findings.failures, ["def5678: has no `area: `: Fix"]);
        assert_eq!(judge(""), Findings::default());
    }
}
