//! Law 3: the difference between a bare cell and a hosted one is selected in one place.
//!
//! There is no conditional compilation by target or feature outside of [`PLATFORM_SELECTORS`]. The tree has at most
//! [`FEATURES_AT_MOST`] Cargo features, each with a comment in the manifest about its purpose; a name that several
//! packages share for one purpose counts once.

use std::collections::BTreeSet;
use std::path::Path;

use proc_macro2::TokenStream;

use super::{Check, Findings};
use crate::error::Error;
use crate::manifest::Manifest;
use crate::source;
use crate::workspace::Workspace;

pub const CHECK: Check = Check {
    name: "switch",
    about: "no conditional compilation outside of the one place that selects the platform; few features",
    remedy: "put the difference behind a trait of cell/platform; write a comment above each feature in Cargo.toml",
    run,
};

/// The folders that select the platform.
const PLATFORM_SELECTORS: &[&str] = &["cell/app"];

/// Conditions on tests and tools, not on the platform.
const ALLOWED_CONDITIONS: &[&str] =
    &["all", "any", "debug_assertions", "doc", "loom", "miri", "not", "test", "true", "false"];

const FEATURES_AT_MOST: usize = 10;

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let mut failures = Vec::new();
    for path in workspace.files_ending_in(&["rs"])? {
        let relative = workspace.relative(&path);
        if !PLATFORM_SELECTORS.iter().any(|folder| Path::new(&relative).starts_with(folder)) {
            failures.extend(judge(&relative, source::tokens(&path)?));
        }
    }
    let mut features = BTreeSet::new();
    for package in workspace.members() {
        let manifest = Manifest::read(package.manifest_path.as_std_path())?;
        for feature in package.features.keys() {
            features.insert(feature.clone());
            if !manifest.is_commented("features", feature) {
                failures
                    .push(format!("feature {feature} of {} has no comment about its purpose", package.name));
            }
        }
    }
    if features.len() > FEATURES_AT_MOST {
        let names = features.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        failures
            .push(format!("{} features, at most {FEATURES_AT_MOST} are allowed: {names}", features.len()));
    }
    Ok(Findings::of(failures))
}

/// Returns the conditions in a file that depend on the platform or on features.
fn judge(relative: &str, tokens: TokenStream) -> Vec<String> {
    source::calls(tokens, &["cfg", "cfg_attr"])
        .into_iter()
        .filter_map(|call| {
            let condition = match call.name.as_str() {
                "cfg_attr" => first_argument(call.arguments),
                _ => call.arguments,
            };
            let idents = source::idents(condition);
            let odd =
                idents.iter().find(|ident| !ALLOWED_CONDITIONS.contains(&ident.to_string().as_str()))?;
            Some(format!("{relative}:{}: compiled depending on `{odd}`", call.line))
        })
        .collect()
}

/// Returns the tokens before the first comma.
fn first_argument(arguments: TokenStream) -> TokenStream {
    arguments.into_iter().take_while(|tree| tree.to_string() != ",").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge_text(text: &str) -> usize {
        judge("a.rs", text.parse().expect("the test's source lexes")).len()
    }

    #[test]
    fn conditions_on_the_target_or_a_feature_are_found() {
        assert_eq!(judge_text("#[cfg(target_os = \"linux\")] fn f() {}"), 1);
        assert_eq!(judge_text("fn f() { if cfg!(feature = \"bare\") {} }"), 1);
        assert_eq!(judge_text("#![cfg_attr(all(not(test), target_arch = \"x86_64\"), no_std)]"), 1);
    }

    #[test]
    fn conditions_on_tests_and_tools_pass() {
        assert_eq!(judge_text("#[cfg(test)] mod tests {}"), 0);
        assert_eq!(judge_text("#[cfg(any(loom, not(debug_assertions)))] fn f() {}"), 0);
        assert_eq!(judge_text("#![cfg_attr(not(test), no_std, deny(missing_docs))]"), 0);
        assert_eq!(judge_text("// cfg(feature = \"x\")"), 0);
    }
}
