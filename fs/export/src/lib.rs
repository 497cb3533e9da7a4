//! A directory of the host as the files of an application: the hosted representative of [`isola_fs::FILES`].
//!
//! | item | purpose |
//! |---|---|
//! | [`export()`] | makes this hosted process the home of the files |
//! | [`Directory`] | the operations, confined to one directory |
//! | [`off_core()`] | runs blocking system calls on threads outside of the cores |
//!
//! Requests are untrusted input. `cap-std` ensures that no path leads out of the directory, with any symbolic links in
//! it: it opens each path beneath the directory's own file descriptor.
#![forbid(unsafe_code)]

mod directory;
mod export;
mod off_core;

pub use directory::Directory;
pub use export::{ExportError, export};
pub use off_core::{WorkPanicked, off_core};
