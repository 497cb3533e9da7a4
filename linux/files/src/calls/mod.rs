//! The calls that take paths.

mod attributes;
mod extended;
mod names;
mod opening;
mod removal;

use crate::Errno;
use crate::dentry::Location;
use crate::metadata::Metadata;
use crate::open_file::OpenFile;
use crate::walk::{Caller, Found, LastLink};
use alloc::sync::Arc;
use isola_linux_abi::numbers as linux;

pub use attributes::{OwnerChange, TimeChange};
pub use extended::FILE_CAPABILITIES;

/// A file that a call refers to by a path or a descriptor.
pub(crate) enum Target {
    Location(Location),
    Object(Arc<OpenFile>),
}

impl Target {
    fn metadata(&self) -> Metadata {
        match self {
            Self::Location(location) => location.inode().metadata(),
            Self::Object(file) => file.metadata(),
        }
    }

    /// Returns the location; objects without one have no attributes to change.
    fn location(self) -> Result<Location, Errno> {
        match self {
            Self::Location(location) => Ok(location),
            Self::Object(file) => file.location().cloned().ok_or(Errno::EPERM),
        }
    }
}

/// Returns whether a look-up follows the last link, by the flags of a call.
pub(crate) fn last_link(at_flags: u32) -> LastLink {
    if at_flags & linux::AT_SYMLINK_NOFOLLOW != 0 { LastLink::Keep } else { LastLink::Follow }
}

impl Caller<'_> {
    /// Finds the file of a path, or that of the descriptor if the path is empty and `AT_EMPTY_PATH` is set.
    pub(crate) async fn target(&self, directory: i32, path: &[u8], at_flags: u32) -> Result<Target, Errno> {
        if path.is_empty() && at_flags & linux::AT_EMPTY_PATH != 0 {
            if directory == linux::AT_FDCWD {
                return Ok(Target::Location(self.view.working_directory()));
            }
            let file = self.descriptors.get_any(directory)?;
            return Ok(match file.location() {
                Some(location) => Target::Location(location.clone()),
                None => Target::Object(file),
            });
        }
        match self.find(directory, path, last_link(at_flags)).await? {
            Found::Location(location) => Ok(Target::Location(location)),
            Found::Object(file) => Ok(Target::Object(file)),
            Found::Absent(_) => Err(Errno::ENOENT),
        }
    }
}
