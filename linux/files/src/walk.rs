//! Path look-up, as path_resolution(7) describes it.

use crate::credentials::{Access, Credentials};
use crate::dentry::{Location, Namespace};
use crate::descriptors::DescriptorTable;
use crate::inode::{CallerIds, Inode, LinkTarget};
use crate::metadata::InodeKind;
use crate::open_file::OpenFile;
use crate::resolution::Resolution;
use crate::{Errno, PATH_LEN};
use alloc::borrow::Cow;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use isola_linux_abi::numbers as linux;
use spin::Mutex;

/// The most symbolic links in one look-up.
const MOST_LINKS: u32 = 40;

/// Root, working directory and file mode creation mask of a process (the kernel's `fs_struct`). Threads of
/// `CLONE_FS` share it.
pub struct View {
    namespace: Arc<Namespace>,
    directories: Mutex<Directories>,
    umask: AtomicU32,
}

#[derive(Clone)]
struct Directories {
    root: Location,
    working: Location,
}

impl View {
    /// Creates a view whose root and working directory are the root of the namespace.
    pub fn new(namespace: Arc<Namespace>) -> Self {
        let root = namespace.root();
        let directories = Mutex::new(Directories { working: root.clone(), root });
        Self { namespace, directories, umask: AtomicU32::new(0o022) }
    }

    /// Returns a copy, for `fork`.
    pub fn fork(&self) -> Self {
        let directories = self.directories.lock().clone();
        Self {
            namespace: self.namespace.clone(),
            directories: Mutex::new(directories),
            umask: AtomicU32::new(self.umask()),
        }
    }

    /// Returns the mounts.
    pub fn namespace(&self) -> &Arc<Namespace> {
        &self.namespace
    }

    /// Returns the root directory.
    pub fn root(&self) -> Location {
        self.directories.lock().root.clone()
    }

    /// Returns the working directory.
    pub fn working_directory(&self) -> Location {
        self.directories.lock().working.clone()
    }

    pub(crate) fn set_root(&self, root: Location) {
        let former = core::mem::replace(&mut self.directories.lock().root, root);
        drop(former);
    }

    pub(crate) fn set_working_directory(&self, working: Location) {
        let former = core::mem::replace(&mut self.directories.lock().working, working);
        drop(former);
    }

    /// Returns the file mode creation mask.
    pub fn umask(&self) -> u32 {
        self.umask.load(Ordering::Relaxed)
    }

    /// Sets the file mode creation mask. Returns the former one.
    pub fn set_umask(&self, umask: u32) -> u32 {
        self.umask.swap(umask & 0o777, Ordering::Relaxed)
    }
}

/// The thread that executes a call: its view of the tree, its identity, its descriptors.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    /// Root, working directory, mask.
    pub view: &'a View,
    /// The identity for permission checks.
    pub credentials: &'a Credentials,
    /// The open files.
    pub descriptors: &'a DescriptorTable,
    /// The process and thread, for `/proc/self`.
    pub ids: CallerIds,
}

/// Whether a look-up follows a symbolic link that the last component of the path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastLink {
    /// It is followed.
    Follow,
    /// The link itself is the result.
    Keep,
}

/// The result of a look-up.
pub(crate) enum Found {
    /// The path exists.
    Location(Location),
    /// The path leads to an open file without a name.
    Object(Arc<OpenFile>),
    /// All but the last component exists.
    Absent(Parent),
}

/// The directory of a path's last component.
pub(crate) struct Parent {
    pub directory: Location,
    pub name: LastName,
    /// Whether slashes follow the name.
    pub wants_directory: bool,
}

/// The last component of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LastName {
    Name(Vec<u8>),
    Dot,
    DotDot,
    Root,
}

/// Where the look-up ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WalkEnd {
    Last(LastLink),
    Parent,
}

enum Walked {
    Found(Found),
    Parent(Parent),
}

impl Caller<'_> {
    /// Checks access to an inode of a mount.
    ///
    /// # Errors
    /// [`Errno::EACCES`], [`Errno::EROFS`].
    pub(crate) fn check(&self, location: &Location, access: Access) -> Result<(), Errno> {
        let kind = location.dentry.kind();
        let is_stored = matches!(kind, InodeKind::File | InodeKind::Directory | InodeKind::Symlink);
        if access.has(Access::WRITE) && is_stored && location.mount.flags.read_only {
            return Err(Errno::EROFS);
        }
        self.credentials.check(&location.inode().ownership(), kind, access)
    }

    /// Checks whether entries of a directory may be created and removed.
    pub(crate) fn check_change(&self, directory: &Location) -> Result<(), Errno> {
        self.check(directory, Access::WRITE.and(Access::EXECUTE))?;
        if directory.dentry.is_removed() { Err(Errno::ENOENT) } else { Ok(()) }
    }

    /// Returns where relative paths of a call begin.
    ///
    /// # Errors
    /// [`Errno::EBADF`], [`Errno::ENOTDIR`].
    pub(crate) fn start(&self, directory: i32, path: &[u8]) -> Result<Location, Errno> {
        if path.first() == Some(&b'/') {
            return Ok(self.view.root());
        }
        if directory == linux::AT_FDCWD {
            return Ok(self.view.working_directory());
        }
        let file = self.descriptors.get_any(directory)?;
        let location = file.location().ok_or(Errno::ENOTDIR)?;
        if location.dentry.kind() == InodeKind::Directory {
            Ok(location.clone())
        } else {
            Err(Errno::ENOTDIR)
        }
    }

    /// Finds a path.
    pub(crate) async fn find(&self, directory: i32, path: &[u8], last: LastLink) -> Result<Found, Errno> {
        self.find_within(directory, path, last, None).await
    }

    /// As [`Self::find`], with the restrictions of `openat2`.
    pub(crate) async fn find_within(
        &self,
        directory: i32,
        path: &[u8],
        last: LastLink,
        resolution: Option<&Resolution>,
    ) -> Result<Found, Errno> {
        match self.walk(directory, path, WalkEnd::Last(last), resolution).await? {
            Walked::Found(found) => Ok(found),
            Walked::Parent(_) => unreachable!("the look-up was to continue to the last component"),
        }
    }

    /// Finds a path that has to exist in a file system.
    ///
    /// # Errors
    /// [`Errno::ENOENT`], [`Errno::EACCES`], [`Errno::ENOTDIR`], [`Errno::ELOOP`], [`Errno::ENAMETOOLONG`], and those of
    /// the file system.
    pub async fn locate(&self, directory: i32, path: &[u8], last: LastLink) -> Result<Location, Errno> {
        match self.find(directory, path, last).await? {
            Found::Location(location) => Ok(location),
            Found::Object(file) => file.location().cloned().ok_or(Errno::EACCES),
            Found::Absent(_) => Err(Errno::ENOENT),
        }
    }

    /// Finds the directory of a path's last component.
    pub(crate) async fn find_parent(&self, directory: i32, path: &[u8]) -> Result<Parent, Errno> {
        match self.walk(directory, path, WalkEnd::Parent, None).await? {
            Walked::Parent(parent) => Ok(parent),
            Walked::Found(_) => unreachable!("the look-up was to end at the last component"),
        }
    }

    async fn walk(
        &self,
        directory: i32,
        path: &[u8],
        until: WalkEnd,
        resolution: Option<&Resolution>,
    ) -> Result<Walked, Errno> {
        match path {
            [] => return Err(Errno::ENOENT),
            _ if path.len() >= PATH_LEN => return Err(Errno::ENAMETOOLONG),
            _ if path.contains(&0) => return Err(Errno::EINVAL),
            _ => {}
        }
        let mut here = match resolution {
            None => self.start(directory, path)?,
            Some(resolution) => resolution.begin(path)?,
        };
        let mut rest = Cow::Borrowed(path);
        let (mut at, mut links, mut last_name) = (0, 0, LastName::Root);
        loop {
            at += rest[at..].iter().take_while(|byte| **byte == b'/').count();
            if at == rest.len() {
                if until == WalkEnd::Parent {
                    return Ok(Walked::Parent(Parent {
                        directory: here,
                        name: last_name,
                        wants_directory: true,
                    }));
                }
                return Ok(Walked::Found(Found::Location(here)));
            }
            let len = rest[at..].iter().position(|byte| *byte == b'/').unwrap_or(rest.len() - at);
            let name = &rest[at..at + len];
            let slashes = rest[at + len..].iter().take_while(|byte| **byte == b'/').count();
            let (wants_directory, is_last) = (slashes > 0, at + len + slashes == rest.len());
            if here.dentry.kind() != InodeKind::Directory {
                return Err(Errno::ENOTDIR);
            }
            self.check(&here, Access::EXECUTE)?;
            if name == b"." || name == b".." {
                last_name = if len == 1 { LastName::Dot } else { LastName::DotDot };
                if until == WalkEnd::Parent && is_last {
                    return Ok(Walked::Parent(Parent { directory: here, name: last_name, wants_directory }));
                }
                if len == 2 {
                    here = match resolution {
                        None => self.up(here),
                        Some(resolution) => resolution.up(here, |here| self.up(here))?,
                    };
                }
                at += len;
                continue;
            }
            if until == WalkEnd::Parent && is_last {
                let name = LastName::Name(name.to_vec());
                return Ok(Walked::Parent(Parent { directory: here, name, wants_directory }));
            }
            let Some(child) = self.step(&here, name).await? else {
                if !is_last {
                    return Err(Errno::ENOENT);
                }
                let name = LastName::Name(name.to_vec());
                let parent = Parent { directory: here, name, wants_directory };
                return Ok(Walked::Found(Found::Absent(parent)));
            };
            if let Some(resolution) = resolution {
                resolution.check_step(&here, &child)?;
            }
            let follows = !is_last || wants_directory || until == WalkEnd::Last(LastLink::Follow);
            if child.dentry.kind() == InodeKind::Symlink && follows {
                links += 1;
                if links > MOST_LINKS {
                    return Err(Errno::ELOOP);
                }
                if let Some(resolution) = resolution {
                    resolution.check_link()?;
                }
                let target = child.inode().follow(self.ids).await?;
                if let Some(resolution) = resolution {
                    match &target {
                        LinkTarget::Path(_) => {}
                        LinkTarget::Location(target) => resolution.check_magic_link(&here, Some(target))?,
                        LinkTarget::Object(file) => resolution.check_magic_link(&here, file.location())?,
                    }
                }
                match target {
                    LinkTarget::Path(target) if target.is_empty() => return Err(Errno::ENOENT),
                    LinkTarget::Path(mut target) => {
                        target.extend_from_slice(&rest[at + len..]);
                        if target.first() == Some(&b'/') {
                            let root = self.view.root();
                            here = match resolution {
                                None => root,
                                Some(resolution) => resolution.root_of_link(&here, root)?,
                            };
                        }
                        (rest, at, last_name) = (Cow::Owned(target), 0, LastName::Root);
                        continue;
                    }
                    LinkTarget::Location(location) => here = location,
                    LinkTarget::Object(file) if is_last && !wants_directory => {
                        return Ok(Walked::Found(match file.location() {
                            Some(location) => Found::Location(location.clone()),
                            None => Found::Object(file),
                        }));
                    }
                    LinkTarget::Object(file) => here = file.location().ok_or(Errno::ENOTDIR)?.clone(),
                }
            } else {
                here = child;
            }
            at += len;
            if is_last {
                if wants_directory && here.dentry.kind() != InodeKind::Directory {
                    return Err(Errno::ENOTDIR);
                }
                return Ok(Walked::Found(Found::Location(here)));
            }
        }
    }

    /// Finds a name in a directory, and enters a mount on it.
    pub(crate) async fn step(&self, directory: &Location, name: &[u8]) -> Result<Option<Location>, Errno> {
        let found = directory.dentry.lookup(name, &directory.mount.mounted, self.ids).await?;
        Ok(found.map(|dentry| {
            let here = Location { mount: directory.mount.clone(), dentry };
            self.view.namespace().enter_mounts(here)
        }))
    }

    fn up(&self, here: Location) -> Location {
        if here.is(&self.view.root()) {
            return here;
        }
        self.view.namespace().enter_mounts(here.parent())
    }
}

/// Returns whether an inode is the same as another.
pub(crate) fn is_same_inode(one: &Arc<dyn Inode>, other: &Arc<dyn Inode>) -> bool {
    Arc::ptr_eq(one, other)
}
