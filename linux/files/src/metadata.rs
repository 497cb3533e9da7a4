//! Metadata of files, and its layouts in the memory of programs.

use crate::clock::Timestamp;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use isola_linux_abi::numbers as linux;

/// The type of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InodeKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe, or an end of a pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl InodeKind {
    /// Returns the bits of the type in `st_mode`.
    pub const fn mode_bits(self) -> u32 {
        match self {
            Self::File => linux::S_IFREG,
            Self::Directory => linux::S_IFDIR,
            Self::Symlink => linux::S_IFLNK,
            Self::CharacterDevice => linux::S_IFCHR,
            Self::BlockDevice => linux::S_IFBLK,
            Self::Fifo => linux::S_IFIFO,
            Self::Socket => linux::S_IFSOCK,
        }
    }

    /// Returns the type of these bits of `st_mode`, as for `mknod`: none are a regular file.
    pub const fn of_mode(mode: u32) -> Option<Self> {
        Some(match mode & linux::S_IFMT {
            0 | linux::S_IFREG => Self::File,
            linux::S_IFDIR => Self::Directory,
            linux::S_IFLNK => Self::Symlink,
            linux::S_IFCHR => Self::CharacterDevice,
            linux::S_IFBLK => Self::BlockDevice,
            linux::S_IFIFO => Self::Fifo,
            linux::S_IFSOCK => Self::Socket,
            _ => return None,
        })
    }

    /// Returns the type as `d_type` of a directory entry has it.
    pub const fn entry_type(self) -> u8 {
        (self.mode_bits() >> 12) as u8
    }
}

/// The number of a device: major and minor number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// The major number: the driver.
    pub major: u32,
    /// The minor number: the device of the driver.
    pub minor: u32,
}

impl DeviceNumber {
    /// Creates a number.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// Returns the number as `st_dev` has it.
    pub const fn encoded(self) -> u64 {
        let (major, minor) = (self.major as u64, self.minor as u64);
        (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & !0xff) << 12) | ((major & !0xfff) << 32)
    }

    /// Returns the number that `st_dev` or `mknod` has in this form.
    pub const fn of_encoded(device: u64) -> Self {
        let major = ((device >> 8) & 0xfff) | ((device >> 32) & 0xffff_f000);
        let minor = (device & 0xff) | ((device >> 12) & 0xffff_ff00);
        Self { major: major as u32, minor: minor as u32 }
    }
}

/// The device of objects without a file system.
const ANONYMOUS_DEVICE: DeviceNumber = DeviceNumber::new(0, 1);
static NEXT_DEVICE: AtomicU32 = AtomicU32::new(2);
static NEXT_ANONYMOUS: AtomicU64 = AtomicU64::new(1);

/// Returns a device number for a file system without a device.
pub fn new_device() -> DeviceNumber {
    DeviceNumber::new(0, NEXT_DEVICE.fetch_add(1, Ordering::Relaxed))
}

/// Returns an inode number for an object without a file system.
pub fn new_anonymous_inode() -> u64 {
    NEXT_ANONYMOUS.fetch_add(1, Ordering::Relaxed)
}

/// The metadata of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The device of the file system.
    pub device: DeviceNumber,
    /// The number of the inode in its file system.
    pub inode: u64,
    /// The type.
    pub kind: InodeKind,
    /// The permissions, with set-user-id, set-group-id and sticky bit: 12 bits.
    pub permissions: u32,
    /// The number of names.
    pub links: u32,
    /// The owner.
    pub user: u32,
    /// The group.
    pub group: u32,
    /// The length in bytes.
    pub len: u64,
    /// The allocated storage, in units of 512 bytes.
    pub blocks: u64,
    /// The preferred length of reads and writes.
    pub block_len: u32,
    /// The time of the latest read.
    pub accessed: Timestamp,
    /// The time of the latest change of the contents.
    pub modified: Timestamp,
    /// The time of the latest change of contents or metadata.
    pub changed: Timestamp,
    /// The time of creation.
    pub created: Timestamp,
    /// The device that the inode represents, for devices.
    pub special: DeviceNumber,
}

impl Metadata {
    /// Returns metadata of an object without a name in a file system, such as a pipe.
    pub fn anonymous(kind: InodeKind, inode: u64, permissions: u32) -> Self {
        let now = Timestamp::now();
        Self {
            device: ANONYMOUS_DEVICE,
            inode,
            kind,
            permissions,
            links: 1,
            user: 0,
            group: 0,
            len: 0,
            blocks: 0,
            block_len: 4096,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            special: DeviceNumber::default(),
        }
    }

    /// Returns `st_mode`.
    pub fn mode(&self) -> u32 {
        self.kind.mode_bits() | self.permissions
    }

    /// Returns the bytes of the kernel's `struct stat`.
    pub fn stat_bytes(&self) -> [u8; STAT_LEN] {
        let mut bytes = Encoder::<STAT_LEN>::default();
        bytes.u64(self.device.encoded()).u64(self.inode).u64(u64::from(self.links));
        bytes.u32(self.mode()).u32(self.user).u32(self.group).u32(0).u64(self.special.encoded());
        bytes.u64(self.len).u64(u64::from(self.block_len)).u64(self.blocks);
        for time in [self.accessed, self.modified, self.changed] {
            bytes.u64(time.seconds as u64).u64(u64::from(time.nanoseconds));
        }
        bytes.bytes
    }

    /// Returns the bytes of the kernel's `struct statx`, with all fields of `STATX_BASIC_STATS` and the time of creation,
    /// which need not have been asked for. `mount` is the number of the mount.
    pub fn statx_bytes(&self, mount: u64) -> [u8; STATX_LEN] {
        let mut bytes = Encoder::<STATX_LEN>::default();
        let mask = linux::STATX_BASIC_STATS | linux::STATX_BTIME | linux::STATX_MNT_ID;
        bytes.u32(mask).u32(self.block_len).u64(0).u32(self.links).u32(self.user).u32(self.group);
        bytes.u32(self.mode()).u64(self.inode).u64(self.len).u64(self.blocks).u64(0);
        for time in [self.accessed, self.created, self.changed, self.modified] {
            bytes.u64(time.seconds as u64).u64(u64::from(time.nanoseconds));
        }
        for device in [self.special, self.device] {
            bytes.u32(device.major).u32(device.minor);
        }
        bytes.u64(mount);
        bytes.bytes
    }
}

/// The length of `struct stat`.
pub const STAT_LEN: usize = size_of::<linux::stat>();
/// The length of `struct statx`.
pub const STATX_LEN: usize = size_of::<linux::statx>();
/// The length of `struct statfs`.
pub const STATFS_LEN: usize = size_of::<linux::statfs64>();

/// Little-endian numbers in an array of a fixed length; the rest are zeros.
struct Encoder<const LEN: usize> {
    bytes: [u8; LEN],
    at: usize,
}

impl<const LEN: usize> Default for Encoder<LEN> {
    fn default() -> Self {
        Self { bytes: [0; LEN], at: 0 }
    }
}

impl<const LEN: usize> Encoder<LEN> {
    fn put(&mut self, value: &[u8]) -> &mut Self {
        self.bytes[self.at..self.at + value.len()].copy_from_slice(value);
        self.at += value.len();
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_le_bytes())
    }
}

/// The state of a file system, for `statfs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileSystemStatistics {
    /// The type: a number of `linux/magic.h`.
    pub kind: u64,
    /// The length of a block.
    pub block_len: u64,
    /// The number of blocks.
    pub blocks: u64,
    /// The number of free blocks.
    pub free_blocks: u64,
    /// The number of inodes.
    pub files: u64,
    /// The number of free inodes.
    pub free_files: u64,
    /// The identity of the file system.
    pub identity: u64,
    /// Flags of the mount: `ST_RDONLY` and the like.
    pub flags: u64,
}

impl FileSystemStatistics {
    /// Returns the bytes of the kernel's `struct statfs`.
    pub fn bytes(&self) -> [u8; STATFS_LEN] {
        let mut bytes = Encoder::<STATFS_LEN>::default();
        bytes.u64(self.kind).u64(self.block_len).u64(self.blocks).u64(self.free_blocks).u64(self.free_blocks);
        bytes.u64(self.files).u64(self.free_files).u64(self.identity).u64(crate::NAME_LEN as u64);
        bytes.u64(self.block_len).u64(self.flags | u64::from(ST_VALID));
        bytes.bytes
    }
}

/// The flags field is valid.
const ST_VALID: u32 = 0x20;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The name.
    pub name: Vec<u8>,
    /// The number of the inode.
    pub inode: u64,
    /// The type of the inode.
    pub kind: InodeKind,
}

impl DirectoryEntry {
    /// Returns the length of the entry as `struct linux_dirent64`.
    pub fn encoded_len(&self) -> usize {
        (ENTRY_NAME_OFFSET + self.name.len() + 1).next_multiple_of(8)
    }

    /// Appends the entry as `struct linux_dirent64`. `next` is the position of the entry after it.
    pub fn encode(&self, next: u64, into: &mut Vec<u8>) {
        let end = into.len() + self.encoded_len();
        into.extend_from_slice(&self.inode.to_le_bytes());
        into.extend_from_slice(&next.to_le_bytes());
        into.extend_from_slice(&(self.encoded_len() as u16).to_le_bytes());
        into.push(self.kind.entry_type());
        into.extend_from_slice(&self.name);
        into.resize(end, 0);
    }
}

/// The offset of the name in `struct linux_dirent64`.
const ENTRY_NAME_OFFSET: usize = 19;

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
        bytes[at..at + len].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn sample() -> Metadata {
        let time = |seconds| Timestamp { seconds, nanoseconds: seconds as u32 + 100 };
        Metadata {
            device: DeviceNumber::new(8, 300),
            inode: 7,
            kind: InodeKind::File,
            permissions: 0o4755,
            links: 2,
            user: 1000,
            group: 1001,
            len: 1 << 40,
            blocks: 9,
            block_len: 4096,
            accessed: time(1),
            modified: time(2),
            changed: time(3),
            created: time(4),
            special: DeviceNumber::new(1, 3),
        }
    }

    #[test]
    fn stat_has_the_kernel_s_layout() {
        let bytes = sample().stat_bytes();
        let at = |offset, len| number(&bytes, offset, len);
        assert_eq!(at(offset_of!(linux::stat, st_dev), 8), 8 << 8 | 0x2c | 1 << 20);
        assert_eq!(at(offset_of!(linux::stat, st_ino), 8), 7);
        assert_eq!(at(offset_of!(linux::stat, st_nlink), 8), 2);
        assert_eq!(at(offset_of!(linux::stat, st_mode), 4), 0o104755);
        assert_eq!(at(offset_of!(linux::stat, st_uid), 4), 1000);
        assert_eq!(at(offset_of!(linux::stat, st_gid), 4), 1001);
        assert_eq!(at(offset_of!(linux::stat, st_rdev), 8), 0x103);
        assert_eq!(at(offset_of!(linux::stat, st_size), 8), 1 << 40);
        assert_eq!(at(offset_of!(linux::stat, st_blksize), 8), 4096);
        assert_eq!(at(offset_of!(linux::stat, st_blocks), 8), 9);
        assert_eq!(at(offset_of!(linux::stat, st_atime), 8), 1);
        assert_eq!(at(offset_of!(linux::stat, st_mtime), 8), 2);
        assert_eq!(at(offset_of!(linux::stat, st_mtime_nsec), 8), 102);
        assert_eq!(at(offset_of!(linux::stat, st_ctime), 8), 3);
    }

    #[test]
    fn statx_has_the_kernel_s_layout() {
        let bytes = sample().statx_bytes(5);
        let at = |offset, len| number(&bytes, offset, len);
        assert_eq!(at(offset_of!(linux::statx, stx_mask), 4), 0x1fff);
        assert_eq!(at(offset_of!(linux::statx, stx_nlink), 4), 2);
        assert_eq!(at(offset_of!(linux::statx, stx_mode), 2), 0o104755);
        assert_eq!(at(offset_of!(linux::statx, stx_ino), 8), 7);
        assert_eq!(at(offset_of!(linux::statx, stx_size), 8), 1 << 40);
        assert_eq!(at(offset_of!(linux::statx, stx_blocks), 8), 9);
        assert_eq!(at(offset_of!(linux::statx, stx_btime), 8), 4);
        assert_eq!(at(offset_of!(linux::statx, stx_mtime) + 8, 4), 102);
        assert_eq!(at(offset_of!(linux::statx, stx_rdev_minor), 4), 3);
        assert_eq!(at(offset_of!(linux::statx, stx_dev_major), 4), 8);
        assert_eq!(at(offset_of!(linux::statx, stx_mnt_id), 8), 5);
    }

    #[test]
    fn statfs_has_the_kernel_s_layout() {
        let statistics =
            FileSystemStatistics { kind: 0x0102_1994, block_len: 4096, blocks: 5, ..Default::default() };
        let bytes = statistics.bytes();
        let at = |offset, len| number(&bytes, offset, len);
        assert_eq!(at(offset_of!(linux::statfs64, f_type), 8), 0x0102_1994);
        assert_eq!(at(offset_of!(linux::statfs64, f_namelen), 8), 255);
        assert_eq!(at(offset_of!(linux::statfs64, f_frsize), 8), 4096);
        assert_eq!(at(offset_of!(linux::statfs64, f_flags), 8), 0x20);
    }

    #[test]
    fn an_entry_is_padded_to_eight_bytes_and_ends_with_a_nul() {
        let entry =
            |name: &[u8]| DirectoryEntry { name: name.to_vec(), inode: 3, kind: InodeKind::Directory };
        assert_eq!((entry(b"abcd").encoded_len(), entry(b"abcde").encoded_len()), (24, 32));
        let mut bytes = Vec::new();
        entry(b"abcd").encode(9, &mut bytes);
        assert_eq!(bytes.len(), 24);
        assert_eq!((number(&bytes, 0, 8), number(&bytes, 8, 8), number(&bytes, 16, 2)), (3, 9, 24));
        assert_eq!((bytes[18], &bytes[19..]), (4, &b"abcd\0"[..]));
    }

    #[test]
    fn device_numbers_survive_their_encoding() {
        for (major, minor) in [(0, 0), (1, 3), (136, 1000), (0xfff, 0xf_ffff), (5, 0x1234_5678)] {
            let number = DeviceNumber::new(major, minor);
            assert_eq!(DeviceNumber::of_encoded(number.encoded()), number);
        }
    }
}
