//! Why a verb could not do its work. What a verb finds wrong in the tree is not an error: see `Verdict`.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a verb could not do its work.
#[derive(Debug, Error)]
pub enum Error {
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// `ISOLA_SKIP` has a word that names no need of a test.
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
        /// What the system said.
        source: io::Error,
    },
    /// A TOML file does not parse.
    #[error("cannot understand {}: {source}", path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// Where and why.
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
    /// A Rust file does not even lex, or parse where its syntax matters.
    #[error("cannot take {} apart; run `cargo build` to see why", path.display())]
    Lex {
        /// The file.
        path: PathBuf,
    },
    /// An image is not an ELF file that can be taken apart.
    #[error("cannot take {} apart: {reason}; build it anew with `cargo xtask images`", path.display())]
    Image {
        /// The image.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The images did not build.
    #[error("the images did not build; cargo says why above")]
    ImagesNotBuilt,
    /// The benchmarks did not build.
    #[error("the benchmarks did not build; cargo says why above")]
    BenchmarksNotBuilt,
    /// The fuzz targets did not build.
    #[error("the fuzz targets did not build; cargo says why above")]
    FuzzTargetsNotBuilt,
    /// The tests of a package with mutants did not build.
    #[error("the tests of the package with its mutants did not build; cargo says why above")]
    TestsNotBuilt,
    /// A tool that is not part of the Rust toolchain is missing.
    #[error("{what} is missing; install it with: {install}")]
    ToolMissing {
        /// The tool.
        what: &'static str,
        /// The line to type.
        install: &'static str,
    },
    /// The user named something that the tree does not have.
    #[error("no {kind} is called {name:?}; there are: {known}")]
    Unknown {
        /// What sort of thing.
        kind: &'static str,
        /// The name that was given.
        name: String,
        /// The names that would have done.
        known: String,
    },
}
