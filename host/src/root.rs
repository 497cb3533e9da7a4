//! The text form of the root file system of Linux programs: a source of a block image, or a volume of a service cell.

use crate::volume::{VolumeName, VolumeNameError};
use isola_abi::volume::VolumeAccess;
use isola_root_image::RootSource;
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The root file system of Linux programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootSpec {
    /// A folder, an archive or an OCI image, of which the command makes a block image.
    Image(RootSource),
    /// A volume or a folder of a service cell: `NAME@CELL[:rw]`. The cell needs no device for it.
    Served {
        /// The name in the service cell.
        name: VolumeName,
        /// The service cell's name.
        cell: String,
        /// Whether changes are kept there, or in the memory of the cell.
        access: VolumeAccess,
    },
}

/// The reason why a text names no root file system.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "{text:?} is no root file system: write NAME@CELL, or NAME@CELL:rw to keep changes; the path of a file with an `@` \
     begins with ./ ({source})"
)]
pub struct RootSpecError {
    text: String,
    source: VolumeNameError,
}

impl FromStr for RootSpec {
    type Err = RootSpecError;

    fn from_str(text: &str) -> Result<Self, RootSpecError> {
        let (served, access) = match text.strip_suffix(":rw") {
            Some(served) => (served, VolumeAccess::ReadWrite),
            None => (text.strip_suffix(":ro").unwrap_or(text), VolumeAccess::ReadOnly),
        };
        match served.split_once('@') {
            Some((name, cell)) if !text.contains('/') && !text.starts_with("oci:") => {
                let error = |source| RootSpecError { text: text.to_owned(), source };
                // A cell has a name of the same form, which the supervisor checks.
                let _: VolumeName = cell.parse().map_err(error)?;
                Ok(Self::Served { name: name.parse().map_err(error)?, cell: cell.to_owned(), access })
            }
            _ => text.parse().map(Self::Image).map_err(|never: Infallible| match never {}),
        }
    }
}

impl fmt::Display for RootSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image(source) => source.fmt(f),
            Self::Served { name, cell, access } => {
                let suffix = if *access == VolumeAccess::ReadWrite { ":rw" } else { "" };
                write!(f, "{name}@{cell}{suffix}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_a_path_an_image_or_a_name_at_a_service_cell() {
        let parse = |text: &str| text.parse::<RootSpec>().unwrap();
        for (text, access) in
            [("root@files", VolumeAccess::ReadOnly), ("root@files:rw", VolumeAccess::ReadWrite)]
        {
            let served = RootSpec::Served { name: "root".parse().unwrap(), cell: "files".into(), access };
            assert_eq!(parse(text), served);
            assert_eq!(parse(text).to_string(), text);
        }
        assert_eq!(parse("root@files:ro"), parse("root@files"));
        for text in ["./root@files", "debian.tar.xz", "/srv/a@b", "oci:redis@x", "oci:./a:b@c", "plain:rw"] {
            assert_eq!(parse(text), RootSpec::Image(text.parse().unwrap()), "{text}");
            assert_eq!(parse(text).to_string(), text);
        }
    }

    #[test]
    fn a_bad_name_of_a_served_root_is_an_error_with_the_form() {
        for text in ["@files", "root@", "a b@files", "root@files:x", "root@a@b"] {
            let error = text.parse::<RootSpec>().unwrap_err().to_string();
            assert!(error.contains("NAME@CELL"), "{text}: {error}");
        }
    }
}
