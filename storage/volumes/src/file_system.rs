//! The interface of a file system, and its errors.

use crate::extents::ExtentMap;
use crate::posix::{AttributeUpdate, ExtendedAttributeMode, NewFile, RangeChange, RenameKind};
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;
use isola_block::BlockError;

/// The most bytes of a name in a directory.
pub const NAME_LEN: usize = 255;

/// A file system on a disk. Its calls block, and one runs at a time.
///
/// Names are bytes without `/` and NUL. Paths, open files and concurrency are the [`Volume`](crate::Volume)'s.
pub trait FileSystem {
    /// Returns the root directory.
    fn root(&self) -> FileId;

    /// Finds a name in a directory.
    ///
    /// # Errors
    /// [`FileError::NotFound`], [`FileError::NotADirectory`], and the errors of the disk.
    fn lookup(&mut self, directory: FileId, name: &[u8]) -> Result<Metadata, FileError>;

    /// Returns the metadata of a file.
    ///
    /// # Errors
    /// [`FileError::NotFound`] if the file was released, and the errors of the disk.
    fn metadata(&mut self, file: FileId) -> Result<Metadata, FileError>;

    /// Returns the attributes of a file of any type, as POSIX has them.
    ///
    /// # Errors
    /// [`FileError::Unsupported`] if the file system has none, and as [`Self::metadata`].
    fn attributes(&mut self, _file: FileId) -> Result<Attributes, FileError> {
        Err(FileError::Unsupported)
    }

    /// Returns up to `most` entries of a directory from a position, and the position after them; `None` at the end.
    ///
    /// # Errors
    /// [`FileError::NotADirectory`], and the errors of the disk.
    fn list(
        &mut self,
        directory: FileId,
        from: ListPosition,
        most: usize,
    ) -> Result<(Vec<Entry>, Option<ListPosition>), FileError>;

    /// Reads into `into` and returns the number of bytes: fewer at the end of the file. The contents of a symbolic link are
    /// its target.
    ///
    /// # Errors
    /// [`FileError::IsADirectory`], and the errors of the disk.
    fn read(&mut self, file: FileId, offset: u64, into: &mut [u8]) -> Result<usize, FileError>;

    /// Returns where a file's contents from a position on are on the disk, for reads past the file system, with at most
    /// [`MOST_EXTENTS`](crate::MOST_EXTENTS) extents; `None` if only [`Self::read`] can return them.
    ///
    /// # Errors
    /// [`FileError::Damaged`], and the errors of the disk.
    fn extents(&mut self, _file: FileId, _offset: u64) -> Result<Option<ExtentMap>, FileError> {
        Ok(None)
    }

    /// Writes all of `from`. The file grows if necessary; a gap reads as zeros.
    ///
    /// # Errors
    /// [`FileError::NoSpace`], [`FileError::TooLarge`], and the errors of the disk.
    fn write(&mut self, file: FileId, offset: u64, from: &[u8]) -> Result<(), FileError>;

    /// Sets the length of a file. New bytes are zeros.
    ///
    /// # Errors
    /// As [`Self::write`], and [`FileError::Fragmented`].
    fn truncate(&mut self, file: FileId, len: u64) -> Result<(), FileError>;

    /// Creates an empty file.
    ///
    /// # Errors
    /// [`FileError::AlreadyExists`], [`FileError::NoSpace`], and the errors of the disk.
    fn create(&mut self, directory: FileId, name: &[u8]) -> Result<Metadata, FileError>;

    /// Creates an empty directory.
    ///
    /// # Errors
    /// As [`Self::create`].
    fn make_directory(&mut self, directory: FileId, name: &[u8]) -> Result<Metadata, FileError>;

    /// Removes a name: of a file, or of an empty directory. Returns the file if this was its last name; its storage is
    /// in use until [`Self::release`].
    ///
    /// # Errors
    /// [`FileError::NotFound`], [`FileError::NotEmpty`], and the errors of the disk.
    fn remove(&mut self, directory: FileId, name: &[u8]) -> Result<Option<FileId>, FileError>;

    /// Gives a file another name, which replaces an existing file or empty directory of that name. Returns the replaced
    /// one as [`Self::remove`] does.
    ///
    /// # Errors
    /// [`FileError::NotFound`], [`FileError::NotEmpty`], and the errors of the disk.
    fn rename(&mut self, from: (FileId, &[u8]), to: (FileId, &[u8])) -> Result<Option<FileId>, FileError>;

    /// Creates a file of any type.
    ///
    /// # Errors
    /// As [`Self::create`], and [`FileError::Unsupported`] if the file system has no owners.
    fn create_any(&mut self, _directory: FileId, _name: &[u8], _new: &NewFile) -> Result<FileId, FileError> {
        Err(FileError::Unsupported)
    }

    /// Gives a file, no directory, another name.
    ///
    /// # Errors
    /// As [`Self::create`], and [`FileError::Unsupported`].
    fn link(&mut self, _file: FileId, _directory: FileId, _name: &[u8]) -> Result<(), FileError> {
        Err(FileError::Unsupported)
    }

    /// Changes attributes, and sets the time of their change.
    ///
    /// # Errors
    /// [`FileError::Unsupported`], and the errors of the disk.
    fn update(&mut self, _file: FileId, _update: &AttributeUpdate) -> Result<(), FileError> {
        Err(FileError::Unsupported)
    }

    /// Renames as [`Self::rename`], with a choice for an existing target.
    ///
    /// # Errors
    /// As [`Self::rename`], [`FileError::AlreadyExists`], [`FileError::Unsupported`].
    fn rename_any(
        &mut self,
        from: (FileId, &[u8]),
        to: (FileId, &[u8]),
        kind: RenameKind,
    ) -> Result<Option<FileId>, FileError> {
        if kind == RenameKind::Replace { self.rename(from, to) } else { Err(FileError::Unsupported) }
    }

    /// Reserves or frees storage of a file.
    ///
    /// # Errors
    /// As [`Self::write`], and [`FileError::Unsupported`].
    fn change_range(
        &mut self,
        _file: FileId,
        _change: RangeChange,
        _offset: u64,
        _len: u64,
    ) -> Result<(), FileError> {
        Err(FileError::Unsupported)
    }

    /// Returns an extended attribute.
    ///
    /// # Errors
    /// [`FileError::NotFound`], [`FileError::Unsupported`] for a name that the file system does not have, and the errors
    /// of the disk.
    fn extended_attribute(&mut self, _file: FileId, _name: &[u8]) -> Result<Vec<u8>, FileError> {
        Err(FileError::Unsupported)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// As [`Self::extended_attribute`], [`FileError::AlreadyExists`], [`FileError::NoSpace`].
    fn set_extended_attribute(
        &mut self,
        _file: FileId,
        _name: &[u8],
        _value: &[u8],
        _mode: ExtendedAttributeMode,
    ) -> Result<(), FileError> {
        Err(FileError::Unsupported)
    }

    /// Returns the names of a file's extended attributes.
    ///
    /// # Errors
    /// The errors of the disk.
    fn extended_attributes(&mut self, _file: FileId) -> Result<Vec<Vec<u8>>, FileError> {
        Ok(Vec::new())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As [`Self::extended_attribute`].
    fn remove_extended_attribute(&mut self, _file: FileId, _name: &[u8]) -> Result<(), FileError> {
        Err(FileError::Unsupported)
    }

    /// Notes that a file has users, until [`Self::unhold`]: it must be usable without a name.
    fn hold(&mut self, _file: FileId) {}

    /// Notes that a file has no users any more.
    fn unhold(&mut self, _file: FileId) {}

    /// Frees the storage of a file without a name.
    ///
    /// # Errors
    /// The errors of the disk.
    fn release(&mut self, file: FileId) -> Result<(), FileError>;

    /// Returns the space of the file system.
    fn space(&self) -> Space;

    /// Makes all changes permanent.
    ///
    /// # Errors
    /// The errors of the disk.
    fn sync(&mut self) -> Result<(), FileError>;

    /// Makes all changes permanent and marks the file system as unmounted.
    ///
    /// # Errors
    /// The errors of the disk. The file system is consistent nevertheless, and the next mount recovers it.
    fn unmount(&mut self) -> Result<(), FileError>;
}

/// The number of a file or directory within its file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, device, socket or pipe: it can be listed, renamed and removed.
    Other,
}

/// The metadata of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The number.
    pub id: FileId,
    /// The type.
    pub kind: FileKind,
    /// The length in bytes.
    pub len: u64,
    /// The time of the latest change of its contents, since 1970.
    pub modified: Duration,
    /// The number of names.
    pub links: u32,
}

/// The attributes of a file of any type. Times are since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The number.
    pub id: FileId,
    /// Type and permissions, as `st_mode` has them.
    pub mode: u32,
    /// The owner.
    pub user: u32,
    /// The group.
    pub group: u32,
    /// The number of names.
    pub links: u32,
    /// The length in bytes.
    pub len: u64,
    /// The allocated storage, in units of 512 bytes.
    pub blocks: u64,
    /// The time of the latest read.
    pub accessed: Duration,
    /// The time of the latest change of the contents.
    pub modified: Duration,
    /// The time of the latest change of contents or attributes.
    pub changed: Duration,
    /// The time of creation.
    pub created: Duration,
    /// Major and minor number, of a device.
    pub device: Option<(u32, u32)>,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: Vec<u8>,
    /// The number of the file.
    pub id: FileId,
    /// The type.
    pub kind: FileKind,
}

/// A position in the list of a directory's entries. The default is the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListPosition(pub(crate) [u64; 4]);

impl ListPosition {
    /// Returns the position with these words, for a file system outside of this crate.
    pub const fn of_words(words: [u64; 4]) -> Self {
        Self(words)
    }

    /// Returns the words, whose meaning the file system alone knows.
    pub const fn words(self) -> [u64; 4] {
        self.0
    }
}

/// The space of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// The bytes for files and metadata.
    pub total_bytes: u64,
    /// The free ones.
    pub free_bytes: u64,
    /// The most files and directories.
    pub total_files: u64,
    /// How many more can be created.
    pub free_files: u64,
}

/// The reason for which an operation on a file system failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileError {
    /// No file has this name.
    NotFound,
    /// A file has this name already.
    AlreadyExists,
    /// The operation needs a directory.
    NotADirectory,
    /// The operation needs a file.
    IsADirectory,
    /// The directory has entries.
    NotEmpty,
    /// The name or path is not valid.
    InvalidName,
    /// A directory would become a part of itself, or the operation is otherwise not possible.
    Invalid,
    /// The file system has no space left.
    NoSpace,
    /// The file would exceed the limit of the file system.
    TooLarge,
    /// The file system, or its disk, cannot be written.
    ReadOnly,
    /// The cell lacks memory.
    NoMemory,
    /// Files are open.
    InUse,
    /// As many operations wait as the volume permits.
    Busy,
    /// The volume was unmounted.
    Unmounted,
    /// The disk has no file system of this type.
    NotAFileSystem,
    /// The file system uses a feature that is not supported; the bits of the superblock's field.
    UnsupportedFeature(u32),
    /// The file system has no journal, without which a power failure destroys it.
    NoJournal,
    /// The journal has to be replayed, and the disk is read-only.
    NeedsRecovery,
    /// The file system contradicts itself.
    Damaged,
    /// The file is in so many pieces that it cannot be shortened.
    Fragmented,
    /// The file has changed since the reader began.
    Changed,
    /// The operation is not supported.
    Unsupported,
    /// An error of the disk ended all changes: the file system can only be read until it is mounted again.
    Aborted,
    /// The disk failed.
    Disk(BlockError),
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFound => "no file has this name",
            Self::AlreadyExists => "a file has this name already",
            Self::NotADirectory => "a part of the path is no directory",
            Self::IsADirectory => "this is a directory: name a file",
            Self::NotEmpty => "the directory is not empty: remove its entries first",
            Self::InvalidName => "a name has 1 to 255 bytes without `/` and NUL, and is neither `.` nor `..`",
            Self::Invalid => "the file system does not permit this operation on this file",
            Self::NoSpace => "the file system is full: remove files, or make a larger one",
            Self::TooLarge => "the file system does not permit a file of this length",
            Self::ReadOnly => "the file system is mounted read-only, or its disk is",
            Self::NoMemory => "no memory for this operation: give the cell more",
            Self::InUse => "files are open: close them first",
            Self::Busy => "too many operations wait for the volume: try again",
            Self::Unmounted => "the volume is not mounted any more",
            Self::NotAFileSystem => "the disk has no ext4 file system: make one with mke2fs -t ext4",
            Self::UnsupportedFeature(bits) => {
                return write!(
                    f,
                    "the file system uses features that are not supported ({bits:#x}): make it with mke2fs -t ext4"
                );
            }
            Self::NeedsRecovery => "the file system was not unmounted: mount it once for writing, or use e2fsck",
            Self::NoJournal => "the file system has no journal: make one with tune2fs -j, or mount it read-only",
            Self::Damaged => "the file system is damaged: check it with e2fsck -f",
            Self::Fragmented => "the file is in too many pieces to be shortened: copy it, and remove the original",
            Self::Changed => "the file has changed meanwhile: read it again",
            Self::Unsupported => "the file system does not support this operation",
            Self::Aborted => "the file system accepts no more changes after an error of the disk: mount it again",
            Self::Disk(error) => return error.fmt(f),
        })
    }
}

impl core::error::Error for FileError {}

impl From<BlockError> for FileError {
    fn from(error: BlockError) -> Self {
        Self::Disk(error)
    }
}
