//! A directory of the host as the files of an application: the hosted representative of [`isola_fs::FILES`].
//!
//! | item | what |
//! |---|---|
//! | [`export()`] | makes this hosted process the home of the files |
//! | [`Directory`] | the operations, confined to one directory |
//! | [`off_core()`] | what Linux makes its callers wait for, done on threads beside the cores |
//!
//! What is asked is hostile. That no path leads out of the directory, whatever symbolic links are in it, is `cap-std`'s
//! work: it opens each path beneath the directory's own file descriptor.
#![forbid(unsafe_code)]

mod directory;
mod export;
mod off_core;

pub use directory::Directory;
pub use export::{ExportError, export};
pub use off_core::{Panicked, off_core};
