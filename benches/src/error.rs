//! Errors of the benchmarks.

use isola_host::client::ClientError;
use isola_host::image::FindError;
use isola_host::machine::qemu::QemuError;
use isola_host::query::QueryError;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// The reason why a benchmark failed.
#[derive(Debug, Error)]
pub enum BenchError {
    /// A program is not installed.
    #[error("{program} is missing; install it with: apt-get install {package}")]
    ProgramMissing {
        /// The program.
        program: &'static str,
        /// Debian's package.
        package: &'static str,
    },
    /// A program failed.
    #[error("{line} failed: {output}")]
    Program {
        /// The command line.
        line: String,
        /// The program's output, or the reason why it did not start.
        output: String,
    },
    /// The user may not create a network namespace.
    #[error(
        "the guests need a network namespace, which this user may not create: run the benchmark as root (or allow \
         unprivileged user namespaces, and access to /dev/net/tun)"
    )]
    NoNamespace,
    /// QEMU cannot be used.
    #[error(transparent)]
    Qemu(#[from] QemuError),
    /// QEMU loads no plugin.
    #[error(
        "QEMU loads no plugin (its message: {0}) and cannot count instructions: use a QEMU built with plugins, such as \
         Debian's"
    )]
    NoPlugins(String),
    /// A machine ended too early.
    #[error("{what} ended before {awaited}; the end of its output and QEMU's:\n{log}")]
    Ended {
        /// The machine.
        what: String,
        /// The event that should have come first.
        awaited: String,
        /// The end of its output.
        log: String,
    },
    /// A machine exceeded a time limit.
    #[error("{what} did not reach {awaited} within {limit_s} s; the end of its output and QEMU's:\n{log}")]
    TooLate {
        /// The machine.
        what: String,
        /// The event that should have come in time.
        awaited: String,
        /// The limit, in s.
        limit_s: u64,
        /// The end of its output.
        log: String,
    },
    /// An image is missing.
    #[error(transparent)]
    Image(#[from] FindError),
    /// A request to the supervisor failed.
    #[error("the supervisor: {0}")]
    Supervisor(#[from] ClientError),
    /// A cell did not answer a query.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// A resize by page migration did not reach the requested memory.
    #[error(
        "the resize of a cell to {wanted_mib} MiB, by page migration, is incomplete; its memory: {outcome}"
    )]
    NotResized {
        /// The requested memory, in MiB.
        wanted_mib: u64,
        /// The outcome.
        outcome: String,
    },
    /// A service gave a wrong answer.
    #[error("{service} answered {answer:?} to {request}")]
    WrongAnswer {
        /// The service.
        service: String,
        /// The request.
        request: String,
        /// The answer.
        answer: String,
    },
    /// A file is missing in a package.
    #[error("{} has no {item}: remove {} and try again", path.display(), path.display())]
    PackageContents {
        /// The folder of the unpacked package.
        path: PathBuf,
        /// The missing file.
        item: String,
    },
    /// A file cannot be accessed.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// A connection failed.
    #[error("the connection to {peer}: {error}")]
    Connection {
        /// The peer.
        peer: String,
        /// The cause.
        error: io::Error,
    },
    /// A file of figures is malformed.
    #[error("{}: {error}; measure the figures again with `cargo xtask bench`", path.display())]
    Data {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: serde_json::Error,
    },
    /// Published figures must belong to a commit.
    #[error(
        "the tree is {0:?}, and its figures could not be measured again: commit all changes (or put them away with \
         `git stash`), then publish"
    )]
    DirtyTree(String),
    /// Published figures must have enough runs.
    #[error("published figures are medians of at least {least} runs, not of {runs}")]
    FewRuns {
        /// The requested number of runs.
        runs: u32,
        /// The least number of runs.
        least: u32,
    },
    /// Published figures must come from a quiet host.
    #[error(
        "other work takes {percent} % of the host's processors; the limit for published figures is {limit} %: end that \
         work, or measure without --publish"
    )]
    HostBusy {
        /// The share of other work, in percent.
        percent: f64,
        /// The limit, in percent.
        limit: f64,
    },
    /// The host delayed the paced processors of a machine too long.
    #[error(
        "the host delayed the machines' processors by {lost_s} s beyond their pace; the limit for published figures is \
         {limit_s} s: measure on a quiet host"
    )]
    PaceLost {
        /// The delay, in s.
        lost_s: f64,
        /// The limit, in s.
        limit_s: f64,
    },
    /// Git cannot determine the changes since a commit.
    #[error("git cannot determine the changes: {0}")]
    NoHistory(String),
    /// The tables differ from the raw data.
    #[error("{0} does not match benches/data; rewrite it with: cargo xtask bench --tables write")]
    Tables(String),
    /// The gate's baseline file is malformed.
    #[error("{}: {error}; remove it, and write it again with: cargo xtask gate --write", path.display())]
    Baseline {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: Box<toml::de::Error>,
    },
    /// Load on the host disturbs the counts too much.
    #[error(
        "{name}: no three of {rounds} rounds agree, the smallest are {least:?}; count again when the host is quiet"
    )]
    NoAgreement {
        /// The name of the count.
        name: &'static str,
        /// The number of rounds.
        rounds: u32,
        /// The smallest counts.
        least: Vec<f64>,
    },
    /// The user interrupted the benchmark.
    #[error("interrupted")]
    Interrupted,
}

impl BenchError {
    /// Returns a converter for use as `map_err(BenchError::file(path))`.
    pub fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::File { path, error }
    }

    /// Returns a converter for use as `map_err(BenchError::connection(peer))`.
    pub fn connection(peer: impl ToString) -> impl FnOnce(io::Error) -> Self {
        let peer = peer.to_string();
        move |error| Self::Connection { peer, error }
    }
}
