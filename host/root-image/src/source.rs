//! The source of a root file system.

use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The prefix of an OCI image.
const OCI: &str = "oci:";

/// The source of a root file system: `DIR`, `FILE.tar[.gz|.zst|.xz]` or `oci:LAYOUT[:TAG]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootSource {
    /// A folder or an archive.
    Path(PathBuf),
    /// An image layout: a folder or an archive.
    Oci {
        /// The text after `oci:`.
        reference: String,
    },
}

impl FromStr for RootSource {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text.strip_prefix(OCI) {
            Some(reference) => Self::Oci { reference: reference.to_owned() },
            None => Self::Path(text.into()),
        })
    }
}

impl fmt::Display for RootSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Oci { reference } => write!(f, "{OCI}{reference}"),
        }
    }
}

/// Divides `LAYOUT[:TAG]`: a colon in the path of a layout that exists is not the tag's.
pub(crate) fn layout_and_tag(reference: &str) -> (PathBuf, Option<&str>) {
    if Path::new(reference).exists() {
        return (reference.into(), None);
    }
    match reference.rsplit_once(':') {
        Some((layout, tag)) if !tag.contains('/') && !layout.is_empty() => (layout.into(), Some(tag)),
        _ => (reference.into(), None),
    }
}
