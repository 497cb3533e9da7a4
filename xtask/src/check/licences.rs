//! The licences of all dependencies.
//!
//! `deny.toml` lists the allowed licences, in cargo-deny's format; this check needs neither that tool nor a network. A
//! package passes if the allowed licences suffice to use it: `MIT OR GPL-3.0` passes with `MIT` alone,
//! `MIT AND GPL-3.0` does not.

use std::collections::BTreeSet;

use cargo_metadata::Package;
use spdx::{Expression, LicenseReq, ParseMode};
use toml::Value;

use super::{Check, Findings};
use crate::error::Error;
use crate::manifest::Manifest;
use crate::workspace::Workspace;

pub const CHECK: Check = Check {
    name: "licences",
    about: "every dependency may be used under a licence that deny.toml allows",
    remedy: "choose another crate, or add its licence to deny.toml if MIT OR Apache-2.0 code may be linked with it",
    run,
};

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let rules = Manifest::read(&workspace.root().join("deny.toml"))?;
    let allowed = strings(rules.get(&["licenses", "allow"]));
    let dependencies = workspace.metadata().packages.iter().filter(|package| package.source.is_some());
    Ok(Findings::of(dependencies.filter_map(|package| judge_package(package, &rules, &allowed)).collect()))
}

fn judge_package(package: &Package, rules: &Manifest, allowed: &BTreeSet<String>) -> Option<String> {
    let mut allowed = allowed.clone();
    allowed.extend(exceptions(rules, &package.name));
    let wrong = judge(package.license.as_deref(), &allowed)?;
    Some(format!("{} {}: {wrong}", package.name, package.version))
}

/// Returns the fault of a package under `licence`, if any.
fn judge(licence: Option<&str>, allowed: &BTreeSet<String>) -> Option<String> {
    let Some(licence) = licence else {
        return Some("has no licence".into());
    };
    let Ok(expression) = Expression::parse_mode(licence, ParseMode::LAX) else {
        return Some(format!("its licence is no SPDX expression: {licence}"));
    };
    let known = |requirement: &LicenseReq| allowed.contains(&requirement.to_string());
    (!expression.evaluate(known)).then(|| format!("deny.toml does not allow its licence: {licence}"))
}

/// Returns the additional licences that `[[licenses.exceptions]]` allows for the package `name`.
fn exceptions(rules: &Manifest, name: &str) -> BTreeSet<String> {
    let exceptions = rules.get(&["licenses", "exceptions"]).and_then(Value::as_array);
    exceptions
        .into_iter()
        .flatten()
        .filter(|exception| exception.get("crate").and_then(Value::as_str) == Some(name))
        .flat_map(|exception| strings(exception.get("allow")))
        .collect()
}

fn strings(value: Option<&Value>) -> BTreeSet<String> {
    let array = value.and_then(Value::as_array);
    array.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(licence: &str) -> bool {
        let allowed = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned).into();
        judge(Some(licence), &allowed).is_none()
    }

    #[test]
    fn a_choice_needs_one_allowed_licence_and_a_combination_all_of_them() {
        assert!(passes("MIT"));
        assert!(passes("GPL-3.0-only OR MIT"));
        assert!(passes("Unlicense/MIT"));
        assert!(passes("Apache-2.0 WITH LLVM-exception"));
        assert!(!passes("GPL-3.0-only"));
        assert!(!passes("MIT AND GPL-3.0-only"));
        assert!(!passes("(MIT OR Apache-2.0) AND Unicode-3.0"));
    }

    #[test]
    fn a_package_without_a_licence_does_not_pass() {
        assert!(judge(None, &BTreeSet::new()).is_some());
        assert!(!passes("see LICENSE"));
    }
}
