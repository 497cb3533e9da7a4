//! The server's arguments.

use core::fmt;
use core::net::SocketAddr;
use isola::prelude::*;

const USAGE: &str = "usage: web [-p PORT] [-d PATH | -j ADDRESS:PORT [-r DIRECTORY]]";

/// The source of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The archive in the image.
    BuiltIn,
    /// A directory on a volume.
    Volume {
        /// Its absolute path in the cell.
        path: String,
    },
    /// A directory of the file system that is exported at an address.
    Exported {
        /// The address of the export.
        at: SocketAddr,
        /// The directory, relative to the root of the export.
        root: String,
    },
}

/// The server's arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The port.
    pub port: u16,
    /// The source of the files.
    pub source: Source,
}

/// The reasons why arguments are invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionsError {
    /// An unknown option.
    Unknown(String),
    /// An option with a missing or invalid value.
    BadValue(&'static str),
    /// A directory without an export.
    RootAlone,
    /// A directory on a volume, and an export.
    TwoSources,
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(option) => write!(f, "{option:?} is no option; {USAGE}"),
            Self::BadValue(option) => write!(f, "{option} needs a valid value; {USAGE}"),
            Self::TwoSources => write!(f, "-d and -j are two sources of files: give one of them; {USAGE}"),
            Self::RootAlone => write!(f, "-r names a directory of the export at the address of -j; {USAGE}"),
        }
    }
}

impl Options {
    /// Parses the arguments.
    pub fn parse(arguments: &Arguments) -> Result<Self, OptionsError> {
        let (mut port, mut directory, mut at, mut root) = (80, None, None, None);
        let mut rest = arguments.iter();
        while let Some(option) = rest.next() {
            match option {
                "-p" => port = value("-p", rest.next())?,
                "-d" => directory = Some(value::<String>("-d", rest.next())?),
                "-j" => at = Some(value("-j", rest.next())?),
                "-r" => root = Some(value::<String>("-r", rest.next())?),
                other => return Err(OptionsError::Unknown(other.to_string())),
            }
        }
        let source = match (directory, at, root) {
            (None, None, None) => Source::BuiltIn,
            (Some(path), None, None) => Source::Volume { path },
            (Some(_), _, _) => return Err(OptionsError::TwoSources),
            (None, None, Some(_)) => return Err(OptionsError::RootAlone),
            (None, Some(at), root) => Source::Exported { at, root: root.unwrap_or_else(|| "/".to_string()) },
        };
        Ok(Self { port, source })
    }
}

fn value<T: core::str::FromStr>(option: &'static str, text: Option<&str>) -> Result<T, OptionsError> {
    text.and_then(|text| text.parse().ok()).ok_or(OptionsError::BadValue(option))
}
