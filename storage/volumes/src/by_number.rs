//! Operations on files by their numbers, for a layer above that has names and paths of its own.

use crate::file_system::{Attributes, Entry, FileError, FileId, FileKind, ListPosition};
use crate::open_files::Mounted;
use crate::volume::{File, Volume};
use alloc::vec::Vec;

/// The most bytes of a symbolic link's target.
const MOST_TARGET: usize = 4096;

impl Volume {
    /// Returns the attributes of the root directory.
    ///
    /// # Errors
    /// The errors of the disk.
    pub async fn root_attributes(&self) -> Result<Attributes, FileError> {
        self.run(|mounted| {
            let file_system = mounted.file_system()?;
            file_system.attributes(file_system.root())
        })
        .await
    }

    /// Returns the attributes of a name in a directory; `None` if it does not exist.
    ///
    /// # Errors
    /// [`FileError::NotADirectory`], and the errors of the disk.
    pub async fn attributes_in(
        &self,
        directory: FileId,
        name: impl AsRef<[u8]>,
    ) -> Result<Option<Attributes>, FileError> {
        let name = name.as_ref().to_vec();
        self.run(move |mounted| {
            let file_system = mounted.file_system()?;
            match file_system.lookup(directory, &name) {
                Ok(found) => file_system.attributes(found.id).map(Some),
                Err(FileError::NotFound) => Ok(None),
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Returns up to `most` entries of a directory, as [`Self::list`].
    ///
    /// # Errors
    /// As [`Self::list`].
    pub async fn list_in(
        &self,
        directory: FileId,
        from: ListPosition,
        most: usize,
    ) -> Result<(Vec<Entry>, Option<ListPosition>), FileError> {
        self.run(move |mounted| mounted.file_system()?.list(directory, from, most)).await
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// [`FileError::Invalid`] if it is none, and the errors of the disk.
    pub async fn link_target(&self, link: FileId) -> Result<Vec<u8>, FileError> {
        self.run(move |mounted| {
            let file_system = mounted.file_system()?;
            let metadata = file_system.metadata(link)?;
            if metadata.kind != FileKind::Other || metadata.len as usize > MOST_TARGET {
                return Err(FileError::Invalid);
            }
            let mut target = alloc::vec![0; metadata.len as usize];
            let len = file_system.read(link, 0, &mut target)?;
            target.truncate(len);
            Ok(target)
        })
        .await
    }

    /// Opens a file.
    ///
    /// # Errors
    /// [`FileError::IsADirectory`], [`FileError::Unsupported`] for other types, and the errors of the disk.
    pub async fn open_number(&self, file: FileId) -> Result<File, FileError> {
        let closes = self.clone();
        self.run(move |mounted: &mut Mounted| {
            match mounted.file_system()?.metadata(file)?.kind {
                FileKind::File => {}
                FileKind::Directory => return Err(FileError::IsADirectory),
                FileKind::Other => return Err(FileError::Unsupported),
            }
            let state = mounted.hold(file);
            Ok(File::of(closes, file, state))
        })
        .await
    }
}
