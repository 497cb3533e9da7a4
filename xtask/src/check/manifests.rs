//! The common parts of all manifests, and the declaration of images.
//!
//! Images and host programs must not share a build (`docs/decisions/0002`). The binary of an image package therefore
//! exists only with the feature `image`, so that `cargo build` and `cargo test` of everything omit it; the alias
//! `images` in `.cargo/config.toml` builds every image that a user can start.

use std::path::Path;

use cargo_metadata::Package;
use toml::Value;

use super::{Check, Findings};
use crate::error::Error;
use crate::images::OPTIMISED_AS_A_WHOLE;
use crate::manifest::Manifest;
use crate::workspace::{self, ImageKind, Workspace};

pub const CHECK: Check = Check {
    name: "manifests",
    about: "packages inherit lints and versions; images are declared so that host builds omit them",
    remedy: "use the form of the manifest of cell/iobuf; docs/decisions/0002-workspace-and-builds.md has that of \
             an image",
    run,
};

/// The keys of `[package]` that the workspace defines.
const INHERITED: &[&str] = &["version", "edition", "rust-version", "license", "publish"];

/// The package of tests that need a machine; plain `cargo test` omits it.
const MACHINE_TESTS: &str = "isola-tests";

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let root = workspace.root();
    let mut failures = Vec::new();
    for package in workspace.members() {
        let manifest = Manifest::read(package.manifest_path.as_std_path())?;
        let wrong = judge(&manifest).into_iter().chain(judge_image(package));
        failures.extend(wrong.map(|wrong| format!("{}: {wrong}", package.name)));
    }
    failures.extend(judge_alias(
        &Manifest::read(&root.join(".cargo/config.toml"))?,
        &started_by_users(workspace),
    ));
    failures.extend(judge_root(&Manifest::read(&root.join("Cargo.toml"))?, workspace, root));
    Ok(Findings::of(failures))
}

/// Returns the faults of a package's manifest.
fn judge(manifest: &Manifest) -> Vec<String> {
    let inherits =
        |path: &[&str]| manifest.get(path).and_then(|value| value.get("workspace")).and_then(Value::as_bool);
    let mut wrong = Vec::new();
    if manifest.get(&["lints", "workspace"]).and_then(Value::as_bool) != Some(true) {
        wrong.push("does not inherit the lints: [lints] workspace = true".into());
    }
    for key in INHERITED.iter().filter(|key| inherits(&["package", key]) != Some(true)) {
        wrong.push(format!("does not inherit its {key}: {key}.workspace = true"));
    }
    if manifest.get(&["package", "description"]).and_then(Value::as_str).is_none_or(str::is_empty) {
        wrong.push("has no description".into());
    }
    for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
        for (name, _) in manifest.table(&[section]) {
            if inherits(&[section, name]) != Some(true) {
                wrong.push(format!(
                    "takes {name} from outside of [workspace.dependencies]: {name}.workspace = true"
                ));
            }
        }
    }
    wrong
}

/// Returns the faults of a package's image declaration, if it has one.
fn judge_image(package: &Package) -> Vec<String> {
    let Some(declared) = package.metadata.get("isola").and_then(|isola| isola.get("image")) else {
        return Vec::new();
    };
    let mut wrong = Vec::new();
    if workspace::image_kind(package).is_none() {
        wrong.push(format!("image = {declared} is none of \"supervisor\", \"cell\", \"test\""));
    }
    let binaries: Vec<_> = package.targets.iter().filter(|target| target.is_bin()).collect();
    if binaries.is_empty() {
        wrong.push("is an image package without a [[bin]]".into());
    }
    for binary in binaries {
        if binary.required_features != ["image"] {
            wrong.push(format!(
                "bin {} is built with host programs: required-features = [\"image\"]",
                binary.name
            ));
        }
        if binary.test {
            wrong.push(format!("bin {} cannot be a test program: test = false, bench = false", binary.name));
        }
    }
    wrong
}

/// Returns the packages with an image that `isola` can start.
fn started_by_users(workspace: &Workspace) -> Vec<String> {
    let images = workspace.images().into_iter().filter(|image| image.kind != ImageKind::Test);
    let mut packages: Vec<String> = images.map(|image| image.package).collect();
    packages.sort();
    packages.dedup();
    packages
}

/// Returns the differences between the alias `images` and a build of `packages`.
fn judge_alias(config: &Manifest, packages: &[String]) -> Vec<String> {
    let arguments = config.get(&["alias", "images"]).and_then(Value::as_array);
    let arguments: Vec<&str> = arguments.into_iter().flatten().filter_map(Value::as_str).collect();
    let named: Vec<&str> =
        arguments.iter().filter_map(|argument| argument.strip_prefix("--package=")).collect();
    let optimised = arguments.contains(&OPTIMISED_AS_A_WHOLE);
    let plain = (!optimised).then(|| {
        format!(
            ".cargo/config.toml: alias images lacks \"{OPTIMISED_AS_A_WHOLE}\", with which xtask builds them"
        )
    });
    let missing = packages.iter().filter(|package| !named.contains(&package.as_str()));
    let missing =
        missing.map(|package| format!(".cargo/config.toml: alias images lacks \"--package={package}\""));
    let odd = named.iter().filter(|name| !packages.iter().any(|package| package == *name));
    let odd =
        odd.map(|name| format!(".cargo/config.toml: alias images builds {name}, not an image for users"));
    missing.chain(odd).chain(plain).collect()
}

/// Returns the faults of the root manifest.
fn judge_root(manifest: &Manifest, workspace: &Workspace, root: &Path) -> Vec<String> {
    let mut wrong = Vec::new();
    let members = manifest.get(&["workspace", "members"]).and_then(Value::as_array);
    let members: Vec<&str> = members.into_iter().flatten().filter_map(Value::as_str).collect();
    if !members.is_sorted() {
        wrong.push("Cargo.toml: members are not sorted".into());
    }
    let hosted: Vec<&str> = workspace
        .metadata()
        .workspace_default_packages()
        .iter()
        .map(|package| package.name.as_str())
        .collect();
    wrong.extend(judge_default(
        &workspace.members().iter().map(|package| package.name.as_str()).collect::<Vec<_>>(),
        &hosted,
    ));
    if !root.join("Cargo.lock").is_file() {
        wrong.push("Cargo.lock is missing".into());
    }
    wrong
}

/// Returns the differences between the default members, `hosted`, and all `members` except the tests that need a
/// machine.
fn judge_default(members: &[&str], hosted: &[&str]) -> Vec<String> {
    let differ = members.iter().filter(|member| hosted.contains(member) == (**member == MACHINE_TESTS));
    differ
        .map(|member| match *member {
            MACHINE_TESTS => {
                format!("Cargo.toml: default-members include {MACHINE_TESTS}, which need a machine")
            }
            other => format!("Cargo.toml: default-members lack {other}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const GOOD: &str = "[package]\nname = \"a\"\ndescription = \"b\"\nversion.workspace = true\n\
        edition.workspace = true\nrust-version.workspace = true\nlicense.workspace = true\npublish.workspace = true\n\
        [lints]\nworkspace = true\n[dependencies]\nserde = { workspace = true, features = [\"std\"] }\n";

    fn manifest(text: &str) -> Manifest {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let path = folder.path().join("Cargo.toml");
        fs::write(&path, text).expect("a file for the test");
        Manifest::read(&path).expect("the test's TOML parses")
    }

    #[test]
    fn each_missing_inheritance_is_found() {
        assert_eq!(judge(&manifest(GOOD)), [""; 0]);
        for (from, to) in [
            ("[lints]\nworkspace = true", "[lints]\nworkspace = false"),
            ("edition.workspace = true", "edition = \"2024\""),
            ("description = \"b\"", "description = \"\""),
            ("serde = { workspace = true", "serde = { version = \"1\""),
        ] {
            assert!(GOOD.contains(from));
            assert_eq!(judge(&manifest(&GOOD.replace(from, to))).len(), 1, "{to}");
        }
    }

    #[test]
    fn the_alias_builds_exactly_the_images_for_users() {
        let config =
            manifest("[alias]\nimages = [\"build\", \"--package=isola-kv\", \"--package=isola-host\"]\n");
        let wrong = judge_alias(&config, &["isola-kv".into(), "isola-supervisor".into()]);
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        assert!(wrong[0].contains("isola-supervisor") && wrong[1].contains("isola-host"));
        assert!(wrong[2].contains("lto"));
        let whole = manifest(&format!("[alias]\nimages = [\"{OPTIMISED_AS_A_WHOLE}\"]\n"));
        assert_eq!(judge_alias(&whole, &[]), [""; 0]);
    }

    #[test]
    fn the_default_members_are_all_but_the_tests_that_need_a_machine() {
        let members = ["isola-abi", "isola-kv", MACHINE_TESTS];
        assert_eq!(judge_default(&members, &["isola-abi", "isola-kv"]), [""; 0]);
        assert_eq!(judge_default(&members, &members).len(), 1);
        assert_eq!(judge_default(&members, &["isola-abi"]).len(), 1);
    }

    /// Returns a package in cargo's format, with `image` as its metadata and one binary.
    fn package(image: &str, required: &str, test: bool) -> Package {
        let target = format!(
            r#"{{"name": "kv", "kind": ["bin"], "crate_types": ["bin"], "required-features": {required},
                "src_path": "/a/main.rs", "edition": "2024", "doctest": false, "test": {test}, "doc": true}}"#
        );
        serde_json::from_str(&format!(
            r#"{{"name": "isola-kv", "version": "0.1.0", "id": "isola-kv", "dependencies": [], "features": {{}},
                "manifest_path": "/a/Cargo.toml", "targets": [{target}],
                "metadata": {{"isola": {{"image": {image}}}}}}}"#
        ))
        .expect("the test's package parses")
    }

    #[test]
    fn an_image_that_host_builds_would_include_is_found() {
        assert_eq!(judge_image(&package("\"cell\"", "[\"image\"]", false)), [""; 0]);
        assert_eq!(judge_image(&package("\"cell\"", "[]", false)).len(), 1);
        assert_eq!(judge_image(&package("true", "[\"image\"]", true)).len(), 1);
        assert_eq!(judge_image(&package("\"kernel\"", "[\"image\"]", false)).len(), 1);
    }
}
