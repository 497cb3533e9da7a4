//! The superblock's state, which this crate writes itself.
//!
//! `rsext4` clears the flag `needs_recovery` in the same transaction as the last changes, so that a power failure during
//! unmount, or during the replay of that transaction, can leave a file system whose journal must be replayed, and whose
//! superblock says that it need not be. Therefore this crate never lets `rsext4` unmount. It sets the flag before
//! anything else is written, and clears it when the journal is empty, each time with a flush before and after.

use crate::disk::Disk;
use crate::file_system::FileError;
use rsext4::crc32c::crc32c_append;

/// The position of the superblock in bytes, and its length.
const AT: u64 = 1024;
const LEN: usize = 1024;

const MOUNT_COUNT: usize = 0x34;
const MAGIC: usize = 0x38;
const STATE: usize = 0x3a;
const COMPATIBLE: usize = 0x5c;
const INCOMPATIBLE: usize = 0x60;
const READ_ONLY_COMPATIBLE: usize = 0x64;
const LAST_ORPHAN: usize = 0xe8;
const CHECKSUM: usize = 0x3fc;

const EXT4_MAGIC: u16 = 0xef53;
const STATE_CLEAN: u16 = 1;
const STATE_ERRORS: u16 = 2;
const HAS_JOURNAL: u32 = 0x4;
const NEEDS_RECOVERY: u32 = 0x4;
const METADATA_CHECKSUMS: u32 = 0x400;

/// A copy of the superblock.
pub(super) struct Superblock([u8; LEN]);

/// Whether the journal has to be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recovery {
    Needed,
    NotNeeded,
}

impl Superblock {
    /// Reads the superblock.
    pub fn read(disk: &dyn Disk) -> Result<Self, FileError> {
        if disk.len() < AT + LEN as u64 {
            return Err(FileError::NotAFileSystem);
        }
        let mut bytes = [0; LEN];
        disk.read(AT, &mut bytes)?;
        let superblock = Self(bytes);
        if superblock.u16(MAGIC) == EXT4_MAGIC { Ok(superblock) } else { Err(FileError::NotAFileSystem) }
    }

    pub fn has_journal(&self) -> bool {
        self.u32(COMPATIBLE) & HAS_JOURNAL != 0
    }

    pub fn recovery(&self) -> Recovery {
        if self.u32(INCOMPATIBLE) & NEEDS_RECOVERY != 0 { Recovery::Needed } else { Recovery::NotNeeded }
    }

    /// Returns whether files without a name wait for their release.
    pub fn has_orphans(&self) -> bool {
        self.u32(LAST_ORPHAN) != 0
    }

    /// Writes the superblock as that of a mounted file system, before any other write.
    pub fn write_mounted(mut self, disk: &dyn Disk) -> Result<(), FileError> {
        let flags = self.u32(INCOMPATIBLE) | NEEDS_RECOVERY;
        self.put(INCOMPATIBLE, &flags.to_le_bytes());
        self.put(STATE, &(self.u16(STATE) & !STATE_CLEAN).to_le_bytes());
        self.write(disk)
    }

    /// Writes the superblock as that of an unmounted file system, after all other writes. `extra_mounts` are not
    /// counted.
    pub fn write_unmounted(mut self, disk: &dyn Disk, extra_mounts: u16) -> Result<(), FileError> {
        let flags = self.u32(INCOMPATIBLE) & !NEEDS_RECOVERY;
        self.put(INCOMPATIBLE, &flags.to_le_bytes());
        self.put(STATE, &(self.u16(STATE) & STATE_ERRORS | STATE_CLEAN).to_le_bytes());
        self.put(MOUNT_COUNT, &self.u16(MOUNT_COUNT).saturating_sub(extra_mounts).to_le_bytes());
        self.write(disk)
    }

    fn write(mut self, disk: &dyn Disk) -> Result<(), FileError> {
        if self.u32(READ_ONLY_COMPATIBLE) & METADATA_CHECKSUMS != 0 {
            let checksum = crc32c_append(u32::MAX, &self.0[..CHECKSUM]);
            self.put(CHECKSUM, &checksum.to_le_bytes());
        }
        disk.flush()?;
        disk.write(AT, &self.0)?;
        Ok(disk.flush()?)
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.0[at], self.0[at + 1]])
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from(self.u16(at)) | u32::from(self.u16(at + 2)) << 16
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }
}
