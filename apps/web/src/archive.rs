//! A site from a tar archive, as `tar --format=ustar` and the crate's build script create it.

use crate::date::UnixSeconds;
use crate::site::{SiteBuilder, SiteError};
use core::fmt;
use tar_no_std::{ArchiveEntry, CorruptDataError, TarArchiveRef, TypeFlag};

/// The reasons why an archive is not a valid site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArchiveError {
    /// It is not an archive, or damaged.
    Damaged(CorruptDataError),
    /// A name is too long for the format or not text, so it is in an extension.
    LongNames,
    /// A file cannot be served.
    Site(SiteError),
}

impl fmt::Display for ArchiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(error) => write!(f, "{error}: make the archive with tar --format=ustar"),
            Self::LongNames => f.write_str(
                "the archive uses extensions, for example for long names: make it with tar --format=ustar",
            ),
            Self::Site(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ArchiveError {}

/// Adds all regular files of an archive.
///
/// # Errors
/// [`ArchiveError`]; some of the files may then have been added.
pub fn add_all(site: &mut SiteBuilder, archive: &'static [u8]) -> Result<(), ArchiveError> {
    let archive = TarArchiveRef::new(archive).map_err(ArchiveError::Damaged)?;
    let extends = |kind| matches!(kind, Ok(TypeFlag::XHDTYPE | TypeFlag::XGLTYPE));
    if archive.headers().any(|(_, header)| extends(header.typeflag.try_to_type_flag())) {
        return Err(ArchiveError::LongNames);
    }
    archive.entries().try_for_each(|entry| add(site, &entry))
}

fn add(site: &mut SiteBuilder, entry: &ArchiveEntry<'static>) -> Result<(), ArchiveError> {
    let name = entry.filename();
    let name = name.as_str().map_err(|_| ArchiveError::LongNames)?;
    // `tar cf site.tar .` writes this prefix.
    let name = name.strip_prefix("./").unwrap_or(name);
    if name.ends_with('/') {
        return Ok(());
    }
    let modified = modified(entry);
    site.add(name, entry.data(), modified).map_err(ArchiveError::Site)
}

/// Returns the time of a file's last change. The field is octal, but the crate parses it as decimal.
fn modified(entry: &ArchiveEntry<'_>) -> Option<UnixSeconds> {
    let digits = entry.posix_header().mtime.as_inner().as_str().ok()?;
    u64::from_str_radix(digits.trim(), 8).ok().filter(|seconds| *seconds > 0).map(UnixSeconds)
}
