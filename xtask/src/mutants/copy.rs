//! A copy of the tree in which one package contains all mutants.
//!
//! Every insertion stays within its line, so lines of the copy are lines of the tree, and a compiler error identifies
//! the rejected mutant.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use cargo_metadata::Message;
use cargo_metadata::diagnostic::DiagnosticLevel;

use super::find::{Mutant, MutantForm};
use crate::cargo::{cargo, output};
use crate::error::Error;
use crate::workspace::{self, Workspace};

/// The variable with the number of the selected mutant, or [`RECORD`].
pub const CHOSEN: &str = "ISOLA_MUTANT";
/// The value of [`CHOSEN`] without a selected mutant; the numbers of reached mutants are then recorded in
/// [`TreeCopy::reached`].
pub const RECORD: &str = "record";
/// The module that a crate of the copy calls to learn whether a mutant is selected. It must not allocate after its
/// first answer: an allocator calls it as well, also while it reads the environment.
const CHOOSER: &str = include_str!("chooser.rs.in");

/// The copy.
pub struct TreeCopy {
    /// The root of the copy.
    root: PathBuf,
    /// The file to which a recording test appends numbers, in four bytes each, little-endian.
    pub reached: PathBuf,
    /// The package, and the folder of its sources below the root.
    package: String,
    pub folder: PathBuf,
}

impl TreeCopy {
    /// Copies the tree of `workspace` without the files of `mutants`. Unchanged files of an earlier copy are not
    /// written again, so that the same mutants need no build.
    pub fn new(
        workspace: &Workspace,
        package: &str,
        folder: &Path,
        mutants: &[Mutant],
    ) -> Result<Self, Error> {
        let library = folder.join("src/lib.rs");
        let mut changed: BTreeSet<&Path> = mutants.iter().map(|mutant| mutant.path.as_path()).collect();
        changed.insert(&library);
        let root = workspace.metadata().target_directory.as_std_path().join("mutants");
        let tree = root.join("tree");
        for path in workspace.files()? {
            let relative = path.strip_prefix(workspace.root()).unwrap_or(&path);
            // The copy is inside the tree, so cargo finds the tree's own settings.
            if !relative.starts_with(".cargo") && !changed.contains(relative) {
                let bytes = fs::read(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
                write(&tree.join(relative), &bytes)?;
            }
        }
        Ok(Self {
            reached: root.join("reached"),
            root: tree,
            package: package.to_owned(),
            folder: folder.to_owned(),
        })
    }

    /// Writes the mutants of `alive` into the package's sources.
    pub fn instrument(&self, workspace: &Workspace, mutants: &[Mutant], alive: &[bool]) -> Result<(), Error> {
        let mut paths: Vec<&Path> = mutants.iter().map(|mutant| mutant.path.as_path()).collect();
        paths.dedup();
        let library = self.folder.join("src/lib.rs");
        if !paths.contains(&library.as_path()) {
            paths.push(&library);
        }
        for path in paths {
            let of_file = (0..).zip(mutants).filter(|(number, mutant)| alive[*number] && mutant.path == path);
            let mut text = instrumented(&workspace::read(&workspace.root().join(path))?, of_file);
            if *path == *library {
                text.insert_str(0, "#![allow(arithmetic_overflow, unconditional_panic)] ");
                let chooser = CHOOSER.replace("MUTANTS", &mutants.len().to_string());
                let chooser = chooser.replace("REACHED_FILE", &self.reached.display().to_string());
                text.push_str(&chooser);
            }
            write(&self.root.join(path), text.as_bytes())?;
        }
        Ok(())
    }

    /// Compiles the library; returns the files and lines of compiler errors.
    pub fn check(&self, workspace: &Workspace) -> Result<Vec<(PathBuf, Range<usize>)>, Error> {
        let mut places = Vec::new();
        for message in self.cargo(workspace, &["build", "--lib"], &[])? {
            let Message::CompilerMessage(message) = message else { continue };
            if message.message.level == DiagnosticLevel::Error {
                for span in message.message.spans.iter().filter(|span| span.is_primary) {
                    places.push((PathBuf::from(&span.file_name), span.line_start..span.line_end + 1));
                }
            }
        }
        Ok(places)
    }

    /// Builds the tests of the package and of `others`; returns the programs, each with its working folder.
    pub fn build(&self, workspace: &Workspace, others: &[String]) -> Result<Vec<(PathBuf, PathBuf)>, Error> {
        let mut programs = Vec::new();
        for message in self.cargo(workspace, &["test", "--no-run", "--lib", "--tests"], others)? {
            match message {
                Message::CompilerArtifact(artifact) if artifact.profile.test => {
                    let folder =
                        artifact.manifest_path.parent().map(|folder| folder.as_std_path().to_owned());
                    programs.extend(artifact.executable.map(PathBuf::from).zip(folder));
                }
                Message::CompilerMessage(message) if message.message.level == DiagnosticLevel::Error => {
                    eprintln!("{message}");
                }
                Message::BuildFinished(finished) if !finished.success => return Err(Error::TestsNotBuilt),
                _ => {}
            }
        }
        Ok(programs)
    }

    fn cargo(&self, workspace: &Workspace, words: &[&str], others: &[String]) -> Result<Vec<Message>, Error> {
        let mut command = cargo(workspace);
        command.current_dir(&self.root).env("CARGO_TARGET_DIR", self.root.with_file_name("build"));
        // The package is slightly optimised, because its mutants are compiled once and run often. Overflow and
        // assertions are checked, as in every test.
        let optimised = format!("profile.dev.package.{}.opt-level=1", self.package);
        command.args(words).args(["--config", &optimised]);
        command.args(["--message-format=json", "--package", &self.package]);
        command.stderr(Stdio::inherit());
        for other in others {
            command.args(["--package", other]);
        }
        let messages = output(&mut command)?;
        Ok(Message::parse_stream(&messages.stdout[..]).map_while(Result::ok).collect())
    }
}

/// Returns `text` with the mutants inserted.
fn instrumented<'a>(text: &str, mutants: impl Iterator<Item = (usize, &'a Mutant)>) -> String {
    // At one position, ends precede beginnings, inner ends outer ones, and outer beginnings inner ones.
    let mut inserted = Vec::new();
    for (number, Mutant { range, form, .. }) in mutants {
        let on = format!("crate::isola_mutants::on({number})");
        let (before, after) = match form {
            MutantForm::Replace(other) => (format!("(if {on} {{ {other} }} else {{ "), " })"),
            MutantForm::Skip => (format!("if !{on} {{ "), " }"),
            MutantForm::Return(value) => (format!(" if {on} {{ return {value}; }}"), ""),
        };
        inserted.push((range.start, true, usize::MAX - range.end, number, before));
        inserted.push((
            range.end,
            range.is_empty(),
            usize::MAX - range.start,
            usize::MAX - number,
            after.to_owned(),
        ));
    }
    inserted.sort();
    let mut result = String::new();
    let mut done = 0;
    for (at, _, _, _, insertion) in inserted {
        result.push_str(&text[done..at]);
        result.push_str(&insertion);
        done = at;
    }
    result + &text[done..]
}

/// Writes a file unless it has these contents already: cargo rebuilds for a newer file.
fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let failed = |source| Error::Write { path: path.to_owned(), source };
    fs::create_dir_all(path.parent().unwrap_or(path)).map_err(failed)?;
    fs::write(path, bytes).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::super::find::find;
    use super::*;

    #[test]
    fn nested_mutants_stay_within_their_lines_and_constants_and_tests_have_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lib.rs");
        let source = "const N: u8 = 1;\n\
                      fn f(a: u8) -> bool {\n    a + 1 < N && a != 7\n}\n\
                      fn g() {\n    f(2);\n}\n\
                      #[cfg(test)]\nmod tests {\n    fn t() -> u8 { 1 + 1 }\n}\n";
        fs::write(&path, source).unwrap();
        let mutants = find(folder.path(), &[path]).unwrap();
        let text = instrumented(source, mutants.iter().enumerate());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), source.lines().count());
        assert_eq!((lines[0], lines[9]), ("const N: u8 = 1;", "    fn t() -> u8 { 1 + 1 }"));
        assert!(lines[1].contains("{ return true; }") && lines[1].contains("{ return false; }"), "{text}");
        assert!(lines[2].contains("{ (a + 1 < N) || (a != 7) } else { "), "{text}");
        assert!(
            lines[2].contains("{ (a) - (1) } else { a + ") && lines[2].contains("{ 2 } else { 1 }"),
            "{text}"
        );
        assert!(lines[5].contains("if !crate::isola_mutants::on("), "{text}");
        syn::parse_file(&text).unwrap();
    }
}
