//! Inodes of an overlay.

use super::Shared;
use super::names::Directory;
use crate::Errno;
use crate::async_lock::AsyncLock;
use crate::clock::Timestamp;
use crate::credentials::Ownership;
use crate::inode::{
    Allocation, AttributeChange, AttributeMode, CallerIds, FileSystem, Inode, LinkTarget, NewContent,
    NewInode, RenameMode, SeekTarget, WritePosition,
};
use crate::metadata::{DirectoryEntry, InodeKind, Metadata};
use crate::object::FileObject;
use crate::outcome::Outcome;
use crate::tmpfs;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use isola_linux_abi::numbers as linux;
use isola_linux_memory::{PageSource, UserBuffer};
use spin::Mutex;

/// An inode of an overlay.
pub(super) struct OverlayInode {
    pub shared: Arc<Shared>,
    /// The attributes; length, blocks and device are those of the backing inode.
    attributes: Mutex<Metadata>,
    backing: Mutex<Backing>,
    /// Held by a copy-up.
    copying: AsyncLock<()>,
    /// The names, of a directory.
    pub directory: Option<Mutex<Directory>>,
}

#[derive(Clone)]
enum Backing {
    Lower(Arc<dyn Inode>),
    Upper(Arc<dyn Inode>),
}

impl Backing {
    fn inode(&self) -> &Arc<dyn Inode> {
        match self {
            Self::Lower(inode) | Self::Upper(inode) => inode,
        }
    }
}

impl OverlayInode {
    /// Returns the inode above a lower one: the same for all its names.
    pub fn of_lower(shared: &Arc<Shared>, lower: Arc<dyn Inode>) -> Arc<Self> {
        let metadata = lower.metadata();
        let is_directory = metadata.kind == InodeKind::Directory;
        let new = || {
            let directory = is_directory.then(|| Mutex::new(Directory::above(Some(lower.clone()))));
            Self::new(shared, metadata, Backing::Lower(lower.clone()), directory)
        };
        if is_directory || metadata.links < 2 {
            return new();
        }
        let mut by_lower = shared.by_lower.lock();
        if let Some(known) = by_lower.get(&metadata.inode).and_then(alloc::sync::Weak::upgrade) {
            return known;
        }
        let inode = new();
        by_lower.insert(metadata.inode, Arc::downgrade(&inode));
        inode
    }

    /// Creates an inode, with a backing one in the upper file system.
    pub fn create(shared: &Arc<Shared>, new: &NewInode<'_>) -> Result<Arc<Self>, Errno> {
        let Outcome::Done(backing) = shared.upper.root().create_unnamed(new) else { return Err(Errno::EIO) };
        let backing = backing?;
        let is_directory = matches!(new.content, NewContent::Directory);
        let directory = is_directory.then(|| Mutex::new(Directory::above(None)));
        let metadata = Metadata {
            inode: shared.next_number.fetch_add(1, Ordering::Relaxed),
            links: if is_directory { 2 } else { 1 },
            ..backing.metadata()
        };
        Ok(Self::new(shared, metadata, Backing::Upper(backing), directory))
    }

    fn new(
        shared: &Arc<Shared>,
        metadata: Metadata,
        backing: Backing,
        directory: Option<Mutex<Directory>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            attributes: Mutex::new(Metadata { device: shared.device, ..metadata }),
            shared: shared.clone(),
            backing: Mutex::new(backing),
            copying: AsyncLock::default(),
            directory,
        })
    }

    fn backing(&self) -> Arc<dyn Inode> {
        self.backing.lock().inode().clone()
    }

    /// Returns the backing inode if it is one of the upper file system.
    fn upper(&self) -> Option<Arc<dyn Inode>> {
        match &*self.backing.lock() {
            Backing::Upper(inode) => Some(inode.clone()),
            Backing::Lower(_) => None,
        }
    }

    pub fn add_links(&self, links: i32) {
        let mut attributes = self.attributes.lock();
        attributes.links = attributes.links.saturating_add_signed(links);
        attributes.changed = Timestamp::now();
    }

    pub fn modified_now(&self) {
        let now = Timestamp::now();
        let mut attributes = self.attributes.lock();
        (attributes.modified, attributes.changed) = (now, now);
    }

    /// Returns the backing file for changes. If it is not in the upper file system yet, it begins there as a copy of the
    /// first `len` bytes of the lower one, whose pages it shares until they change.
    async fn copy_up(&self, len: u64) -> Result<Arc<dyn Inode>, Errno> {
        let _copying = self.copying.hold().await;
        let lower = match self.backing.lock().clone() {
            Backing::Upper(upper) => return Ok(upper),
            Backing::Lower(lower) => lower,
        };
        let Ownership { user, group, permissions } = self.ownership();
        let new = NewInode { content: NewContent::File, permissions, user, group };
        let upper = self.shared.upper.root().create_unnamed(&new).await?;
        let len = len.min(lower.metadata().len);
        let contents = lower.clone().pages().filter(|_| len > 0);
        if let Some(contents) = contents {
            tmpfs::begin_as(&upper, contents, len);
        }
        for name in lower.attributes().await? {
            let value = lower.attribute(&name).await?;
            upper.set_attribute(&name, &value, AttributeMode::Any).await?;
        }
        let lower = core::mem::replace(&mut *self.backing.lock(), Backing::Upper(upper.clone()));
        drop(lower);
        Ok(upper)
    }

    /// Applies a change of the contents to the backing file, after it was copied up.
    fn change<'a, T: 'a>(
        &'a self,
        change: impl AsyncFnOnce(Arc<dyn Inode>) -> Result<T, Errno> + 'a,
    ) -> Outcome<'a, T> {
        if self.kind() != InodeKind::File {
            return Outcome::error(if self.directory.is_some() { Errno::EISDIR } else { Errno::EINVAL });
        }
        Outcome::of(async move {
            let upper = match self.upper() {
                Some(upper) => upper,
                None => self.copy_up(u64::MAX).await?,
            };
            let outcome = change(upper).await?;
            self.modified_now();
            Ok(outcome)
        })
    }
}

impl Inode for OverlayInode {
    fn kind(&self) -> InodeKind {
        self.attributes.lock().kind
    }

    fn metadata(&self) -> Metadata {
        let backing = match &self.directory {
            Some(_) => None,
            None => Some(self.backing().metadata()),
        };
        let attributes = *self.attributes.lock();
        match backing {
            Some(backing) => Metadata { len: backing.len, blocks: backing.blocks, ..attributes },
            None => attributes,
        }
    }

    fn ownership(&self) -> Ownership {
        let Metadata { user, group, permissions, .. } = *self.attributes.lock();
        Ownership { user, group, permissions }
    }

    fn set_attributes(&self, change: &AttributeChange) -> Outcome<'_, ()> {
        let mut attributes = self.attributes.lock();
        attributes.user = change.user.unwrap_or(attributes.user);
        attributes.group = change.group.unwrap_or(attributes.group);
        attributes.permissions = change.permissions.unwrap_or(attributes.permissions) & 0o7777;
        attributes.accessed = change.accessed.unwrap_or(attributes.accessed);
        attributes.modified = change.modified.unwrap_or(attributes.modified);
        attributes.changed = Timestamp::now();
        Outcome::ok(())
    }

    fn lookup(&self, name: &[u8], caller: CallerIds) -> Outcome<'_, Option<Arc<dyn Inode>>> {
        self.lookup_name(name, caller)
    }

    fn create<'a>(&'a self, name: &'a [u8], new: &'a NewInode<'a>) -> Outcome<'a, Arc<dyn Inode>> {
        Outcome::of(async move {
            let inode: Arc<dyn Inode> = self.create_name(name, new).await?;
            Ok(inode)
        })
    }

    fn create_unnamed<'a>(&'a self, new: &'a NewInode<'a>) -> Outcome<'a, Arc<dyn Inode>> {
        let created = Self::create(&self.shared, new).map(|inode| {
            inode.add_links(-1);
            let inode: Arc<dyn Inode> = inode;
            inode
        });
        created.into()
    }

    fn link<'a>(&'a self, name: &'a [u8], inode: &'a Arc<dyn Inode>) -> Outcome<'a, ()> {
        Outcome::of(self.link_name(name, inode))
    }

    fn unlink<'a>(&'a self, name: &'a [u8]) -> Outcome<'a, ()> {
        Outcome::of(self.remove_name(name, InodeKind::File))
    }

    fn remove_directory<'a>(&'a self, name: &'a [u8]) -> Outcome<'a, ()> {
        Outcome::of(self.remove_name(name, InodeKind::Directory))
    }

    fn rename<'a>(
        &'a self,
        name: &'a [u8],
        to: &'a Arc<dyn Inode>,
        to_name: &'a [u8],
        mode: RenameMode,
    ) -> Outcome<'a, ()> {
        Outcome::of(self.rename_name(name, to, to_name, mode))
    }

    fn list(&self, caller: CallerIds) -> Outcome<'_, Vec<DirectoryEntry>> {
        Outcome::of(self.list_names(caller))
    }

    fn follow(&self, caller: CallerIds) -> Outcome<'_, LinkTarget> {
        let backing = self.backing();
        Outcome::of(async move { backing.follow(caller).await })
    }

    fn open(&self, flags: u32, caller: CallerIds) -> Outcome<'_, Option<Arc<dyn FileObject>>> {
        match self.kind() {
            InodeKind::Directory => Outcome::ok(None),
            // So that a mapping of the file has the pages that writes change.
            InodeKind::File if flags & linux::O_ACCMODE != linux::O_RDONLY && self.upper().is_none() => {
                let len = if flags & linux::O_TRUNC != 0 { 0 } else { u64::MAX };
                Outcome::of(async move { self.copy_up(len).await.map(|_| None) })
            }
            InodeKind::File => Outcome::ok(None),
            _ => {
                let backing = self.backing();
                Outcome::of(async move { backing.open(flags, caller).await })
            }
        }
    }

    fn read_at<'a>(&'a self, offset: u64, buffer: &'a mut UserBuffer) -> Outcome<'a, usize> {
        let backing = self.backing();
        let len = buffer.len();
        match backing.read_at(offset, buffer) {
            Outcome::Done(result) => return Outcome::Done(result),
            // The future borrows `backing`, and cannot be returned.
            waits => drop(waits),
        }
        // The buffer has what could be read without waiting.
        let done = len - buffer.len();
        Outcome::of(async move {
            match backing.read_at(offset + done as u64, buffer).await {
                Ok(count) => Ok(done + count),
                Err(_) if done > 0 => Ok(done),
                Err(error) => Err(error),
            }
        })
    }

    fn write_at<'a>(
        &'a self,
        position: WritePosition,
        buffer: &'a mut UserBuffer,
    ) -> Outcome<'a, (usize, u64)> {
        self.change(async move |upper: Arc<dyn Inode>| upper.write_at(position, buffer).await)
    }

    fn truncate(&self, len: u64) -> Outcome<'_, ()> {
        self.change(async move |upper: Arc<dyn Inode>| upper.truncate(len).await)
    }

    fn allocate(&self, allocation: Allocation, offset: u64, len: u64) -> Outcome<'_, ()> {
        self.change(async move |upper: Arc<dyn Inode>| upper.allocate(allocation, offset, len).await)
    }

    fn seek(&self, target: SeekTarget, offset: u64) -> Outcome<'_, u64> {
        let backing = self.backing();
        Outcome::of(async move { backing.seek(target, offset).await })
    }

    fn pages(self: Arc<Self>) -> Option<Arc<dyn PageSource>> {
        self.backing().pages()
    }

    fn sync(&self) -> Outcome<'_, ()> {
        // Changes are in memory.
        Outcome::ok(())
    }

    fn attribute<'a>(&'a self, name: &'a [u8]) -> Outcome<'a, Vec<u8>> {
        let backing = self.backing();
        Outcome::of(async move { backing.attribute(name).await })
    }

    fn set_attribute<'a>(&'a self, name: &'a [u8], value: &'a [u8], mode: AttributeMode) -> Outcome<'a, ()> {
        match self.upper() {
            Some(upper) => Outcome::of(async move { upper.set_attribute(name, value, mode).await }),
            None if self.kind() == InodeKind::File => {
                self.change(async move |upper: Arc<dyn Inode>| upper.set_attribute(name, value, mode).await)
            }
            None => Outcome::error(Errno::EOPNOTSUPP),
        }
    }

    fn attributes(&self) -> Outcome<'_, Vec<Vec<u8>>> {
        let backing = self.backing();
        Outcome::of(async move { backing.attributes().await })
    }

    fn remove_attribute<'a>(&'a self, name: &'a [u8]) -> Outcome<'a, ()> {
        match self.upper() {
            Some(upper) => Outcome::of(async move { upper.remove_attribute(name).await }),
            None if self.kind() == InodeKind::File => Outcome::of(async move {
                // An error without a copy if there is no such attribute.
                self.backing().attribute(name).await?;
                self.copy_up(u64::MAX).await?.remove_attribute(name).await
            }),
            None => Outcome::error(Errno::ENODATA),
        }
    }
}
