//! The tree that figures were taken from: its commit, and whether the code that a group measures has changed since.

mod code;

use crate::error::BenchError;
use crate::figure::Group;
use crate::program;
use crate::record::Record;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Files below the measured paths that take no part in a figure.
const NOT_MEASURED: [&str; 4] = [
    ":(exclude,glob)*/**/tests/**",
    ":(exclude,glob)*/**/tests.rs",
    ":(exclude,glob)*/**/examples/**",
    ":(exclude,glob)**/*.md",
];

/// Whether the figures of a record are those of the present tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Age {
    /// The code that the group measures is the same; comments, tests and models do not count.
    Current,
    /// It has changed.
    Old,
    /// The commit is in no history, or the tree had changes that are in no commit.
    NotRepeatable,
}

/// The root of the tree.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The commit that the tree is at; with a mark where the tree has more changes.
pub fn tree() -> String {
    let mut describe = Command::new("git");
    describe.current_dir(root()).args(["describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]);
    program::run_in(&mut describe)
        .map_or_else(|_| "of an unknown commit".into(), |text| text.trim().to_owned())
}

/// Fails where figures of `tree` could not be taken again: it is not a commit.
///
/// # Errors
/// [`BenchError::DirtyTree`].
pub fn demand_commit(tree: &str) -> Result<(), BenchError> {
    let is_commit = !tree.is_empty() && tree.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_commit { Ok(()) } else { Err(BenchError::DirtyTree(tree.to_owned())) }
}

/// Whether the figures of `record` are those of the present tree.
///
/// # Errors
/// [`BenchError::NoHistory`] where the repository cannot say.
pub fn age(record: &Record) -> Result<Age, BenchError> {
    age_in(&root(), &record.setting.isola, record.group().measures())
}

fn age_in(root: &Path, tree: &str, paths: &[&str]) -> Result<Age, BenchError> {
    if demand_commit(tree).is_err() {
        return Ok(Age::NotRepeatable);
    }
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.current_dir(root).args(arguments).stdin(Stdio::null());
        command.output().map_err(|error| BenchError::NoHistory(error.to_string()))
    };
    let is_shallow = git(&["rev-parse", "--is-shallow-repository"])?;
    if !is_shallow.status.success() {
        return Err(BenchError::NoHistory(String::from_utf8_lossy(&is_shallow.stderr).trim().to_owned()));
    }
    if !git(&["cat-file", "-e", &format!("{tree}^{{commit}}")])?.status.success() {
        return match is_shallow.stdout.trim_ascii() {
            b"true" => Err(BenchError::NoHistory("the clone is shallow".into())),
            _ => Ok(Age::NotRepeatable),
        };
    }
    let mut arguments = vec!["diff", "--name-only", "--no-renames", "-z", tree, "--"];
    arguments.extend(paths.iter().chain(&NOT_MEASURED));
    let changed = git(&arguments)?;
    if !changed.status.success() {
        return Err(BenchError::NoHistory(String::from_utf8_lossy(&changed.stderr).trim().to_owned()));
    }
    for path in String::from_utf8_lossy(&changed.stdout).split_terminator('\0') {
        let before = git(&["show", &format!("{tree}:{path}")])?;
        let after = fs::read_to_string(root.join(path));
        let is_same = match (before.status.success(), String::from_utf8(before.stdout), after) {
            (true, Ok(before), Ok(after)) => code::is_same(Path::new(path), &before, &after),
            _ => false,
        };
        if !is_same {
            return Ok(Age::Old);
        }
    }
    Ok(Age::Current)
}

/// The folders of the packages that every image links.
macro_rules! and_images {
    ($($more:literal),* $(,)?) => {
        &["abi", "cell", "drivers", "fs", "grid", "link", "machine", "net", "storage", $($more),*]
    };
}

impl Group {
    /// The files that the group's figures depend on: of Isola, of the Linux guest, and of how they are taken.
    pub fn measures(self) -> &'static [&'static str] {
        match self {
            Self::Boot => and_images!("apps/kv", "benches/linux", "benches/src/groups/boot.rs"),
            Self::Cell => {
                and_images!(
                    "supervisor",
                    "apps/kv",
                    "apps/echo",
                    "benches/linux",
                    "benches/src/groups/cell.rs"
                )
            }
            Self::Elastic => {
                and_images!(
                    "supervisor",
                    "apps/kv",
                    "apps/echo",
                    "tests/images/regions",
                    "benches/src/groups/elastic"
                )
            }
            Self::Colocation => and_images!(
                "supervisor",
                "apps/kv",
                "apps/primes",
                "benches/linux",
                "benches/src/groups/colocation"
            ),
            Self::Grid => and_images!(
                "supervisor",
                "apps/kv",
                "apps/echo",
                "apps/web",
                "apps/primes",
                "tests/images/tenants",
                "benches/linux",
                "benches/src/groups/grid"
            ),
            Self::Kv => and_images!("apps/kv", "apps/echo", "benches/linux", "benches/src/groups/kv"),
            Self::Web => and_images!("apps/web", "benches/linux", "benches/src/groups/web.rs"),
            Self::Product => and_images!(
                "supervisor",
                "apps/kv",
                "apps/echo",
                "apps/web",
                "apps/netpipe",
                "benches/src/groups/product.rs"
            ),
            Self::Bulk => and_images!("apps/netpipe", "benches/linux", "benches/src/groups/bulk.rs"),
            Self::Netpipe => and_images!("apps/netpipe", "benches/linux", "benches/src/groups/netpipe.rs"),
            Self::Connections => {
                and_images!("apps/echo", "benches/linux", "benches/src/groups/connections.rs")
            }
            Self::Memory => &[
                "abi",
                "cell/atomic-memcpy",
                "cell/ebbs",
                "cell/iobuf",
                "cell/memory",
                "cell/platform",
                "benches/src/groups/memory.rs",
            ],
            Self::Pager => {
                and_images!("tests/images/regions", "benches/linux", "benches/src/groups/pager.rs")
            }
            Self::Linux => and_images!(
                "supervisor",
                "linux",
                "apps/linux",
                "benches/linux",
                "benches/src/groups/linux.rs"
            ),
            Self::Link => and_images!(
                "supervisor",
                "tests/images/channels",
                "benches/linux",
                "benches/src/groups/link.rs"
            ),
            Self::LinuxServers => and_images!(
                "supervisor",
                "linux",
                "apps/linux",
                "benches/linux",
                "benches/src/groups/linux_servers.rs"
            ),
            Self::Loop => and_images!(
                "supervisor",
                "apps/netpipe",
                "apps/kv",
                "tests/images/kv-client",
                "benches/src/groups/loops.rs"
            ),
            Self::Service => and_images!(
                "supervisor",
                "apps/block",
                "apps/kv",
                "apps/net",
                "apps/primes",
                "apps/web",
                "tests/images/tenants",
                "tests/images/volume-client",
                "benches/src/groups/service.rs",
                "benches/src/groups/service_network.rs"
            ),
            Self::Library => and_images!("tests/images/costs", "benches/src/groups/library.rs"),
            Self::Stack => &["net/stack", "cell/iobuf", "benches/src/groups/stack.rs"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs git in `folder`, and returns what it wrote.
    fn git(folder: &Path, arguments: &[&str]) -> String {
        let mut command = Command::new("git");
        command.current_dir(folder).args(["-c", "user.name=x", "-c", "user.email=x@example.org"]);
        program::run_in(command.args(arguments)).unwrap().trim().to_owned()
    }

    /// A repository with one commit of two folders, and that commit.
    fn repository() -> (tempfile::TempDir, String) {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "--quiet"]);
        for file in ["cell/a.rs", "cell/x/tests/a.rs", "cell/x/src/tests.rs", "docs/a.md"] {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "one").unwrap();
        }
        git(folder.path(), &["add", "."]);
        git(folder.path(), &["commit", "--quiet", "--message=x"]);
        let commit = git(folder.path(), &["rev-parse", "--short=12", "HEAD"]);
        (folder, commit)
    }

    #[test]
    fn figures_are_old_once_a_file_that_they_measure_has_changed() {
        let (folder, commit) = repository();
        let age = |tree: &str| age_in(folder.path(), tree, &["cell"]).unwrap();
        assert_eq!(age(&commit), Age::Current);
        fs::write(folder.path().join("cell/a.rs"), "// A comment.\none").unwrap();
        assert_eq!(age(&commit), Age::Current, "a comment is no code");
        for not_measured in ["docs/a.md", "cell/x/tests/a.rs", "cell/x/src/tests.rs"] {
            fs::write(folder.path().join(not_measured), "two").unwrap();
            assert_eq!(age(&commit), Age::Current, "{not_measured}");
        }
        fs::write(folder.path().join("cell/a.rs"), "two").unwrap();
        assert_eq!(age(&commit), Age::Old, "before it is in a commit");
        git(folder.path(), &["commit", "--quiet", "--all", "--message=x"]);
        assert_eq!(age(&commit), Age::Old, "and behind that");
    }

    #[test]
    fn figures_of_a_tree_that_is_no_commit_are_not_repeatable() {
        let (folder, commit) = repository();
        for tree in [&format!("{commit}-dirty"), "of an unknown commit", "", "0123456789ab"] {
            assert_eq!(age_in(folder.path(), tree, &["cell"]).unwrap(), Age::NotRepeatable, "{tree:?}");
        }
    }

    #[test]
    fn without_a_repository_there_is_no_age() {
        let folder = tempfile::tempdir().unwrap();
        let error = age_in(folder.path(), "0123456789ab", &["cell"]).unwrap_err();
        assert!(matches!(error, BenchError::NoHistory(_)), "{error}");
    }

    #[test]
    fn only_a_commit_is_published() {
        assert!(demand_commit("0123456789ab").is_ok());
        for tree in ["0123456789ab-dirty", "of an unknown commit", ""] {
            let error = demand_commit(tree).unwrap_err().to_string();
            assert!(error.contains("commit"), "{error}");
        }
    }

    #[test]
    fn every_measured_path_is_there() {
        for path in Group::ALL.into_iter().flat_map(Group::measures) {
            assert!(root().join(path).exists(), "{path}");
        }
    }

    #[test]
    fn a_group_measures_all_packages_that_its_own_packages_link() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(root()).args(["metadata", "--no-deps", "--offline", "--format-version=1"]);
        let metadata: serde_json::Value =
            serde_json::from_str(&program::run_in(&mut cargo).unwrap()).unwrap();
        let workspace = Path::new(metadata["workspace_root"].as_str().unwrap());
        let packages = metadata["packages"].as_array().unwrap();
        for group in Group::ALL {
            let is_measured = |folder: &Path| group.measures().iter().any(|path| folder.starts_with(path));
            let mut count = 0;
            for package in packages {
                let manifest = Path::new(package["manifest_path"].as_str().unwrap());
                let folder = manifest.parent().unwrap().strip_prefix(workspace).unwrap();
                if !is_measured(folder) {
                    continue;
                }
                count += 1;
                let dependencies = package["dependencies"].as_array().unwrap();
                for dependency in dependencies.iter().filter(|dependency| dependency["kind"].is_null()) {
                    let Some(path) = dependency["path"].as_str() else { continue };
                    let linked = Path::new(path).strip_prefix(workspace).unwrap();
                    assert!(is_measured(linked), "{}: {folder:?} links {linked:?}", group.name());
                }
            }
            assert!(count > 0, "{} measures no package", group.name());
        }
    }
}
