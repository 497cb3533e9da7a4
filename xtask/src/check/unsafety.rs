//! Law 2: only listed places contain unsafe code, each with a reason.
//!
//! The compiler does most of the work: the workspace denies `unsafe_code` and clippy's `undocumented_unsafe_blocks`,
//! and the check `manifests` verifies that every package inherits that. This check verifies the rest: only listed
//! places allow unsafe code again, and each gives the reason.

use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};

use super::{Check, Findings};
use crate::error::Error;
use crate::manifest::Manifest;
use crate::source;
use crate::workspace::{self, Workspace};

pub const CHECK: Check = Check {
    name: "unsafe",
    about: "only listed places contain unsafe code, with a reason",
    remedy: "move the unsafe code into a listed place behind a safe interface; where it is allowed, give the \
             reason in the attribute: #![expect(unsafe_code, reason = \"...\")]",
    run,
};

/// Folders whose packages or modules may contain unsafe code.
const UNSAFE_PLACES: &[&str] = &[
    "machine",
    "cell/atomic-memcpy",
    "cell/bare",
    "cell/hosted",
    "cell/ebbs",
    "cell/fibers",
    "cell/memory",
    "cell/rcu",
    // Copies between shared words and bytes.
    "link/rings/src/bytes.rs",
    // Code of programs in ring 3, not of a cell.
    "linux/vdso/image",
    // An application that the compiler must reject for its unsafe code.
    "cell/app/tests/reach/unsafe_code.rs",
];

/// The lints of the root manifest that must be `deny` or `forbid`.
const DENIED: &[(&str, &str)] = &[
    ("rust", "unsafe_code"),
    ("rust", "unsafe_op_in_unsafe_fn"),
    ("clippy", "undocumented_unsafe_blocks"),
    ("clippy", "missing_safety_doc"),
];

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let root = Manifest::read(&workspace.root().join("Cargo.toml"))?;
    let mut failures: Vec<String> = DENIED
        .iter()
        .filter(|(tool, lint)| !is_denied(&root, tool, lint))
        .map(|(tool, lint)| format!("Cargo.toml does not deny {lint} in [workspace.lints.{tool}]"))
        .collect();
    let absent = UNSAFE_PLACES.iter().filter(|place| !workspace.root().join(place).exists());
    failures
        .extend(absent.map(|place| format!("the list of unsafe places names {place}, which does not exist")));
    for path in workspace.files_ending_in(&["rs"])? {
        let relative = workspace.relative(&path);
        failures.extend(judge(&relative, source::tokens(&path)?, &workspace::read(&path)?));
    }
    Ok(Findings::of(failures))
}

fn is_denied(root: &Manifest, tool: &str, lint: &str) -> bool {
    let value = root.get(&["workspace", "lints", tool, lint]);
    let level = value.and_then(|value| value.as_str().or_else(|| value.get("level")?.as_str()));
    matches!(level, Some("deny" | "forbid"))
}

/// Returns the faults of the file at `relative`, with these `tokens` and this `text`.
fn judge(relative: &str, tokens: TokenStream, text: &str) -> Vec<String> {
    let may = may_be_unsafe(relative);
    let mut failures = Vec::new();
    for call in source::calls(tokens.clone(), &["allow", "expect", "warn"]) {
        if !source::idents(call.arguments.clone()).iter().any(|ident| ident == "unsafe_code") {
            continue;
        }
        let line = call.line;
        if !may {
            failures.push(format!("{relative}:{line}: allows unsafe code"));
        } else if !has_reason(call.arguments) && !comment_above(text, line) {
            failures.push(format!("{relative}:{line}: allows unsafe code without a reason"));
        }
    }
    if !may {
        // The compiler denies these as well, except in a macro without calls.
        let uses = source::idents(tokens).into_iter().filter(|ident| ident == "unsafe");
        failures.extend(uses.map(|ident| format!("{relative}:{}: unsafe", ident.span().start().line)));
    }
    failures
}

fn may_be_unsafe(relative: &str) -> bool {
    UNSAFE_PLACES
        .iter()
        .any(|folder| Path::new(relative).starts_with(folder) || relative == format!("{folder}.rs"))
}

/// Returns whether an attribute's arguments contain `reason = "a sentence"`.
fn has_reason(arguments: TokenStream) -> bool {
    let trees: Vec<TokenTree> = arguments.into_iter().collect();
    trees.windows(3).any(|window| match window {
        [TokenTree::Ident(name), TokenTree::Punct(_), TokenTree::Literal(text)] => {
            name == "reason" && is_sentence(text.to_string().trim_matches('"'))
        }
        _ => false,
    })
}

/// Returns whether the line above `line` (from 1) is a comment with a sentence.
fn comment_above(text: &str, line: usize) -> bool {
    let above = line.checked_sub(2).and_then(|index| text.lines().nth(index)).unwrap_or("").trim();
    above.strip_prefix("//").is_some_and(is_sentence)
}

fn is_sentence(text: &str) -> bool {
    text.split_whitespace().count() >= 3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge_text(relative: &str, text: &str) -> Vec<String> {
        judge(relative, text.parse().expect("the test's source lexes"), text)
    }

    #[test]
    fn only_listed_places_may_allow_unsafe_code() {
        let lift = "#![expect(unsafe_code, reason = \"reads the page tables\")]";
        assert_eq!(judge_text("machine/src/lib.rs", lift), [""; 0]);
        assert_eq!(judge_text("net/stack/src/lib.rs", lift).len(), 1);
        assert_eq!(judge_text("machinery/src/lib.rs", lift).len(), 1);
    }

    #[test]
    fn allowing_unsafe_code_needs_a_reason() {
        assert_eq!(judge_text("machine/src/lib.rs", "#![allow(unsafe_code)]").len(), 1);
        assert_eq!(
            judge_text("machine/src/lib.rs", "#![allow(dead_code, unsafe_code, reason = \"x\")]").len(),
            1
        );
        let commented = "// Talks to the interrupt controller.\n#![allow(unsafe_code)]";
        assert_eq!(judge_text("machine/src/lib.rs", commented), [""; 0]);
    }

    #[test]
    fn unsafe_code_in_cfg_attr_and_macros_is_found() {
        assert_eq!(
            judge_text("abi/src/lib.rs", "#![cfg_attr(test, allow(dead_code, unsafe_code))]").len(),
            1
        );
        assert_eq!(judge_text("abi/src/lib.rs", "macro_rules! m { () => { unsafe { x() } } }").len(), 1);
    }

    #[test]
    fn words_in_comments_and_strings_are_not_code() {
        let text = "// unsafe allow(unsafe_code)\nconst A: &str = \"unsafe\"; const B: &str = \"allow(unsafe_code)\";";
        assert_eq!(judge_text("abi/src/lib.rs", text), [""; 0]);
    }
}
