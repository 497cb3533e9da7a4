//! `cargo xtask language`: counts the words that hide a sentence's subject, by crate or folder of pages.
//!
//! [`GROUPS`] lists the words. [`prose`] collects a file's comments, messages and pages, [`count`] counts, and
//! [`ceilings`] reads, compares and lowers the ceilings in `xtask/language.toml`. The check `language` fails where a
//! count leaves its ceiling.

pub mod ceilings;
pub mod count;
mod prose;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use self::ceilings::Ceilings;
pub use self::count::Area;
use self::count::Rate;
use crate::Verdict;
use crate::error::Error;
use crate::workspace::{self, Workspace};

/// Words that are counted together.
pub struct Group {
    /// Its key in the file of ceilings.
    pub key: &'static str,
    /// The words, in lower case.
    pub words: &'static [&'static str],
    /// The rate at which the ratchet ends: no ceiling is below it.
    pub goal: Rate,
}

/// The groups, in the order of the columns.
pub const GROUPS: [Group; 3] = [
    Group { key: "what", words: &["what"], goal: Rate { tenths: 15 } },
    Group { key: "who", words: &["who", "whom", "whoever", "nobody", "somebody"], goal: Rate { tenths: 5 } },
    Group { key: "told", words: &["told", "tell", "tells", "stand", "stands"], goal: Rate { tenths: 3 } },
];

/// The command-line arguments.
#[derive(clap::Args)]
pub struct Args {
    /// Lowers the ceilings in xtask/language.toml to the counts, and adds those of new crates
    #[arg(long)]
    write: bool,
}

/// Prints the table, after lowering the ceilings if `args` asks for that.
pub fn run(args: &Args, workspace: &Workspace) -> Result<Verdict, Error> {
    let areas = measure(workspace)?;
    let path = ceilings::path(workspace);
    let mut ceilings = Ceilings::read(&path)?;
    if args.write {
        ceilings.lower(&areas);
        std::fs::write(&path, ceilings.render()).map_err(|source| Error::Write { path, source })?;
    }
    print!("{}", count::table(&areas));
    let failures = ceilings.failures(&areas);
    for failure in &failures {
        println!("{failure}");
    }
    Ok(if failures.is_empty() { Verdict::Passed } else { Verdict::Failed })
}

/// Counts the words of all files of the tree. The key is the folder of a package, or another folder with prose.
pub fn measure(workspace: &Workspace) -> Result<BTreeMap<String, Area>, Error> {
    let packages: Vec<String> =
        workspace.members().into_iter().map(|package| workspace.folder(package)).collect();
    let mut areas: BTreeMap<String, Area> = BTreeMap::new();
    for path in prose_files(workspace)? {
        let name = workspace.relative(&path);
        let prose = prose::of_file(&path, &workspace::read(&path)?)?;
        areas.entry(area_of(&name, &packages)).or_default().add(&name, &prose);
    }
    areas.retain(|_, area| area.counts.words > 0);
    Ok(areas)
}

/// Lists the files that can have prose; a file without an extension can be a script.
fn prose_files(workspace: &Workspace) -> Result<Vec<PathBuf>, Error> {
    let mut files = workspace.files()?;
    files.retain(|path| match path.extension().and_then(|end| end.to_str()) {
        Some(end) => prose::EXTENSIONS.contains(&end),
        None => std::fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"#!")),
    });
    Ok(files)
}

/// Returns the innermost folder of `packages` that contains the file `name`, or its own folder if there is none.
fn area_of(name: &str, packages: &[String]) -> String {
    let path = Path::new(name);
    let package =
        packages.iter().filter(|package| path.starts_with(package)).max_by_key(|package| package.len());
    let folder = path.parent().and_then(Path::to_str).filter(|folder| !folder.is_empty());
    package.map(String::as_str).or(folder).unwrap_or(".").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_belongs_to_the_innermost_package_or_to_its_folder() {
        let packages = ["net/stack", "net/stack/compare", "net/sta"].map(str::to_owned);
        assert_eq!(area_of("net/stack/src/tcp/mod.rs", &packages), "net/stack");
        assert_eq!(area_of("net/stack/compare/src/lib.rs", &packages), "net/stack/compare");
        assert_eq!(area_of("docs/decisions/0001-a.md", &packages), "docs/decisions");
        assert_eq!(area_of("README.md", &packages), ".");
    }
}
