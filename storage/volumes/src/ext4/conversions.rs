//! Errors, names, numbers and attributes in the terms of `rsext4` and of [`FileSystem`](crate::file_system::FileSystem).

use crate::file_system::{FileError, FileId, FileKind, ListPosition, Metadata};
use core::time::Duration;
use isola_block::BlockError;
use rsext4::{
    DirectoryCursor, DirectoryEntryType, ErrorContext, Ext4Error, Ext4ErrorKind, FileName, FilePermissions,
    InodeInfo, InodeNumber,
};

/// Converts an error of `rsext4`; `device` is the error that the disk has reported meanwhile.
pub(super) fn convert(error: Ext4Error, device: Option<BlockError>) -> FileError {
    if let Some(device) = device {
        return FileError::Disk(device);
    }
    match error.kind() {
        Ext4ErrorKind::NotFound => FileError::NotFound,
        Ext4ErrorKind::AlreadyExists => FileError::AlreadyExists,
        Ext4ErrorKind::NotDirectory => FileError::NotADirectory,
        Ext4ErrorKind::IsDirectory => FileError::IsADirectory,
        Ext4ErrorKind::NotEmpty => FileError::NotEmpty,
        Ext4ErrorKind::NoSpace | Ext4ErrorKind::QuotaExceeded | Ext4ErrorKind::TooManyLinks => {
            FileError::NoSpace
        }
        Ext4ErrorKind::FileTooLarge => FileError::TooLarge,
        Ext4ErrorKind::ReadOnly => FileError::ReadOnly,
        Ext4ErrorKind::NoMemory => FileError::NoMemory,
        Ext4ErrorKind::Busy => FileError::InUse,
        Ext4ErrorKind::InvalidMagic => FileError::NotAFileSystem,
        Ext4ErrorKind::JournalAborted => FileError::Aborted,
        Ext4ErrorKind::UnsupportedFeature => match error.context() {
            Some(ErrorContext::Feature { bits, .. }) => FileError::UnsupportedFeature(bits),
            _ => FileError::UnsupportedFeature(0),
        },
        Ext4ErrorKind::Unsupported | Ext4ErrorKind::UnsupportedCapability | Ext4ErrorKind::Timeout => {
            FileError::Unsupported
        }
        Ext4ErrorKind::InvalidInput | Ext4ErrorKind::PermissionDenied | Ext4ErrorKind::BadFileDescriptor => {
            FileError::Invalid
        }
        // `rsext4` reports some contradictions in the file system as I/O errors.
        Ext4ErrorKind::Io
        | Ext4ErrorKind::Corrupted
        | Ext4ErrorKind::ChecksumMismatch
        | Ext4ErrorKind::BadSuperblock
        | Ext4ErrorKind::Overflow => FileError::Damaged,
    }
}

pub(super) fn name_of(name: &[u8]) -> Result<FileName<'_>, FileError> {
    let name = FileName::new(name).map_err(|_| FileError::InvalidName)?;
    if name.is_reserved() { Err(FileError::InvalidName) } else { Ok(name) }
}

pub(super) fn inode_of(file: FileId) -> Result<InodeNumber, FileError> {
    let number = u32::try_from(file.0).map_err(|_| FileError::NotFound)?;
    InodeNumber::new(number).map_err(|_| FileError::NotFound)
}

pub(super) fn id_of(inode: InodeNumber) -> FileId {
    FileId(u64::from(inode.raw()))
}

pub(super) fn permissions(bits: u16) -> Result<FilePermissions, FileError> {
    FilePermissions::new(bits).map_err(|_| FileError::Invalid)
}

pub(super) fn kind_of(kind: DirectoryEntryType) -> FileKind {
    match kind {
        DirectoryEntryType::RegularFile => FileKind::File,
        DirectoryEntryType::Directory => FileKind::Directory,
        _ => FileKind::Other,
    }
}

pub(super) fn metadata_of(info: &InodeInfo) -> Metadata {
    Metadata {
        id: id_of(info.number),
        kind: kind_of(info.file_type()),
        len: info.size,
        modified: Duration::from_secs(u64::from(info.mtime)),
        links: u32::from(info.links),
    }
}

pub(super) fn cursor_of(position: ListPosition) -> Result<DirectoryCursor, FileError> {
    let hash = |value: u64| u32::try_from(value).map_err(|_| FileError::Invalid);
    Ok(match position.0 {
        [0, ..] => DirectoryCursor::Start,
        [1, offset, ..] => DirectoryCursor::Linear { offset },
        [2, major, minor, collision] => {
            DirectoryCursor::HTree { major: hash(major)?, minor: hash(minor)?, collision: hash(collision)? }
        }
        _ => DirectoryCursor::End,
    })
}

pub(super) fn position_of(cursor: DirectoryCursor) -> Option<ListPosition> {
    match cursor {
        DirectoryCursor::Start => Some(ListPosition::default()),
        DirectoryCursor::Linear { offset } => Some(ListPosition([1, offset, 0, 0])),
        DirectoryCursor::HTree { major, minor, collision } => {
            Some(ListPosition([2, u64::from(major), u64::from(minor), u64::from(collision)]))
        }
        DirectoryCursor::End => None,
    }
}
