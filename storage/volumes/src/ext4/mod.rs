//! ext4, by the crate `rsext4`.
//!
//! | module | contents |
//! |---|---|
//! | this | [`Ext4`], a [`FileSystem`] |
//! | `device` | the disk as `rsext4`'s block device |
//! | `posix` | files of all types, owners, links, extended attributes |
//! | `superblock` | the marks of a mounted and an unmounted file system |
//! | `unsynced` | the parts of files that `rsext4` may have in memory only |
//!
//! `rsext4` writes metadata to the journal before their places on the disk, and data before the metadata that refers to
//! it. After a power failure, the next mount replays the journal: the file system is then that of a moment after the
//! last completed [`sync`](FileSystem::sync).
//!
//! A file system without a journal is mounted read-only.

mod device;
mod posix;
mod superblock;
mod unsynced;

use self::device::Ext4Device;
use self::superblock::{Recovery, Superblock};
use self::unsynced::UnsyncedFiles;
use crate::disk::Disk;
use crate::extents::{Extent, ExtentMap, MOST_EXTENTS};
use crate::file_system::{
    Attributes, Entry, FileError, FileId, FileKind, FileSystem, ListPosition, Metadata, Space,
};
use crate::posix::{AttributeUpdate, ExtendedAttributeMode, NewFile, RangeChange, RenameKind};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use core::time::Duration;
use isola_block::BlockError;
use rsext4::{
    Clock, DirectoryCursor, DirectoryEntryType, EntropySource, ErrorContext, Ext4Error, Ext4ErrorKind,
    Ext4Result, Ext4Timestamp, FileExtent, FileExtentMap, FileExtentState, FileExtentTarget, FileName,
    FilePermissions, InodeInfo, InodeNumber, MkfsOptions, MountOptions, MountServices, MountedServices,
    MutationContext, NoopObserver, RenameOptions,
};

/// The most bytes that one call of `rsext4` writes: it writes the metadata of a call in one transaction.
const WRITE_LEN: usize = 256 * 1024;

/// The blocks that stay free. `rsext4` loses blocks if it runs out of them within a change, so this crate checks before a
/// change that there are enough for its data and this number for its metadata.
const SPARE_BLOCKS: u64 = 32;

/// The most extents of a file without a first block that may get one.
const EXTENTS_IN_INODE: usize = 4;

/// Whether a file system can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It can. It needs a journal.
    ReadWrite,
    /// It cannot. Only the journal is replayed, if that is necessary.
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
    /// A file whose first block is known to be allocated.
    has_first_block: Option<InodeNumber>,
    unsynced: UnsyncedFiles,
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
    /// [`FileError::Damaged`], [`FileError::ReadOnly`] if the disk is read-only, [`FileError::NeedsRecovery`] if it is and
    /// the journal has to be replayed, and the errors of the disk.
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
        if access == Access::ReadOnly && superblock.has_journal() && superblock.recovery() == Recovery::Needed
        {
            if disk.is_read_only() {
                return Err(FileError::NeedsRecovery);
            }
            // A mount for reading would show the file system without the changes in its journal.
            Self::mount(disk.clone(), Access::ReadWrite, services)?.unmount()?;
        }
        let device = Ext4Device::new(disk, access == Access::ReadOnly);
        if access == Access::ReadWrite && superblock.recovery() == Recovery::NotNeeded {
            // A trial mount: a file system that cannot be mounted is not written to.
            Self::start(&device, Access::ReadOnly, services)?;
            superblock.write_mounted(&*device.disk)?;
        }
        let mounted = Self::start(&device, access, services)?;
        let unsynced = UnsyncedFiles::default();
        Ok(Self { mounted: Some(mounted), device, services, access, has_first_block: None, unsynced })
    }

    /// Makes an empty file system on a disk, with blocks of 4 KiB and a journal, on a disk of 64 MiB or more. The disk's
    /// earlier contents are lost.
    ///
    /// # Errors
    /// [`FileError::NoSpace`] or [`FileError::Invalid`] if the disk is too small, [`FileError::ReadOnly`], and the
    /// errors of the disk.
    pub fn format(disk: Rc<dyn Disk>, services: Services) -> Result<(), FileError> {
        if disk.is_read_only() {
            return Err(FileError::ReadOnly);
        }
        let device = Ext4Device::new(disk, false);
        let made = rsext4::format(device.clone(), WallClock(services.time), MkfsOptions::default());
        made.map_err(|error| convert(error, device.error.take()))?;
        Ok(device.disk.flush()?)
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

    /// Returns the most bytes of a file: blocks have numbers of 32 bits.
    fn most_len(&self) -> Result<u64, FileError> {
        let mounted = self.mounted.as_ref().ok_or(FileError::Unmounted)?;
        Ok(mounted.statfs().block_size.saturating_mul(u64::from(u32::MAX)))
    }

    /// Returns the blocks that contain a part of a file, as a range of bytes.
    fn in_blocks(&self, offset: u64, len: u64) -> Range<u64> {
        let block_len = self.mounted.as_ref().map_or(1, |mounted| mounted.statfs().block_size.max(1));
        let end = offset.saturating_add(len);
        offset - offset % block_len..end.checked_next_multiple_of(block_len).unwrap_or(u64::MAX)
    }

    /// Checks that there is space for `len` bytes at a position of a file, those that are allocated not counted.
    fn check_space(&mut self, inode: InodeNumber, offset: u64, len: u64) -> Result<(), FileError> {
        let space = self.mounted.as_ref().ok_or(FileError::Unmounted)?.statfs();
        let block_len = space.block_size.max(1);
        let first = offset / block_len;
        let blocks = offset.checked_add(len).ok_or(FileError::TooLarge)?.div_ceil(block_len) - first;
        if space.free_blocks >= blocks + SPARE_BLOCKS {
            return Ok(());
        }
        let (start, len) = (first * block_len, blocks * block_len);
        let most = usize::try_from(blocks).unwrap_or(usize::MAX);
        let map =
            self.call(|mounted| mounted.inode_extents(inode, start, len, FileExtentTarget::Data, most))?;
        let within = |extent: &FileExtent| {
            let (from, to) = (extent.logical_start, extent.logical_start.saturating_add(extent.length));
            to.min(start + len).saturating_sub(from.max(start))
        };
        let allocated: u64 = map.extents.iter().map(within).sum();
        let missing = blocks.saturating_sub(allocated / block_len);
        if missing == 0 || space.free_blocks >= missing + SPARE_BLOCKS {
            Ok(())
        } else {
            Err(FileError::NoSpace)
        }
    }

    /// Checks that there is space for a new entry of a directory.
    fn check_space_for_entry(&self) -> Result<(), FileError> {
        let space = self.mounted.as_ref().ok_or(FileError::Unmounted)?.statfs();
        if space.free_blocks < SPARE_BLOCKS || space.free_inodes == 0 {
            return Err(FileError::NoSpace);
        }
        Ok(())
    }

    /// Allocates the first block of a file before any other. `rsext4` damages an extent tree of three levels if an extent
    /// is added before the first one.
    fn allocate_first_block(&mut self, inode: InodeNumber) -> Result<(), FileError> {
        if self.has_first_block == Some(inode) {
            return Ok(());
        }
        let block_len = self.mounted.as_ref().ok_or(FileError::Unmounted)?.statfs().block_size;
        let extents = |mounted: &mut Mounted, len| {
            mounted.inode_extents(inode, 0, len, FileExtentTarget::Data, EXTENTS_IN_INODE + 1)
        };
        let has_first =
            |map: &FileExtentMap| map.extents.first().is_some_and(|first| first.logical_start == 0);
        if !has_first(&self.call(|mounted| extents(mounted, block_len))?) {
            let all = self.call(|mounted| extents(mounted, i64::MAX as u64))?;
            if all.extents.len() > EXTENTS_IN_INODE {
                // Linux has made this file.
                return Err(FileError::Unsupported);
            }
            self.check_space(inode, 0, 1)?;
            self.unsynced.add(inode, 0..block_len);
            // A byte of the hole before the position that is written next.
            self.call(|mounted| mounted.write_inode(inode, 0, &[0]))?;
        }
        self.has_first_block = Some(inode);
        Ok(())
    }

    /// Returns whether the extent tree of a file may have three levels. `rsext4` fails to empty a part of such a tree, and
    /// changes nothing.
    fn has_deep_tree(&mut self, inode: InodeNumber) -> bool {
        let count = |mounted: &mut Mounted| {
            let block_len = mounted.statfs().block_size as usize;
            // Four blocks, at least half full, of extents of 12 bytes.
            let in_two_levels = 4 * (block_len / 12 / 2);
            let map = mounted.inode_extents(inode, 0, i64::MAX as u64, FileExtentTarget::Data, 0)?;
            Ok(map.mapped_extents >= in_two_levels)
        };
        self.call(count).unwrap_or_default()
    }

    /// Returns whether a file may have blocks that were reserved and not written, also behind its end.
    fn may_have_unwritten_blocks(&mut self, inode: InodeNumber) -> Result<bool, FileError> {
        const EXTENTS_IN_QUERY: usize = 256;
        let info = self.call(|mounted| mounted.inode(inode))?;
        if info.file_type() != DirectoryEntryType::RegularFile {
            return Ok(false);
        }
        let allocated_bytes = info.blocks.saturating_mul(512);
        let (mut start, mut written_bytes) = (0, 0);
        loop {
            let len = (i64::MAX as u64).saturating_sub(start);
            let target = FileExtentTarget::Data;
            let map =
                self.call(|mounted| mounted.inode_extents(inode, start, len, target, EXTENTS_IN_QUERY))?;
            let written = map.extents.iter().filter(|extent| extent.state == FileExtentState::Initialized);
            written_bytes += written.map(|extent| extent.length).sum::<u64>();
            match map.extents.last() {
                Some(last) if map.extents.len() == EXTENTS_IN_QUERY => {
                    start = last.logical_start + last.length
                }
                _ => return Ok(written_bytes < allocated_bytes),
            }
        }
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

    fn attributes(&mut self, file: FileId) -> Result<Attributes, FileError> {
        let inode = inode_of(file)?;
        let info = self.call(|mounted| mounted.inode(inode))?;
        let time = |seconds: u32| Duration::from_secs(u64::from(seconds));
        Ok(Attributes {
            id: file,
            mode: u32::from(info.mode),
            user: info.uid,
            group: info.gid,
            links: u32::from(info.links),
            len: info.size,
            blocks: info.blocks,
            accessed: time(info.atime),
            modified: time(info.mtime),
            changed: time(info.ctime),
            created: time(info.btime),
            device: info.device_number.map(|device| (device.major(), device.minor())),
        })
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
        // A damaged length may be larger; `rsext4` panics at such positions.
        let most = usize::try_from(self.most_len()?.saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = into.len().min(most);
        if len == 0 {
            return Ok(0);
        }
        self.call(|mounted| mounted.read_inode(inode, offset, &mut into[..len]))
    }

    fn extents(&mut self, file: FileId, offset: u64) -> Result<Option<ExtentMap>, FileError> {
        let inode = inode_of(file)?;
        let (most_len, disk_len) = (self.most_len()?, self.device.disk.len());
        if offset >= most_len {
            return Ok(None);
        }
        let map = self.call(|mounted| {
            mounted.inode_extents(inode, offset, i64::MAX as u64, FileExtentTarget::Data, MOST_EXTENTS)
        })?;
        let end = |extent: &FileExtent| extent.logical_start.saturating_add(extent.length);
        let until = if map.complete { most_len } else { map.extents.last().map_or(offset, end) };
        if map.extents.iter().any(|extent| extent.state == FileExtentState::Inline) {
            return Ok(None);
        }
        let written = map.extents.iter().filter(|extent| extent.state == FileExtentState::Initialized);
        let extents = written.map(|extent| Extent {
            start: extent.logical_start,
            len: extent.length,
            at: extent.physical_start,
        });
        ExtentMap::new(offset..until, extents.collect(), self.unsynced.of(inode), disk_len).map(Some)
    }

    fn write(&mut self, file: FileId, offset: u64, from: &[u8]) -> Result<(), FileError> {
        let inode = inode_of(file)?;
        if offset.checked_add(from.len() as u64).is_none_or(|end| end > self.most_len().unwrap_or(0)) {
            return Err(FileError::TooLarge);
        }
        if offset > 0 && !from.is_empty() {
            self.allocate_first_block(inode)?;
        }
        self.unsynced.add(inode, self.in_blocks(offset, from.len() as u64));
        let mut offset = offset;
        for part in from.chunks(WRITE_LEN) {
            self.check_space(inode, offset, part.len() as u64)?;
            self.call(|mounted| mounted.write_inode(inode, offset, part))?;
            offset = offset.checked_add(part.len() as u64).ok_or(FileError::TooLarge)?;
        }
        Ok(())
    }

    fn truncate(&mut self, file: FileId, len: u64) -> Result<(), FileError> {
        let inode = inode_of(file)?;
        if len > self.most_len()? {
            return Err(FileError::TooLarge);
        }
        self.has_first_block = None;
        // The last block is filled up with zeros.
        let shorter = self.metadata(file)?.len.min(len);
        self.unsynced.add(inode, self.in_blocks(shorter, 0).start..u64::MAX);
        let truncated = self.call(|mounted| mounted.truncate_inode(inode, len));
        if truncated == Err(FileError::Damaged) && self.has_deep_tree(inode) {
            return Err(FileError::Fragmented);
        }
        truncated
    }

    fn create(&mut self, directory: FileId, name: &[u8]) -> Result<Metadata, FileError> {
        let (directory, name, mode) = (inode_of(directory)?, name_of(name)?, permissions(0o644)?);
        self.check_space_for_entry()?;
        let create =
            |mounted: &mut Mounted| mounted.create_regular_file(Self::context(), directory, name, mode);
        Ok(metadata_of(&self.call(create)?))
    }

    fn make_directory(&mut self, directory: FileId, name: &[u8]) -> Result<Metadata, FileError> {
        let (directory, name, mode) = (inode_of(directory)?, name_of(name)?, permissions(0o755)?);
        self.check_space_for_entry()?;
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
        self.check_space_for_entry()?;
        let outcome = self.call(|mounted| {
            mounted.rename(from_directory, from_name, to_directory, to_name, RenameOptions::REPLACE)
        })?;
        let replaced = outcome.replaced.filter(|replaced| replaced.requires_reap());
        Ok(replaced.map(|replaced| id_of(replaced.inode)))
    }

    fn create_any(&mut self, directory: FileId, name: &[u8], new: &NewFile) -> Result<FileId, FileError> {
        Self::create_any(self, directory, name, new)
    }

    fn link(&mut self, file: FileId, directory: FileId, name: &[u8]) -> Result<(), FileError> {
        self.link_any(file, directory, name)
    }

    fn update(&mut self, file: FileId, update: &AttributeUpdate) -> Result<(), FileError> {
        Self::update(self, file, update)
    }

    fn rename_any(
        &mut self,
        from: (FileId, &[u8]),
        to: (FileId, &[u8]),
        kind: RenameKind,
    ) -> Result<Option<FileId>, FileError> {
        Self::rename_any(self, from, to, kind)
    }

    fn change_range(
        &mut self,
        file: FileId,
        change: RangeChange,
        offset: u64,
        len: u64,
    ) -> Result<(), FileError> {
        Self::change_range(self, file, change, offset, len)
    }

    fn extended_attribute(&mut self, file: FileId, name: &[u8]) -> Result<Vec<u8>, FileError> {
        self.attribute(file, name)
    }

    fn set_extended_attribute(
        &mut self,
        file: FileId,
        name: &[u8],
        value: &[u8],
        mode: ExtendedAttributeMode,
    ) -> Result<(), FileError> {
        self.set_attribute(file, name, value, mode)
    }

    fn extended_attributes(&mut self, file: FileId) -> Result<Vec<Vec<u8>>, FileError> {
        self.attribute_names(file)
    }

    fn remove_extended_attribute(&mut self, file: FileId, name: &[u8]) -> Result<(), FileError> {
        self.remove_attribute(file, name)
    }

    fn release(&mut self, file: FileId) -> Result<(), FileError> {
        let inode = inode_of(file)?;
        self.has_first_block = None;
        if !self.has_deep_tree(inode) && self.may_have_unwritten_blocks(inode)? {
            // `rsext4` frees only written blocks with an inode, but all blocks behind a new end.
            let len = self.call(|mounted| mounted.inode(inode))?.size;
            if len == 0 {
                self.call(|mounted| mounted.truncate_inode(inode, 1))?;
            }
            self.call(|mounted| mounted.truncate_inode(inode, 0))?;
        }
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
            Access::ReadWrite => {
                self.call(Mounted::sync)?;
                self.unsynced.clear();
                Ok(())
            }
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
