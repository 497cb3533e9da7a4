//! ext4, by the crate `rsext4`.
//!
//! | module | contents |
//! |---|---|
//! | this | [`Ext4`], a [`FileSystem`] |
//! | `device` | the disk as `rsext4`'s block device |
//! | `superblock` | the marks of a mounted and an unmounted file system |
//!
//! `rsext4` writes metadata to the journal before their places on the disk, and data before the metadata that refers to
//! it. After a power failure, the next mount replays the journal: the file system is then that of a moment after the
//! last completed [`sync`](FileSystem::sync).
//!
//! A file system without a journal is mounted read-only.

mod device;
mod superblock;

use self::device::Ext4Device;
use self::superblock::{Recovery, Superblock};
use crate::disk::Disk;
use crate::file_system::{Entry, FileError, FileId, FileKind, FileSystem, ListPosition, Metadata, Space};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;
use isola_block::BlockError;
use rsext4::{
    Clock, DirectoryCursor, DirectoryEntryType, EntropySource, ErrorContext, Ext4Error, Ext4ErrorKind,
    Ext4Result, Ext4Timestamp, FileName, FilePermissions, InodeInfo, InodeNumber, MountOptions,
    MountServices, MountedServices, MutationContext, NoopObserver, RenameOptions,
};

/// The most bytes that one call of `rsext4` writes: it writes the metadata of a call in one transaction.
const WRITE_LEN: usize = 256 * 1024;

/// Whether a file system can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It can. It needs a journal.
    ReadWrite,
    /// It cannot, and nothing is written to the disk.
    ReadOnly,
}

/// The services of the cell for a mounted file system.
#[derive(Clone, Copy, Debug)]
pub struct Services {
    /// Returns the time since 1970.
    pub time: fn() -> Duration,
    /// Returns a random number.
    pub entropy: fn() -> u64,
}

type Mounted = rsext4::Ext4<Ext4Device, MountedServices<Random, NoopObserver>>;

/// A mounted ext4 file system.
pub struct Ext4 {
    /// `None` after unmounting.
    mounted: Option<Mounted>,
    device: Ext4Device,
    services: Services,
    access: Access,
}

struct WallClock(fn() -> Duration);

impl Clock for WallClock {
    fn now(&self) -> Ext4Result<Ext4Timestamp> {
        let now = (self.0)();
        Ok(Ext4Timestamp::new(i64::try_from(now.as_secs()).unwrap_or(i64::MAX), now.subsec_nanos()))
    }
}

struct Random(fn() -> u64);

impl EntropySource for Random {
    fn fill_bytes(&mut self, output: &mut [u8]) -> Ext4Result<()> {
        for bytes in output.chunks_mut(8) {
            bytes.copy_from_slice(&(self.0)().to_le_bytes()[..bytes.len()]);
        }
        Ok(())
    }
}

impl Ext4 {
    /// Mounts the file system of a disk, and replays its journal if that is necessary and permitted.
    ///
    /// # Errors
    /// [`FileError::NotAFileSystem`], [`FileError::UnsupportedFeature`], [`FileError::NoJournal`],
    /// [`FileError::Damaged`], [`FileError::ReadOnly`] if the disk is read-only, and the errors of the disk.
    pub fn mount(disk: Rc<dyn Disk>, access: Access, services: Services) -> Result<Self, FileError> {
        let superblock = Superblock::read(&*disk)?;
        if access == Access::ReadWrite {
            if disk.is_read_only() {
                return Err(FileError::ReadOnly);
            }
            if !superblock.has_journal() {
                return Err(FileError::NoJournal);
            }
        }
        let device = Ext4Device::new(disk, access == Access::ReadOnly);
        if access == Access::ReadWrite && superblock.recovery() == Recovery::NotNeeded {
            // A trial mount: a file system that cannot be mounted is not written to.
            Self::start(&device, Access::ReadOnly, services)?;
            superblock.write_mounted(&*device.disk)?;
        }
        let mounted = Self::start(&device, access, services)?;
        Ok(Self { mounted: Some(mounted), device, services, access })
    }

    fn start(device: &Ext4Device, access: Access, services: Services) -> Result<Mounted, FileError> {
        let options = match access {
            Access::ReadWrite => MountOptions::read_write(),
            Access::ReadOnly => MountOptions::read_only_no_journal_replay(),
        };
        let device = Ext4Device { is_read_only: access == Access::ReadOnly, ..device.clone() };
        let capabilities =
            MountServices::new(WallClock(services.time), Random(services.entropy), NoopObserver);
        device.error.set(None);
        let error = device.error.clone();
        Mounted::mount(device, capabilities, options).map_err(|refused| convert(refused, error.take()))
    }

    /// Calls `rsext4` and converts its error.
    fn call<T>(&mut self, operation: impl FnOnce(&mut Mounted) -> Ext4Result<T>) -> Result<T, FileError> {
        let mounted = self.mounted.as_mut().ok_or(FileError::Unmounted)?;
        self.device.error.set(None);
        operation(mounted).map_err(|error| convert(error, self.device.error.take()))
    }

    fn context() -> MutationContext {
        MutationContext::new(0, 0, 0, 0)
    }
}

/// Converts an error of `rsext4`; `device` is the error that the disk has reported meanwhile.
fn convert(error: Ext4Error, device: Option<BlockError>) -> FileError {
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

fn name_of(name: &[u8]) -> Result<FileName<'_>, FileError> {
    let name = FileName::new(name).map_err(|_| FileError::InvalidName)?;
    if name.is_reserved() { Err(FileError::InvalidName) } else { Ok(name) }
}

fn inode_of(file: FileId) -> Result<InodeNumber, FileError> {
    let number = u32::try_from(file.0).map_err(|_| FileError::NotFound)?;
    InodeNumber::new(number).map_err(|_| FileError::NotFound)
}

fn id_of(inode: InodeNumber) -> FileId {
    FileId(u64::from(inode.raw()))
}

fn permissions(bits: u16) -> Result<FilePermissions, FileError> {
    FilePermissions::new(bits).map_err(|_| FileError::Invalid)
}

fn kind_of(kind: DirectoryEntryType) -> FileKind {
    match kind {
        DirectoryEntryType::RegularFile => FileKind::File,
        DirectoryEntryType::Directory => FileKind::Directory,
        _ => FileKind::Other,
    }
}

fn metadata_of(info: &InodeInfo) -> Metadata {
    Metadata {
        id: id_of(info.number),
        kind: kind_of(info.file_type()),
        len: info.size,
        modified: Duration::from_secs(u64::from(info.mtime)),
        links: u32::from(info.links),
    }
}

fn cursor_of(position: ListPosition) -> Result<DirectoryCursor, FileError> {
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

fn position_of(cursor: DirectoryCursor) -> Option<ListPosition> {
    match cursor {
        DirectoryCursor::Start => Some(ListPosition::default()),
        DirectoryCursor::Linear { offset } => Some(ListPosition([1, offset, 0, 0])),
        DirectoryCursor::HTree { major, minor, collision } => {
            Some(ListPosition([2, u64::from(major), u64::from(minor), u64::from(collision)]))
        }
        DirectoryCursor::End => None,
    }
}

impl FileSystem for Ext4 {
    fn root(&self) -> FileId {
        self.mounted.as_ref().map_or(FileId(2), |mounted| id_of(mounted.root_inode()))
    }

    fn lookup(&mut self, directory: FileId, name: &[u8]) -> Result<Metadata, FileError> {
        let (directory, name) = (inode_of(directory)?, name_of(name)?);
        if !self.call(|mounted| mounted.inode(directory))?.is_directory() {
            return Err(FileError::NotADirectory);
        }
        let found = self.call(|mounted| mounted.lookup_child(directory, name))?;
        found.as_ref().map(metadata_of).ok_or(FileError::NotFound)
    }

    fn metadata(&mut self, file: FileId) -> Result<Metadata, FileError> {
        let inode = inode_of(file)?;
        Ok(metadata_of(&self.call(|mounted| mounted.inode(inode))?))
    }

    fn list(
        &mut self,
        directory: FileId,
        from: ListPosition,
        most: usize,
    ) -> Result<(Vec<Entry>, Option<ListPosition>), FileError> {
        let (directory, cursor) = (inode_of(directory)?, cursor_of(from)?);
        let found = self.call(|mounted| mounted.read_directory(directory, cursor, most))?;
        let next = match found.last() {
            Some(last) if found.len() >= most => position_of(last.next_cursor),
            _ => None,
        };
        let is_named = |name: &[u8]| name != b"." && name != b"..";
        let entries = found.into_iter().filter(|entry| is_named(&entry.name)).map(|entry| Entry {
            id: id_of(entry.inode),
            kind: kind_of(entry.file_type),
            name: entry.name,
        });
        Ok((entries.collect(), next))
    }

    fn read(&mut self, file: FileId, offset: u64, into: &mut [u8]) -> Result<usize, FileError> {
        let inode = inode_of(file)?;
        self.call(|mounted| mounted.read_inode(inode, offset, into))
    }

    fn write(&mut self, file: FileId, offset: u64, from: &[u8]) -> Result<(), FileError> {
        let inode = inode_of(file)?;
        let mut offset = offset;
        for part in from.chunks(WRITE_LEN) {
            self.call(|mounted| mounted.write_inode(inode, offset, part))?;
            offset = offset.checked_add(part.len() as u64).ok_or(FileError::TooLarge)?;
        }
        Ok(())
    }

    fn truncate(&mut self, file: FileId, len: u64) -> Result<(), FileError> {
        let inode = inode_of(file)?;
        self.call(|mounted| mounted.truncate_inode(inode, len))
    }

    fn create(&mut self, directory: FileId, name: &[u8]) -> Result<Metadata, FileError> {
        let (directory, name, mode) = (inode_of(directory)?, name_of(name)?, permissions(0o644)?);
        let create =
            |mounted: &mut Mounted| mounted.create_regular_file(Self::context(), directory, name, mode);
        Ok(metadata_of(&self.call(create)?))
    }

    fn make_directory(&mut self, directory: FileId, name: &[u8]) -> Result<Metadata, FileError> {
        let (directory, name, mode) = (inode_of(directory)?, name_of(name)?, permissions(0o755)?);
        let create = |mounted: &mut Mounted| mounted.create_directory(Self::context(), directory, name, mode);
        Ok(metadata_of(&self.call(create)?))
    }

    fn remove(&mut self, directory: FileId, name: &[u8]) -> Result<Option<FileId>, FileError> {
        let is_directory = self.lookup(directory, name)?.kind == FileKind::Directory;
        let (directory, name) = (inode_of(directory)?, name_of(name)?);
        let outcome = self.call(|mounted| match is_directory {
            true => mounted.remove_empty_directory(directory, name),
            false => mounted.unlink(directory, name),
        })?;
        Ok(outcome.requires_reap().then(|| id_of(outcome.inode)))
    }

    fn rename(&mut self, from: (FileId, &[u8]), to: (FileId, &[u8])) -> Result<Option<FileId>, FileError> {
        let (from_directory, from_name) = (inode_of(from.0)?, name_of(from.1)?);
        let (to_directory, to_name) = (inode_of(to.0)?, name_of(to.1)?);
        let outcome = self.call(|mounted| {
            mounted.rename(from_directory, from_name, to_directory, to_name, RenameOptions::REPLACE)
        })?;
        let replaced = outcome.replaced.filter(|replaced| replaced.requires_reap());
        Ok(replaced.map(|replaced| id_of(replaced.inode)))
    }

    fn release(&mut self, file: FileId) -> Result<(), FileError> {
        let inode = inode_of(file)?;
        self.call(|mounted| mounted.reap_unlinked_inode(inode))
    }

    fn space(&self) -> Space {
        let Some(mounted) = &self.mounted else {
            return Space { total_bytes: 0, free_bytes: 0, total_files: 0, free_files: 0 };
        };
        let of = mounted.statfs();
        Space {
            total_bytes: of.total_blocks.saturating_mul(of.block_size),
            free_bytes: of.free_blocks.saturating_mul(of.block_size),
            total_files: u64::from(of.total_inodes),
            free_files: u64::from(of.free_inodes),
        }
    }

    fn sync(&mut self) -> Result<(), FileError> {
        match self.access {
            Access::ReadOnly => Ok(()),
            Access::ReadWrite => self.call(Mounted::sync),
        }
    }

    fn unmount(&mut self) -> Result<(), FileError> {
        if self.access == Access::ReadOnly {
            self.mounted.take().ok_or(FileError::Unmounted)?;
            return Ok(());
        }
        self.sync()?;
        self.mounted = None;
        // Another mount replays the journal, which writes all of it to its places and empties it.
        drop(Self::start(&self.device, Access::ReadWrite, self.services)?);
        let superblock = Superblock::read(&*self.device.disk)?;
        if superblock.has_orphans() {
            // Their release is in the journal of the next mount.
            return Ok(());
        }
        superblock.write_unmounted(&*self.device.disk, 1)
    }
}

impl fmt::Debug for Ext4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ext4").field("access", &self.access).field("space", &self.space()).finish()
    }
}
