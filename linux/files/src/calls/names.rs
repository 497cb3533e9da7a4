//! Calls that create names and move them.

use super::Target;
use crate::Errno;
use crate::dentry::{Dentry, Location};
use crate::inode::{NewContent, RenameMode};
use crate::metadata::{DeviceNumber, InodeKind};
use crate::walk::{Caller, LastName, Parent, is_same_inode};
use crate::watch;
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_abi::numbers as linux;

impl Caller<'_> {
    /// Creates a directory (`mkdirat`).
    ///
    /// # Errors
    /// Those of mkdir(2).
    pub async fn make_directory_at(&self, directory: i32, path: &[u8], mode: u32) -> Result<(), Errno> {
        self.create_at(directory, path, NewContent::Directory, mode & 0o1777).await.map(drop)
    }

    /// Creates a symbolic link to `target` (`symlinkat`).
    ///
    /// # Errors
    /// Those of symlink(2).
    pub async fn make_symlink_at(&self, target: &[u8], directory: i32, path: &[u8]) -> Result<(), Errno> {
        match target {
            [] => Err(Errno::ENOENT),
            _ if target.len() >= crate::PATH_LEN => Err(Errno::ENAMETOOLONG),
            _ => self.create_at(directory, path, NewContent::Symlink(target), 0).await.map(drop),
        }
    }

    /// Creates a file, named pipe, device or the name of a socket (`mknodat`).
    ///
    /// # Errors
    /// Those of mknod(2).
    pub async fn make_node_at(
        &self,
        directory: i32,
        path: &[u8],
        mode: u32,
        device: DeviceNumber,
    ) -> Result<(), Errno> {
        let content = match InodeKind::of_mode(mode).ok_or(Errno::EINVAL)? {
            InodeKind::File => NewContent::File,
            InodeKind::Fifo => NewContent::Fifo,
            InodeKind::Socket => NewContent::Socket,
            kind @ (InodeKind::CharacterDevice | InodeKind::BlockDevice) => {
                if !self.credentials.has_capability(linux::CAP_MKNOD) {
                    return Err(Errno::EPERM);
                }
                NewContent::Device(kind, device)
            }
            InodeKind::Directory => return Err(Errno::EPERM),
            InodeKind::Symlink => return Err(Errno::EINVAL),
        };
        self.create_at(directory, path, content, mode).await.map(drop)
    }

    /// Creates an inode with a new name: also for the address of a socket.
    ///
    /// # Errors
    /// Those of mknod(2).
    pub async fn create_at(
        &self,
        directory: i32,
        path: &[u8],
        content: NewContent<'_>,
        mode: u32,
    ) -> Result<Location, Errno> {
        let parent = self.find_parent(directory, path).await?;
        let (directory, name) = self.new_name(parent, content.kind() == InodeKind::Directory).await?;
        let new = self.new_inode(&directory, content, mode);
        let inode = directory.inode().create(&name, &new).await?;
        let caches = directory.mount.mounted.caches_names;
        let dentry = directory.dentry.created(&name, inode, caches);
        watch::note_name(&directory.dentry, &name, dentry.kind(), linux::IN_CREATE);
        Ok(Location { mount: directory.mount, dentry })
    }

    /// Checks that a name can be created, and does not exist.
    async fn new_name(&self, parent: Parent, is_directory: bool) -> Result<(Location, Vec<u8>), Errno> {
        let LastName::Name(name) = parent.name else { return Err(Errno::EEXIST) };
        if self.step(&parent.directory, &name).await?.is_some() {
            return Err(Errno::EEXIST);
        }
        if parent.wants_directory && !is_directory {
            return Err(Errno::ENOENT);
        }
        self.check_change(&parent.directory)?;
        Ok((parent.directory, name))
    }

    /// Gives a file a further name (`linkat`).
    ///
    /// # Errors
    /// Those of link(2).
    pub async fn link_at(
        &self,
        directory: i32,
        path: &[u8],
        new_directory: i32,
        new_path: &[u8],
        at_flags: u32,
    ) -> Result<(), Errno> {
        if at_flags & !(linux::AT_SYMLINK_FOLLOW | linux::AT_EMPTY_PATH) != 0 {
            return Err(Errno::EINVAL);
        }
        let nofollow = if at_flags & linux::AT_SYMLINK_FOLLOW == 0 { linux::AT_SYMLINK_NOFOLLOW } else { 0 };
        let flags = at_flags & linux::AT_EMPTY_PATH | nofollow;
        let Target::Location(existing) = self.target(directory, path, flags).await? else {
            return Err(Errno::EXDEV);
        };
        let parent = self.find_parent(new_directory, new_path).await?;
        let (directory, name) = self.new_name(parent, false).await?;
        if !Arc::ptr_eq(&existing.mount, &directory.mount) {
            return Err(Errno::EXDEV);
        }
        if existing.dentry.kind() == InodeKind::Directory {
            return Err(Errno::EPERM);
        }
        directory.inode().link(&name, existing.inode()).await?;
        let caches = directory.mount.mounted.caches_names;
        directory.dentry.created(&name, existing.inode().clone(), caches);
        watch::note_inode(existing.inode(), linux::IN_ATTRIB);
        watch::note_name(&directory.dentry, &name, existing.dentry.kind(), linux::IN_CREATE);
        Ok(())
    }

    /// Gives a file another name (`renameat2`).
    ///
    /// # Errors
    /// Those of rename(2).
    pub async fn rename_at(
        &self,
        directory: i32,
        path: &[u8],
        new_directory: i32,
        new_path: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        let mode = match flags {
            0 => RenameMode::Replace,
            linux::RENAME_NOREPLACE => RenameMode::KeepTarget,
            linux::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return Err(Errno::EINVAL),
        };
        let from = self.find_parent(directory, path).await?;
        let to = self.find_parent(new_directory, new_path).await?;
        if !Arc::ptr_eq(&from.directory.mount, &to.directory.mount) {
            return Err(Errno::EXDEV);
        }
        let LastName::Name(from_name) = &from.name else { return Err(Errno::EBUSY) };
        let LastName::Name(to_name) = &to.name else {
            return Err(if mode == RenameMode::KeepTarget { Errno::EEXIST } else { Errno::EBUSY });
        };
        let mounted = from.directory.mount.mounted.clone();
        let _excluded = mounted.renames.hold().await;
        let find = async |directory: &Location, name| directory.dentry.lookup(name, &mounted, self.ids).await;
        let source = find(&from.directory, from_name).await?.ok_or(Errno::ENOENT)?;
        let target = find(&to.directory, to_name).await?;
        let is_directory = |dentry: &Arc<Dentry>| dentry.kind() == InodeKind::Directory;
        match (mode, &target) {
            (RenameMode::KeepTarget, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            _ => {}
        }
        if !is_directory(&source)
            && (from.wants_directory || to.wants_directory && mode != RenameMode::Exchange)
        {
            return Err(Errno::ENOTDIR);
        }
        if let (RenameMode::Exchange, true, Some(target)) = (mode, to.wants_directory, &target)
            && !is_directory(target)
        {
            return Err(Errno::ENOTDIR);
        }
        if is_directory(&source) && to.directory.dentry.is_within(&source) {
            return Err(Errno::EINVAL);
        }
        if let Some(target) = &target
            && is_directory(target)
            && from.directory.dentry.is_within(target)
        {
            return Err(if mode == RenameMode::Exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        if let Some(target) = &target
            && is_same_inode(source.inode(), target.inode())
        {
            return Ok(());
        }
        self.check_removal(&from.directory, &source)?;
        match &target {
            Some(target) => self.check_removal(&to.directory, target)?,
            None => self.check_change(&to.directory)?,
        }
        if let (RenameMode::Replace, Some(target)) = (mode, &target) {
            match (is_directory(&source), is_directory(target)) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                _ => {}
            }
        }
        let has_mounts = |dentry: &Arc<Dentry>| dentry.has_mounts();
        if has_mounts(&source) || target.as_ref().is_some_and(has_mounts) {
            return Err(Errno::EBUSY);
        }
        let to_inode = to.directory.inode();
        from.directory.inode().rename(from_name, to_inode, to_name, mode).await?;
        let exchanged = if mode == RenameMode::Exchange { target.as_ref() } else { None };
        Dentry::renamed(&source, (&to.directory.dentry, to_name), exchanged, mounted.caches_names);
        let (from, to) = ((&*from.directory.dentry, &**from_name), (&*to.directory.dentry, &**to_name));
        watch::note_move(from, to, &source);
        if let (RenameMode::Replace, Some(replaced)) = (mode, &target) {
            watch::note_inode(replaced.inode(), linux::IN_ATTRIB);
        }
        watch::note_inode(source.inode(), linux::IN_MOVE_SELF);
        if let Some(exchanged) = exchanged {
            watch::note_move(to, from, exchanged);
            watch::note_inode(exchanged.inode(), linux::IN_MOVE_SELF);
        }
        Ok(())
    }

    /// Checks that an entry of a directory may be removed from it.
    pub(super) fn check_removal(&self, directory: &Location, entry: &Arc<Dentry>) -> Result<(), Errno> {
        self.check_change(directory)?;
        self.credentials.check_sticky(&directory.inode().ownership(), &entry.inode().ownership())
    }
}
