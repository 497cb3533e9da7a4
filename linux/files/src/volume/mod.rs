//! A volume (ext4 on a block device) as a file system: read-only, below an overlay or by itself, or for changes.
//!
//! - `inode.rs`: inodes, their names and attributes.
//! - `pages.rs`: the contents of files as frames, which reads, writes and mappings share.
//! - `write_back.rs`: small writes, which the pages gather.
//!
//! **Changes.** A call that changes names, attributes or storage is one operation of the volume, which is complete when the
//! call returns, and permanent after the next `sync` of any file: docs/storage.md has the guarantees. Writes are gathered in
//! the pages, and written together. Pages that programs
//! change through shared mappings are written by `msync`, `fsync` and `sync`, and at the latest at the file system's next
//! sync ([`VolumeFs::changed`] says that one is due).
//!
//! A file without a name can be used until its last user is gone: each inode of a volume for changes is an open file of the
//! volume. Nothing else may change the volume.

mod inode;
mod pages;
mod write_back;

use crate::Errno;
use crate::async_lock::AsyncLock;
use crate::clock::Timestamp;
use crate::inode::{FileSystem, Inode};
use crate::metadata::{DeviceNumber, FileSystemStatistics, InodeKind, Metadata, new_device};
use crate::outcome::Outcome;
use crate::pipe::Pipe;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::future::poll_fn;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::task::{Poll, Waker};
use core::time::Duration;
use isola_memory::frame::{FRAME_SIZE, Frame};
use isola_volumes::{Attributes, FileError, FileId, SharedFile, SharedVolume};
use pages::Pages;
use spin::{Mutex, Once};

/// The type in `statfs` (`EXT4_SUPER_MAGIC`).
const MAGIC: u64 = 0xef53;
const PAGE: u64 = FRAME_SIZE as u64;
/// The seconds after a change from which on a later one has another time.
const SETTLED_AFTER: i64 = 2;

/// Whether programs can change a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeChanges {
    /// They can.
    Permitted,
    /// They cannot: calls return EROFS.
    Refused,
}

/// A volume as a file system.
pub struct VolumeFs {
    shared: Arc<Shared>,
    root: Arc<VolumeInode>,
}

struct Shared {
    volume: SharedVolume,
    device: DeviceNumber,
    changes: VolumeChanges,
    /// Whether another cell may change the files, which this one reads.
    is_shared: bool,
    /// The inodes that are in use, so that all names of a file share its pages.
    inodes: Mutex<BTreeMap<u64, Weak<VolumeInode>>>,
    /// The pages in memory, and the number above which unused ones are dropped.
    pages: AtomicU64,
    most_pages: u64,
    /// The pages that are dirty, and how many more may become so before the free space is counted again.
    dirty: AtomicU64,
    credits: AtomicU64,
    unsynced: Mutex<Unsynced>,
    /// Files are not opened any more.
    is_closed: AtomicBool,
}

/// Changes since the latest sync.
#[derive(Default)]
struct Unsynced {
    is_changed: bool,
    /// Inodes with pages that mappings have changed. They stay until these are written.
    mapped: BTreeMap<u64, Arc<VolumeInode>>,
    /// Inodes with dirty pages. They stay until these are written.
    dirty: BTreeMap<u64, Arc<VolumeInode>>,
    waiter: Option<Waker>,
}

struct VolumeInode {
    shared: Arc<Shared>,
    id: FileId,
    kind: InodeKind,
    metadata: Mutex<Metadata>,
    pages: Mutex<Pages>,
    /// The open file of the volume. Held while pages are read and contents change, so that two calls do not read the same
    /// pages, and a read does not fetch old contents during a change.
    file: AsyncLock<Option<SharedFile>>,
    fifo: Once<Arc<Pipe>>,
}

fn errno(error: FileError) -> Errno {
    match error {
        FileError::NotFound => Errno::ENOENT,
        FileError::AlreadyExists => Errno::EEXIST,
        FileError::NotADirectory => Errno::ENOTDIR,
        FileError::IsADirectory => Errno::EISDIR,
        FileError::NotEmpty => Errno::ENOTEMPTY,
        FileError::InvalidName | FileError::Invalid => Errno::EINVAL,
        FileError::NoSpace => Errno::ENOSPC,
        FileError::TooLarge => Errno::EFBIG,
        // As ext4 after an error of the disk.
        FileError::ReadOnly | FileError::Aborted => Errno::EROFS,
        FileError::NoMemory | FileError::Busy => Errno::ENOMEM,
        FileError::Unsupported => Errno::EOPNOTSUPP,
        _ => Errno::EIO,
    }
}

impl VolumeFs {
    /// Prepares a mounted volume. It keeps up to `most_pages` pages of files in memory that are not mapped.
    ///
    /// # Errors
    /// Those of the volume.
    pub async fn new(
        volume: SharedVolume,
        changes: VolumeChanges,
        most_pages: u64,
    ) -> Result<Arc<Self>, FileError> {
        let is_local = volume.with(|volume| async move { Ok(volume.is_local()) }).await?;
        let shared = Arc::new(Shared {
            volume,
            device: new_device(),
            changes,
            is_shared: !is_local && changes == VolumeChanges::Refused,
            inodes: Mutex::default(),
            pages: AtomicU64::new(0),
            most_pages,
            dirty: AtomicU64::new(0),
            credits: AtomicU64::new(0),
            unsynced: Mutex::default(),
            is_closed: AtomicBool::new(false),
        });
        let root = volume.with(|volume| async move { volume.root_attributes().await }).await?;
        let root = shared.inode(&root, None).ok_or(FileError::Damaged)?;
        Ok(Arc::new(Self { shared, root }))
    }

    /// Returns whether programs can change it.
    pub fn is_writable(&self) -> bool {
        self.shared.changes == VolumeChanges::Permitted
    }

    /// Returns the number of pages in memory that the volume has as well, and of those that it does not have yet.
    pub fn page_counts(&self) -> (u64, u64) {
        let dirty = self.shared.dirty.load(Ordering::Relaxed);
        (self.shared.pages.load(Ordering::Relaxed).saturating_sub(dirty), dirty)
    }

    /// Returns the number of pages that no mapping and no call uses, and that the volume has as well.
    pub fn unused_pages(&self) -> u64 {
        self.shared.all_inodes().iter().map(|inode| inode.pages.lock().unused_count()).sum()
    }

    /// Drops at least `least` of these pages, if there are so many, and returns their number.
    pub fn drop_unused(&self, least: u64) -> u64 {
        self.shared.drop_unused(least)
    }

    /// Drops those of these pages that are at addresses of a range.
    pub fn drop_unused_at(&self, addresses: &Range<usize>) {
        for inode in self.shared.all_inodes() {
            let is_within = |frame: &Frame| addresses.contains(&frame.address().addr().get());
            let dropped = inode.pages.lock().drop_unused_if(is_within);
            self.shared.pages.fetch_sub(dropped.len() as u64, Ordering::Relaxed);
        }
    }

    /// Writes all changes and closes all files, so that the volume can be unmounted. Calls on files fail afterwards.
    ///
    /// # Errors
    /// Those of a sync. The files are closed nevertheless.
    pub async fn close(&self) -> Result<(), Errno> {
        let outcome =
            if self.shared.changes == VolumeChanges::Refused { Ok(()) } else { self.shared.sync().await };
        self.shared.is_closed.store(true, Ordering::Relaxed);
        for inode in self.shared.all_inodes() {
            let held = inode.file.hold().await;
            let file = held.get().take();
            drop(file);
        }
        outcome
    }

    /// Waits until there are changes since the latest [`sync`](FileSystem::sync).
    pub async fn changed(&self) {
        poll_fn(|context| {
            let mut unsynced = self.shared.unsynced.lock();
            if unsynced.is_changed {
                return Poll::Ready(());
            }
            unsynced.waiter = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Shared {
    /// Returns the inode with these attributes, which it has from now on; `None` for an unknown type.
    fn inode(
        self: &Arc<Self>,
        attributes: &Attributes,
        file: Option<SharedFile>,
    ) -> Option<Arc<VolumeInode>> {
        let metadata = self.metadata(attributes)?;
        let mut inodes = self.inodes.lock();
        if let Some(known) = inodes.get(&attributes.id.0).and_then(Weak::upgrade) {
            drop(inodes);
            if self.is_shared {
                known.see_change(metadata);
            }
            return Some(known);
        }
        let inode = Arc::new(VolumeInode {
            shared: self.clone(),
            id: attributes.id,
            kind: metadata.kind,
            metadata: Mutex::new(metadata),
            pages: Mutex::default(),
            file: AsyncLock::new(file),
            fifo: Once::new(),
        });
        inodes.insert(attributes.id.0, Arc::downgrade(&inode));
        Some(inode)
    }

    fn metadata(&self, attributes: &Attributes) -> Option<Metadata> {
        let time = |time: Duration| Timestamp {
            seconds: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: time.subsec_nanos(),
        };
        let (major, minor) = attributes.device.unwrap_or_default();
        Some(Metadata {
            device: self.device,
            inode: attributes.id.0,
            kind: InodeKind::of_mode(attributes.mode)?,
            permissions: attributes.mode & 0o7777,
            links: attributes.links,
            user: attributes.user,
            group: attributes.group,
            len: attributes.len,
            blocks: attributes.blocks,
            block_len: FRAME_SIZE as u32,
            accessed: time(attributes.accessed),
            modified: time(attributes.modified),
            changed: time(attributes.changed),
            created: time(attributes.created),
            special: DeviceNumber::new(major, minor),
        })
    }

    /// Takes over the attributes of inodes that are in use.
    fn refresh(&self, changed: &[Attributes]) {
        for attributes in changed {
            let known = self.inodes.lock().get(&attributes.id.0).and_then(Weak::upgrade);
            if let (Some(known), Some(metadata)) = (known, self.metadata(attributes)) {
                known.set_metadata(metadata);
            }
        }
        self.note_change();
    }

    /// Notes that there is something to sync.
    fn note_change(&self) {
        let mut unsynced = self.unsynced.lock();
        unsynced.is_changed = true;
        let waiter = unsynced.waiter.take();
        drop(unsynced);
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }

    /// Checks that files can be opened.
    fn check_open(&self) -> Result<(), Errno> {
        if self.is_closed.load(Ordering::Relaxed) { Err(Errno::EIO) } else { Ok(()) }
    }

    /// Checks that changes are permitted.
    fn check_changes(&self) -> Result<(), Errno> {
        self.check_open()?;
        if self.changes == VolumeChanges::Permitted { Ok(()) } else { Err(Errno::EROFS) }
    }

    /// Counts pages that were added. If there are too many, those that nothing uses are dropped.
    fn add_pages(&self, count: u64) {
        if self.pages.fetch_add(count, Ordering::Relaxed) + count <= self.most_pages {
            return;
        }
        self.drop_unused(self.pages.load(Ordering::Relaxed).saturating_sub(self.most_pages / 2));
    }

    fn all_inodes(&self) -> Vec<Arc<VolumeInode>> {
        self.inodes.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Drops the unused pages of one inode after another, until these are `least`. Returns their number.
    fn drop_unused(&self, least: u64) -> u64 {
        let mut count = 0;
        for inode in self.all_inodes() {
            if count >= least {
                break;
            }
            let dropped = inode.pages.lock().drop_unused_if(|_| true);
            self.pages.fetch_sub(dropped.len() as u64, Ordering::Relaxed);
            count += dropped.len() as u64;
        }
        count
    }

    /// Makes all changes permanent.
    async fn sync(&self) -> Result<(), Errno> {
        if self.changes == VolumeChanges::Refused {
            return Ok(());
        }
        let mapped = {
            let mut unsynced = self.unsynced.lock();
            unsynced.is_changed = false;
            core::mem::take(&mut unsynced.mapped)
        };
        let mut outcome = self.write_back().await;
        for inode in mapped.values() {
            outcome = outcome.and(inode.write_mapped(0..u64::MAX).await);
        }
        self.volume.with(|volume| async move { volume.sync().await }).await.map_err(errno)?;
        outcome
    }
}

impl VolumeInode {
    /// Takes over attributes that another cell may have changed. Its pages are read again if the contents may be others:
    /// times are whole seconds, so that those of a file that was changed just now say nothing. Mapped pages stay.
    fn see_change(&self, metadata: Metadata) {
        let known = *self.metadata.lock();
        let is_settled = Timestamp::now().seconds.saturating_sub(metadata.modified.seconds) > SETTLED_AFTER;
        let is_same = (known.len, known.modified) == (metadata.len, metadata.modified);
        if !is_same || !is_settled {
            let dropped = self.pages.lock().drop_unused_if(|_| true);
            self.shared.pages.fetch_sub(dropped.len() as u64, Ordering::Relaxed);
        }
        self.set_metadata(metadata);
    }
}

impl FileSystem for VolumeFs {
    fn root(&self) -> Arc<dyn Inode> {
        self.root.clone()
    }

    fn name(&self) -> &'static str {
        "ext4"
    }

    fn caches_names(&self) -> bool {
        !self.shared.is_shared
    }

    fn statistics(&self) -> Outcome<'_, FileSystemStatistics> {
        let volume = self.shared.volume;
        Outcome::of(async move {
            let space = volume.with(|volume| async move { volume.space().await }).await.map_err(errno)?;
            Ok(FileSystemStatistics {
                kind: MAGIC,
                block_len: PAGE,
                blocks: space.total_bytes / PAGE,
                free_blocks: (space.free_bytes / PAGE)
                    .saturating_sub(self.shared.dirty.load(Ordering::Relaxed)),
                files: space.total_files,
                free_files: space.free_files,
                identity: self.shared.device.encoded(),
                flags: 0,
            })
        })
    }

    fn sync(&self) -> Outcome<'_, ()> {
        Outcome::of(self.shared.sync())
    }
}

impl Drop for VolumeInode {
    fn drop(&mut self) {
        self.shared.pages.fetch_sub(self.pages.get_mut().count(), Ordering::Relaxed);
        let mut inodes = self.shared.inodes.lock();
        // A new inode may have taken the entry meanwhile.
        if inodes.get(&self.id.0).is_some_and(|inode| inode.strong_count() == 0) {
            inodes.remove(&self.id.0);
        }
    }
}
