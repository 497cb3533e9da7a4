//! File systems in memory that Linux programs of a cell get: `--tmpfs`, and `tmpfs` of a manifest.

use isola_abi::size::ByteSize;
use isola_abi::volume::is_mount_path;
use serde::Deserialize;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The most permission bits.
const MOST_MODE: u32 = 0o7777;

/// A file system in memory: `PATH[:OPTION,OPTION]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct TmpfsSpec {
    path: String,
    size: Option<ByteSize>,
    mode: Option<u32>,
}

/// The error for a text that is no file system in memory.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TmpfsError {
    /// The path cannot be mounted.
    #[error(
        "a file system in memory cannot be mounted at {0:?}: write an absolute path without `.` and `..`"
    )]
    Path(String),
    /// An option is none.
    #[error("{0:?} is no option of --tmpfs: write size=64M or mode=1777")]
    Option(String),
}

impl FromStr for TmpfsSpec {
    type Err = TmpfsError;

    fn from_str(text: &str) -> Result<Self, TmpfsError> {
        let (path, options) = text.split_once(':').unwrap_or((text, ""));
        if !is_mount_path(path) || path == "/" {
            return Err(TmpfsError::Path(path.to_owned()));
        }
        let mut spec = Self { path: path.to_owned(), size: None, mode: None };
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let unknown = || TmpfsError::Option(option.to_owned());
            match option.split_once('=') {
                Some(("size", size)) => {
                    spec.size = Some(size.parse().map_err(|_| unknown())?);
                }
                Some(("mode", mode)) => {
                    let mode = u32::from_str_radix(mode, 8).ok().filter(|mode| *mode <= MOST_MODE);
                    spec.mode = Some(mode.ok_or_else(unknown)?);
                }
                _ => return Err(unknown()),
            }
        }
        Ok(spec)
    }
}

/// The form that the image `linux` reads.
impl fmt::Display for TmpfsSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)?;
        let size = self.size.map(|size| format!("size={}", size.0));
        let mode = self.mode.map(|mode| format!("mode={mode:o}"));
        let options: Vec<String> = size.into_iter().chain(mode).collect();
        if options.is_empty() { Ok(()) } else { write!(f, ":{}", options.join(",")) }
    }
}

impl TryFrom<String> for TmpfsSpec {
    type Error = TmpfsError;

    fn try_from(text: String) -> Result<Self, TmpfsError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_in_memory_has_a_path_and_options() {
        let parse = |text: &str| text.parse::<TmpfsSpec>().map(|spec| spec.to_string());
        assert_eq!(parse("/run").unwrap(), "/run");
        assert_eq!(parse("/run:size=64m,mode=755").unwrap(), "/run:size=67108864,mode=755");
        for bad in ["run", "/", "/a/../b"] {
            assert!(matches!(parse(bad), Err(TmpfsError::Path(_))), "{bad}");
        }
        for bad in ["/run:size", "/run:size=x", "/run:mode=9", "/run:mode=77777", "/run:noexec"] {
            assert!(matches!(parse(bad), Err(TmpfsError::Option(_))), "{bad}");
        }
    }
}
