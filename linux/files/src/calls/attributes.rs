//! Calls that read and change metadata, and the directories of a process.

use super::{FILE_CAPABILITIES, Target};
use crate::Errno;
use crate::clock::Timestamp;
use crate::credentials::Access;
use crate::dentry::Location;
use crate::inode::AttributeChange;
use crate::metadata::{FileSystemStatistics, InodeKind, Metadata};
use crate::walk::{Caller, LastLink};
use crate::watch;
use alloc::vec::Vec;
use isola_linux_abi::numbers as linux;

/// The owner and group that `chown` sets; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerChange {
    /// The owner.
    pub user: Option<u32>,
    /// The group.
    pub group: Option<u32>,
}

/// A time that `utimensat` sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeChange {
    /// The present time (`UTIME_NOW`).
    Now,
    /// None (`UTIME_OMIT`).
    Keep,
    /// This time.
    To(Timestamp),
}

impl TimeChange {
    /// Returns the change that seconds and nanoseconds of a `struct timespec` ask for.
    ///
    /// # Errors
    /// [`Errno::EINVAL`].
    pub fn of_timespec(seconds: i64, nanoseconds: i64) -> Result<Self, Errno> {
        const NOW: i64 = linux::UTIME_NOW as i64;
        const OMIT: i64 = linux::UTIME_OMIT as i64;
        match nanoseconds {
            NOW => Ok(Self::Now),
            OMIT => Ok(Self::Keep),
            0..1_000_000_000 => Ok(Self::To(Timestamp { seconds, nanoseconds: nanoseconds as u32 })),
            _ => Err(Errno::EINVAL),
        }
    }

    fn time(self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Now => Some(now),
            Self::Keep => None,
            Self::To(time) => Some(time),
        }
    }
}

impl Caller<'_> {
    /// Returns the metadata of a file (`newfstatat`, `statx`): with `AT_EMPTY_PATH` and an empty path, that of the
    /// descriptor's file.
    ///
    /// # Errors
    /// Those of stat(2).
    pub async fn stat_at(&self, directory: i32, path: &[u8], at_flags: u32) -> Result<Metadata, Errno> {
        Ok(self.stat_target(directory, path, at_flags).await?.metadata())
    }

    async fn stat_target(&self, directory: i32, path: &[u8], at_flags: u32) -> Result<Target, Errno> {
        const KNOWN: u32 = linux::AT_EMPTY_PATH
            | linux::AT_SYMLINK_NOFOLLOW
            | linux::AT_NO_AUTOMOUNT
            | linux::AT_STATX_FORCE_SYNC
            | linux::AT_STATX_DONT_SYNC;
        if at_flags & !KNOWN != 0 {
            return Err(Errno::EINVAL);
        }
        self.target(directory, path, at_flags).await
    }

    /// As [`Self::stat_at`], with the number of the mount; 0 for a file that is in none.
    ///
    /// # Errors
    /// Those of statx(2).
    pub async fn stat_with_mount_at(
        &self,
        directory: i32,
        path: &[u8],
        at_flags: u32,
    ) -> Result<(Metadata, u64), Errno> {
        let target = self.stat_target(directory, path, at_flags).await?;
        let mount = match &target {
            Target::Location(location) => location.mount.id,
            Target::Object(_) => 0,
        };
        Ok((target.metadata(), mount))
    }

    /// Checks access to a file with the credentials (`faccessat2`). The caller passes those of the real user, unless
    /// `AT_EACCESS` is set.
    ///
    /// # Errors
    /// Those of access(2).
    pub async fn access_at(
        &self,
        directory: i32,
        path: &[u8],
        mode: u32,
        at_flags: u32,
    ) -> Result<(), Errno> {
        let access = Access::of_bits(mode).ok_or(Errno::EINVAL)?;
        if at_flags & !(linux::AT_EACCESS | linux::AT_EMPTY_PATH | linux::AT_SYMLINK_NOFOLLOW) != 0 {
            return Err(Errno::EINVAL);
        }
        let target = self.target(directory, path, at_flags).await?;
        let Target::Location(location) = target else { return Ok(()) };
        let is_file = location.dentry.kind() == InodeKind::File;
        if access.has(Access::EXECUTE) && is_file && location.mount.flags.no_execution {
            return Err(Errno::EACCES);
        }
        self.check(&location, access)
    }

    /// Returns where a symbolic link leads (`readlinkat`).
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if it is none, and those of the look-up.
    pub async fn read_link_at(&self, directory: i32, path: &[u8]) -> Result<Vec<u8>, Errno> {
        let at_flags = linux::AT_EMPTY_PATH | linux::AT_SYMLINK_NOFOLLOW;
        if path.is_empty() && directory == linux::AT_FDCWD {
            return Err(Errno::ENOENT);
        }
        let Target::Location(location) = self.target(directory, path, at_flags).await? else {
            return Err(Errno::EINVAL);
        };
        if location.dentry.kind() != InodeKind::Symlink {
            return Err(if path.is_empty() { Errno::ENOENT } else { Errno::EINVAL });
        }
        location.inode().read_link(self.ids).await
    }

    /// Checks that metadata on a mount can be changed.
    fn check_mount(&self, location: &Location) -> Result<(), Errno> {
        if location.mount.flags.read_only { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// Sets the permissions of a file (`fchmodat2`; `fchmod` with an empty path and `AT_EMPTY_PATH`).
    ///
    /// # Errors
    /// Those of chmod(2).
    pub async fn chmod_at(&self, directory: i32, path: &[u8], mode: u32, at_flags: u32) -> Result<(), Errno> {
        if at_flags & !(linux::AT_EMPTY_PATH | linux::AT_SYMLINK_NOFOLLOW) != 0 {
            return Err(Errno::EINVAL);
        }
        let location = self.target(directory, path, at_flags).await?.location()?;
        self.check_mount(&location)?;
        if location.dentry.kind() == InodeKind::Symlink {
            return Err(Errno::EOPNOTSUPP);
        }
        let owner = location.inode().ownership();
        if !self.credentials.owns(&owner) {
            return Err(Errno::EPERM);
        }
        let mut permissions = mode & 0o7777;
        if !self.credentials.is_member(owner.group) && !self.credentials.has_capability(linux::CAP_FSETID) {
            permissions &= !linux::S_ISGID;
        }
        let change = AttributeChange { permissions: Some(permissions), ..Default::default() };
        self.change_attributes(&location, &change).await
    }

    /// Sets owner and group of a file (`fchownat`; `fchown` with an empty path and `AT_EMPTY_PATH`).
    ///
    /// # Errors
    /// Those of chown(2).
    pub async fn chown_at(
        &self,
        directory: i32,
        path: &[u8],
        to: OwnerChange,
        at_flags: u32,
    ) -> Result<(), Errno> {
        if at_flags & !(linux::AT_EMPTY_PATH | linux::AT_SYMLINK_NOFOLLOW) != 0 {
            return Err(Errno::EINVAL);
        }
        let location = self.target(directory, path, at_flags).await?.location()?;
        self.check_mount(&location)?;
        let owner = location.inode().ownership();
        let is_privileged = self.credentials.has_capability(linux::CAP_CHOWN);
        let is_owner = self.credentials.user == owner.user;
        let may_give = to.user.is_none_or(|user| is_owner && user == owner.user);
        let may_group = to
            .group
            .is_none_or(|group| is_owner && (group == owner.group || self.credentials.is_member(group)));
        if !(is_privileged || may_give && may_group) {
            return Err(Errno::EPERM);
        }
        let mut change = AttributeChange { user: to.user, group: to.group, ..Default::default() };
        if location.dentry.kind() == InodeKind::File && owner.permissions & 0o111 != 0 {
            let set_group = if owner.permissions & 0o010 != 0 { linux::S_ISGID } else { 0 };
            let cleared = owner.permissions & !(linux::S_ISUID | set_group);
            change.permissions = (cleared != owner.permissions).then_some(cleared);
            // The capabilities were those of the former owner's program.
            match location.inode().remove_attribute(FILE_CAPABILITIES).await {
                Ok(()) | Err(Errno::ENODATA | Errno::EOPNOTSUPP) => {}
                Err(error) => return Err(error),
            }
        }
        self.change_attributes(&location, &change).await
    }

    /// Sets the times of a file (`utimensat`; `futimens` with an empty path and `AT_EMPTY_PATH`).
    ///
    /// # Errors
    /// Those of utimensat(2).
    pub async fn set_times_at(
        &self,
        directory: i32,
        path: &[u8],
        accessed: TimeChange,
        modified: TimeChange,
        at_flags: u32,
    ) -> Result<(), Errno> {
        if at_flags & !(linux::AT_EMPTY_PATH | linux::AT_SYMLINK_NOFOLLOW) != 0 {
            return Err(Errno::EINVAL);
        }
        if (accessed, modified) == (TimeChange::Keep, TimeChange::Keep) {
            return Ok(());
        }
        let location = self.target(directory, path, at_flags).await?.location()?;
        self.check_mount(&location)?;
        if !self.credentials.owns(&location.inode().ownership()) {
            // Write permission suffices for the present time.
            if (accessed, modified) != (TimeChange::Now, TimeChange::Now) {
                return Err(Errno::EPERM);
            }
            self.check(&location, Access::WRITE)?;
        }
        let now = Timestamp::now();
        let change = AttributeChange {
            accessed: accessed.time(now),
            modified: modified.time(now),
            ..Default::default()
        };
        self.change_attributes(&location, &change).await
    }

    async fn change_attributes(&self, location: &Location, change: &AttributeChange) -> Result<(), Errno> {
        location.inode().set_attributes(change).await?;
        let is_owner = change.permissions.is_some() || change.user.is_some() || change.group.is_some();
        let events = match (change.accessed, change.modified) {
            (Some(_), Some(_)) => linux::IN_ATTRIB,
            (Some(_), None) => linux::IN_ACCESS,
            (None, Some(_)) => linux::IN_MODIFY,
            (None, None) if is_owner => linux::IN_ATTRIB,
            (None, None) => return Ok(()),
        };
        watch::note_change(&location.dentry, events);
        Ok(())
    }

    /// Sets the length of a file (`truncate`).
    ///
    /// # Errors
    /// Those of truncate(2).
    pub async fn truncate(&self, path: &[u8], len: i64) -> Result<(), Errno> {
        let len = u64::try_from(len).map_err(|_| Errno::EINVAL)?;
        let location = self.locate(linux::AT_FDCWD, path, LastLink::Follow).await?;
        match location.dentry.kind() {
            InodeKind::File => {}
            InodeKind::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        self.check(&location, Access::WRITE)?;
        location.inode().truncate(len).await?;
        watch::note_change(&location.dentry, linux::IN_MODIFY);
        Ok(())
    }

    /// Returns the statistics of the file system of a path, or of a descriptor's file if the path is empty (`statfs`,
    /// `fstatfs`).
    ///
    /// # Errors
    /// Those of statfs(2).
    pub async fn file_system_statistics(
        &self,
        directory: i32,
        path: &[u8],
        at_flags: u32,
    ) -> Result<FileSystemStatistics, Errno> {
        /// The type of the kernel's file system for pipes.
        const PIPE_FILE_SYSTEM: u64 = 0x5049_5045;
        match self.target(directory, path, at_flags & linux::AT_EMPTY_PATH).await? {
            Target::Location(location) => {
                let mut statistics = location.mount.file_system().statistics().await?;
                let flags = location.mount.flags;
                let bits = [flags.read_only, flags.no_set_user_id, flags.no_devices, flags.no_execution];
                for (bit, is_set) in bits.into_iter().enumerate() {
                    statistics.flags |= u64::from(is_set) << bit;
                }
                Ok(statistics)
            }
            Target::Object(_) => {
                Ok(FileSystemStatistics { kind: PIPE_FILE_SYSTEM, block_len: 4096, ..Default::default() })
            }
        }
    }

    async fn directory_of(&self, directory: i32, path: &[u8], at_flags: u32) -> Result<Location, Errno> {
        let Target::Location(location) = self.target(directory, path, at_flags).await? else {
            return Err(Errno::ENOTDIR);
        };
        if location.dentry.kind() != InodeKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        self.check(&location, Access::EXECUTE)?;
        Ok(location)
    }

    /// Sets the working directory (`chdir`).
    ///
    /// # Errors
    /// Those of chdir(2).
    pub async fn change_directory(&self, path: &[u8]) -> Result<(), Errno> {
        let location = self.directory_of(linux::AT_FDCWD, path, 0).await?;
        self.view.set_working_directory(location);
        Ok(())
    }

    /// Sets the working directory to that of a descriptor (`fchdir`).
    ///
    /// # Errors
    /// Those of fchdir(2).
    pub async fn change_directory_to(&self, descriptor: i32) -> Result<(), Errno> {
        self.descriptors.get_any(descriptor)?;
        let location = self.directory_of(descriptor, b"", linux::AT_EMPTY_PATH).await?;
        self.view.set_working_directory(location);
        Ok(())
    }

    /// Sets the root directory (`chroot`).
    ///
    /// # Errors
    /// Those of chroot(2).
    pub async fn change_root(&self, path: &[u8]) -> Result<(), Errno> {
        let location = self.directory_of(linux::AT_FDCWD, path, 0).await?;
        if !self.credentials.has_capability(linux::CAP_SYS_CHROOT) {
            return Err(Errno::EPERM);
        }
        self.view.set_root(location);
        Ok(())
    }

    /// Returns the path of the working directory (`getcwd`), without the NUL. If the directory is not below the root, the
    /// path begins with `(unreachable)`.
    ///
    /// # Errors
    /// [`Errno::ENOENT`] if the directory was removed.
    pub fn working_directory_path(&self) -> Result<Vec<u8>, Errno> {
        let directory = self.view.working_directory();
        if directory.dentry.is_removed() {
            return Err(Errno::ENOENT);
        }
        let (path, is_reached) = directory.path_and_reach(Some(&self.view.root()));
        if is_reached {
            return Ok(path);
        }
        let mut shown = b"(unreachable)".to_vec();
        shown.extend_from_slice(&path);
        Ok(shown)
    }
}
