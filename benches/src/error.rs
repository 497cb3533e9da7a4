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
