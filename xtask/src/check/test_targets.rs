//! Targets with tests are built as test programs, and no other target is.
//!
//! Cargo builds a test program for every library, and runs rustdoc on it, also if it has no test: a second compilation, a
//! link and a start for nothing. A manifest therefore says `test = false` for a target without a test in its sources,
//! and `doctest = false` for a library without an example that runs. With these words a test that is added would
//! not run: the check finds it. It also finds a file of `tests/` that is not in a program, in packages with
//! `autotests = false`.

use std::path::{Path, PathBuf};

use cargo_metadata::{Package, Target};

use super::testable::{contains_test, is_library};
use super::{Check, Findings};
use crate::error::Error;
use crate::source;
use crate::workspace::{self, Workspace};

pub const CHECK: Check = Check {
    name: "test-targets",
    about: "targets with tests are built as test programs, and no others",
    remedy: "set or remove `test = false` or `doctest = false` in the section of the target in Cargo.toml; declare a file of \
             tests/ as a module of a test program",
    run,
};

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let sources = workspace.files_ending_in(&["rs"])?;
    let mut failures = Vec::new();
    for package in workspace.members() {
        for target in &package.targets {
            if !is_library(target) && !target.is_bin() {
                continue;
            }
            let (mut has_tests, mut has_examples) = (false, false);
            for path in sources.iter().filter(|path| is_source(path, target, package)) {
                let text = workspace::read(path)?;
                // Reading a file into tokens takes long.
                has_tests = has_tests || (text.contains("#[test]") && contains_test(source::tokens(path)?));
                has_examples |= contains_example(&text);
            }
            let faults = judge(target, has_tests, is_library(target) && has_examples);
            failures.extend(faults.map(|fault| format!("{}, target {}: {fault}", package.name, target.name)));
        }
        failures.extend(files_without_program(package, &sources)?);
    }
    Ok(Findings::of(failures))
}

/// Returns a fault for each file of the package's folder `tests` that is neither the root of a test program nor a module of
/// one: `autotests = false` leaves out such files.
fn files_without_program(package: &Package, sources: &[PathBuf]) -> Result<Vec<String>, Error> {
    let Some(folder) = package.manifest_path.parent().map(|folder| folder.join("tests")) else {
        return Ok(Vec::new());
    };
    let roots: Vec<&Path> = package.targets.iter().filter(|target| target.is_test()).map(root).collect();
    let files = sources.iter().filter(|path| path.parent() == Some(folder.as_std_path()));
    let mut left_out: Vec<&PathBuf> = files.filter(|path| !roots.contains(&path.as_path())).collect();
    if !left_out.is_empty() {
        let texts = roots.iter().map(|root| workspace::read(root)).collect::<Result<Vec<String>, Error>>()?;
        left_out.retain(|path| {
            let module = format!("mod {};", path.file_stem().unwrap_or_default().to_string_lossy());
            !texts.iter().any(|text| text.lines().any(|line| line.trim() == module))
        });
    }
    let name = &package.name;
    Ok(left_out
        .iter()
        .map(|path| format!("{name}: no test program has the file tests/{}", file_name(path)))
        .collect())
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn root(target: &Target) -> &Path {
    target.src_path.as_std_path()
}

/// Returns whether the file at `path` belongs to `target`. Of a package with a library, each file belongs to the library
/// but the roots of binaries.
fn is_source(path: &Path, target: &Target, package: &Package) -> bool {
    let root = root(target);
    let is_inside = root.parent().is_some_and(|folder| path.starts_with(folder));
    if !is_library(target) && package.targets.iter().any(is_library) {
        return path == root;
    }
    let mut others = package.targets.iter().filter(|other| other.src_path != target.src_path);
    is_inside && !others.any(|other| other.src_path.as_std_path() == path)
}

/// Returns the faults of a target that has unit tests, or examples in its documentation that run.
fn judge(target: &Target, has_tests: bool, has_examples: bool) -> impl Iterator<Item = &'static str> {
    let unit = match (target.test, has_tests) {
        (true, false) => Some("has no unit test; `test = false` saves a test program"),
        // Images are no programs of this host.
        (false, true) if is_library(target) || target.required_features.is_empty() => {
            Some("has unit tests that do not run because of `test = false`")
        }
        _ => None,
    };
    let documentation = match (target.doctest && is_library(target), has_examples) {
        (true, false) => {
            Some("has no example in its documentation that runs; `doctest = false` saves a run of rustdoc")
        }
        (false, true) => {
            Some("has examples in its documentation that do not run because of `doctest = false`")
        }
        _ => None,
    };
    unit.into_iter().chain(documentation)
}

/// Returns whether the documentation in a source file has an example that rustdoc compiles.
fn contains_example(text: &str) -> bool {
    let mut is_open = false;
    for line in text.lines() {
        let line = line.trim_start();
        let Some(line) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else { continue };
        let Some(words) = line.trim_start().strip_prefix("```") else { continue };
        if !is_open && words.split([',', ' ']).all(is_word_of_tests) {
            return true;
        }
        is_open = !is_open;
    }
    false
}

/// Returns whether a word after a fence leaves the block a test. rustdoc ignores blocks with other words.
fn is_word_of_tests(word: &str) -> bool {
    ["", "rust", "no_run", "compile_fail", "should_panic"].contains(&word)
        || word.starts_with("edition")
        || (word.starts_with('E') && word[1..].parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn library(test: bool, doctest: bool) -> Target {
        serde_json::from_value(json!({
            "name": "lib", "kind": ["lib"], "crate_types": ["lib"], "src_path": "/p/src/lib.rs", "edition": "2024",
            "test": test, "doctest": doctest, "doc": true,
        }))
        .expect("the test's target has cargo's form")
    }

    fn faults(target: &Target, has_tests: bool, has_examples: bool) -> usize {
        judge(target, has_tests, has_examples).count()
    }

    #[test]
    fn a_test_that_does_not_run_is_found() {
        assert_eq!(faults(&library(false, false), true, false), 1);
        assert_eq!(faults(&library(false, false), false, true), 1);
        assert_eq!(faults(&library(false, false), true, true), 2);
    }

    #[test]
    fn a_test_program_without_tests_is_found() {
        assert_eq!(faults(&library(true, true), false, false), 2);
        assert_eq!(faults(&library(true, true), true, true), 0);
        assert_eq!(faults(&library(false, false), false, false), 0);
    }

    #[test]
    fn examples_are_blocks_that_rustdoc_compiles() {
        for text in [
            "/// ```\n/// x\n/// ```",
            "//! ```no_run",
            "  /// ```compile_fail,E0277",
            "/// ```rust,edition2024",
        ] {
            assert!(contains_example(text), "{text}");
        }
        for text in [
            "/// ```text\n/// x\n/// ```",
            "/// ```ignore",
            "// ```",
            "let x = \"```\";",
            "//! ```toml\n//! ```",
        ] {
            assert!(!contains_example(text), "{text}");
        }
    }
}
