//! Operations on files by their numbers, for a layer above that has names and paths of its own.

use crate::file_system::{Attributes, Entry, FileError, FileId, FileKind, FileSystem, ListPosition};
use crate::open_files::Mounted;
use crate::posix::{AttributeUpdate, NewFile, RemovedKind, RenameKind};
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

    /// Opens the file of a name in a directory, of any type: it can be used until it is closed, without a name as well.
    /// `None` if the name does not exist. A file that is no regular one cannot be read by its handle.
    ///
    /// # Errors
    /// As [`Self::attributes_in`].
    pub async fn open_in(
        &self,
        directory: FileId,
        name: impl AsRef<[u8]>,
    ) -> Result<Option<(Attributes, File)>, FileError> {
        let (name, closes) = (name.as_ref().to_vec(), self.clone());
        self.run(move |mounted| {
            let file_system = mounted.file_system()?;
            let found = match file_system.lookup(directory, &name) {
                Ok(found) => found.id,
                Err(FileError::NotFound) => return Ok(None),
                Err(error) => return Err(error),
            };
            let attributes = file_system.attributes(found)?;
            let state = mounted.hold(found);
            Ok(Some((attributes, File::of(closes, found, state))))
        })
        .await
    }

    /// Creates a file of any type, and opens it. Returns its attributes, and those of the directory.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub async fn create_in(
        &self,
        directory: FileId,
        name: impl AsRef<[u8]>,
        new: NewFile,
    ) -> Result<(File, Vec<Attributes>), FileError> {
        let (name, closes) = (name.as_ref().to_vec(), self.clone());
        self.run(move |mounted| {
            let (id, state, attributes) = mounted.create_in(directory, &name, &new)?;
            Ok((File::of(closes, id, state), attributes))
        })
        .await
    }

    /// Gives a file, no directory, another name. Returns the attributes of the file and of the directory.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub async fn link_in(
        &self,
        file: FileId,
        directory: FileId,
        name: impl AsRef<[u8]>,
    ) -> Result<Vec<Attributes>, FileError> {
        let name = name.as_ref().to_vec();
        self.run(move |mounted| mounted.link_in(file, directory, &name)).await
    }

    /// Removes a name. Returns the attributes of the directory, and those of the file if it is open.
    ///
    /// # Errors
    /// As [`Self::remove`], [`FileError::NotADirectory`], [`FileError::IsADirectory`].
    pub async fn remove_in(
        &self,
        directory: FileId,
        name: impl AsRef<[u8]>,
        kind: RemovedKind,
    ) -> Result<Vec<Attributes>, FileError> {
        let name = name.as_ref().to_vec();
        self.run(move |mounted| mounted.remove_in(directory, &name, kind)).await
    }

    /// Renames. Returns the attributes of both directories, and those of the files that are open.
    ///
    /// # Errors
    /// As [`Self::rename`], [`FileError::AlreadyExists`], [`FileError::NotADirectory`], [`FileError::IsADirectory`].
    pub async fn rename_in(
        &self,
        from: (FileId, Vec<u8>),
        to: (FileId, Vec<u8>),
        kind: RenameKind,
    ) -> Result<Vec<Attributes>, FileError> {
        self.run(move |mounted| mounted.rename_in((from.0, &from.1), (to.0, &to.1), kind)).await
    }

    /// Changes the attributes of a file, and returns all.
    ///
    /// # Errors
    /// [`FileError::ReadOnly`], and the errors of the disk.
    pub async fn update(&self, file: FileId, update: AttributeUpdate) -> Result<Attributes, FileError> {
        self.run(move |mounted| {
            let file_system = mounted.file_system()?;
            file_system.update(file, &update)?;
            file_system.attributes(file)
        })
        .await
    }

    /// Runs an operation of the file system that changes neither names nor contents.
    ///
    /// # Errors
    /// Those of the operation.
    pub async fn with_file_system<T: 'static>(
        &self,
        operation: impl FnOnce(&mut dyn FileSystem) -> Result<T, FileError> + 'static,
    ) -> Result<T, FileError> {
        self.run(move |mounted| operation(mounted.file_system()?)).await
    }
}

impl File {
    /// Changes the contents or the storage of the file, and returns the attributes afterwards, also if an error ended the
    /// change in its middle.
    ///
    /// # Errors
    /// Those of reading the attributes; that of the change is in the result.
    pub async fn change(
        &self,
        change: impl FnOnce(&mut dyn FileSystem, FileId) -> Result<(), FileError> + 'static,
    ) -> Result<(Attributes, Result<(), FileError>), FileError> {
        let id = self.id();
        self.volume()
            .run(move |mounted| {
                let outcome = mounted.change(id, move |file_system| change(file_system, id));
                Ok((mounted.file_system()?.attributes(id)?, outcome))
            })
            .await
    }
}
