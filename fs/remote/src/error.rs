//! What can go wrong with a file.

use core::fmt;
use isola_messenger::AskError;
use serde::{Deserialize, Serialize};

/// Why a file operation came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileError {
    /// The home of the files says why.
    Refused(Refused),
    /// The home could not be asked.
    Ask(AskError),
}

/// What the home of the files says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refused {
    /// There is nothing of that name.
    NotFound,
    /// The path leads out of what is exported, or the process may not.
    NotAllowed,
    /// What is to be read or written is no file.
    NotAFile,
    /// What is to be listed is no directory.
    NotADirectory,
    /// The export is read-only.
    ReadOnly,
    /// The host could not do it: a full or broken disk, for example.
    Host,
    /// The directory has more entries than are listed as a whole.
    TooLarge,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFound => "there is no such file",
            Self::NotAllowed => "the path leads out of what is exported, or may not be used",
            Self::NotAFile => "this is no file",
            Self::NotADirectory => "this is no directory",
            Self::ReadOnly => "the files are exported to be read only",
            Self::Host => "the host could not do it",
            Self::TooLarge => "the directory has too many entries to be listed as a whole: ask for parts",
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

impl From<Refused> for FileError {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl From<AskError> for FileError {
    fn from(error: AskError) -> Self {
        Self::Ask(error)
    }
}
