//! Why a benchmark could not be run.

use isola_host::client::ClientError;
use isola_host::image::FindError;
use isola_host::machine::qemu::QemuError;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why a benchmark could not be run.
#[derive(Debug, Error)]
pub enum BenchError {
    /// A program is not there.
    #[error("{program} is missing; install it with: apt-get install {package}")]
    ProgramMissing {
        /// The program.
        program: &'static str,
        /// Debian's package.
        package: &'static str,
    },
    /// A program did not do what it was asked for.
    #[error("{line} failed: {said}")]
    Program {
        /// What was run.
        line: String,
        /// What it said, or why it did not start.
        said: String,
    },
    /// There is no right to make a network of one's own.
    #[error(
        "a network of its own is needed for the guests, and this user may not make one: run it as root (or allow \
         unprivileged user namespaces, and access to /dev/net/tun)"
    )]
    NoNamespace,
    /// QEMU cannot be used.
    #[error(transparent)]
    Qemu(#[from] QemuError),
    /// QEMU takes no plugin.
    #[error(
        "QEMU loads no plugin (it says: {0}); instructions cannot be counted with it: use one built with plugins, as \
         Debian's is"
    )]
    NoPlugins(String),
    /// A machine ended that should have gone on.
    #[error("{what} ended before {awaited}; QEMU and its serial line said last:\n{log}")]
    Ended {
        /// Which machine.
        what: String,
        /// What was waited for.
        awaited: String,
        /// The end of what it said.
        log: String,
    },
    /// A machine did not get somewhere in time.
    #[error(
        "{what} had not come to {awaited} within {limit_s} s; QEMU and its serial line said last:\n{log}"
    )]
    TooLate {
        /// Which machine.
        what: String,
        /// What was waited for.
        awaited: String,
        /// How long.
        limit_s: u64,
        /// The end of what it said.
        log: String,
    },
    /// An image is missing.
    #[error(transparent)]
    Image(#[from] FindError),
    /// The supervisor did not do what it was asked for.
    #[error("the supervisor: {0}")]
    Supervisor(#[from] ClientError),
    /// A cell did not get the memory that it was to have.
    #[error("a cell was to have {wanted_mib} MiB, where pages move for that; its memory: {outcome}")]
    NotResized {
        /// How much memory it was to have, in MiB.
        wanted_mib: u64,
        /// What became of it.
        outcome: String,
    },
    /// A service gave a wrong answer.
    #[error("{service} answered {answer:?} to {asked}")]
    WrongAnswer {
        /// Which service.
        service: String,
        /// What it was asked.
        asked: String,
        /// What it said.
        answer: String,
    },
    /// A package lacks something.
    #[error("{} has no {what}: remove {} and try again", place.display(), place.display())]
    PackageContents {
        /// Where the package is unpacked.
        place: PathBuf,
        /// What is not there.
        what: String,
    },
    /// A file.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is the matter.
        error: io::Error,
    },
    /// A connection.
    #[error("the connection to {peer}: {error}")]
    Connection {
        /// To whom.
        peer: String,
        /// What is the matter.
        error: io::Error,
    },
    /// A file of figures does not say what it should.
    #[error("{}: {error}; take the figures anew with `cargo xtask bench`", path.display())]
    Data {
        /// The file.
        path: PathBuf,
        /// What is the matter.
        error: serde_json::Error,
    },
    /// Figures to publish would be of a tree that is no commit.
    #[error(
        "the tree is {0:?}, and figures of it could not be taken again: commit all changes (or put them away with `git \
         stash`), then publish"
    )]
    DirtyTree(String),
    /// Figures to publish would be of few runs.
    #[error("figures that are published are medians of at least {least} runs, not of {runs}")]
    FewRuns {
        /// How many were asked for.
        runs: u32,
        /// How many there have to be.
        least: u32,
    },
    /// Figures to publish would be those of a busy host.
    #[error(
        "other work takes {percent} % of the host's processors, and {limit} % at most may be taken where figures are \
         published: end it, or take figures without --publish"
    )]
    HostBusy {
        /// How much, in percent.
        percent: f64,
        /// The limit, in percent.
        limit: f64,
    },
    /// The paced processors of a machine had too little of the host.
    #[error(
        "the host kept the machines' processors waiting for {lost_s} s beyond their pace, and {limit_s} s at most may \
         be lost where figures are published: take them on a quiet host"
    )]
    PaceLost {
        /// How long.
        lost_s: f64,
        /// The limit.
        limit_s: f64,
    },
    /// The repository does not say what has changed since a commit.
    #[error("git does not say what has changed: {0}")]
    NoHistory(String),
    /// Tables do not show what the raw data say.
    #[error("{0} does not show what benches/data says; write it anew with: cargo xtask bench --tables write")]
    Tables(String),
    /// The file of the gate's counts does not say what it should.
    #[error("{}: {error}; remove it, and write it anew with: cargo xtask gate --write", path.display())]
    Book {
        /// The file.
        path: PathBuf,
        /// What is the matter.
        error: Box<toml::de::Error>,
    },
    /// The host is too busy to count.
    #[error(
        "{name}: no three of {rounds} rounds agree; the host is too busy, count again when it is less so"
    )]
    NoAgreement {
        /// What is counted.
        name: &'static str,
        /// How often it was.
        rounds: u32,
    },
    /// The user changed their mind.
    #[error("interrupted")]
    Interrupted,
}

impl BenchError {
    /// For use as `map_err(BenchError::file(path))`.
    pub fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::File { path, error }
    }

    /// For use as `map_err(BenchError::connection(peer))`.
    pub fn connection(peer: impl ToString) -> impl FnOnce(io::Error) -> Self {
        let peer = peer.to_string();
        move |error| Self::Connection { peer, error }
    }
}
