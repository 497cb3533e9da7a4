//! Test suites of other projects in Linux cells (docs/decisions/0100-suites-of-others-in-cells.md).
//!
//! `tests/suites/NAME/build` makes a root file system in `target/suites/NAME`, from packages of registries; nothing of
//! others is in this tree. `tests/suites/driver.c` is the cell's first process: it runs one program after the other, each
//! with a time limit, and prints their output and their ends ([`output`]). `tests/suites/NAME/cases` lists each case with
//! its expected result ([`list`]). [`run`] runs the programs in cells or on this host.

mod list;
mod output;
mod run;

pub use self::list::List;
pub use self::output::{CaseResult, Outcome, ProgramEnd, ProgramRun};

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// A suite.
#[derive(Debug)]
pub struct Suite {
    /// The name of its folder.
    pub name: &'static str,
    /// Exit codes with which a program says that it cannot run here.
    pub skip_codes: &'static [i32],
    /// The memory of its cell.
    pub memory: &'static str,
}

/// All suites.
pub const SUITES: &[Suite] = &[
    Suite { name: "kernel", skip_codes: &[4], memory: "1G" },
    Suite { name: "cpython", skip_codes: &[], memory: "1G" },
    Suite { name: "nix", skip_codes: &[], memory: "512M" },
    Suite { name: "stress-ng", skip_codes: &[3, 4], memory: "1G" },
    Suite { name: "go", skip_codes: &[], memory: "1G" },
];

/// A program of a suite.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SuiteProgram {
    /// The name.
    pub name: String,
    /// The time limit, in seconds.
    pub limit_s: u64,
}

impl Suite {
    /// Returns the suite with a name.
    ///
    /// # Panics
    /// If there is none.
    pub fn named(name: &str) -> &'static Self {
        let found = SUITES.iter().find(|suite| suite.name == name);
        found.unwrap_or_else(|| {
            panic!("no suite {name}; there are {:?}", SUITES.iter().map(|suite| suite.name))
        })
    }

    /// The folder with the script that builds it, and with the list of cases.
    pub fn source(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("suites").join(self.name)
    }

    /// The list's file.
    pub fn list_path(&self) -> PathBuf {
        self.source().join("cases")
    }

    /// The folder with what is downloaded and built, and with the logs.
    pub fn work(&self) -> PathBuf {
        let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        let target = target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"));
        target.join("suites").join(self.name)
    }

    /// The root file system.
    pub fn root(&self) -> PathBuf {
        self.work().join("root")
    }

    /// Builds the root file system, unless it is newer than the scripts.
    ///
    /// # Panics
    /// If it cannot be built.
    pub fn build(&self) {
        let stamp = self.work().join("built");
        let scripts = self.source().join("..");
        let sources = [self.source().join("build"), scripts.join("common.sh"), scripts.join("driver.c")];
        let built = modified(&stamp);
        if built.is_some_and(|built| sources.iter().all(|source| modified(source) < Some(built))) {
            return;
        }
        fs::create_dir_all(self.work()).unwrap();
        println!("building the suite {}", self.name);
        let status = Command::new(self.source().join("build")).arg(self.work()).status().unwrap();
        assert!(status.success(), "the suite {} cannot be built", self.name);
        fs::write(stamp, "").unwrap();
    }

    /// Returns its programs, in the order in which they run.
    ///
    /// # Panics
    /// If the suite is not built.
    pub fn programs(&self) -> Vec<SuiteProgram> {
        let text = fs::read_to_string(self.root().join("suite/programs")).unwrap();
        let program = |line: &str| {
            let mut words = line.split(' ');
            let name = words.next()?.to_owned();
            Some(SuiteProgram { name, limit_s: words.next()?.parse().ok()? })
        };
        text.lines().map(|line| program(line).unwrap_or_else(|| panic!("{line:?}"))).collect()
    }
}

/// Returns the time of a file's last change.
fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}
