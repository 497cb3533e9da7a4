//! Makes block images of root file systems: read-only ext4 file systems that a cell mounts at `/`.
//!
//! ```text
//!   RootSource: folder --------------------------.
//!               archive -- compression -- archive --> Tree (names) + ImageWriter (contents) --> RootCache: DIGEST.img
//!               oci: layout -- index, manifest --'
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`source`] | the text form of a source |
//! | [`cache`] | the images, each made once for the same contents |
//! | [`config`] | the program of an image, and a command line that overrides it |
//! | `folder`, `archive`, `compression`, `oci` | reading sources |
//! | `tree` | files by name, layers, whiteouts |
//! | `ext4` | writing the file system |
//!
//! Sources are untrusted, all but folders: an archive cannot name a file outside of the root file system, and its
//! storage is bounded ([`MOST_BYTES`], [`MOST_FILES`]). Nothing of a source is written to the host but the image.
//!
//! Owners, devices and extended attributes are kept, also if the calling user is not root.
#![forbid(unsafe_code)]

mod archive;
pub mod cache;
mod compression;
pub mod config;
mod error;
mod ext4;
mod folder;
mod oci;
pub mod source;
mod tree;

pub use cache::{CachedImage, RootCache, RootImage};
pub use config::{CommandLine, ProgramConfig};
pub use error::BuildError;
pub use source::RootSource;

/// The most bytes of the files of a root file system.
pub const MOST_BYTES: u64 = 15 << 30;
/// The most files of a root file system, those of lower layers that a higher one replaces included.
pub const MOST_FILES: usize = 1 << 20;
/// The most bytes of the extended attributes of a file, with their names.
pub const MOST_ATTRIBUTE_BYTES: usize = 3900;
