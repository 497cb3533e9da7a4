//! Law 3: what differs between a bare cell and a hosted one is chosen in one place.
//!
//! So there is no conditional compilation by target or feature outside [`MAY`], and the tree has at most
//! [`FEATURES_AT_MOST`] Cargo features (a name that several packages share for the same purpose counts once),
//! each with a comment in the manifest that says what it is for.

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
    about: "no conditional compilation outside the one place that picks the platform; few features",
    remedy: "put what differs behind a trait of cell/platform; write a comment above each feature in Cargo.toml",
    run,
};

/// Where a platform is picked.
const MAY: &[&str] = &["cell/app"];

/// Conditions that tell how code is being looked at, not what it runs on.
const FINE: &[&str] =
    &["all", "any", "debug_assertions", "doc", "loom", "miri", "not", "test", "true", "false"];

const FEATURES_AT_MOST: usize = 10;

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let mut failures = Vec::new();
    for path in workspace.files_ending_in(&["rs"])? {
        let relative = workspace.relative(&path);
        if !MAY.iter().any(|folder| Path::new(&relative).starts_with(folder)) {
            failures.extend(judge(&relative, source::tokens(&path)?));
        }
    }
    let mut features = BTreeSet::new();
    for package in workspace.members() {
        let manifest = Manifest::read(package.manifest_path.as_std_path())?;
        for feature in package.features.keys() {
            features.insert(feature.clone());
            if !manifest.is_commented("features", feature) {
                failures.push(format!(
                    "feature {feature} of {} has no comment that says what it is for",
                    package.name
                ));
            }
        }
    }
    if features.len() > FEATURES_AT_MOST {
        let names = features.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        failures.push(format!("{} features, {FEATURES_AT_MOST} are the end: {names}", features.len()));
    }
    Ok(Findings::of(failures))
}

/// The conditions in a file that depend on what the code runs on.
fn judge(relative: &str, tokens: TokenStream) -> Vec<String> {
    source::calls(tokens, &["cfg", "cfg_attr"])
        .into_iter()
        .filter_map(|call| {
            let condition = match call.name.as_str() {
                "cfg_attr" => first_argument(call.arguments),
                _ => call.arguments,
            };
            let idents = source::idents(condition);
            let odd = idents.iter().find(|ident| !FINE.contains(&ident.to_string().as_str()))?;
            Some(format!("{relative}:{}: compiled depending on `{odd}`", call.line))
        })
        .collect()
}

/// What stands before the first comma.
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
    fn conditions_on_how_code_is_looked_at_are_fine() {
        assert_eq!(judge_text("#[cfg(test)] mod tests {}"), 0);
        assert_eq!(judge_text("#[cfg(any(loom, not(debug_assertions)))] fn f() {}"), 0);
        assert_eq!(judge_text("#![cfg_attr(not(test), no_std, deny(missing_docs))]"), 0);
        assert_eq!(judge_text("// cfg(feature = \"x\")"), 0);
    }
}
