//! Cached names of directories, mounts, and the tree that both form.
//!
//! ```text
//!   Location = (Mount, Dentry)     Mount: a file system at a mount point
//!   Dentry -> Inode                Dentry.children: names that were looked up, absent ones included
//! ```
//!
//! A directory's cache has a number of changes. A look-up that had to wait for the file system enters its result only if
//! the number is still the same: so a name that another call has removed meanwhile is not entered again. Calls change the
//! file system first and the cache then.

use crate::async_lock::AsyncLock;
use crate::inode::{CallerIds, FileSystem, Inode};
use crate::metadata::InodeKind;
use crate::watch;
use crate::{Errno, NAME_LEN};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use spin::Mutex;

/// The most cached names of a directory. If there are more, those are dropped that no call uses.
pub const MOST_CACHED_NAMES: usize = 4096;

/// A name of an inode in a directory, or the root of a file system.
pub struct Dentry {
    inode: Arc<dyn Inode>,
    /// The kind of the inode, to save a call.
    kind: InodeKind,
    /// `None` at the root of a file system.
    place: Mutex<Option<DentryPlace>>,
    children: Mutex<Children>,
    is_removed: AtomicBool,
    /// The number of mounts on this directory, in all namespaces.
    mounts: AtomicU32,
}

#[derive(Clone)]
struct DentryPlace {
    parent: Arc<Dentry>,
    name: Arc<[u8]>,
}

#[derive(Default)]
struct Children {
    changes: u64,
    /// `None` for a name that does not exist.
    names: BTreeMap<Arc<[u8]>, Option<Arc<Dentry>>>,
}

impl Dentry {
    fn root(inode: Arc<dyn Inode>) -> Arc<Self> {
        Arc::new(Self::new(inode, None))
    }

    fn new(inode: Arc<dyn Inode>, place: Option<DentryPlace>) -> Self {
        Self {
            kind: inode.kind(),
            inode,
            place: Mutex::new(place),
            children: Mutex::default(),
            is_removed: AtomicBool::new(false),
            mounts: AtomicU32::new(0),
        }
    }

    fn child(self: &Arc<Self>, name: Arc<[u8]>, inode: Arc<dyn Inode>) -> Arc<Self> {
        Arc::new(Self::new(inode, Some(DentryPlace { parent: self.clone(), name })))
    }

    /// Returns a dentry for an inode without a name (`O_TMPFILE`, `memfd_create`), which is shown with this one.
    pub(crate) fn unnamed_child(self: &Arc<Self>, inode: Arc<dyn Inode>, shown: Option<&[u8]>) -> Arc<Self> {
        let number = || alloc::format!("#{}", inode.metadata().inode).into_bytes();
        let name = shown.map_or_else(number, <[u8]>::to_vec);
        let child = self.child(name.into(), inode);
        child.is_removed.store(true, Ordering::Release);
        child
    }

    /// Drops the cached names of this directory and of all below it.
    fn forget_names(&self) {
        let mut waiting: Vec<_> = core::mem::take(&mut self.children.lock().names).into_values().collect();
        while let Some(child) = waiting.pop() {
            if let Some(child) = child {
                waiting.extend(core::mem::take(&mut child.children.lock().names).into_values());
            }
        }
    }

    /// Returns the inode.
    pub fn inode(&self) -> &Arc<dyn Inode> {
        &self.inode
    }

    /// Returns the type of the inode.
    pub fn kind(&self) -> InodeKind {
        self.kind
    }

    /// Returns the directory that has the name; `None` at the root of a file system.
    pub(crate) fn parent(&self) -> Option<Arc<Self>> {
        self.place.lock().as_ref().map(|place| place.parent.clone())
    }

    /// Returns the directory and the name in it; `None` at the root of a file system.
    pub(crate) fn parent_and_name(&self) -> Option<(Arc<Self>, Arc<[u8]>)> {
        self.place.lock().as_ref().map(|place| (place.parent.clone(), place.name.clone()))
    }

    pub(crate) fn has_mounts(&self) -> bool {
        self.mounts.load(Ordering::Acquire) > 0
    }

    /// Returns whether the name was removed.
    pub fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }

    /// Returns whether this directory is `other` or below it.
    pub(crate) fn is_within(self: &Arc<Self>, other: &Arc<Self>) -> bool {
        let mut here = self.clone();
        loop {
            if Arc::ptr_eq(&here, other) {
                return true;
            }
            let Some(parent) = here.parent() else { return false };
            here = parent;
        }
    }

    /// Finds a name in the directory: in the cache, or by the file system.
    pub(crate) async fn lookup(
        self: &Arc<Self>,
        name: &[u8],
        file_system: &MountedFileSystem,
        caller: CallerIds,
    ) -> Result<Option<Arc<Self>>, Errno> {
        if name.len() > NAME_LEN {
            return Err(Errno::ENAMETOOLONG);
        }
        if !file_system.caches_names {
            let found = self.inode.lookup(name, caller).await?;
            return Ok(found.map(|inode| self.child(Arc::from(name), inode)));
        }
        let changes = {
            let children = self.children.lock();
            if let Some(cached) = children.names.get(name) {
                return Ok(cached.clone());
            }
            children.changes
        };
        let found = self.inode.lookup(name, caller).await?;
        let mut children = self.children.lock();
        if let Some(cached) = children.names.get(name) {
            return Ok(cached.clone());
        }
        let name: Arc<[u8]> = Arc::from(name);
        let child = found.map(|inode| self.child(name.clone(), inode));
        let dropped =
            if children.changes == changes { children.enter(name, child.clone()) } else { Vec::new() };
        drop(children);
        drop(dropped);
        Ok(child)
    }

    /// Enters a name that was created.
    pub(crate) fn created(
        self: &Arc<Self>,
        name: &[u8],
        inode: Arc<dyn Inode>,
        caches_names: bool,
    ) -> Arc<Self> {
        let name: Arc<[u8]> = Arc::from(name);
        let mut children = self.children.lock();
        children.changes += 1;
        // Another call may have found the new name already.
        if let Some(Some(found)) = children.names.get(&name)
            && Arc::ptr_eq(&found.inode, &inode)
        {
            return found.clone();
        }
        let child = self.child(name.clone(), inode);
        let dropped = if caches_names { children.enter(name, Some(child.clone())) } else { Vec::new() };
        drop(children);
        drop(dropped);
        child
    }

    /// Notes that a name was removed.
    pub(crate) fn removed(&self, name: &[u8]) {
        let child = {
            let mut children = self.children.lock();
            children.changes += 1;
            children.names.remove(name).flatten()
        };
        if let Some(child) = child {
            child.is_removed.store(true, Ordering::Release);
            child.forget_children();
        }
    }

    /// Notes that `child` has moved to the name `to_name` of `to`; `exchanged` has moved to its former name, if there is
    /// such a dentry. The caller excludes other renames.
    pub(crate) fn renamed(
        child: &Arc<Self>,
        to: (&Arc<Self>, &[u8]),
        exchanged: Option<&Arc<Self>>,
        caches_names: bool,
    ) {
        let Some(from) = child.place.lock().clone() else { return };
        let to = DentryPlace { parent: to.0.clone(), name: Arc::from(to.1) };
        for place in [&from, &to] {
            let mut children = place.parent.children.lock();
            children.changes += 1;
            let former = children.names.remove(&place.name).flatten();
            drop(children);
            if let Some(former) = former
                && !Arc::ptr_eq(&former, child)
                && !exchanged.is_some_and(|exchanged| Arc::ptr_eq(exchanged, &former))
            {
                former.is_removed.store(true, Ordering::Release);
                former.forget_children();
            }
        }
        let enter = |place: DentryPlace, child: &Arc<Self>| {
            *child.place.lock() = Some(place.clone());
            if caches_names {
                let dropped = place.parent.children.lock().enter(place.name, Some(child.clone()));
                drop(dropped);
            }
        };
        if let Some(exchanged) = exchanged {
            enter(from, exchanged);
        }
        enter(to, child);
    }

    /// Drops the cached names below this directory, except used ones. Returns the number of dropped ones.
    pub(crate) fn shrink(&self) -> usize {
        let children: Vec<_> = self.children.lock().names.values().flatten().cloned().collect();
        let mut count = children.iter().map(|child| child.shrink()).sum();
        drop(children);
        let dropped = self.children.lock().drop_unused();
        count += dropped.len();
        count
    }

    fn forget_children(&self) {
        let names = core::mem::take(&mut self.children.lock().names);
        drop(names);
    }
}

impl Drop for Dentry {
    fn drop(&mut self) {
        // The last use of a removed name of an inode without others.
        if *self.is_removed.get_mut() {
            watch::note_end(&self.inode, || self.inode.metadata().links == 0);
        }
    }
}

impl Children {
    /// Enters a name. Returns what the caller drops without the lock.
    #[must_use]
    fn enter(&mut self, name: Arc<[u8]>, child: Option<Arc<Dentry>>) -> Vec<Option<Arc<Dentry>>> {
        let mut dropped = Vec::new();
        if self.names.len() >= MOST_CACHED_NAMES {
            dropped = self.drop_unused();
        }
        if let Some(former) = self.names.insert(name, child) {
            dropped.push(former);
        }
        dropped
    }

    #[must_use]
    fn drop_unused(&mut self) -> Vec<Option<Arc<Dentry>>> {
        let is_used =
            |child: &Option<Arc<Dentry>>| child.as_ref().is_some_and(|child| Arc::strong_count(child) > 1);
        self.names.extract_if(.., |_, child| !is_used(child)).map(|(_, child)| child).collect()
    }
}

/// A file system with its cached names. All mounts of it share them.
pub struct MountedFileSystem {
    file_system: Arc<dyn FileSystem>,
    root: Arc<Dentry>,
    pub(crate) caches_names: bool,
    /// Held by renames that change the tree of directories.
    pub(crate) renames: AsyncLock<()>,
}

impl MountedFileSystem {
    /// Prepares a file system for mounts.
    pub fn new(file_system: Arc<dyn FileSystem>) -> Arc<Self> {
        let root = Dentry::root(file_system.root());
        let caches_names = file_system.caches_names();
        Arc::new(Self { file_system, root, caches_names, renames: AsyncLock::new(()) })
    }

    /// Returns the file system.
    pub fn file_system(&self) -> &Arc<dyn FileSystem> {
        &self.file_system
    }

    /// Drops cached names that no call uses. Returns their number.
    pub fn shrink(&self) -> usize {
        self.root.shrink()
    }
}

impl Drop for MountedFileSystem {
    fn drop(&mut self) {
        watch::note_unmount(self);
        // Dentries and the caches of their parents refer to each other. The last location in the file system may still
        // have its dentry.
        self.root.forget_names();
    }
}

/// Restrictions of a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountFlags {
    /// Nothing can be changed.
    pub read_only: bool,
    /// Devices cannot be opened.
    pub no_devices: bool,
    /// Files cannot be executed.
    pub no_execution: bool,
    /// Set-user-id bits have no effect.
    pub no_set_user_id: bool,
}

/// A file system, or a part of it, at a mount point.
pub struct Mount {
    /// The number, for `/proc/PID/mountinfo`.
    pub id: u64,
    /// The restrictions.
    pub flags: MountFlags,
    /// The device or other source, for `/proc/mounts`.
    pub source: Vec<u8>,
    pub(crate) mounted: Arc<MountedFileSystem>,
    root: Arc<Dentry>,
    /// The mount point; `None` for the root of the namespace.
    point: Option<Location>,
}

impl Mount {
    /// Returns the file system.
    pub fn file_system(&self) -> &Arc<dyn FileSystem> {
        &self.mounted.file_system
    }

    /// Returns the mount point; `None` for the root of the namespace.
    pub fn point(&self) -> Option<&Location> {
        self.point.as_ref()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(point) = &self.point {
            point.dentry.mounts.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// A name in the tree of a namespace.
#[derive(Clone)]
pub struct Location {
    pub(crate) mount: Arc<Mount>,
    pub(crate) dentry: Arc<Dentry>,
}

impl Location {
    /// Returns the inode.
    pub fn inode(&self) -> &Arc<dyn Inode> {
        &self.dentry.inode
    }

    /// Returns the mount.
    pub fn mount(&self) -> &Arc<Mount> {
        &self.mount
    }

    /// Returns the dentry.
    pub fn dentry(&self) -> &Arc<Dentry> {
        &self.dentry
    }

    /// Returns whether both are the same.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.mount, &other.mount) && Arc::ptr_eq(&self.dentry, &other.dentry)
    }

    pub(crate) fn is_mount_root(&self) -> bool {
        Arc::ptr_eq(&self.dentry, &self.mount.root)
    }

    /// Returns the directory above, over mount points; the root of the namespace is its own.
    pub(crate) fn parent(&self) -> Self {
        let mut here = self.clone();
        while here.is_mount_root() {
            match &here.mount.point {
                Some(point) => here = point.clone(),
                None => return here,
            }
        }
        match here.dentry.parent() {
            Some(dentry) => Self { mount: here.mount, dentry },
            None => here,
        }
    }

    /// Returns the path from `root`, or from the root of the namespace. It ends with ` (deleted)` if the name was removed.
    pub fn path(&self, root: Option<&Self>) -> Vec<u8> {
        let (mut path, _) = self.path_and_reach(root);
        if self.dentry.is_removed() {
            path.extend_from_slice(b" (deleted)");
        }
        path
    }

    /// Returns the path from `root`, and whether it is below it.
    pub(crate) fn path_and_reach(&self, root: Option<&Self>) -> (Vec<u8>, bool) {
        let mut names: Vec<Arc<[u8]>> = Vec::new();
        let mut here = self.clone();
        let reaches = loop {
            if root.is_some_and(|root| root.is(&here)) {
                break true;
            }
            if here.is_mount_root() {
                match here.mount.point.clone() {
                    Some(point) => here = point,
                    None => break root.is_none_or(|root| root.is(&here)),
                }
                continue;
            }
            let Some(place) = here.dentry.place.lock().clone() else { break false };
            names.push(place.name);
            here.dentry = place.parent;
        };
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        (path, reaches)
    }
}

/// The mounts that a group of processes has.
pub struct Namespace {
    mounts: Mutex<Vec<Arc<Mount>>>,
    root: Arc<Mount>,
}

static NEXT_MOUNT: AtomicU64 = AtomicU64::new(1);

impl Namespace {
    /// Creates a namespace whose root is the root of this file system.
    pub fn new(root: Arc<MountedFileSystem>, source: &[u8], flags: MountFlags) -> Arc<Self> {
        let root = Arc::new(Mount {
            id: NEXT_MOUNT.fetch_add(1, Ordering::Relaxed),
            flags,
            source: source.to_vec(),
            root: root.root.clone(),
            mounted: root,
            point: None,
        });
        Arc::new(Self { mounts: Mutex::new(alloc::vec![root.clone()]), root })
    }

    /// Returns the root directory.
    pub fn root(&self) -> Location {
        let root = Location { mount: self.root.clone(), dentry: self.root.root.clone() };
        self.enter_mounts(root)
    }

    /// Returns the mounts, in the order in which they were made.
    pub fn mounts(&self) -> Vec<Arc<Mount>> {
        self.mounts.lock().clone()
    }

    /// Mounts a file system on a directory.
    ///
    /// # Errors
    /// [`Errno::ENOTDIR`] if the mount point or the root is no directory and the other is, [`Errno::ENOENT`] if the
    /// directory was removed.
    pub fn mount(
        &self,
        point: &Location,
        mounted: Arc<MountedFileSystem>,
        source: &[u8],
        flags: MountFlags,
    ) -> Result<Arc<Mount>, Errno> {
        let root = mounted.root.clone();
        self.attach(point, mounted, root, source, flags)
    }

    /// Mounts the tree at `tree` on another directory, or a file on another file.
    ///
    /// # Errors
    /// As [`Self::mount`].
    pub fn bind(&self, point: &Location, tree: &Location) -> Result<Arc<Mount>, Errno> {
        let Mount { mounted, source, flags, .. } = &*tree.mount;
        self.attach(point, mounted.clone(), tree.dentry.clone(), source, *flags)
    }

    fn attach(
        &self,
        point: &Location,
        mounted: Arc<MountedFileSystem>,
        root: Arc<Dentry>,
        source: &[u8],
        flags: MountFlags,
    ) -> Result<Arc<Mount>, Errno> {
        if (point.dentry.kind == InodeKind::Directory) != (root.kind == InodeKind::Directory) {
            return Err(Errno::ENOTDIR);
        }
        if point.dentry.is_removed() {
            return Err(Errno::ENOENT);
        }
        let id = NEXT_MOUNT.fetch_add(1, Ordering::Relaxed);
        let mount =
            Arc::new(Mount { id, flags, source: source.to_vec(), mounted, root, point: Some(point.clone()) });
        // The drop of the mount counts it down.
        point.dentry.mounts.fetch_add(1, Ordering::AcqRel);
        self.mounts.lock().push(mount.clone());
        Ok(mount)
    }

    /// Removes the mount whose root is at this location.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if it is not the root of a mount, or that of the namespace. [`Errno::EBUSY`] if files are open in
    /// it, or mounts are on it; `detach` removes it from the tree nevertheless.
    pub fn unmount(&self, root: Location, detach: Detach) -> Result<(), Errno> {
        if !root.is_mount_root() || Arc::ptr_eq(&root.mount, &self.root) {
            return Err(Errno::EINVAL);
        }
        let mount = root.mount.clone();
        drop(root);
        let mut mounts = self.mounts.lock();
        let is_on =
            |other: &&Arc<Mount>| other.point.as_ref().is_some_and(|point| Arc::ptr_eq(&point.mount, &mount));
        // This reference and that of the table.
        let is_used = Arc::strong_count(&mount) > 2 || mounts.iter().any(|other| is_on(&other));
        if detach == Detach::IfUnused && is_used {
            return Err(Errno::EBUSY);
        }
        mounts.retain(|other| !Arc::ptr_eq(other, &mount));
        drop(mounts);
        Ok(())
    }

    /// Returns the root of the topmost mount on a location, or the location itself.
    pub(crate) fn enter_mounts(&self, mut here: Location) -> Location {
        while here.dentry.has_mounts() {
            let is_on = |mount: &&Arc<Mount>| mount.point.as_ref().is_some_and(|point| point.is(&here));
            let Some(mount) = self.mounts.lock().iter().rev().find(is_on).cloned() else { break };
            here = Location { dentry: mount.root.clone(), mount };
        }
        here
    }
}

/// Whether [`Namespace::unmount`] removes a mount that is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detach {
    /// Only an unused mount is removed.
    IfUnused,
    /// The mount leaves the tree at once, and ends with its last use (`MNT_DETACH`).
    Always,
}
