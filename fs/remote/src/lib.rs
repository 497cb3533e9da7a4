//! The file system Ebb: files of the hosted process, on every machine of an application (EbbRT 4.3's off-load).
//!
//! The hosted process exports a directory (`isola-fs-export`), and so becomes the home of [`FILES`]. A native cell has
//! no file system of its own: its representative sends each call to the home, and the file's bytes arrive in the
//! buffers into which the network device wrote them.
//!
//! | function | purpose |
//! |---|---|
//! | [`status`] | kind and length of a file or directory |
//! | [`read`] | bytes of a file from an offset on: at most [`MAX_READ`] |
//! | [`list`] | entries of a directory, up to [`MAX_LISTED`]; [`list_after`] returns a part of them |
//! | [`write()`] | writes bytes to a file from an offset on, if the export allows it |
//!
//! Paths are relative to the exported directory, with `/` between names. The home refuses a path that leads out of it,
//! by `..` or by a symbolic link.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod access;
mod error;
mod files;
mod protocol;

pub use access::Access;
pub use error::{FileError, FileRefusal};
pub use files::{FILES, FileSystem, MAX_LISTED, list, list_after, read, status, write};
pub use protocol::{Answer, Entry, FileKind, FileRequest, MAX_ENTRIES, MAX_PATH, MAX_READ, Status};
