//! A site from the files that a process of the host exports: read once, before the first request is served.

use core::fmt;
use core::net::SocketAddr;
use isola::files::{self, FileError, FileKind, MAX_READ};
use isola::messenger;
use isola::prelude::*;
use isola_web::date::UnixSeconds;
use isola_web::{SiteBuilder, SiteError};

/// The maximum depth of directories.
const MAX_DEPTH: usize = 32;

/// The maximum number of files.
const MAX_FILES: usize = 100_000;

/// The reasons why no site could be loaded.
#[derive(Debug)]
pub enum LoadError {
    /// No export accepts connections at the address.
    Join(messenger::JoinError),
    /// A file cannot be read.
    File(String, FileError),
    /// A file became shorter while it was read.
    Changed(String),
    /// The files need more than half of the cell's memory.
    TooLarge(usize),
    /// There are too many files, or the directories are too deep.
    TooMany,
    /// A file cannot be served.
    Site(SiteError),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Join(error) => error.fmt(f),
            Self::File(path, error) => write!(f, "{path}: {error}"),
            Self::Changed(path) => write!(f, "{path} has changed while it was read: run it again"),
            Self::TooLarge(most) => {
                write!(f, "the files are larger than {} MiB: run it with more memory", most >> 20)
            }
            Self::TooMany => {
                write!(f, "more than {MAX_FILES} files, or {MAX_DEPTH} directories deep: name a part of them")
            }
            Self::Site(error) => error.fmt(f),
        }
    }
}

/// Adds all files of a directory that is exported at the address.
pub async fn add_exported(site: &mut SiteBuilder, at: SocketAddr, root: &str) -> Result<(), LoadError> {
    isola::net::wait_for_address().await;
    messenger::join(at).await.map_err(LoadError::Join)?;
    add_all(site, root).await
}

async fn add_all(site: &mut SiteBuilder, root: &str) -> Result<(), LoadError> {
    let root = root.trim_end_matches('/');
    let limit_bytes = isola::memory_total() / 2;
    let (mut left_bytes, mut left_files) = (limit_bytes, MAX_FILES);
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        if folder.matches('/').count() > MAX_DEPTH {
            return Err(LoadError::TooMany);
        }
        let listed = format!("{root}/{folder}");
        for entry in files::list(&listed).await.map_err(|error| LoadError::File(listed.clone(), error))? {
            left_files = left_files.checked_sub(1).ok_or(LoadError::TooMany)?;
            let name = format!("{folder}{}", entry.name);
            match entry.kind {
                FileKind::Directory => folders.push(format!("{name}/")),
                FileKind::File => {
                    let path = format!("{root}/{name}");
                    let status = files::status(&path).await;
                    let status = status.map_err(|error| LoadError::File(path.clone(), error))?;
                    let len = usize::try_from(status.len_bytes).unwrap_or(usize::MAX);
                    left_bytes = left_bytes.checked_sub(len).ok_or(LoadError::TooLarge(limit_bytes))?;
                    let content = read(&path, len).await?;
                    let modified = (status.modified_s > 0).then_some(UnixSeconds(status.modified_s));
                    site.add(&name, content, modified).map_err(LoadError::Site)?;
                }
                FileKind::Other => {}
            }
        }
    }
    Ok(())
}

/// Reads a whole file. Its memory is never freed.
async fn read(path: &str, len: usize) -> Result<&'static [u8], LoadError> {
    let mut content = Vec::with_capacity(len);
    while content.len() < len {
        let wanted = (len - content.len()).min(MAX_READ);
        let data = files::read(path, content.len() as u64, wanted).await;
        let data = data.map_err(|error| LoadError::File(path.to_string(), error))?;
        if data.is_empty() {
            return Err(LoadError::Changed(path.to_string()));
        }
        data.parts().for_each(|part| content.extend_from_slice(part));
    }
    Ok(content.leak())
}
