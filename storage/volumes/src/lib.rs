//! File systems of a cell on its block devices.
//!
//! ```text
//!   Volume, File (futures) --> jobs, by activity --> fiber: FileSystem (Ext4) --> Disk: CachedDisk --> BlockCache
//! ```
//!
//! - [`Volume`]: a mounted file system. [`File`]: an open file. Their operations are futures.
//! - [`SharedVolume`]: a volume for the cell's other cores.
//! - [`FileSystem`]: the interface of a file system, whose calls block. [`Ext4`] implements it.
//! - [`Disk`]: the interface of the disk below. [`CachedDisk`] implements it with a cached block device.
//!
//! A volume has one fiber, which executes one operation at a time; this is the volume's lock. While an operation waits
//! for the device, the core runs other events. Waiting operations are ordered by the policy of the resource `files`. Without
//! one, the activities take turns, in the order of the processor's policy if it has one. Each operation is charged to the
//! activity that requested it, with the blocks and device requests that it needs.
//!
//! **Durability.** [`Volume::sync`] makes all completed changes permanent. After a power failure, the next mount finds
//! the file system of a moment after the latest sync.
//!
//! **Hostile file systems** yield [`FileError::Damaged`]; docs/storage.md has the limits of that.
//!
//! Not here: files of other machines (`isola-fs`).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod by_number;
mod cache_disk;
mod direct;
mod disk;
mod ext4;
mod extents;
mod file_system;
mod flow;
mod jobs;
mod open_files;
mod posix;
mod reply;
mod schedulers;
mod shared;
mod volume;

pub use cache_disk::CachedDisk;
pub use disk::Disk;
pub use ext4::{Access, Ext4, Services};
pub use extents::{Extent, ExtentMap, MOST_EXTENTS, Piece, Pieces};
pub use file_system::{
    Attributes, Entry, FileError, FileId, FileKind, FileSystem, ListPosition, Metadata, NAME_LEN, Space,
};
pub use flow::{FileSink, FileSource};
pub use posix::{
    AttributeUpdate, ExtendedAttributeMode, NewFile, NewFileKind, RangeChange, RemovedKind, RenameKind,
};
pub use schedulers::files_report;
pub use shared::{SharedFile, SharedVolume};
pub use volume::{CachedRead, File, MOST_READ, OpenedFile, Volume};
