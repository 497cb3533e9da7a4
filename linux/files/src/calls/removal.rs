//! Calls that remove names.

use crate::Errno;
use crate::metadata::InodeKind;
use crate::walk::{Caller, LastName};
use crate::watch;
use isola_linux_abi::numbers as linux;

impl Caller<'_> {
    /// Removes a name, or an empty directory with `AT_REMOVEDIR` (`unlinkat`).
    ///
    /// # Errors
    /// Those of unlink(2) and rmdir(2).
    pub async fn unlink_at(&self, directory: i32, path: &[u8], at_flags: u32) -> Result<(), Errno> {
        match at_flags {
            0 => self.unlink(directory, path).await,
            linux::AT_REMOVEDIR => self.remove_directory(directory, path).await,
            _ => Err(Errno::EINVAL),
        }
    }

    async fn unlink(&self, directory: i32, path: &[u8]) -> Result<(), Errno> {
        let parent = self.find_parent(directory, path).await?;
        let LastName::Name(name) = &parent.name else { return Err(Errno::EISDIR) };
        let directory = &parent.directory;
        let entry = directory.dentry.lookup(name, &directory.mount.mounted, self.ids).await?;
        let entry = entry.ok_or(Errno::ENOENT)?;
        if parent.wants_directory {
            let is_directory = entry.kind() == InodeKind::Directory;
            return Err(if is_directory { Errno::EISDIR } else { Errno::ENOTDIR });
        }
        self.check_removal(directory, &entry)?;
        if entry.kind() == InodeKind::Directory {
            return Err(Errno::EISDIR);
        }
        if entry.has_mounts() {
            return Err(Errno::EBUSY);
        }
        directory.inode().unlink(name).await?;
        directory.dentry.removed(name);
        watch::note_inode(entry.inode(), linux::IN_ATTRIB);
        let kind = entry.kind();
        // An inode without other uses ends before its directory's event.
        drop(entry);
        watch::note_name(&directory.dentry, name, kind, linux::IN_DELETE);
        Ok(())
    }

    async fn remove_directory(&self, directory: i32, path: &[u8]) -> Result<(), Errno> {
        let parent = self.find_parent(directory, path).await?;
        let name = match &parent.name {
            LastName::Name(name) => name,
            LastName::Dot => return Err(Errno::EINVAL),
            LastName::DotDot => return Err(Errno::ENOTEMPTY),
            LastName::Root => return Err(Errno::EBUSY),
        };
        let directory = &parent.directory;
        let mounted = &directory.mount.mounted;
        let _excluded = mounted.renames.hold().await;
        let entry = directory.dentry.lookup(name, mounted, self.ids).await?.ok_or(Errno::ENOENT)?;
        self.check_removal(directory, &entry)?;
        if entry.kind() != InodeKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        if entry.has_mounts() {
            return Err(Errno::EBUSY);
        }
        directory.inode().remove_directory(name).await?;
        directory.dentry.removed(name);
        drop(entry);
        watch::note_name(&directory.dentry, name, InodeKind::Directory, linux::IN_DELETE);
        Ok(())
    }
}
