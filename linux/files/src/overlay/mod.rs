//! A file system whose changes are in memory, above a lower file system that does not change.
//!
//! An inode of the overlay has attributes and a *backing* inode: at first that of the lower file system, after the first
//! change of the contents a file without a name in the upper file system (copy-up). A directory has a table of the names
//! that are in use or were removed (whiteouts), above the names of its lower directory, if it has one; a directory that
//! was created has none (an opaque one). So a renamed directory keeps its lower names, hard links stay links when they are
//! copied up, and inode numbers do not change.
//!
//! The lower file system must not change below an overlay. The table keeps each name that was looked up.

mod inode;
mod names;

use crate::inode::{FileSystem, Inode};
use crate::metadata::{DeviceNumber, FileSystemStatistics, new_device};
use crate::outcome::Outcome;
use crate::tmpfs::TmpFs;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::AtomicU64;
use inode::OverlayInode;
use spin::Mutex;

/// The first number of an inode that the lower file system does not have.
const FIRST_NUMBER: u64 = 1 << 48;

/// An overlay.
pub struct OverlayFs {
    shared: Arc<Shared>,
    root: Arc<OverlayInode>,
}

/// The state that all inodes of an overlay share.
struct Shared {
    device: DeviceNumber,
    upper: Arc<TmpFs>,
    /// The inodes of lower ones with several names.
    by_lower: Mutex<BTreeMap<u64, Weak<OverlayInode>>>,
    next_number: AtomicU64,
    /// Held by changes of names.
    tree: Mutex<()>,
}

impl OverlayFs {
    /// Creates an overlay of changes in `upper` above `lower`. Files without a name in `upper` have the changed contents,
    /// so its limits are those of the changes.
    pub fn new(lower: &dyn FileSystem, upper: Arc<TmpFs>) -> Arc<Self> {
        let root = lower.root();
        let shared = Arc::new(Shared {
            device: new_device(),
            upper,
            by_lower: Mutex::default(),
            next_number: AtomicU64::new(FIRST_NUMBER),
            tree: Mutex::new(()),
        });
        let root = OverlayInode::of_lower(&shared, root);
        Arc::new(Self { shared, root })
    }
}

impl FileSystem for OverlayFs {
    fn root(&self) -> Arc<dyn Inode> {
        self.root.clone()
    }

    fn name(&self) -> &'static str {
        "overlay"
    }

    fn statistics(&self) -> Outcome<'_, FileSystemStatistics> {
        /// The type in `statfs` (`OVERLAYFS_SUPER_MAGIC`).
        const MAGIC: u64 = 0x794c_7630;
        match self.shared.upper.statistics() {
            Outcome::Done(statistics) => {
                Outcome::Done(statistics.map(|statistics| FileSystemStatistics { kind: MAGIC, ..statistics }))
            }
            waits => waits,
        }
    }
}
