//! A file system in memory.
//!
//! - `inode.rs`: inodes and their attributes; directories.
//! - `original.rs`: files that begin as copies of others, page by page.
//! - `pages.rs`: the contents of files as frames, which reads, writes and mappings share.
//!
//! Lock order: the tree of the file system, then a directory, then attributes. The tree's lock is held by calls that change
//! names; look-ups take the directory's lock only.

mod inode;
mod names;
mod original;
mod pages;

use crate::Errno;
use crate::devices::DeviceTable;
use crate::inode::{FileSystem, Inode};
use crate::metadata::{DeviceNumber, FileSystemStatistics, new_device};
use crate::outcome::Outcome;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use inode::TmpInode;
use isola_linux_memory::PageSource;
use isola_memory::frame::FRAME_SIZE;
use spin::Mutex;

/// The type in `statfs` (`TMPFS_MAGIC`).
const MAGIC: u64 = 0x0102_1994;

/// Limits and defaults of a file system in memory.
#[derive(Clone)]
pub struct TmpFsOptions {
    /// The most pages of files.
    pub most_pages: u64,
    /// The most inodes.
    pub most_inodes: u64,
    /// The permissions of the root directory.
    pub permissions: u32,
    /// The devices that device nodes open.
    pub devices: Arc<DeviceTable>,
    /// The type's name: `tmpfs`, or that of a file system that is made of one.
    pub name: &'static str,
}

impl TmpFsOptions {
    /// Returns options of a file system that may use this number of bytes, with one inode for each page of them.
    pub fn of_len(bytes: u64) -> Self {
        let pages = bytes / FRAME_SIZE as u64;
        Self {
            most_pages: pages,
            most_inodes: pages,
            permissions: 0o1777,
            devices: Arc::default(),
            name: "tmpfs",
        }
    }
}

/// Makes an empty file in memory a copy of the first `len` bytes of another file, which never changes. The copy uses its
/// pages until they change.
pub(crate) fn begin_as(file: &Arc<dyn Inode>, original: Arc<dyn PageSource>, len: u64) {
    if let Some(pages) = file.downcast::<TmpInode>().and_then(|file| file.pages().ok()) {
        pages.begin_as(original, len);
    }
}

/// A file system in memory. Its contents end with the last reference to it or to one of its inodes.
pub struct TmpFs {
    shared: Arc<Shared>,
    root: Arc<TmpInode>,
}

/// The pages of the files of all file systems in memory.
static PAGES: AtomicU64 = AtomicU64::new(0);

/// Returns the number of pages that files in memory have, also those of memory files.
pub fn pages_in_memory() -> u64 {
    PAGES.load(Ordering::Relaxed)
}

/// The state that all inodes of a file system share.
struct Shared {
    device: DeviceNumber,
    options: TmpFsOptions,
    pages: AtomicU64,
    inodes: AtomicU64,
    next_inode: AtomicU64,
    /// Held by changes of names.
    tree: Mutex<()>,
}

impl Shared {
    /// Counts an allocation against a limit.
    fn take(counter: &AtomicU64, most: u64) -> Result<(), Errno> {
        let more = |count| (count < most).then_some(count + 1);
        counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).map(drop).map_err(|_| Errno::ENOSPC)
    }

    fn take_page(&self) -> Result<(), Errno> {
        Self::take(&self.pages, self.options.most_pages)?;
        PAGES.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn free_pages(&self, count: u64) {
        self.pages.fetch_sub(count, Ordering::Relaxed);
        PAGES.fetch_sub(count, Ordering::Relaxed);
    }
}

/// Sets the seals of a new file in memory, to which others can be added unless `F_SEAL_SEAL` is one of them.
pub(crate) fn set_seals(inode: &dyn Inode, seals: u32) {
    if let Some(pages) = inode.downcast::<TmpInode>().and_then(|inode| inode.pages().ok()) {
        pages.set_seals(seals);
    }
}

impl TmpFs {
    /// Creates an empty file system, whose root belongs to root.
    pub fn new(options: TmpFsOptions) -> Arc<Self> {
        let permissions = options.permissions;
        let shared = Arc::new(Shared {
            device: new_device(),
            options,
            pages: AtomicU64::new(0),
            inodes: AtomicU64::new(0),
            next_inode: AtomicU64::new(1),
            tree: Mutex::new(()),
        });
        let root = TmpInode::root(&shared, permissions);
        Arc::new(Self { shared, root })
    }
}

impl FileSystem for TmpFs {
    fn root(&self) -> Arc<dyn Inode> {
        self.root.clone()
    }

    fn name(&self) -> &'static str {
        self.shared.options.name
    }

    fn statistics(&self) -> Outcome<'_, FileSystemStatistics> {
        let options = &self.shared.options;
        Outcome::ok(FileSystemStatistics {
            kind: MAGIC,
            block_len: FRAME_SIZE as u64,
            blocks: options.most_pages,
            free_blocks: options.most_pages - self.shared.pages.load(Ordering::Relaxed),
            files: options.most_inodes,
            free_files: options.most_inodes.saturating_sub(self.shared.inodes.load(Ordering::Relaxed)),
            identity: self.shared.device.encoded(),
            flags: 0,
        })
    }

    fn options(&self) -> String {
        alloc::format!(
            "size={}k,nr_inodes={}",
            self.shared.options.most_pages * 4,
            self.shared.options.most_inodes
        )
    }
}
