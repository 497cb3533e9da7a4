//! Errors of file operations.

use core::fmt;
use isola_messenger::AskError;
use serde::{Deserialize, Serialize};

/// The reason why a file operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileError {
    /// The home of the files refused the request.
    Refused(FileRefusal),
    /// The home could not be reached.
    Ask(AskError),
}

/// A refusal by the home of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileRefusal {
    /// There is no file with that name.
    NotFound,
    /// The path leads out of the exported directory, or the process lacks the permission.
    NotAllowed,
    /// The path to read or write is not a file.
    NotAFile,
    /// The path to list is not a directory.
    NotADirectory,
    /// The export is read-only.
    ReadOnly,
    /// The host failed, for example because of a full or broken disk.
    Host,
    /// The directory has more entries than [`list`](crate::list) returns.
    TooLarge,
}

impl fmt::Display for FileRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFound => "there is no such file",
            Self::NotAllowed => "the path leads out of the exported directory, or access is denied",
            Self::NotAFile => "this is not a file",
            Self::NotADirectory => "this is not a directory",
            Self::ReadOnly => "the export is read-only",
            Self::Host => "the operation failed on the host",
            Self::TooLarge => "the directory has too many entries for one list: list it in parts",
        })
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refused) => refused.fmt(f),
            Self::Ask(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for FileError {}

impl From<FileRefusal> for FileError {
    fn from(refused: FileRefusal) -> Self {
        Self::Refused(refused)
    }
}

impl From<AskError> for FileError {
    fn from(error: AskError) -> Self {
        Self::Ask(error)
    }
}
