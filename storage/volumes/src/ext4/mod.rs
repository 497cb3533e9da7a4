//! ext4, by the crate `rsext4`.
//!
//! | module | contents |
//! |---|---|
//! | this | [`Ext4`], a [`FileSystem`] |
//! | `allocation` | space for more blocks, and the allocated blocks of a file |
//! | `conversions` | errors, names and attributes in the terms of `rsext4` |
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

mod allocation;
mod conversions;
mod device;
mod posix;
mod superblock;
mod unsynced;

use self::conversions::{
    convert, cursor_of, id_of, inode_of, kind_of, metadata_of, name_of, permissions, position_of,
};
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
use core::time::Duration;
use rsext4::{
    Clock, EntropySource, Ext4Result, Ext4Timestamp, FileExtent, FileExtentState, FileExtentTarget,
    InodeNumber, MkfsOptions, MountOptions, MountServices, MountedServices, MutationContext, NoopObserver,
    RenameOptions,
};

/// The most bytes that one call of `rsext4` writes: it writes the metadata of a call in one transaction.
const WRITE_LEN: usize = 256 * 1024;

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

    fn context() -> MutationContext {
        MutationContext::new(0, 0, 0, 0)
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
