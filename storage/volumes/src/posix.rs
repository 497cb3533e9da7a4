//! Files of all types with owners and permissions, as POSIX has them: what [`FileSystem`](crate::FileSystem) and
//! [`Volume`](crate::Volume) have for a layer above that checks permissions itself.

use alloc::vec::Vec;
use core::time::Duration;

/// A file to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFile {
    /// The type, with its contents.
    pub kind: NewFileKind,
    /// The 12 bits of permissions.
    pub permissions: u32,
    /// The owner.
    pub user: u32,
    /// The group.
    pub group: u32,
}

/// The type of a file to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewFileKind {
    /// An empty file.
    File,
    /// An empty directory.
    Directory,
    /// A symbolic link to this path.
    Symlink(Vec<u8>),
    /// A character device with major and minor number.
    CharacterDevice(u32, u32),
    /// A block device with major and minor number.
    BlockDevice(u32, u32),
    /// A named pipe.
    Fifo,
    /// The name of a socket.
    Socket,
}

/// Attributes to change; `None` leaves one as it is. Times are since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeUpdate {
    /// The 12 bits of permissions.
    pub permissions: Option<u32>,
    /// The owner and the group.
    pub owner: Option<(u32, u32)>,
    /// The time of the latest read.
    pub accessed: Option<Duration>,
    /// The time of the latest change of the contents.
    pub modified: Option<Duration>,
}

/// How a range of a file's storage changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeChange {
    /// It is reserved; the file grows if necessary.
    Reserve,
    /// It is reserved; the length stays.
    ReserveKeepLen,
    /// The bytes become zeros, and their storage is freed.
    PunchHole,
}

/// How a rename treats an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameKind {
    /// It is replaced.
    Replace,
    /// The operation fails.
    KeepTarget,
    /// Both exchange their names.
    Exchange,
}

/// The type of the file whose name is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovedKind {
    /// An empty directory.
    Directory,
    /// A file of another type.
    Other,
}

/// How an extended attribute that exists is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtendedAttributeMode {
    /// It is replaced or created.
    Any,
    /// It must not exist.
    Create,
    /// It must exist.
    Replace,
}
