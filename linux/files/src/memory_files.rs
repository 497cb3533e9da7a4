//! Files in memory without a name (`memfd_create`), also for shared memory of System V.

use crate::Errno;
use crate::dentry::{Location, MountFlags, MountedFileSystem, Namespace};
use crate::inode::{NewContent, NewInode};
use crate::open_file::OpenFile;
use crate::outcome::Outcome;
use crate::tmpfs::{TmpFs, TmpFsOptions, set_seals};
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_abi::numbers as linux;

/// The most bytes of a name.
const MOST_NAME: usize = 249;

/// The file system of files without a name, which no namespace shows.
pub struct MemoryFiles {
    root: Location,
}

impl MemoryFiles {
    /// Creates the file system, with limits.
    pub fn new(options: TmpFsOptions) -> Self {
        let mounted = MountedFileSystem::new(TmpFs::new(options));
        Self { root: Namespace::new(mounted, b"memfd", MountFlags::default()).root() }
    }

    /// Creates and opens a file for reading and writing, with the flags of `memfd_create`. `user` and `group` own it.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for a name of more than 249 bytes and for flags that are not supported, such as huge pages;
    /// [`Errno::ENOSPC`].
    pub fn create(&self, name: &[u8], flags: u32, user: u32, group: u32) -> Result<Arc<OpenFile>, Errno> {
        const KNOWN: u32 =
            linux::MFD_CLOEXEC | linux::MFD_ALLOW_SEALING | linux::MFD_NOEXEC_SEAL | linux::MFD_EXEC;
        const EITHER: u32 = linux::MFD_NOEXEC_SEAL | linux::MFD_EXEC;
        if name.len() > MOST_NAME || flags & !KNOWN != 0 || flags & EITHER == EITHER {
            return Err(Errno::EINVAL);
        }
        let permissions = if flags & linux::MFD_NOEXEC_SEAL != 0 { 0o666 } else { 0o777 };
        let new = NewInode { content: NewContent::File, permissions, user, group };
        let Outcome::Done(inode) = self.root.inode().create_unnamed(&new) else { return Err(Errno::EIO) };
        let inode = inode?;
        if flags & linux::MFD_NOEXEC_SEAL != 0 {
            set_seals(&*inode, linux::F_SEAL_EXEC);
        } else if flags & linux::MFD_ALLOW_SEALING != 0 {
            set_seals(&*inode, 0);
        }
        let mut shown: Vec<u8> = b"memfd:".to_vec();
        shown.extend_from_slice(name);
        let dentry = self.root.dentry.unnamed_child(inode, Some(&shown));
        let location = Location { mount: self.root.mount.clone(), dentry };
        Ok(OpenFile::of_location(location, None, linux::O_RDWR))
    }
}
