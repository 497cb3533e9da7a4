//! `open` and its relatives.

use crate::Errno;
use crate::credentials::Access;
use crate::dentry::Location;
use crate::inode::{NewContent, NewInode};
use crate::metadata::InodeKind;
use crate::open_file::OpenFile;
use crate::resolution::Resolution;
use crate::walk::{Caller, Found, LastLink, LastName, Parent};
use crate::watch;
use alloc::sync::Arc;
use isola_linux_abi::numbers as linux;

/// The flags that `open` acts on and that the open file does not keep.
const NOT_KEPT: u32 = linux::O_CREAT | linux::O_EXCL | linux::O_NOCTTY | linux::O_TRUNC | linux::O_CLOEXEC;
/// The flags that have an effect with `O_PATH`.
const PATH_FLAGS: u32 = linux::O_PATH | linux::O_DIRECTORY | linux::O_NOFOLLOW | linux::O_CLOEXEC;
/// The bit of `O_TMPFILE` beside `O_DIRECTORY`.
const UNNAMED: u32 = linux::O_TMPFILE & !linux::O_DIRECTORY;
/// `O_LARGEFILE` of x86, which `F_GETFL` shows.
const LARGE_FILE: u32 = 0o100_000;
/// All known flags; `open` ignores others.
const KNOWN: u32 = NOT_KEPT
    | PATH_FLAGS
    | UNNAMED
    | LARGE_FILE
    | linux::O_ACCMODE
    | linux::O_APPEND
    | linux::O_NONBLOCK
    | linux::O_DSYNC
    | linux::O_SYNC
    | linux::FASYNC
    | linux::O_DIRECT
    | linux::O_NOATIME;

/// The attempts at an open that another call's removals disturb.
const TRIES: u32 = 16;

impl Caller<'_> {
    /// Opens a file, as `openat`. The caller installs it in the descriptor table.
    ///
    /// # Errors
    /// Those of openat(2).
    pub async fn open_at(
        &self,
        directory: i32,
        path: &[u8],
        flags: u32,
        mode: u32,
    ) -> Result<Arc<OpenFile>, Errno> {
        self.open_within(directory, path, flags, mode, None).await
    }

    /// Opens a file, as `openat2`: without unknown flags, and with restrictions of the look-up.
    ///
    /// # Errors
    /// Those of openat2(2). [`Errno::EAGAIN`] for `RESOLVE_CACHED`: no look-up is certain to need no storage.
    pub async fn open_restricted(
        &self,
        directory: i32,
        path: &[u8],
        flags: u32,
        mode: u32,
        resolve: u32,
    ) -> Result<Arc<OpenFile>, Errno> {
        let is_path = flags & linux::O_PATH != 0;
        let creates = flags & (linux::O_CREAT | UNNAMED) != 0;
        if flags & !KNOWN != 0
            || mode & !0o7777 != 0
            || (mode != 0 && !creates)
            || (is_path && flags & !PATH_FLAGS != 0)
            || !Resolution::are_valid(resolve)
        {
            return Err(Errno::EINVAL);
        }
        if resolve & linux::RESOLVE_CACHED != 0 {
            return Err(Errno::EAGAIN);
        }
        if resolve == 0 {
            return self.open_at(directory, path, flags, mode).await;
        }
        let begin = if Resolution::is_scoped(resolve) { b"." } else { path };
        let resolution = Resolution::new(resolve, self.start(directory, begin)?);
        self.open_within(directory, path, flags, mode, Some(&resolution)).await
    }

    async fn open_within(
        &self,
        directory: i32,
        path: &[u8],
        flags: u32,
        mode: u32,
        resolution: Option<&Resolution>,
    ) -> Result<Arc<OpenFile>, Errno> {
        let mut flags = flags & KNOWN;
        if flags & linux::O_PATH != 0 {
            flags &= PATH_FLAGS;
        } else {
            flags |= LARGE_FILE;
        }
        if flags & UNNAMED != 0 {
            if resolution.is_some() {
                return Err(Errno::EOPNOTSUPP);
            }
            return self.open_unnamed(directory, path, flags, mode).await;
        }
        if flags & linux::O_CREAT != 0 && flags & linux::O_DIRECTORY != 0 {
            return Err(Errno::EINVAL);
        }
        if flags & linux::O_CREAT != 0 && path.ends_with(b"/") {
            let parent = self.find_parent(directory, path).await?;
            if let LastName::Name(_) = parent.name {
                return Err(Errno::EISDIR);
            }
        }
        let is_exclusive = flags & linux::O_CREAT != 0 && flags & linux::O_EXCL != 0;
        let last =
            if flags & linux::O_NOFOLLOW != 0 || is_exclusive { LastLink::Keep } else { LastLink::Follow };
        for _ in 0..TRIES {
            let found = self.find_within(directory, path, last, resolution).await?;
            match (&found, resolution) {
                (Found::Location(location), Some(resolution)) => resolution.check_end(location)?,
                (Found::Absent(parent), Some(resolution)) => resolution.check_end(&parent.directory)?,
                _ => {}
            }
            match found {
                Found::Location(_) | Found::Object(_) if is_exclusive => return Err(Errno::EEXIST),
                Found::Location(location) => return self.open_existing(location, flags).await,
                Found::Object(file) => return self.open_again(&file, flags),
                Found::Absent(_) if flags & linux::O_CREAT == 0 => return Err(Errno::ENOENT),
                Found::Absent(parent) => match self.open_new(parent, flags, mode).await {
                    // Another call has created it meanwhile.
                    Err(Errno::EEXIST) if !is_exclusive => {}
                    outcome => return outcome,
                },
            }
        }
        Err(Errno::EEXIST)
    }

    /// Returns the new inode that a call asks for, by the process's mask and the directory's set-group-id bit.
    pub(super) fn new_inode<'n>(
        &self,
        directory: &Location,
        content: NewContent<'n>,
        mode: u32,
    ) -> NewInode<'n> {
        let owner = directory.inode().ownership();
        let inherits_group = owner.permissions & linux::S_ISGID != 0;
        let group = if inherits_group { owner.group } else { self.credentials.group };
        let mut permissions = match content {
            NewContent::Symlink(_) => 0o777,
            _ => mode & 0o7777 & !self.view.umask(),
        };
        if inherits_group && content.kind() == InodeKind::Directory {
            permissions |= linux::S_ISGID;
        } else if permissions & (linux::S_ISGID | 0o010) == linux::S_ISGID | 0o010
            && !self.credentials.is_member(group)
            && !self.credentials.has_capability(linux::CAP_FSETID)
        {
            permissions &= !linux::S_ISGID;
        }
        NewInode { content, permissions, user: self.credentials.user, group }
    }

    async fn open_new(&self, parent: Parent, flags: u32, mode: u32) -> Result<Arc<OpenFile>, Errno> {
        let Parent { directory, name: LastName::Name(name), wants_directory: false } = parent else {
            return Err(Errno::EISDIR);
        };
        self.check_change(&directory)?;
        let new = self.new_inode(&directory, NewContent::File, mode);
        let inode = directory.inode().create(&name, &new).await?;
        let caches = directory.mount.mounted.caches_names;
        let dentry = directory.dentry.created(&name, inode, caches);
        watch::note_name(&directory.dentry, &name, InodeKind::File, linux::IN_CREATE);
        // The new file is opened for all accesses, whatever its permissions are.
        self.finish(Location { mount: directory.mount, dentry }, flags & !linux::O_TRUNC).await
    }

    async fn open_unnamed(
        &self,
        directory: i32,
        path: &[u8],
        flags: u32,
        mode: u32,
    ) -> Result<Arc<OpenFile>, Errno> {
        let is_writable = matches!(flags & linux::O_ACCMODE, linux::O_WRONLY | linux::O_RDWR);
        if flags & linux::O_TMPFILE != linux::O_TMPFILE || flags & linux::O_CREAT != 0 || !is_writable {
            return Err(Errno::EINVAL);
        }
        let location = self.locate(directory, path, LastLink::Follow).await?;
        if location.dentry.kind() != InodeKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        self.check_change(&location)?;
        let new = self.new_inode(&location, NewContent::File, mode);
        let inode = location.inode().create_unnamed(&new).await?;
        let dentry = location.dentry.unnamed_child(inode, None);
        let location = Location { mount: location.mount, dentry };
        watch::note(&location.dentry, linux::IN_OPEN);
        Ok(OpenFile::of_location(location, None, flags & !NOT_KEPT & !linux::O_TMPFILE))
    }

    /// Opens a file whose access the open flags decide.
    async fn open_existing(&self, location: Location, flags: u32) -> Result<Arc<OpenFile>, Errno> {
        let kind = location.dentry.kind();
        if flags & linux::O_DIRECTORY != 0 && kind != InodeKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        if flags & linux::O_PATH != 0 {
            return Ok(OpenFile::of_location(location, None, flags & !NOT_KEPT));
        }
        if kind == InodeKind::Symlink {
            return Err(Errno::ELOOP);
        }
        let mut access = match flags & linux::O_ACCMODE {
            linux::O_RDONLY => Access::READ,
            linux::O_WRONLY => Access::WRITE,
            _ => Access::READ.and(Access::WRITE),
        };
        if flags & linux::O_TRUNC != 0 {
            access = access.and(Access::WRITE);
        }
        if kind == InodeKind::Directory && (access.has(Access::WRITE) || flags & linux::O_CREAT != 0) {
            return Err(Errno::EISDIR);
        }
        self.check(&location, access)?;
        let is_device = matches!(kind, InodeKind::CharacterDevice | InodeKind::BlockDevice);
        if is_device && location.mount.flags.no_devices {
            return Err(Errno::EACCES);
        }
        if flags & linux::O_NOATIME != 0 && !self.credentials.owns(&location.inode().ownership()) {
            return Err(Errno::EPERM);
        }
        self.finish(location, flags).await
    }

    /// Opens a file after all checks.
    async fn finish(&self, location: Location, flags: u32) -> Result<Arc<OpenFile>, Errno> {
        let object = location.inode().open(flags, self.ids).await?;
        watch::note(&location.dentry, linux::IN_OPEN);
        if flags & linux::O_TRUNC != 0 && location.dentry.kind() == InodeKind::File && object.is_none() {
            location.inode().truncate(0).await?;
            watch::note_change(&location.dentry, linux::IN_MODIFY);
        }
        Ok(OpenFile::of_location(location, object, flags & !NOT_KEPT))
    }

    /// Opens an object without a name again, by its link in `/proc/PID/fd`.
    fn open_again(&self, file: &Arc<OpenFile>, flags: u32) -> Result<Arc<OpenFile>, Errno> {
        if flags & linux::O_DIRECTORY != 0 {
            return Err(Errno::ENOTDIR);
        }
        let object = file.object().and_then(|object| object.reopen(flags)).ok_or(Errno::ENXIO)??;
        Ok(OpenFile::of_object(object, flags & !NOT_KEPT))
    }
}
