//! Inodes of a volume.

use super::{Shared, VolumeInode, errno};
use crate::Errno;
use crate::clock::Timestamp;
use crate::inode::{
    Allocation, AttributeChange, AttributeMode, CallerIds, Inode, LinkTarget, NewContent, NewInode,
    RenameMode, WritePosition,
};
use crate::metadata::{DirectoryEntry, InodeKind, Metadata};
use crate::object::FileObject;
use crate::outcome::Outcome;
use crate::pipe::Pipe;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;
use core::time::Duration;
use isola_linux_memory::{PageSource, UserBuffer};
use isola_volumes::{
    AttributeUpdate, Attributes, ExtendedAttributeMode, FileError, FileId, FileKind, FileSystem,
    ListPosition, NewFile, NewFileKind, RangeChange, RemovedKind, RenameKind, SharedFile, Volume,
};

/// The entries that one request for a directory's entries returns.
const LISTED: usize = 128;
/// The most bytes of a symbolic link's target that ext4 stores: a block less its NUL.
const MOST_TARGET: usize = 4095;
/// The most bytes that one operation makes zeros.
const ZEROED: u64 = 128 * 1024;

fn duration(time: Timestamp) -> Duration {
    Duration::new(u64::try_from(time.seconds).unwrap_or_default(), time.nanoseconds)
}

impl VolumeInode {
    /// Takes over the attributes that the volume has. Dirty pages change some of them.
    pub(super) fn set_metadata(&self, mut metadata: Metadata) {
        let pages = self.pages.lock();
        if let Some(unwritten) = &pages.unwritten {
            unwritten.adjust(&mut metadata);
        }
        *self.metadata.lock() = metadata;
    }

    /// Runs an operation that changes names, and takes over the attributes that it returns.
    async fn change_names<F>(&self, operation: impl FnOnce(Volume) -> F + Send + 'static) -> Result<(), Errno>
    where
        F: Future<Output = Result<Vec<Attributes>, FileError>> + 'static,
    {
        self.shared.check_changes()?;
        self.shared.count_names();
        let changed = self.shared.volume.with(operation).await.map_err(errno)?;
        self.shared.refresh(&changed);
        Ok(())
    }

    /// Runs an operation of the file system on this file.
    async fn on_volume<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut dyn FileSystem, FileId) -> Result<T, FileError> + Send + 'static,
    ) -> Result<T, FileError> {
        let id = self.id;
        let volume = self.shared.volume;
        volume
            .with(move |volume| async move {
                volume.with_file_system(move |file_system| operation(file_system, id)).await
            })
            .await
    }

    async fn find(&self, name: Vec<u8>) -> Result<Option<Arc<dyn Inode>>, Errno> {
        self.shared.check_open()?;
        let (volume, id) = (self.shared.volume, self.id);
        let found: Option<(Attributes, Option<SharedFile>)> = match self.shared.check_changes() {
            Ok(()) => {
                let open = volume.with(move |volume| async move {
                    let found = volume.open_in(id, name).await?;
                    Ok(found.map(|(attributes, file)| (attributes, Some(Rc::new(file).share()))))
                });
                open.await.map_err(errno)?
            }
            Err(_) => {
                let find = volume.with(move |volume| async move {
                    if volume.is_local() {
                        let found = volume.attributes_in(id, name).await?;
                        return Ok(found.map(|attributes| (attributes, None)));
                    }
                    let found = volume.open_in(id, name).await?;
                    Ok(found.map(|(attributes, file)| (attributes, Some(Rc::new(file).share()))))
                });
                find.await.map_err(errno)?
            }
        };
        let Some((attributes, file)) = found else { return Ok(None) };
        let inode: Arc<dyn Inode> = self.shared.inode(&attributes, file).ok_or(Errno::EIO)?;
        Ok(Some(inode))
    }

    async fn create_name(&self, name: Vec<u8>, new: NewFile) -> Result<Arc<dyn Inode>, Errno> {
        self.shared.check_changes()?;
        self.shared.count_names();
        let (volume, id) = (self.shared.volume, self.id);
        let create = volume.with(move |volume| async move {
            let (file, changed) = volume.create_in(id, name, new).await?;
            Ok((Rc::new(file).share(), changed))
        });
        let (file, changed) = create.await.map_err(errno)?;
        let own = changed.first().ok_or(Errno::EIO)?;
        let inode: Arc<dyn Inode> = self.shared.inode(own, Some(file)).ok_or(Errno::EIO)?;
        self.shared.refresh(&changed);
        Ok(inode)
    }

    async fn read_entries(&self) -> Result<Vec<DirectoryEntry>, Errno> {
        let (volume, id) = (self.shared.volume, self.id);
        let mut entries = Vec::new();
        let mut position = Some(ListPosition::default());
        while let Some(from) = position {
            let list = volume.with(move |volume| async move { volume.list_in(id, from, LISTED).await });
            let (listed, next) = list.await.map_err(errno)?;
            position = next;
            entries.extend(listed.into_iter().map(|entry| DirectoryEntry {
                name: entry.name,
                inode: entry.id.0,
                kind: match entry.kind {
                    FileKind::File => InodeKind::File,
                    FileKind::Directory => InodeKind::Directory,
                    // Nearly all others are.
                    FileKind::Other => InodeKind::Symlink,
                },
            }));
        }
        Ok(entries)
    }

    /// Makes a range zeros within the file, by writing.
    async fn zero(&self, offset: u64, end: u64) -> Result<(), Errno> {
        let mut at = offset;
        while at < end {
            let len = ZEROED.min(end - at);
            let zero =
                move |volume: &mut dyn FileSystem, id| volume.write(id, at, &alloc::vec![0; len as usize]);
            self.change(zero, |pages| pages.clear(at, at + len)).await?;
            at += len;
        }
        Ok(())
    }

    async fn change_storage(&self, allocation: Allocation, offset: u64, len: u64) -> Result<(), Errno> {
        let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
        let reserve =
            |kind| move |volume: &mut dyn FileSystem, id| volume.change_range(id, kind, offset, len);
        self.shared.make_room(len).await?;
        self.shared.forget_credits();
        match allocation {
            Allocation::Reserve => self.change(reserve(RangeChange::Reserve), |_| {}).await,
            Allocation::ReserveKeepLen => self.change(reserve(RangeChange::ReserveKeepLen), |_| {}).await,
            Allocation::PunchHole => {
                let end = end.min(self.len());
                if offset >= end {
                    return Ok(());
                }
                let punch = move |volume: &mut dyn FileSystem, id| {
                    volume.change_range(id, RangeChange::PunchHole, offset, end - offset)
                };
                self.change(punch, |pages| pages.clear(offset, end)).await
            }
            Allocation::Zero => self.zero(offset, end).await,
            Allocation::ZeroKeepLen => {
                let end = end.min(self.len());
                self.zero(offset, end).await
            }
        }
    }
}

fn new_file(new: &NewInode<'_>) -> Result<NewFile, Errno> {
    let NewInode { permissions, user, group, .. } = *new;
    let kind = match new.content {
        NewContent::File => NewFileKind::File,
        NewContent::Directory => NewFileKind::Directory,
        NewContent::Symlink(target) if target.len() > MOST_TARGET => return Err(Errno::ENAMETOOLONG),
        NewContent::Symlink(target) => NewFileKind::Symlink(target.to_vec()),
        NewContent::Device(InodeKind::BlockDevice, number) => {
            NewFileKind::BlockDevice(number.major, number.minor)
        }
        NewContent::Device(_, number) => NewFileKind::CharacterDevice(number.major, number.minor),
        NewContent::Fifo => NewFileKind::Fifo,
        NewContent::Socket => NewFileKind::Socket,
    };
    Ok(NewFile { kind, permissions, user, group })
}

/// Converts the error of an extended attribute.
fn attribute_errno(error: FileError) -> Errno {
    match error {
        FileError::NotFound => Errno::ENODATA,
        error => errno(error),
    }
}

impl Inode for VolumeInode {
    fn kind(&self) -> InodeKind {
        self.kind
    }

    fn metadata(&self) -> Metadata {
        *self.metadata.lock()
    }

    fn set_attributes(&self, change: &AttributeChange) -> Outcome<'_, ()> {
        let Metadata { user, group, .. } = self.metadata();
        let owner = (change.user.is_some() || change.group.is_some())
            .then(|| (change.user.unwrap_or(user), change.group.unwrap_or(group)));
        let update = AttributeUpdate {
            permissions: change.permissions,
            owner,
            accessed: change.accessed.map(duration),
            modified: change.modified.map(duration),
        };
        let (id, change) = (self.id, *change);
        Outcome::of(async move {
            if change.accessed.is_some() || change.modified.is_some() {
                // A later write of dirty pages would set the time.
                self.write_dirty().await?;
            }
            let update =
                move |volume: Volume| async move { Ok(alloc::vec![volume.update(id, update).await?]) };
            self.change_names(update).await?;
            // The volume returns whole seconds.
            let mut metadata = self.metadata.lock();
            metadata.accessed = change.accessed.unwrap_or(metadata.accessed);
            metadata.modified = change.modified.unwrap_or(metadata.modified);
            Ok(())
        })
    }

    fn lookup(&self, name: &[u8], _caller: CallerIds) -> Outcome<'_, Option<Arc<dyn Inode>>> {
        if self.kind != InodeKind::Directory {
            return Outcome::error(Errno::ENOTDIR);
        }
        Outcome::of(self.find(name.to_vec()))
    }

    fn create<'a>(&'a self, name: &'a [u8], new: &'a NewInode<'a>) -> Outcome<'a, Arc<dyn Inode>> {
        match new_file(new) {
            Ok(new) => Outcome::of(self.create_name(name.to_vec(), new)),
            Err(error) => Outcome::error(error),
        }
    }

    fn link<'a>(&'a self, name: &'a [u8], inode: &'a Arc<dyn Inode>) -> Outcome<'a, ()> {
        let Some(file) = inode.downcast::<Self>().filter(|file| Arc::ptr_eq(&file.shared, &self.shared))
        else {
            return Outcome::error(Errno::EXDEV);
        };
        if file.metadata().links == 0 {
            return Outcome::error(Errno::ENOENT);
        }
        let (id, file, name) = (self.id, file.id, name.to_vec());
        Outcome::of(self.change_names(move |volume| async move { volume.link_in(file, id, name).await }))
    }

    fn unlink<'a>(&'a self, name: &'a [u8]) -> Outcome<'a, ()> {
        let (id, name) = (self.id, name.to_vec());
        Outcome::of(
            self.change_names(
                move |volume| async move { volume.remove_in(id, name, RemovedKind::Other).await },
            ),
        )
    }

    fn remove_directory<'a>(&'a self, name: &'a [u8]) -> Outcome<'a, ()> {
        let (id, name) = (self.id, name.to_vec());
        Outcome::of(self.change_names(move |volume| async move {
            volume.remove_in(id, name, RemovedKind::Directory).await
        }))
    }

    fn rename<'a>(
        &'a self,
        name: &'a [u8],
        to: &'a Arc<dyn Inode>,
        to_name: &'a [u8],
        mode: RenameMode,
    ) -> Outcome<'a, ()> {
        let Some(to) = to.downcast::<Self>().filter(|to| Arc::ptr_eq(&to.shared, &self.shared)) else {
            return Outcome::error(Errno::EXDEV);
        };
        let kind = match mode {
            RenameMode::Replace => RenameKind::Replace,
            RenameMode::KeepTarget => RenameKind::KeepTarget,
            RenameMode::Exchange => RenameKind::Exchange,
        };
        let (from, to) = ((self.id, name.to_vec()), (to.id, to_name.to_vec()));
        Outcome::of(async move {
            // The new name has the new contents after a crash as well (as `auto_da_alloc` of ext4).
            self.shared.write_back().await?;
            self.change_names(move |volume| async move { volume.rename_in(from, to, kind).await }).await
        })
    }

    fn list(&self, _caller: CallerIds) -> Outcome<'_, Vec<DirectoryEntry>> {
        Outcome::of(self.read_entries())
    }

    fn follow(&self, _caller: CallerIds) -> Outcome<'_, LinkTarget> {
        if self.kind != InodeKind::Symlink {
            return Outcome::error(Errno::EINVAL);
        }
        let (volume, id) = (self.shared.volume, self.id);
        Outcome::of(async move {
            let target = volume.with(move |volume| async move { volume.link_target(id).await });
            target.await.map(LinkTarget::Path).map_err(errno)
        })
    }

    fn open(&self, flags: u32, _caller: CallerIds) -> Outcome<'_, Option<Arc<dyn FileObject>>> {
        match self.kind {
            InodeKind::File | InodeKind::Directory => Outcome::ok(None),
            InodeKind::Symlink => Outcome::error(Errno::ELOOP),
            InodeKind::Fifo => self.fifo.call_once(Pipe::new).open(flags),
            _ => Outcome::error(Errno::ENXIO),
        }
    }

    fn read_at<'a>(&'a self, offset: u64, buffer: &'a mut UserBuffer) -> Outcome<'a, usize> {
        if self.kind != InodeKind::File {
            return Outcome::error(Errno::EINVAL);
        }
        let (mut count, mut missing) = self.read_cached(offset, buffer);
        if missing.is_none() {
            return Outcome::ok(count);
        }
        Outcome::of(async move {
            while let Some(page) = missing {
                match self.read_pages(page).await {
                    Ok(frame) => {
                        let (more, next) = self.read_cached(offset + count as u64, buffer);
                        // Until here, so that the page is not dropped.
                        drop(frame);
                        count += more;
                        missing = next;
                    }
                    // The file is shorter now.
                    Err(Errno::EFAULT) => break,
                    Err(_) if count > 0 => break,
                    Err(error) => return Err(error),
                }
            }
            Ok(count)
        })
    }

    fn write_at<'a>(
        &'a self,
        position: WritePosition,
        buffer: &'a mut UserBuffer,
    ) -> Outcome<'a, (usize, u64)> {
        Outcome::of(self.write(position, buffer))
    }

    fn truncate(&self, len: u64) -> Outcome<'_, ()> {
        let truncate = move |volume: &mut dyn FileSystem, id| volume.truncate(id, len);
        Outcome::of(self.change(truncate, move |pages| pages.truncate(len)))
    }

    fn allocate(&self, allocation: Allocation, offset: u64, len: u64) -> Outcome<'_, ()> {
        Outcome::of(self.change_storage(allocation, offset, len))
    }

    fn pages(self: Arc<Self>) -> Option<Arc<dyn PageSource>> {
        (self.kind == InodeKind::File).then_some(self as Arc<dyn PageSource>)
    }

    fn sync(&self) -> Outcome<'_, ()> {
        Outcome::of(async move {
            self.write_mapped(0..u64::MAX).await?;
            let outcome = Shared::sync(&self.shared).await;
            self.take_error().and(outcome)
        })
    }

    fn attribute<'a>(&'a self, name: &'a [u8]) -> Outcome<'a, Vec<u8>> {
        let name = name.to_vec();
        Outcome::of(async move {
            self.on_volume(move |volume, id| volume.extended_attribute(id, &name))
                .await
                .map_err(attribute_errno)
        })
    }

    fn set_attribute<'a>(&'a self, name: &'a [u8], value: &'a [u8], mode: AttributeMode) -> Outcome<'a, ()> {
        let mode = match mode {
            AttributeMode::Any => ExtendedAttributeMode::Any,
            AttributeMode::Create => ExtendedAttributeMode::Create,
            AttributeMode::Replace => ExtendedAttributeMode::Replace,
        };
        let (name, value) = (name.to_vec(), value.to_vec());
        Outcome::of(async move {
            self.shared.check_changes()?;
            let set =
                move |volume: &mut dyn FileSystem, id| volume.set_extended_attribute(id, &name, &value, mode);
            self.on_volume(set).await.map_err(attribute_errno)?;
            self.shared.note_change();
            Ok(())
        })
    }

    fn attributes(&self) -> Outcome<'_, Vec<Vec<u8>>> {
        Outcome::of(async move {
            self.on_volume(|volume, id| volume.extended_attributes(id)).await.map_err(attribute_errno)
        })
    }

    fn remove_attribute<'a>(&'a self, name: &'a [u8]) -> Outcome<'a, ()> {
        let name = name.to_vec();
        Outcome::of(async move {
            self.shared.check_changes()?;
            let remove = move |volume: &mut dyn FileSystem, id| volume.remove_extended_attribute(id, &name);
            self.on_volume(remove).await.map_err(attribute_errno)?;
            self.shared.note_change();
            Ok(())
        })
    }
}
