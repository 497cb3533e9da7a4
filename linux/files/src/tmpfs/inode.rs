//! Inodes of a file system in memory.

use super::Shared;
use super::names::Directory;
use super::original::Copied;
use super::pages::FilePages;
use crate::Errno;
use crate::clock::Timestamp;
use crate::credentials::Ownership;
use crate::inode::{
    Allocation, AttributeChange, AttributeMode, CallerIds, Inode, LinkTarget, NewContent, NewInode,
    RenameMode, SeekTarget, WritePosition,
};
use crate::metadata::{DeviceNumber, DirectoryEntry, InodeKind, Metadata};
use crate::object::FileObject;
use crate::outcome::Outcome;
use crate::pipe::Pipe;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use isola_linux_abi::numbers as linux;
use isola_linux_memory::{PageSource, UserBuffer};
use isola_memory::frame::FRAME_SIZE;
use spin::Mutex;

/// The most bytes of the extended attributes of an inode.
const MOST_ATTRIBUTE_BYTES: usize = 65536;

/// An inode in memory.
pub(super) struct TmpInode {
    pub(super) shared: Arc<Shared>,
    pub(super) number: u64,
    kind: InodeKind,
    attributes: Mutex<Attributes>,
    pub(super) content: Content,
}

struct Attributes {
    owner: Ownership,
    links: u32,
    accessed: Timestamp,
    modified: Timestamp,
    changed: Timestamp,
    created: Timestamp,
    extended: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The contents of an inode.
pub(super) enum Content {
    File(FilePages),
    Directory(Mutex<Directory>),
    Symlink(Vec<u8>),
    Device(DeviceNumber),
    Fifo(Arc<Pipe>),
    Socket,
}

impl TmpInode {
    pub fn root(shared: &Arc<Shared>, permissions: u32) -> Arc<Self> {
        shared.inodes.fetch_add(1, Ordering::Relaxed);
        let owner = Ownership { user: 0, group: 0, permissions };
        Self::with_content(shared, InodeKind::Directory, Content::Directory(Mutex::default()), owner, 2)
    }

    /// Creates an inode with this number of names.
    pub fn new(shared: &Arc<Shared>, new: &NewInode<'_>, links: u32) -> Result<Arc<Self>, Errno> {
        Shared::take(&shared.inodes, shared.options.most_inodes)?;
        let content = match new.content {
            NewContent::File => Content::File(FilePages::new(shared.clone())),
            NewContent::Directory => Content::Directory(Mutex::default()),
            NewContent::Symlink(target) => Content::Symlink(target.to_vec()),
            NewContent::Device(_, number) => Content::Device(number),
            NewContent::Fifo => Content::Fifo(Pipe::new()),
            NewContent::Socket => Content::Socket,
        };
        let NewInode { permissions, user, group, .. } = *new;
        let owner = Ownership { user, group, permissions };
        Ok(Self::with_content(shared, new.content.kind(), content, owner, links))
    }

    fn with_content(
        shared: &Arc<Shared>,
        kind: InodeKind,
        content: Content,
        owner: Ownership,
        links: u32,
    ) -> Arc<Self> {
        let now = Timestamp::now();
        let extended = BTreeMap::new();
        let attributes =
            Attributes { owner, links, accessed: now, modified: now, changed: now, created: now, extended };
        Arc::new(Self {
            shared: shared.clone(),
            number: shared.next_inode.fetch_add(1, Ordering::Relaxed),
            kind,
            attributes: Mutex::new(attributes),
            content,
        })
    }

    pub(super) fn pages(&self) -> Result<&FilePages, Errno> {
        match &self.content {
            Content::File(pages) => Ok(pages),
            Content::Directory(_) => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Changes the number of names, by this.
    pub fn add_links(&self, links: i32) {
        let mut attributes = self.attributes.lock();
        attributes.links = attributes.links.saturating_add_signed(links);
        attributes.changed = Timestamp::now();
    }

    pub fn links(&self) -> u32 {
        self.attributes.lock().links
    }

    /// Records a change of the contents.
    pub fn modified_now(&self) {
        let now = Timestamp::now();
        let mut attributes = self.attributes.lock();
        attributes.modified = now;
        attributes.changed = now;
    }

    fn set_attribute_now(&self, name: &[u8], value: &[u8], mode: AttributeMode) -> Result<(), Errno> {
        if !name.starts_with(b"user.") && !name.starts_with(b"trusted.") && !name.starts_with(b"security.") {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut attributes = self.attributes.lock();
        match (mode, attributes.extended.contains_key(name)) {
            (AttributeMode::Create, true) => return Err(Errno::EEXIST),
            (AttributeMode::Replace, false) => return Err(Errno::ENODATA),
            _ => {}
        }
        let others = attributes.extended.iter().filter(|(other, _)| *other != name);
        let used: usize = others.map(|(name, value)| name.len() + value.len()).sum();
        if used + name.len() + value.len() > MOST_ATTRIBUTE_BYTES {
            return Err(Errno::ENOSPC);
        }
        attributes.extended.insert(name.to_vec(), value.to_vec());
        attributes.changed = Timestamp::now();
        Ok(())
    }
}

impl Drop for TmpInode {
    fn drop(&mut self) {
        self.shared.inodes.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Inode for TmpInode {
    fn kind(&self) -> InodeKind {
        self.kind
    }

    fn metadata(&self) -> Metadata {
        let (len, pages) = match &self.content {
            Content::File(pages) => pages.len_and_pages(),
            Content::Directory(directory) => (directory.lock().len(), 0),
            Content::Symlink(target) => (target.len() as u64, 0),
            Content::Device(_) | Content::Fifo(_) | Content::Socket => (0, 0),
        };
        let attributes = self.attributes.lock();
        Metadata {
            device: self.shared.device,
            inode: self.number,
            kind: self.kind,
            permissions: attributes.owner.permissions,
            links: attributes.links,
            user: attributes.owner.user,
            group: attributes.owner.group,
            len,
            blocks: pages * (FRAME_SIZE as u64 / 512),
            block_len: FRAME_SIZE as u32,
            accessed: attributes.accessed,
            modified: attributes.modified,
            changed: attributes.changed,
            created: attributes.created,
            special: if let Content::Device(number) = self.content {
                number
            } else {
                DeviceNumber::default()
            },
        }
    }

    fn ownership(&self) -> Ownership {
        self.attributes.lock().owner
    }

    fn set_attributes(&self, change: &AttributeChange) -> Outcome<'_, ()> {
        let is_sealed = self.pages().is_ok_and(|pages| pages.seals() & linux::F_SEAL_EXEC != 0);
        let mut attributes = self.attributes.lock();
        let Ownership { user, group, permissions } = attributes.owner;
        let changes_execution = change.permissions.is_some_and(|new| (new ^ permissions) & 0o111 != 0);
        if is_sealed && changes_execution {
            return Outcome::error(Errno::EPERM);
        }
        attributes.owner = Ownership {
            user: change.user.unwrap_or(user),
            group: change.group.unwrap_or(group),
            permissions: change.permissions.unwrap_or(permissions) & 0o7777,
        };
        attributes.accessed = change.accessed.unwrap_or(attributes.accessed);
        attributes.modified = change.modified.unwrap_or(attributes.modified);
        attributes.changed = Timestamp::now();
        Outcome::ok(())
    }

    fn touch(&self) {
        // As `relatime`: the time of a read matters if there was a change since the last one.
        let mut attributes = self.attributes.lock();
        if attributes.accessed <= attributes.modified || attributes.accessed <= attributes.changed {
            attributes.accessed = Timestamp::now();
        }
    }

    fn lookup(&self, name: &[u8], _caller: CallerIds) -> Outcome<'_, Option<Arc<dyn Inode>>> {
        self.lookup_now(name).map(|found| found.map(|inode| inode as Arc<dyn Inode>)).into()
    }

    fn create<'a>(&'a self, name: &'a [u8], new: &'a NewInode<'a>) -> Outcome<'a, Arc<dyn Inode>> {
        self.create_now(name, new).map(|inode| inode as Arc<dyn Inode>).into()
    }

    fn create_unnamed<'a>(&'a self, new: &'a NewInode<'a>) -> Outcome<'a, Arc<dyn Inode>> {
        Self::new(&self.shared, new, 0).map(|inode| inode as Arc<dyn Inode>).into()
    }

    fn link<'a>(&'a self, name: &'a [u8], inode: &'a Arc<dyn Inode>) -> Outcome<'a, ()> {
        self.link_now(name, inode).into()
    }

    fn unlink<'a>(&'a self, name: &'a [u8]) -> Outcome<'a, ()> {
        self.unlink_now(name).into()
    }

    fn remove_directory<'a>(&'a self, name: &'a [u8]) -> Outcome<'a, ()> {
        self.remove_directory_now(name).into()
    }

    fn rename<'a>(
        &'a self,
        name: &'a [u8],
        to: &'a Arc<dyn Inode>,
        to_name: &'a [u8],
        mode: RenameMode,
    ) -> Outcome<'a, ()> {
        self.rename_now(name, to, to_name, mode).into()
    }

    fn list(&self, _caller: CallerIds) -> Outcome<'_, Vec<DirectoryEntry>> {
        match &self.content {
            Content::Directory(directory) => Outcome::ok(directory.lock().list()),
            _ => Outcome::error(Errno::ENOTDIR),
        }
    }

    fn follow(&self, _caller: CallerIds) -> Outcome<'_, LinkTarget> {
        match &self.content {
            Content::Symlink(target) => Outcome::ok(LinkTarget::Path(target.clone())),
            _ => Outcome::error(Errno::EINVAL),
        }
    }

    fn open(&self, flags: u32, caller: CallerIds) -> Outcome<'_, Option<Arc<dyn FileObject>>> {
        match &self.content {
            Content::File(_) | Content::Directory(_) => Outcome::ok(None),
            Content::Device(number) => {
                self.shared.options.devices.open(self.kind, *number, flags, caller).map(Some).into()
            }
            Content::Fifo(pipe) => pipe.open(flags),
            Content::Symlink(_) => Outcome::error(Errno::ELOOP),
            Content::Socket => Outcome::error(Errno::ENXIO),
        }
    }

    fn read_at<'a>(&'a self, offset: u64, buffer: &'a mut UserBuffer) -> Outcome<'a, usize> {
        let read = match self.pages() {
            Ok(pages) => pages.read(offset, buffer),
            Err(error) => return Outcome::error(error),
        };
        match read {
            (count, None) => Outcome::ok(count),
            waits => Outcome::of(self.read_waiting(offset, buffer, waits)),
        }
    }

    fn write_at<'a>(
        &'a self,
        position: WritePosition,
        buffer: &'a mut UserBuffer,
    ) -> Outcome<'a, (usize, u64)> {
        let pages = match self.pages() {
            Ok(pages) => pages,
            Err(error) => return Outcome::error(error),
        };
        let start = match position {
            WritePosition::At(offset) => offset,
            WritePosition::End => pages.len_and_pages().0,
        };
        let region = start..start.saturating_add(buffer.len() as u64);
        if pages.needs_original(&region) {
            return Outcome::of(async move {
                pages.copy_originals(region, Copied::Borders).await?;
                let written = pages.write(position, buffer)?;
                self.modified_now();
                Ok(written)
            });
        }
        let written = pages.write(position, buffer);
        if written.is_ok() {
            self.modified_now();
        }
        written.into()
    }

    fn truncate(&self, len: u64) -> Outcome<'_, ()> {
        self.truncate_file(len)
    }

    fn allocate(&self, allocation: Allocation, offset: u64, len: u64) -> Outcome<'_, ()> {
        self.allocate_region(allocation, offset, len)
    }

    fn seals(&self) -> Result<u32, Errno> {
        self.pages().map(FilePages::seals).map_err(|_| Errno::EINVAL)
    }

    fn add_seals(&self, seals: u32) -> Result<(), Errno> {
        let pages = self.pages().map_err(|_| Errno::EINVAL)?;
        let is_executable = self.ownership().permissions & 0o111 != 0;
        pages.add_seals(seals, PageSource::identity(self), is_executable)
    }

    fn seek(&self, target: SeekTarget, offset: u64) -> Outcome<'_, u64> {
        self.pages().and_then(|pages| pages.seek(target, offset)).into()
    }

    fn pages(self: Arc<Self>) -> Option<Arc<dyn PageSource>> {
        matches!(self.content, Content::File(_)).then_some(self as Arc<dyn PageSource>)
    }

    fn attribute<'a>(&'a self, name: &'a [u8]) -> Outcome<'a, Vec<u8>> {
        self.attributes.lock().extended.get(name).cloned().ok_or(Errno::ENODATA).into()
    }

    fn set_attribute<'a>(&'a self, name: &'a [u8], value: &'a [u8], mode: AttributeMode) -> Outcome<'a, ()> {
        self.set_attribute_now(name, value, mode).into()
    }

    fn attributes(&self) -> Outcome<'_, Vec<Vec<u8>>> {
        Outcome::ok(self.attributes.lock().extended.keys().cloned().collect())
    }

    fn remove_attribute<'a>(&'a self, name: &'a [u8]) -> Outcome<'a, ()> {
        self.attributes.lock().extended.remove(name).map(drop).ok_or(Errno::ENODATA).into()
    }
}
