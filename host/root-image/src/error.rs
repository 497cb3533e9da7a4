//! Errors.

use crate::{MOST_BYTES, MOST_FILES};
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The reasons why an image cannot be made.
#[derive(Debug, Error)]
pub enum BuildError {
    /// A file cannot be read or written.
    #[error("cannot use {path}: {error}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// The source is neither a folder nor a file.
    #[error(
        "{0} is neither a folder nor a file: name a folder, a tar archive, or an OCI image as oci:LAYOUT[:TAG]"
    )]
    NoSource(PathBuf),
    /// The source cannot be read to its end.
    #[error("the root file system cannot be read: {0}")]
    Read(io::Error),
    /// The image cannot be written.
    #[error("the image of the root file system cannot be written: {0}")]
    Write(io::Error),
    /// The archive is none.
    #[error("{0} is no tar archive, nor one that gzip, zstd or xz has compressed")]
    NoArchive(String),
    /// A path of the source is not valid.
    #[error("{path:?} cannot be a file of the root file system: {reason}")]
    Path {
        /// The path, in part if it is long.
        path: String,
        /// The reason.
        reason: String,
    },
    /// The files are too large.
    #[error("the files have more than {} GiB, the most of a root file system", MOST_BYTES >> 30)]
    TooLarge,
    /// There are too many files.
    #[error("there are more than {MOST_FILES} files, the most of a root file system")]
    TooMany,
    /// A file has too many names.
    #[error("a file has more than {most} names")]
    Links {
        /// The most.
        most: u32,
    },
    /// A file has too many extended attributes.
    #[error("a file has more than {most} bytes of extended attributes")]
    Attributes {
        /// The most.
        most: usize,
    },
    /// The folder changes.
    #[error("{0} was changed while its image was made: run the command again")]
    Changed(PathBuf),
    /// The OCI image is not usable.
    #[error("{layout}: {reason}")]
    Oci {
        /// The layout.
        layout: PathBuf,
        /// The reason.
        reason: String,
    },
    /// There is no folder for images.
    #[error("there is no folder for images of root file systems: set HOME, XDG_CACHE_HOME or ISOLA_STATE")]
    NoFolder,
}

impl BuildError {
    /// Returns the error for a path of a source.
    pub(crate) fn path(path: &[u8], reason: impl Into<String>) -> Self {
        let shown = String::from_utf8_lossy(&path[..path.len().min(200)]).into_owned();
        Self::Path { path: shown, reason: reason.into() }
    }

    /// Returns a function that makes the error for a file of the host.
    pub(crate) fn of_file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Unusable { path, error }
    }
}
