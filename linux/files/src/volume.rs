//! A volume (ext4 on a block device) as a file system, for reading: below an overlay, or mounted read-only.
//!
//! Files are read through their page caches, which mappings share. Another use of the volume must not change it.

use crate::Errno;
use crate::async_lock::AsyncLock;
use crate::clock::Timestamp;
use crate::inode::{AttributeChange, CallerIds, FileSystem, Inode, LinkTarget, NewInode};
use crate::metadata::{DeviceNumber, DirectoryEntry, FileSystemStatistics, InodeKind, Metadata, new_device};
use crate::outcome::Outcome;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::time::Duration;
use isola_linux_memory::{BoxFuture, PageSource, UserBuffer};
use isola_memory::frame::{FRAME_SIZE, Frame};
use isola_volumes::{Attributes, FileError, FileId, FileKind, ListPosition, SharedFile, SharedVolume};
use spin::Mutex;

/// The pages that one read of the volume fetches.
const READ_AHEAD: u64 = 16;
/// The entries that one request for a directory's entries returns.
const LISTED: usize = 128;
/// The type in `statfs` (`EXT4_SUPER_MAGIC`).
const MAGIC: u64 = 0xef53;
const PAGE: u64 = FRAME_SIZE as u64;

/// A volume as a file system.
pub struct VolumeFs {
    shared: Arc<Shared>,
    root: Arc<VolumeInode>,
}

struct Shared {
    volume: SharedVolume,
    device: DeviceNumber,
    /// The inodes that are in use, so that all names of a file share its pages.
    inodes: Mutex<BTreeMap<u64, Weak<VolumeInode>>>,
}

struct VolumeInode {
    shared: Arc<Shared>,
    id: FileId,
    metadata: Metadata,
    pages: Mutex<BTreeMap<u64, Frame>>,
    /// The open file of the volume. Held while pages are read, so that two calls do not read the same ones.
    file: AsyncLock<Option<SharedFile>>,
}

fn errno(error: FileError) -> Errno {
    match error {
        FileError::NotFound => Errno::ENOENT,
        FileError::NotADirectory => Errno::ENOTDIR,
        FileError::IsADirectory => Errno::EISDIR,
        FileError::InvalidName | FileError::Invalid => Errno::EINVAL,
        FileError::NoMemory | FileError::Busy => Errno::ENOMEM,
        FileError::Unsupported => Errno::EOPNOTSUPP,
        _ => Errno::EIO,
    }
}

impl VolumeFs {
    /// Prepares a mounted volume.
    ///
    /// # Errors
    /// Those of the volume.
    pub async fn new(volume: SharedVolume) -> Result<Arc<Self>, FileError> {
        let shared = Arc::new(Shared { volume, device: new_device(), inodes: Mutex::default() });
        let root = volume.with(|volume| async move { volume.root_attributes().await }).await?;
        let root = shared.inode(&root).ok_or(FileError::Damaged)?;
        Ok(Arc::new(Self { shared, root }))
    }
}

impl Shared {
    /// Returns the inode with these attributes; `None` for an unknown type.
    fn inode(self: &Arc<Self>, attributes: &Attributes) -> Option<Arc<VolumeInode>> {
        let kind = InodeKind::of_mode(attributes.mode)?;
        let time = |time: Duration| Timestamp {
            seconds: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: time.subsec_nanos(),
        };
        let (major, minor) = attributes.device.unwrap_or_default();
        let metadata = Metadata {
            device: self.device,
            inode: attributes.id.0,
            kind,
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
        };
        let mut inodes = self.inodes.lock();
        if let Some(known) = inodes.get(&attributes.id.0).and_then(Weak::upgrade) {
            return Some(known);
        }
        let inode = Arc::new(VolumeInode {
            shared: self.clone(),
            id: attributes.id,
            metadata,
            pages: Mutex::default(),
            file: AsyncLock::default(),
        });
        inodes.insert(attributes.id.0, Arc::downgrade(&inode));
        Some(inode)
    }
}

impl FileSystem for VolumeFs {
    fn root(&self) -> Arc<dyn Inode> {
        self.root.clone()
    }

    fn name(&self) -> &'static str {
        "ext4"
    }

    fn statistics(&self) -> Outcome<'_, FileSystemStatistics> {
        let volume = self.shared.volume;
        Outcome::of(async move {
            let space = volume.with(|volume| async move { volume.space().await }).await.map_err(errno)?;
            Ok(FileSystemStatistics {
                kind: MAGIC,
                block_len: PAGE,
                blocks: space.total_bytes / PAGE,
                free_blocks: space.free_bytes / PAGE,
                files: space.total_files,
                free_files: space.free_files,
                identity: self.shared.device.encoded(),
                flags: 0,
            })
        })
    }
}

impl Drop for VolumeInode {
    fn drop(&mut self) {
        let mut inodes = self.shared.inodes.lock();
        // A new inode may have taken the entry meanwhile.
        if inodes.get(&self.id.0).is_some_and(|inode| inode.strong_count() == 0) {
            inodes.remove(&self.id.0);
        }
    }
}

impl VolumeInode {
    fn page_count(&self) -> u64 {
        self.metadata.len.div_ceil(PAGE)
    }

    fn page(&self, index: u64) -> Option<Frame> {
        self.pages.lock().get(&index).cloned()
    }

    /// Reads the pages around `index` from the volume.
    async fn read_pages(&self, index: u64) -> Result<Frame, Errno> {
        if index >= self.page_count() {
            return Err(Errno::EFAULT);
        }
        let held = self.file.hold().await;
        if let Some(frame) = self.page(index) {
            return Ok(frame);
        }
        let known = held.get().clone();
        let file = match known {
            Some(file) => file,
            None => {
                let (volume, id) = (self.shared.volume, self.id);
                let open = volume
                    .with(move |volume| async move { Ok(Rc::new(volume.open_number(id).await?).share()) });
                let file = open.await.map_err(errno)?;
                *held.get() = Some(file.clone());
                file
            }
        };
        let first = index - index % READ_AHEAD;
        let count = READ_AHEAD.min(self.page_count() - first);
        let (mut done, len) = (0, count as usize * FRAME_SIZE);
        let frames: Vec<_> = (0..count).map(|_| Frame::zeroed()).collect();
        while done < len {
            let offset = first * PAGE + done as u64;
            let (chain, _) = file.read_chain(offset, len - done).await.map_err(errno)?;
            if chain.is_empty() {
                break;
            }
            for part in chain.parts() {
                let mut rest = &part[..];
                while !rest.is_empty() && done < len {
                    let at = done % FRAME_SIZE;
                    let now = rest.len().min(FRAME_SIZE - at);
                    frames[done / FRAME_SIZE].write(at, &rest[..now]);
                    rest = &rest[now..];
                    done += now;
                }
            }
        }
        let mut pages = self.pages.lock();
        for (page, frame) in (first..).zip(frames) {
            pages.entry(page).or_insert(frame);
        }
        pages.get(&index).cloned().ok_or(Errno::EIO)
    }

    /// Copies bytes of cached pages. Returns their number, and whether the rest has to be read.
    fn read_cached(&self, offset: u64, buffer: &mut UserBuffer) -> (usize, Option<u64>) {
        let mut count = 0;
        loop {
            let at = offset.saturating_add(count as u64);
            let left = self.metadata.len.saturating_sub(at);
            if buffer.is_empty() || left == 0 {
                return (count, None);
            }
            let Some(frame) = self.page(at / PAGE) else { return (count, Some(at / PAGE)) };
            let mut from = (at % PAGE) as usize;
            let now = ((PAGE - at % PAGE).min(left) as usize).min(buffer.len());
            buffer.advance(now, |part| {
                part.frame.copy_from(part.offset, &frame, from, part.len);
                from += part.len;
            });
            count += now;
        }
    }
}

impl Inode for VolumeInode {
    fn kind(&self) -> InodeKind {
        self.metadata.kind
    }

    fn metadata(&self) -> Metadata {
        self.metadata
    }

    fn set_attributes(&self, _change: &AttributeChange) -> Outcome<'_, ()> {
        Outcome::error(Errno::EROFS)
    }

    fn lookup(&self, name: &[u8], _caller: CallerIds) -> Outcome<'_, Option<Arc<dyn Inode>>> {
        if self.metadata.kind != InodeKind::Directory {
            return Outcome::error(Errno::ENOTDIR);
        }
        let (volume, id, name) = (self.shared.volume, self.id, name.to_vec());
        Outcome::of(async move {
            let found = volume.with(move |volume| async move { volume.attributes_in(id, name).await });
            let Some(attributes) = found.await.map_err(errno)? else { return Ok(None) };
            let inode: Arc<dyn Inode> = self.shared.inode(&attributes).ok_or(Errno::EIO)?;
            Ok(Some(inode))
        })
    }

    fn create<'a>(&'a self, _name: &'a [u8], _new: &'a NewInode<'a>) -> Outcome<'a, Arc<dyn Inode>> {
        Outcome::error(Errno::EROFS)
    }

    fn list(&self, _caller: CallerIds) -> Outcome<'_, Vec<DirectoryEntry>> {
        let (volume, id) = (self.shared.volume, self.id);
        Outcome::of(async move {
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
        })
    }

    fn follow(&self, _caller: CallerIds) -> Outcome<'_, LinkTarget> {
        if self.metadata.kind != InodeKind::Symlink {
            return Outcome::error(Errno::EINVAL);
        }
        let (volume, id) = (self.shared.volume, self.id);
        Outcome::of(async move {
            let target = volume.with(move |volume| async move { volume.link_target(id).await });
            target.await.map(LinkTarget::Path).map_err(errno)
        })
    }

    fn read_at<'a>(&'a self, offset: u64, buffer: &'a mut UserBuffer) -> Outcome<'a, usize> {
        if self.metadata.kind != InodeKind::File {
            return Outcome::error(Errno::EINVAL);
        }
        let (mut count, mut missing) = self.read_cached(offset, buffer);
        if missing.is_none() {
            return Outcome::ok(count);
        }
        Outcome::of(async move {
            while let Some(page) = missing {
                match self.read_pages(page).await {
                    Ok(_) => {}
                    Err(_) if count > 0 => break,
                    Err(error) => return Err(error),
                }
                let (more, next) = self.read_cached(offset + count as u64, buffer);
                count += more;
                missing = next;
            }
            Ok(count)
        })
    }

    fn pages(self: Arc<Self>) -> Option<Arc<dyn PageSource>> {
        (self.metadata.kind == InodeKind::File).then_some(self as Arc<dyn PageSource>)
    }
}

impl PageSource for VolumeInode {
    fn frame(&self, index: u64) -> Option<Frame> {
        self.page(index)
    }

    fn fetch(&self, index: u64) -> BoxFuture<'_, Result<Frame, Errno>> {
        alloc::boxed::Box::pin(self.read_pages(index))
    }

    fn mark_dirty(&self, _index: u64) {}

    fn sync(&self, _first: u64, _count: u64) -> BoxFuture<'_, Result<(), Errno>> {
        alloc::boxed::Box::pin(core::future::ready(Ok(())))
    }

    fn path(&self) -> Vec<u8> {
        alloc::format!("/#{}", self.id.0).into_bytes()
    }

    fn identity(&self) -> (u64, u64) {
        (self.shared.device.encoded(), self.id.0)
    }
}
