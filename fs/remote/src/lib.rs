//! The file system Ebb: files of the hosted process, on every machine of an application (EbbRT 4.3's off-load).
//!
//! The hosted process exports a directory (`isola-fs-export`), and so becomes the home of [`FILES`]. A native cell has no
//! file system of its own: its representative ships each call to the home, and the file's bytes come back in the buffers
//! that the network filled.
//!
//! | function | what |
//! |---|---|
//! | [`status`] | what a path names, and how long it is |
//! | [`read`] | bytes of a file from an offset on: at most [`MAX_READ`] |
//! | [`list`] | what is in a directory, up to [`MAX_LISTED`] entries; [`list_after`]: a part of it |
//! | [`write()`] | bytes into a file from an offset on, where the export allows it |
//!
//! Paths are relative to the exported directory, with `/` between names. One that leads out of it, by `..` or by a
//! symbolic link, is refused by the home.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod access;
mod error;
mod files;
mod protocol;

pub use access::Access;
pub use error::{FileError, Refused};
pub use files::{FILES, FileSystem, MAX_LISTED, list, list_after, read, status, write};
pub use protocol::{Answer, Entry, FileKind, FileRequest, MAX_ENTRIES, MAX_PATH, MAX_READ, Status};
