//! Errors of verbs. A violation that a verb finds in the tree is not an error: see `Verdict`.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// The reason why a verb failed.
#[derive(Debug, Error)]
pub enum Error {
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// `ISOLA_SKIP` has a word that names no prerequisite of a test.
    #[error("{0}")]
    Skip(String),
    /// The tree could not be listed.
    #[error("cannot list the files of the tree: {0}")]
    List(#[from] ignore::Error),
    /// `cargo metadata` failed.
    #[error("cannot read the workspace; run `cargo metadata` to see why: {0}")]
    Metadata(#[from] cargo_metadata::Error),
    /// A program could not be started.
    #[error("cannot start {program}; is it installed and on PATH? {source}")]
    Start {
        /// The program.
        program: String,
        /// The cause.
        source: io::Error,
    },
    /// A TOML file does not parse.
    #[error("cannot understand {}: {source}", path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// The position and the cause.
        source: Box<toml::de::Error>,
    },
    /// An area of `xtask/language.toml` has no ceiling for a group of words.
    #[error(
        "xtask/language.toml: {area} has no ceiling for {group}, with one decimal; write one: {group} = 1.0"
    )]
    Ceiling {
        /// The area.
        area: String,
        /// The group's key.
        group: &'static str,
    },
    /// A Rust file does not lex, or does not parse if its syntax matters.
    #[error("cannot parse {}; run `cargo build` to see why", path.display())]
    Lex {
        /// The file.
        path: PathBuf,
    },
    /// An image is not a readable ELF file.
    #[error("cannot read the image {}: {reason}; build it again with `cargo xtask images`", path.display())]
    Image {
        /// The image.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// The images did not build.
    #[error("the images did not build; see cargo's output above")]
    ImagesNotBuilt,
    /// The benchmarks did not build.
    #[error("the benchmarks did not build; see cargo's output above")]
    BenchmarksNotBuilt,
    /// The fuzz targets did not build.
    #[error("the fuzz targets did not build; see cargo's output above")]
    FuzzTargetsNotBuilt,
    /// The tests of a package with mutants did not build.
    #[error("the tests of the package with its mutants did not build; see cargo's output above")]
    TestsNotBuilt,
    /// A tool that is not part of the Rust toolchain is missing.
    #[error("{what} is missing; install it with: {install}")]
    ToolMissing {
        /// The tool.
        what: &'static str,
        /// The command that installs it.
        install: &'static str,
    },
    /// The user named an unknown item.
    #[error("there is no {kind} {name:?}; known are: {known}")]
    Unknown {
        /// The kind of item.
        kind: &'static str,
        /// The unknown name.
        name: String,
        /// The known names.
        known: String,
    },
}
