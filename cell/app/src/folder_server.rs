//! The server of a service cell's folders: other cells mount them.
//!
//! A directory in the root directory of one of the cell's volumes is a folder, with its name.

use crate::storage::{FileError, FileKind, ListPosition, MountError, MountedVolume, Volumes, mount};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use isola_abi::links::MAX_SERVICE_LEN;
use isola_abi::volume::VolumeAccess;
use isola_channels::ChannelError;
use isola_folder_service::server::{Folder, ServedFolder, serve};

/// The directory of every ext4 file system that is no folder.
const RESERVED: &[u8] = b"lost+found";

/// The entries that are read at once.
const LISTED: usize = 128;

/// The reason why a cell cannot serve folders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServeFoldersError {
    /// It has no volume.
    NoVolume,
    /// Its volumes have no folder, and it was given no name of one.
    NoFolder,
    /// A volume cannot be mounted.
    Mount(MountError),
    /// A folder cannot be opened or created.
    Folder {
        /// Its name.
        name: String,
        /// The reason.
        reason: FileError,
    },
    /// A folder has no name of 1 to 24 bytes, or two have the same.
    Name {
        /// The name.
        name: String,
        /// The reason.
        reason: ChannelError,
    },
}

impl fmt::Display for ServeFoldersError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVolume => {
                f.write_str("there is no volume with folders: start the cell with -v VOLUME:/PATH")
            }
            Self::NoFolder => {
                f.write_str("the volumes have no folders: name those to create, as in `folders web kv`")
            }
            Self::Mount(error) => error.fmt(f),
            Self::Folder { name, reason } => write!(f, "the folder {name}: {reason}"),
            Self::Name { name, reason } => write!(f, "the folder {name} cannot be served: {reason}"),
        }
    }
}

impl core::error::Error for ServeFoldersError {}

/// The folders that a cell serves.
#[derive(Debug)]
pub struct ServedFolders {
    names: Vec<String>,
    volumes: Volumes,
}

impl ServedFolders {
    /// Returns their names.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Makes all changes permanent, before the cell ends.
    ///
    /// # Errors
    /// The first error of a volume.
    pub async fn sync(&self) -> Result<(), FileError> {
        let mut outcome = Ok(());
        for mounted in self.volumes.iter().filter(|mounted| mounted.access == VolumeAccess::ReadWrite) {
            outcome = outcome.and(mounted.volume.sync().await);
        }
        outcome
    }
}

/// Serves folders of the cell's volumes, on its first core, to the cells that it accepts: those with these names, of which
/// missing ones are created in the first volume, or all if there are no names.
///
/// # Errors
/// A [`ServeFoldersError`].
pub async fn serve_folders(names: &[&str]) -> Result<ServedFolders, ServeFoldersError> {
    let volumes = mount().await.map_err(ServeFoldersError::Mount)?;
    let first = volumes.iter().next().ok_or(ServeFoldersError::NoVolume)?;
    let mut served = Vec::new();
    for mounted in volumes.iter() {
        let failed = |reason| ServeFoldersError::Folder { name: mounted.path.clone(), reason };
        for name in directories(mounted).await.map_err(failed)? {
            if names.is_empty() || names.contains(&name.as_str()) {
                serve_one(mounted, &name).await?;
                served.push(name);
            }
        }
    }
    for name in names.iter().copied() {
        if served.iter().all(|other| other != name) {
            let created = first.volume.make_directory(name).await;
            created.map_err(|reason| ServeFoldersError::Folder { name: name.to_string(), reason })?;
            serve_one(first, name).await?;
            served.push(name.to_string());
        }
    }
    if first.access == VolumeAccess::ReadWrite {
        // A folder exists when its first client finds it.
        let synced = first.volume.sync().await;
        synced.map_err(|reason| ServeFoldersError::Folder { name: first.path.clone(), reason })?;
    }
    served.sort();
    if served.is_empty() {
        Err(ServeFoldersError::NoFolder)
    } else {
        Ok(ServedFolders { names: served, volumes })
    }
}

async fn serve_one(mounted: &MountedVolume, name: &str) -> Result<(), ServeFoldersError> {
    let folder = Folder::open(&mounted.volume, name).await;
    let folder = folder.map_err(|reason| ServeFoldersError::Folder { name: name.to_string(), reason })?;
    let served = ServedFolder { name: name.to_string(), folder, access: mounted.access };
    serve(served).map_err(|reason| ServeFoldersError::Name { name: name.to_string(), reason })
}

/// Returns the directories in the root directory of a volume whose names can be those of services.
async fn directories(mounted: &MountedVolume) -> Result<Vec<String>, FileError> {
    let (mut names, mut position) = (Vec::new(), Some(ListPosition::default()));
    while let Some(from) = position {
        let (entries, next) = mounted.volume.list("/", from, LISTED).await?;
        position = next;
        for entry in entries {
            let is_folder = entry.kind == FileKind::Directory && entry.name != RESERVED;
            let name = String::from_utf8(entry.name).ok();
            names.extend(name.filter(|name| is_folder && name.len() <= MAX_SERVICE_LEN));
        }
    }
    names.sort();
    Ok(names)
}
