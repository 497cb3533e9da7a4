//! File systems of a cell on its block devices.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod disk;
mod ext4;
mod file_system;

pub use disk::Disk;
pub use ext4::{Access, Ext4, Services};
pub use file_system::{
    Entry, FileError, FileId, FileKind, FileSystem, ListPosition, Metadata, NAME_LEN, Space,
};
