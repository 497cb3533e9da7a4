//! Extended attributes.

use crate::Errno;
use crate::credentials::Access;
use crate::dentry::Location;
use crate::inode::AttributeMode;
use crate::metadata::InodeKind;
use crate::walk::Caller;
use crate::watch;
use alloc::vec::Vec;
use isola_linux_abi::numbers as linux;

/// The most bytes of a name (`XATTR_NAME_MAX`).
const MOST_NAME: usize = 255;
/// The most bytes of a value (`XATTR_SIZE_MAX`).
const MOST_VALUE: usize = 65536;

/// The attribute with the capabilities that an executable file gives (capabilities(7)).
pub const FILE_CAPABILITIES: &[u8] = b"security.capability";

impl Caller<'_> {
    async fn attribute_target(&self, directory: i32, path: &[u8], at_flags: u32) -> Result<Location, Errno> {
        self.target(directory, path, at_flags).await?.location().map_err(|_| Errno::EOPNOTSUPP)
    }

    /// Checks a name and the right to access it: `user.` attributes belong to files and directories, and need the same
    /// permission as their contents.
    fn check_attribute(&self, location: &Location, name: &[u8], access: Access) -> Result<(), Errno> {
        if name.is_empty() || name.len() > MOST_NAME {
            return Err(Errno::ERANGE);
        }
        if access == Access::WRITE && location.mount.flags.read_only {
            return Err(Errno::EROFS);
        }
        if name.starts_with(b"user.") {
            if !matches!(location.dentry.kind(), InodeKind::File | InodeKind::Directory) {
                return Err(if access == Access::WRITE { Errno::EPERM } else { Errno::ENODATA });
            }
            return self.check(location, access);
        }
        let changes_security = name.starts_with(b"security.") && access == Access::WRITE;
        let needed = if name == FILE_CAPABILITIES { linux::CAP_SETFCAP } else { linux::CAP_SYS_ADMIN };
        if changes_security && !self.credentials.has_capability(needed) {
            return Err(Errno::EPERM);
        }
        if name.starts_with(b"trusted.") && !self.credentials.has_capability(linux::CAP_SYS_ADMIN) {
            return Err(if access == Access::WRITE { Errno::EPERM } else { Errno::ENODATA });
        }
        Ok(())
    }

    /// Returns the value of an extended attribute (`getxattr` and its relatives).
    ///
    /// # Errors
    /// Those of getxattr(2).
    pub async fn attribute_at(
        &self,
        directory: i32,
        path: &[u8],
        name: &[u8],
        at_flags: u32,
    ) -> Result<Vec<u8>, Errno> {
        let location = self.attribute_target(directory, path, at_flags).await?;
        self.check_attribute(&location, name, Access::READ)?;
        location.inode().attribute(name).await
    }

    /// Sets an extended attribute (`setxattr` and its relatives).
    ///
    /// # Errors
    /// Those of setxattr(2).
    pub async fn set_attribute_at(
        &self,
        directory: i32,
        path: &[u8],
        name: &[u8],
        value: &[u8],
        flags: u32,
        at_flags: u32,
    ) -> Result<(), Errno> {
        let mode = match flags {
            0 => AttributeMode::Any,
            linux::XATTR_CREATE => AttributeMode::Create,
            linux::XATTR_REPLACE => AttributeMode::Replace,
            _ => return Err(Errno::EINVAL),
        };
        if value.len() > MOST_VALUE {
            return Err(Errno::E2BIG);
        }
        let location = self.attribute_target(directory, path, at_flags).await?;
        self.check_attribute(&location, name, Access::WRITE)?;
        location.inode().set_attribute(name, value, mode).await?;
        watch::note_change(&location.dentry, linux::IN_ATTRIB);
        Ok(())
    }

    /// Returns the names of the extended attributes, each followed by a NUL (`listxattr` and its relatives).
    ///
    /// # Errors
    /// Those of listxattr(2).
    pub async fn attributes_at(&self, directory: i32, path: &[u8], at_flags: u32) -> Result<Vec<u8>, Errno> {
        let location = self.attribute_target(directory, path, at_flags).await?;
        let is_shown = |name: &Vec<u8>| {
            !name.starts_with(b"trusted.") || self.credentials.has_capability(linux::CAP_SYS_ADMIN)
        };
        let names = location.inode().attributes().await?;
        Ok(names.into_iter().filter(is_shown).flat_map(|name| name.into_iter().chain([0])).collect())
    }

    /// Removes an extended attribute (`removexattr` and its relatives).
    ///
    /// # Errors
    /// Those of removexattr(2).
    pub async fn remove_attribute_at(
        &self,
        directory: i32,
        path: &[u8],
        name: &[u8],
        at_flags: u32,
    ) -> Result<(), Errno> {
        let location = self.attribute_target(directory, path, at_flags).await?;
        self.check_attribute(&location, name, Access::WRITE)?;
        location.inode().remove_attribute(name).await?;
        watch::note_change(&location.dentry, linux::IN_ATTRIB);
        Ok(())
    }
}
