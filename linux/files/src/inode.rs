//! The interface of file systems.

use crate::Errno;
use crate::clock::Timestamp;
use crate::credentials::Ownership;
use crate::dentry::Location;
use crate::metadata::{DeviceNumber, DirectoryEntry, FileSystemStatistics, InodeKind, Metadata};
use crate::object::FileObject;
use crate::outcome::Outcome;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use isola_linux_memory::{PageSource, UserBuffer};

/// A file system.
pub trait FileSystem: Send + Sync {
    /// Returns the root directory. It is always the same inode.
    fn root(&self) -> Arc<dyn Inode>;

    /// Returns the type's name, for `/proc/mounts`.
    fn name(&self) -> &'static str;

    /// Returns its statistics.
    fn statistics(&self) -> Outcome<'_, FileSystemStatistics>;

    /// Returns whether names may be cached: they change only through this interface.
    fn caches_names(&self) -> bool {
        true
    }

    /// Makes all changes permanent.
    fn sync(&self) -> Outcome<'_, ()> {
        Outcome::ok(())
    }

    /// Returns the options for `/proc/mounts`.
    fn options(&self) -> String {
        String::new()
    }
}

/// A new inode.
#[derive(Clone, Debug)]
pub struct NewInode<'a> {
    /// The contents.
    pub content: NewContent<'a>,
    /// The 12 bits of permissions.
    pub permissions: u32,
    /// The owner.
    pub user: u32,
    /// The group.
    pub group: u32,
}

/// The contents of a new inode.
#[derive(Clone, Copy, Debug)]
pub enum NewContent<'a> {
    /// An empty file.
    File,
    /// An empty directory.
    Directory,
    /// A symbolic link to this path.
    Symlink(&'a [u8]),
    /// A character or block device.
    Device(InodeKind, DeviceNumber),
    /// A named pipe.
    Fifo,
    /// The name of a socket.
    Socket,
}

impl NewContent<'_> {
    /// Returns the type of the inode.
    pub fn kind(&self) -> InodeKind {
        match self {
            Self::File => InodeKind::File,
            Self::Directory => InodeKind::Directory,
            Self::Symlink(_) => InodeKind::Symlink,
            Self::Device(kind, _) => *kind,
            Self::Fifo => InodeKind::Fifo,
            Self::Socket => InodeKind::Socket,
        }
    }
}

/// Attributes to change; `None` leaves one as it is. The time of the change is set with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeChange {
    /// The 12 bits of permissions.
    pub permissions: Option<u32>,
    /// The owner.
    pub user: Option<u32>,
    /// The group.
    pub group: Option<u32>,
    /// The time of the latest read.
    pub accessed: Option<Timestamp>,
    /// The time of the latest change of the contents.
    pub modified: Option<Timestamp>,
}

/// Where a write begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePosition {
    /// At this offset.
    At(u64),
    /// At the end of the file, found in one step with the write.
    End,
}

/// How [`Inode::rename`] treats an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// It is replaced.
    Replace,
    /// The call fails.
    KeepTarget,
    /// Source and target exchange their names.
    Exchange,
}

/// Which region [`Inode::allocate`] changes, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Storage is reserved; the file grows if necessary.
    Reserve,
    /// Storage is reserved; the length stays.
    ReserveKeepLen,
    /// The bytes become zeros, and their storage is freed.
    PunchHole,
    /// The bytes become zeros; the file grows if necessary.
    Zero,
    /// The bytes become zeros; the length stays.
    ZeroKeepLen,
}

/// What [`Inode::seek`] searches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTarget {
    /// Bytes that were written.
    Data,
    /// A hole, or the end of the file.
    Hole,
}

/// How [`Inode::set_attribute`] treats an existing extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeMode {
    /// It is replaced or created.
    Any,
    /// It must not exist.
    Create,
    /// It must exist.
    Replace,
}

/// The process and thread that execute a call, for `/proc/self`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallerIds {
    /// The process.
    pub process: u32,
    /// The thread.
    pub thread: u32,
}

/// Where a symbolic link leads.
#[derive(Clone)]
pub enum LinkTarget {
    /// To a path.
    Path(Vec<u8>),
    /// To a file itself, as `/proc/self/exe` does, whether or not it still has a name.
    Location(Location),
    /// To an open file without a name, as `/proc/self/fd/3` of a pipe does: opening it opens the object again.
    Object(Arc<crate::OpenFile>),
}

/// A file, directory, symbolic link, device, named pipe or socket of a file system. Permission checks were done by the
/// caller; types are checked here.
///
/// Operations that an inode's type does not have return the error that Linux returns.
pub trait Inode: Any + Send + Sync {
    /// Returns the type.
    fn kind(&self) -> InodeKind;

    /// Returns the metadata.
    fn metadata(&self) -> Metadata;

    /// Returns owner and permissions: the part of the metadata that path look-ups need.
    fn ownership(&self) -> Ownership {
        let Metadata { user, group, permissions, .. } = self.metadata();
        Ownership { user, group, permissions }
    }

    /// Changes attributes.
    fn set_attributes(&self, change: &AttributeChange) -> Outcome<'_, ()>;

    /// Records that the contents were read now, if the file system keeps such times.
    fn touch(&self) {}

    /// Finds a name in the directory: `None` if it does not exist.
    fn lookup(&self, _name: &[u8], _caller: CallerIds) -> Outcome<'_, Option<Arc<dyn Inode>>> {
        Outcome::error(Errno::ENOTDIR)
    }

    /// Creates an inode with a name in the directory. [`Errno::EEXIST`] if the name exists.
    fn create<'a>(&'a self, _name: &'a [u8], _new: &'a NewInode<'a>) -> Outcome<'a, Arc<dyn Inode>> {
        Outcome::error(Errno::EPERM)
    }

    /// Creates a file without a name, in the file system of the directory (`O_TMPFILE`).
    fn create_unnamed<'a>(&'a self, _new: &'a NewInode<'a>) -> Outcome<'a, Arc<dyn Inode>> {
        Outcome::error(Errno::EOPNOTSUPP)
    }

    /// Gives an inode of the same file system, no directory, a further name in the directory.
    fn link<'a>(&'a self, _name: &'a [u8], _inode: &'a Arc<dyn Inode>) -> Outcome<'a, ()> {
        Outcome::error(Errno::EPERM)
    }

    /// Removes a name of an inode that is no directory.
    fn unlink<'a>(&'a self, _name: &'a [u8]) -> Outcome<'a, ()> {
        Outcome::error(Errno::EPERM)
    }

    /// Removes an empty directory.
    fn remove_directory<'a>(&'a self, _name: &'a [u8]) -> Outcome<'a, ()> {
        Outcome::error(Errno::EPERM)
    }

    /// Gives the inode of `name` the name `to_name` in the directory `to`, of the same file system. The caller has checked
    /// that no directory becomes a part of itself, and excludes other changes of the tree of directories.
    fn rename<'a>(
        &'a self,
        _name: &'a [u8],
        _to: &'a Arc<dyn Inode>,
        _to_name: &'a [u8],
        _mode: RenameMode,
    ) -> Outcome<'a, ()> {
        Outcome::error(Errno::EPERM)
    }

    /// Returns the entries of the directory, without `.` and `..`.
    fn list(&self, _caller: CallerIds) -> Outcome<'_, Vec<DirectoryEntry>> {
        Outcome::error(Errno::ENOTDIR)
    }

    /// Returns where the symbolic link leads.
    fn follow(&self, _caller: CallerIds) -> Outcome<'_, LinkTarget> {
        Outcome::error(Errno::EINVAL)
    }

    /// Returns the path that `readlink` shows.
    fn read_link(&self, caller: CallerIds) -> Outcome<'_, Vec<u8>> {
        match self.follow(caller) {
            Outcome::Done(Ok(LinkTarget::Path(path))) => Outcome::ok(path),
            Outcome::Done(Ok(LinkTarget::Location(location))) => Outcome::ok(location.path(None)),
            Outcome::Done(Ok(LinkTarget::Object(file))) => Outcome::ok(file.description()),
            Outcome::Done(Err(error)) => Outcome::error(error),
            waits => Outcome::of(async move {
                match waits.await? {
                    LinkTarget::Path(path) => Ok(path),
                    LinkTarget::Location(location) => Ok(location.path(None)),
                    LinkTarget::Object(file) => Ok(file.description()),
                }
            }),
        }
    }

    /// Returns the object of a file that is opened, with the flags of `open`; `None` if the file is read and written by
    /// this interface. For devices, named pipes, and files whose text is generated.
    fn open(&self, _flags: u32, _caller: CallerIds) -> Outcome<'_, Option<Arc<dyn FileObject>>> {
        match self.kind() {
            InodeKind::File | InodeKind::Directory => Outcome::ok(None),
            InodeKind::Symlink => Outcome::error(Errno::ELOOP),
            _ => Outcome::error(Errno::ENXIO),
        }
    }

    /// Reads from an offset. Returns the number of bytes: 0 at the end.
    fn read_at<'a>(&'a self, _offset: u64, _buffer: &'a mut UserBuffer) -> Outcome<'a, usize> {
        Outcome::error(Errno::EINVAL)
    }

    /// Writes. Returns the number of bytes and the offset behind them.
    fn write_at<'a>(
        &'a self,
        _position: WritePosition,
        _buffer: &'a mut UserBuffer,
    ) -> Outcome<'a, (usize, u64)> {
        Outcome::error(Errno::EINVAL)
    }

    /// Sets the length. New bytes are zeros.
    fn truncate(&self, _len: u64) -> Outcome<'_, ()> {
        Outcome::error(Errno::EINVAL)
    }

    /// Reserves or frees storage.
    fn allocate(&self, _allocation: Allocation, _offset: u64, _len: u64) -> Outcome<'_, ()> {
        Outcome::error(Errno::EOPNOTSUPP)
    }

    /// Returns the first offset from `offset` on with data, or in a hole; [`Errno::ENXIO`] if there is none.
    fn seek(&self, target: SeekTarget, offset: u64) -> Outcome<'_, u64> {
        let len = self.metadata().len;
        match target {
            _ if offset >= len => Outcome::error(Errno::ENXIO),
            SeekTarget::Data => Outcome::ok(offset),
            SeekTarget::Hole => Outcome::ok(len),
        }
    }

    /// Returns the pages of the file, for mappings; `None` if it has none.
    fn pages(self: Arc<Self>) -> Option<Arc<dyn PageSource>> {
        None
    }

    /// Returns the seals of a file in memory (`F_GET_SEALS`).
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if the file cannot be sealed.
    fn seals(&self) -> Result<u32, Errno> {
        Err(Errno::EINVAL)
    }

    /// Adds seals, after which no call can make these changes (`F_ADD_SEALS`).
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if the file cannot be sealed, [`Errno::EPERM`] if no seals can be added any more,
    /// [`Errno::EBUSY`] if a mapping or a call may still write.
    fn add_seals(&self, _seals: u32) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    /// Makes the changes of the file permanent.
    fn sync(&self) -> Outcome<'_, ()> {
        Outcome::ok(())
    }

    /// Returns an extended attribute.
    fn attribute<'a>(&'a self, _name: &'a [u8]) -> Outcome<'a, Vec<u8>> {
        Outcome::error(Errno::EOPNOTSUPP)
    }

    /// Sets an extended attribute.
    fn set_attribute<'a>(
        &'a self,
        _name: &'a [u8],
        _value: &'a [u8],
        _mode: AttributeMode,
    ) -> Outcome<'a, ()> {
        Outcome::error(Errno::EOPNOTSUPP)
    }

    /// Returns the names of the extended attributes.
    fn attributes(&self) -> Outcome<'_, Vec<Vec<u8>>> {
        Outcome::ok(Vec::new())
    }

    /// Removes an extended attribute.
    fn remove_attribute<'a>(&'a self, _name: &'a [u8]) -> Outcome<'a, ()> {
        Outcome::error(Errno::EOPNOTSUPP)
    }
}

impl dyn Inode {
    /// Returns the inode as a type of a file system.
    pub fn downcast<T: Inode>(&self) -> Option<&T> {
        let any: &dyn Any = self;
        any.downcast_ref()
    }

    /// Returns whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind() == InodeKind::Directory
    }
}
