//! Volumes: file systems in files of this host, which keep their contents across cells and machines.
//!
//! | module | contents |
//! |---|---|
//! | this | the text form of a volume of a cell |
//! | [`parts`] | disks with several volumes, for service cells |
//! | [`store`] | the folder of the volumes that have names |

pub mod parts;
pub mod store;

use isola_abi::volume::{MAX_VOLUME_NAME_LEN, VolumeAccess, is_mount_path};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use thiserror::Error;

/// A volume that a cell mounts: `VOLUME:PATH[:ro]`, or `VOLUME@CELL:PATH[:ro]` for one that a service cell serves.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct VolumeSpec {
    /// The volume.
    pub source: VolumeSource,
    /// The path at which the cell mounts it.
    pub path: String,
    /// What the cell may do with it.
    pub access: VolumeAccess,
}

/// The name of a volume, or the file that contains it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeSource {
    /// A volume of the [`store`].
    Named(VolumeName),
    /// A file, written as a path with a `/` in it.
    File(PathBuf),
    /// A volume that a service cell serves.
    Served {
        /// The volume's name in the service cell.
        name: VolumeName,
        /// The service cell's name.
        cell: String,
    },
}

/// The name of a volume: letters, digits, `-`, `_` and `.`, a letter or digit first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VolumeName(String);

/// The reasons why a text is not a volume of a cell.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum VolumeSpecError {
    /// The text has another form.
    #[error(
        "{0:?} is no volume of a cell: write VOLUME:PATH or VOLUME:PATH:ro, as in data:/var/lib/data or ./site.img:/www:ro; \
         VOLUME@CELL is a volume that a service cell serves"
    )]
    Form(String),
    /// The path cannot be mounted.
    #[error("a volume cannot be mounted at {0:?}: write an absolute path without `.` and `..`")]
    Path(String),
    /// The name is not one.
    #[error(transparent)]
    Name(#[from] VolumeNameError),
}

/// The error for a text that is no name of a volume.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "{0:?} is no name of a volume: use letters, digits, `-`, `_` and `.`, at most {MAX_VOLUME_NAME_LEN}, a letter or \
     digit first; the path of a file has a `/` in it"
)]
pub struct VolumeNameError(String);

impl VolumeName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for VolumeName {
    type Err = VolumeNameError;

    fn from_str(text: &str) -> Result<Self, VolumeNameError> {
        let mut bytes = text.bytes();
        let first = bytes.next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        let rest = bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
        if first && rest && text.len() <= MAX_VOLUME_NAME_LEN {
            Ok(Self(text.to_owned()))
        } else {
            Err(VolumeNameError(text.to_owned()))
        }
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for VolumeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => name.fmt(f),
            Self::File(path) => path.display().fmt(f),
            Self::Served { name, cell } => write!(f, "{name}@{cell}"),
        }
    }
}

impl FromStr for VolumeSpec {
    type Err = VolumeSpecError;

    fn from_str(text: &str) -> Result<Self, VolumeSpecError> {
        let form = || VolumeSpecError::Form(text.to_owned());
        let (rest, access) = match text.strip_suffix(":ro") {
            Some(rest) => (rest, VolumeAccess::ReadOnly),
            None => (text.strip_suffix(":rw").unwrap_or(text), VolumeAccess::ReadWrite),
        };
        // The path of a file may contain colons; the path in the cell is behind the last one.
        let (source, path) =
            rest.rsplit_once(':').filter(|(source, _)| !source.is_empty()).ok_or_else(form)?;
        if !is_mount_path(path) {
            return Err(VolumeSpecError::Path(path.to_owned()));
        }
        let source = match (source.contains('/'), source.split_once('@')) {
            (true, _) => VolumeSource::File(source.into()),
            (false, Some((_, ""))) => return Err(form()),
            (false, Some((name, cell))) => {
                VolumeSource::Served { name: name.parse()?, cell: cell.to_owned() }
            }
            (false, None) => VolumeSource::Named(source.parse()?),
        };
        Ok(Self { source, path: path.to_owned(), access })
    }
}

impl fmt::Display for VolumeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = if self.access == VolumeAccess::ReadOnly { ":ro" } else { "" };
        write!(f, "{}:{}{suffix}", self.source, self.path)
    }
}

impl TryFrom<String> for VolumeSpec {
    type Error = VolumeSpecError;

    fn try_from(text: String) -> Result<Self, VolumeSpecError> {
        text.parse()
    }
}

impl From<VolumeSpec> for String {
    fn from(volume: VolumeSpec) -> Self {
        volume.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_has_a_name_or_a_file_and_a_path() {
        let parse = |text: &str| text.parse::<VolumeSpec>().unwrap();
        let named = parse("data:/var/lib/data");
        assert_eq!(named.source, VolumeSource::Named("data".parse().unwrap()));
        assert_eq!((named.path.as_str(), named.access), ("/var/lib/data", VolumeAccess::ReadWrite));
        let file = parse("./a:b.img:/www:ro");
        assert_eq!(file.source, VolumeSource::File("./a:b.img".into()));
        assert_eq!((file.path.as_str(), file.access), ("/www", VolumeAccess::ReadOnly));
        assert_eq!(parse("data:/d:rw"), parse("data:/d"));
        let served = VolumeSource::Served { name: "web".parse().unwrap(), cell: "store".into() };
        assert_eq!(parse("web@store:/data").source, served);
        for text in ["data:/var/lib/data", "./a:b.img:/www:ro", "root:/:ro", "web@store:/data:ro"] {
            assert_eq!(parse(text).to_string(), text);
        }
    }

    #[test]
    fn other_texts_are_refused_with_the_form() {
        let error = |text: &str| text.parse::<VolumeSpec>().unwrap_err().to_string();
        for (text, words) in [
            ("data", "VOLUME:PATH"),
            (":/data", "VOLUME:PATH"),
            ("", "VOLUME:PATH"),
            ("data@:/data", "VOLUME@CELL"),
            ("@store:/data", "no name of a volume"),
            ("data:relative", "absolute"),
            ("data:/a/../b", "absolute"),
            ("-data:/data", "no name of a volume"),
            ("da ta:/data", "no name of a volume"),
        ] {
            assert!(error(text).contains(words), "{text}: {}", error(text));
        }
    }
}
