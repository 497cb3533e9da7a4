//! A site from files on a volume, or from those that a process of the host exports: read once, before the first request
//! is served.

use core::fmt;
use core::net::SocketAddr;
use isola::files::{self, FileError, FileKind, MAX_READ};
use isola::iobuf::Chain;
use isola::messenger;
use isola::prelude::*;
use isola::storage::{self, ListPosition, MOST_READ, Volume};
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
    /// A file on a volume cannot be read.
    OnVolume(String, storage::FileError),
    /// The cell's volumes cannot be mounted.
    Mount(storage::MountError),
    /// The directory is on no volume.
    NoVolume(String),
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
            Self::OnVolume(path, error) => write!(f, "{path} on its volume: {error}"),
            Self::Mount(error) => error.fmt(f),
            Self::NoVolume(path) => {
                write!(
                    f,
                    "{path} is on no volume: mount one, as in `isola run -v site:{path}:ro web -d {path}`"
                )
            }
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

/// Files that can be added to a site.
trait Files {
    /// Returns the entries of a directory.
    async fn list(&self, path: &str) -> Result<Vec<(String, EntryKind)>, LoadError>;

    /// Returns the length of a file in bytes, and the time of its last change in seconds since 1970, or 0.
    async fn status(&self, path: &str) -> Result<(u64, u64), LoadError>;

    /// Returns up to `len` bytes from a position: none only at the end of the file.
    async fn read(&self, path: &str, offset: u64, len: usize) -> Result<Chain, LoadError>;
}

/// The type of a directory's entry.
enum EntryKind {
    File,
    Directory,
    Other,
}

/// The files that a process of the host exports.
struct Exported;

impl Files for Exported {
    async fn list(&self, path: &str) -> Result<Vec<(String, EntryKind)>, LoadError> {
        let entries = files::list(path).await.map_err(|error| LoadError::File(path.to_string(), error))?;
        let entry = |entry: files::Entry| {
            let kind = match entry.kind {
                FileKind::Directory => EntryKind::Directory,
                FileKind::File => EntryKind::File,
                FileKind::Other => EntryKind::Other,
            };
            (entry.name, kind)
        };
        Ok(entries.into_iter().map(entry).collect())
    }

    async fn status(&self, path: &str) -> Result<(u64, u64), LoadError> {
        let status = files::status(path).await;
        let status = status.map_err(|error| LoadError::File(path.to_string(), error))?;
        Ok((status.len_bytes, status.modified_s))
    }

    async fn read(&self, path: &str, offset: u64, len: usize) -> Result<Chain, LoadError> {
        let data = files::read(path, offset, len.min(MAX_READ)).await;
        data.map_err(|error| LoadError::File(path.to_string(), error))
    }
}

/// The files of a volume.
struct OnVolume(Volume);

impl OnVolume {
    fn error(path: &str) -> impl Fn(storage::FileError) -> LoadError {
        move |error| LoadError::OnVolume(path.to_string(), error)
    }
}

impl Files for OnVolume {
    async fn list(&self, path: &str) -> Result<Vec<(String, EntryKind)>, LoadError> {
        let (mut all, mut from) = (Vec::new(), Some(ListPosition::default()));
        while let Some(position) = from {
            let (entries, next) = self.0.list(path, position, MAX_FILES).await.map_err(Self::error(path))?;
            for entry in entries {
                let kind = match entry.kind {
                    storage::FileKind::Directory => EntryKind::Directory,
                    storage::FileKind::File => EntryKind::File,
                    storage::FileKind::Other => EntryKind::Other,
                };
                // A name in another encoding cannot be requested by a URI that browsers write.
                all.extend(String::from_utf8(entry.name).ok().map(|name| (name, kind)));
            }
            if all.len() > MAX_FILES {
                return Err(LoadError::TooMany);
            }
            from = next;
        }
        // `mke2fs` makes this directory in each file system, for files that `e2fsck` finds.
        all.retain(|(name, _)| name != "lost+found");
        Ok(all)
    }

    async fn status(&self, path: &str) -> Result<(u64, u64), LoadError> {
        let data = self.0.metadata(path).await.map_err(Self::error(path))?;
        Ok((data.len, data.modified.as_secs()))
    }

    async fn read(&self, path: &str, offset: u64, len: usize) -> Result<Chain, LoadError> {
        let file = self.0.open(path).await.map_err(Self::error(path))?;
        let data = file.read(offset, len.min(MOST_READ)).await.map_err(Self::error(path))?;
        Ok(if data.is_empty() { Chain::new() } else { data.into() })
    }
}

/// Adds all files of a directory that is exported at the address.
pub async fn add_exported(site: &mut SiteBuilder, at: SocketAddr, root: &str) -> Result<(), LoadError> {
    isola::net::wait_for_address().await;
    messenger::join(at).await.map_err(LoadError::Join)?;
    add_all(site, &Exported, root).await
}

/// Adds all files of a directory of the cell's volumes.
pub async fn add_volume(site: &mut SiteBuilder, path: &str) -> Result<(), LoadError> {
    let volumes = storage::mount().await.map_err(LoadError::Mount)?;
    let added = match volumes.find(path) {
        Some((volume, root)) => add_all(site, &OnVolume(volume.clone()), root).await,
        None => Err(LoadError::NoVolume(path.to_string())),
    };
    // The server has read all that it serves.
    let unmounted = volumes.unmount().await.map_err(LoadError::Mount);
    added.and(unmounted)
}

async fn add_all(site: &mut SiteBuilder, files: &impl Files, root: &str) -> Result<(), LoadError> {
    let root = root.trim_end_matches('/');
    let limit_bytes = isola::memory_total() / 2;
    let (mut left_bytes, mut left_files) = (limit_bytes, MAX_FILES);
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        if folder.matches('/').count() > MAX_DEPTH {
            return Err(LoadError::TooMany);
        }
        for (entry, kind) in files.list(&format!("{root}/{folder}")).await? {
            left_files = left_files.checked_sub(1).ok_or(LoadError::TooMany)?;
            let name = format!("{folder}{entry}");
            match kind {
                EntryKind::Directory => folders.push(format!("{name}/")),
                EntryKind::File => {
                    let path = format!("{root}/{name}");
                    let (len, modified_s) = files.status(&path).await?;
                    let len = usize::try_from(len).unwrap_or(usize::MAX);
                    left_bytes = left_bytes.checked_sub(len).ok_or(LoadError::TooLarge(limit_bytes))?;
                    let content = read(files, &path, len).await?;
                    let modified = (modified_s > 0).then_some(UnixSeconds(modified_s));
                    site.add(&name, content, modified).map_err(LoadError::Site)?;
                }
                EntryKind::Other => {}
            }
        }
    }
    Ok(())
}

/// Reads a whole file. Its memory is never freed.
async fn read(files: &impl Files, path: &str, len: usize) -> Result<&'static [u8], LoadError> {
    let mut content = Vec::with_capacity(len);
    while content.len() < len {
        let data = files.read(path, content.len() as u64, len - content.len()).await?;
        if data.is_empty() {
            return Err(LoadError::Changed(path.to_string()));
        }
        data.parts().for_each(|part| content.extend_from_slice(part));
    }
    Ok(content.leak())
}
