//! Law 4: code above the platforms needs no machine for its tests.
//!
//! The stage `host` of `cargo xtask test` builds every package as a host program. This check verifies that the build
//! means something: only the packages in [`EXCEPTIONS`] depend on a package of [`HARDWARE`], so a test of any other
//! package cannot reach code that works on hardware alone; and every library has tests outside of its documentation, or
//! its manifest has the reason under `[package.metadata.isola] no-unit-tests`.
//!
//! Dependencies for tests, and optional dependencies without a default feature that enables them, do not count: the
//! supervisor's image has the machine layer, the supervisor's library does not. Dependencies through a package of
//! [`EXCEPTIONS`] do not count either: an application depends on the library of applications, which has both platforms.

use std::collections::BTreeSet;

use cargo_metadata::{Dependency, DependencyKind, Package};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::{Check, Findings};
use crate::error::Error;
use crate::source;
use crate::workspace::Workspace;

pub const CHECK: Check = Check {
    name: "testable",
    about: "libraries above the platforms do not depend on hardware, and have tests on the host",
    remedy: "put the effect on hardware behind a trait that the platform implements; write a test, or the reason for \
             none: no-unit-tests = \"...\" in [package.metadata.isola]",
    run,
};

/// The folders of packages with code that works on hardware alone.
const HARDWARE: &[&str] = &["machine", "drivers", "cell/bare"];

/// The folders whose packages may depend on [`HARDWARE`], with the reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("drivers", "state machines on the machine layer's DMA memory, which tests replace with plain memory"),
    ("cell/bare", "the platform on bare hardware"),
    ("machine/fault-injection", "illegal accesses, which crash the images that contain them"),
    (
        "supervisor/core/machine",
        "the hardware traits of the supervisor's core; its tests use a fake machine instead",
    ),
    ("cell/app", "selects the platform; applications are tested on the hosted one"),
    ("tests/images", "images that run on a machine only"),
    ("fuzz", "a target of the machine layer's parser of firmware tables"),
];

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let members = workspace.members();
    let folders: Vec<String> = members.iter().map(|package| workspace.folder(package)).collect();
    let mut failures = Vec::new();
    let mut used = BTreeSet::new();
    for (package, folder) in members.iter().zip(&folders) {
        for hardware in hardware_of(package, workspace) {
            match exception_of(folder) {
                Some(exception) => drop(used.insert(exception)),
                None => failures.push(format!(
                    "{} ({folder}) depends on {hardware}, so its tests need a machine",
                    package.name
                )),
            }
        }
    }
    failures.extend(unused_exceptions(&used));
    let sources = workspace.files_ending_in(&["rs"])?;
    for (package, folder) in members.iter().zip(&folders) {
        let Some(library) = package.targets.iter().find(|target| is_library(target)) else { continue };
        let mut has_tests = false;
        for path in &sources {
            let relative = workspace.relative(path);
            let runs = library.test || !is_within(&relative, &format!("{folder}/src"));
            if runs && owner(&relative, &folders) == Some(folder) && contains_test(source::tokens(path)?) {
                has_tests = true;
                break;
            }
        }
        let fault = judge_tests(has_tests, reason_for_no_tests(package));
        failures.extend(fault.map(|fault| format!("{} ({folder}) {fault}", package.name)));
    }
    Ok(Findings::of(failures))
}

/// Returns the folders of [`HARDWARE`] on which a plain build of `package` depends directly.
fn hardware_of(package: &Package, workspace: &Workspace) -> Vec<&'static str> {
    let root = workspace.root();
    let needed = package.dependencies.iter().filter(|dependency| is_in_plain_build(package, dependency));
    let paths = needed.filter_map(|dependency| dependency.path.as_ref());
    paths
        .filter_map(|path| HARDWARE.iter().find(|folder| root.join(folder) == path.as_std_path()))
        .copied()
        .collect()
}

/// Returns whether a build of `package` without further features includes `dependency`.
fn is_in_plain_build(package: &Package, dependency: &Dependency) -> bool {
    dependency.kind != DependencyKind::Development
        && (!dependency.optional
            || is_default(package, dependency.rename.as_ref().unwrap_or(&dependency.name)))
}

/// Returns whether the feature `default` of `package` enables its optional dependency `name`.
fn is_default(package: &Package, name: &str) -> bool {
    let mut open = vec!["default"];
    let mut seen = BTreeSet::new();
    while let Some(feature) = open.pop() {
        let enabled = feature.strip_prefix("dep:").unwrap_or(feature);
        // `name/feature` enables the dependency as well; `name?/feature` does not.
        if enabled.split('/').next() == Some(name) {
            return true;
        }
        let next = package.features.get(feature).into_iter().flatten();
        open.extend(next.map(String::as_str).filter(|next| seen.insert(*next)));
    }
    false
}

/// Returns the entry of [`EXCEPTIONS`] for the package in `folder`.
fn exception_of(folder: &str) -> Option<&'static str> {
    EXCEPTIONS.iter().map(|(exception, _)| *exception).find(|exception| is_within(folder, exception))
}

/// Returns a violation for each entry of [`EXCEPTIONS`] that is not in `used`.
fn unused_exceptions(used: &BTreeSet<&str>) -> Vec<String> {
    let unused = EXCEPTIONS.iter().filter(|(exception, _)| !used.contains(exception));
    unused.map(|(exception, _)| format!("the exception for {exception} has no use: remove it")).collect()
}

/// Returns whether `path` is `folder` or is inside of it.
fn is_within(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

pub fn is_library(target: &cargo_metadata::Target) -> bool {
    target.is_lib() || target.is_rlib() || target.is_proc_macro()
}

/// Returns the longest of `folders` that contains the file at `path`.
fn owner<'a>(path: &str, folders: &'a [String]) -> Option<&'a String> {
    folders.iter().filter(|folder| is_within(path, folder)).max_by_key(|folder| folder.len())
}

/// Returns the reason for which `package` has no tests, according to its manifest.
fn reason_for_no_tests(package: &Package) -> Option<&str> {
    package.metadata.get("isola")?.get("no-unit-tests")?.as_str()
}

/// Returns the fault of a library with or without tests, and with a reason for none.
fn judge_tests(has_tests: bool, reason: Option<&str>) -> Option<&'static str> {
    match (has_tests, reason) {
        (false, None) => Some("is a library without tests on the host"),
        (false, Some(reason)) if reason.split_whitespace().count() < 3 => {
            Some("has no tests, and a reason of fewer than three words")
        }
        (true, Some(_)) => Some("has tests and a reason for having none: remove the reason"),
        _ => None,
    }
}

/// Returns whether `tokens` contain `#[test]`, at any depth.
pub fn contains_test(tokens: TokenStream) -> bool {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    let is_test = |pair: &[TokenTree]| match pair {
        [TokenTree::Punct(hash), TokenTree::Group(attribute)] => {
            hash.as_char() == '#'
                && attribute.delimiter() == Delimiter::Bracket
                && attribute.stream().to_string() == "test"
        }
        _ => false,
    };
    trees.windows(2).any(is_test)
        || trees
            .into_iter()
            .any(|tree| matches!(tree, TokenTree::Group(group) if contains_test(group.stream())))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Returns a package with these features and dependencies, as cargo describes it.
    fn package(features: Value, dependencies: Value) -> Package {
        serde_json::from_value(json!({
            "name": "upper", "version": "0.1.0", "id": "upper 0.1.0 (path+file:///upper)",
            "manifest_path": "/upper/Cargo.toml", "dependencies": dependencies, "targets": [], "features": features,
        }))
        .expect("the test's package has cargo's form")
    }

    /// Returns whether a plain build of a package with these features includes its one dependency `lower`.
    fn includes(features: Value, kind: Option<&str>, optional: bool) -> bool {
        let dependency = json!({
            "name": "lower", "source": null, "req": "*", "kind": kind, "optional": optional,
            "uses_default_features": true, "features": [], "target": null, "path": "/lower",
        });
        let package = package(features, json!([dependency]));
        is_in_plain_build(&package, &package.dependencies[0])
    }

    #[test]
    fn only_dependencies_of_a_plain_build_count() {
        assert!(includes(json!({}), None, false));
        assert!(includes(json!({}), Some("build"), false));
        assert!(!includes(json!({}), Some("dev"), false), "a dependency for tests");
        assert!(!includes(json!({ "image": ["dep:lower"] }), None, true), "an optional one");
    }

    #[test]
    fn an_optional_dependency_counts_if_a_default_feature_enables_it() {
        for enabling in ["dep:lower", "lower", "lower/std", "image"] {
            let features = json!({ "default": [enabling], "image": ["dep:lower", "default"] });
            assert!(includes(features, None, true), "{enabling}");
        }
        for other in ["lower?/std", "dep:other", "log"] {
            assert!(!includes(json!({ "default": [other], "image": ["dep:lower"] }), None, true), "{other}");
        }
    }

    #[test]
    fn exceptions_are_whole_folders_and_all_in_use() {
        assert_eq!(exception_of("tests/images/divide"), Some("tests/images"));
        for folder in ["net/stack", "cell/barely", "supervisor", "machine", "tests"] {
            assert_eq!(exception_of(folder), None, "{folder}");
        }
        let all: BTreeSet<&str> = EXCEPTIONS.iter().map(|(exception, _)| *exception).collect();
        assert_eq!(unused_exceptions(&all), [""; 0]);
        let without_fuzz = all.into_iter().filter(|exception| *exception != "fuzz").collect();
        assert_eq!(unused_exceptions(&without_fuzz), ["the exception for fuzz has no use: remove it"]);
    }

    #[test]
    fn a_library_has_tests_or_a_reason() {
        assert_eq!(judge_tests(true, None), None);
        assert_eq!(judge_tests(false, Some("only link arguments inside")), None);
        for (has_tests, reason) in [(false, None), (false, Some("later")), (true, Some("it is too small"))] {
            assert!(judge_tests(has_tests, reason).is_some(), "{has_tests} {reason:?}");
        }
    }

    #[test]
    fn only_the_attribute_of_a_test_is_a_test() {
        let contains = |text: &str| contains_test(text.parse().expect("the test's source lexes"));
        assert!(contains("mod tests { #[test] fn f() {} }"));
        assert!(contains("proptest! { #[test] fn f(x in 0..9) {} }"));
        for none in ["// #[test]\nfn f() {}", "#[cfg(test)] mod tests;", "const A: &str = \"#[test]\";"] {
            assert!(!contains(none), "{none}");
        }
    }

    #[test]
    fn a_file_belongs_to_the_innermost_package() {
        let folders = ["cell/memory".to_owned(), "cell/memory/compare".to_owned()];
        assert_eq!(owner("cell/memory/src/lib.rs", &folders), Some(&folders[0]));
        assert_eq!(owner("cell/memory/compare/src/lib.rs", &folders), Some(&folders[1]));
        assert_eq!(owner("cell/memorable/src/lib.rs", &folders), None);
    }
}
