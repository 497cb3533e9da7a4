//! Permission checks.

use crate::{Errno, InodeKind};
use alloc::sync::Arc;
use isola_linux_abi::numbers as linux;

/// Access to an inode that a call needs: a set of read, write, and execute or search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access(u32);

impl Access {
    /// No access: the check of existence.
    pub const NONE: Self = Self(0);
    /// Execute a file, or search a directory.
    pub const EXECUTE: Self = Self(1);
    /// Change the contents.
    pub const WRITE: Self = Self(2);
    /// Read the contents.
    pub const READ: Self = Self(4);

    /// Returns the set of the bits of `access(2)`: `R_OK`, `W_OK`, `X_OK`.
    pub fn of_bits(bits: u32) -> Option<Self> {
        (bits <= 7).then_some(Self(bits))
    }

    /// Returns the union.
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether `other` is a part of this set.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The identity with which a thread accesses files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The user for accesses to files (`fsuid`).
    pub user: u32,
    /// The group for accesses to files (`fsgid`).
    pub group: u32,
    /// The supplementary groups.
    pub groups: Arc<[u32]>,
    /// The effective capabilities: bit `CAP_*`.
    pub capabilities: u64,
}

/// The owner and permissions of an inode, as checks need them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// The owner.
    pub user: u32,
    /// The group.
    pub group: u32,
    /// The 12 bits of permissions.
    pub permissions: u32,
}

impl Credentials {
    /// Returns the credentials of root with all capabilities.
    pub fn root() -> Self {
        Self { user: 0, group: 0, groups: Arc::from([]), capabilities: u64::MAX }
    }

    /// Returns whether the capability `CAP_*` is effective.
    pub fn has_capability(&self, capability: u32) -> bool {
        self.capabilities & 1 << capability != 0
    }

    /// Returns whether the thread belongs to a group.
    pub fn is_member(&self, group: u32) -> bool {
        self.group == group || self.groups.contains(&group)
    }

    /// Returns whether the thread may change metadata that only the owner may change.
    pub fn owns(&self, owner: &Ownership) -> bool {
        self.user == owner.user || self.has_capability(linux::CAP_FOWNER)
    }

    /// Checks access to an inode.
    ///
    /// # Errors
    /// [`Errno::EACCES`].
    pub fn check(&self, owner: &Ownership, kind: InodeKind, access: Access) -> Result<(), Errno> {
        let shift = match () {
            () if self.user == owner.user => 6,
            () if self.is_member(owner.group) => 3,
            () => 0,
        };
        if Access(owner.permissions >> shift & 7).has(access) {
            return Ok(());
        }
        let is_directory = kind == InodeKind::Directory;
        let may_execute = is_directory || owner.permissions & 0o111 != 0;
        if self.has_capability(linux::CAP_DAC_OVERRIDE) && (may_execute || !access.has(Access::EXECUTE)) {
            return Ok(());
        }
        let only_reads = !access.has(Access::WRITE) && (is_directory || !access.has(Access::EXECUTE));
        if self.has_capability(linux::CAP_DAC_READ_SEARCH) && only_reads {
            return Ok(());
        }
        Err(Errno::EACCES)
    }

    /// Checks whether an entry of a directory may be removed, by the directory's sticky bit.
    ///
    /// # Errors
    /// [`Errno::EPERM`].
    pub fn check_sticky(&self, directory: &Ownership, entry: &Ownership) -> Result<(), Errno> {
        let is_sticky = directory.permissions & linux::S_ISVTX != 0;
        if !is_sticky || self.user == directory.user || self.owns(entry) { Ok(()) } else { Err(Errno::EPERM) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(user: u32, group: u32) -> Credentials {
        Credentials { user, group, groups: Arc::from([50]), capabilities: 0 }
    }

    #[test]
    fn the_first_class_that_applies_decides() {
        let owner = Ownership { user: 1, group: 2, permissions: 0o047 };
        let check = |who: &Credentials, access| who.check(&owner, InodeKind::File, access);
        assert_eq!(check(&user(1, 2), Access::READ), Err(Errno::EACCES));
        assert_eq!(check(&user(3, 2), Access::READ), Ok(()));
        assert_eq!(check(&user(3, 2), Access::WRITE), Err(Errno::EACCES));
        assert_eq!(check(&user(3, 3), Access::READ.and(Access::WRITE).and(Access::EXECUTE)), Ok(()));
        let owner = Ownership { group: 50, ..owner };
        assert_eq!(user(3, 3).check(&owner, InodeKind::File, Access::WRITE), Err(Errno::EACCES));
    }

    #[test]
    fn root_executes_only_files_that_anyone_may_execute() {
        let owner = |permissions| Ownership { user: 1, group: 1, permissions };
        let root = Credentials::root();
        assert_eq!(root.check(&owner(0), InodeKind::File, Access::WRITE), Ok(()));
        assert_eq!(root.check(&owner(0o600), InodeKind::File, Access::EXECUTE), Err(Errno::EACCES));
        assert_eq!(root.check(&owner(0o001), InodeKind::File, Access::EXECUTE), Ok(()));
        assert_eq!(root.check(&owner(0), InodeKind::Directory, Access::EXECUTE), Ok(()));
    }

    #[test]
    fn a_reader_of_everything_writes_nothing() {
        let owner = Ownership { user: 1, group: 1, permissions: 0 };
        let reader = Credentials { capabilities: 1 << linux::CAP_DAC_READ_SEARCH, ..user(9, 9) };
        assert_eq!(reader.check(&owner, InodeKind::File, Access::READ), Ok(()));
        assert_eq!(reader.check(&owner, InodeKind::File, Access::EXECUTE), Err(Errno::EACCES));
        assert_eq!(reader.check(&owner, InodeKind::Directory, Access::EXECUTE), Ok(()));
        assert_eq!(reader.check(&owner, InodeKind::Directory, Access::WRITE), Err(Errno::EACCES));
    }

    #[test]
    fn a_sticky_directory_protects_the_entries_of_others() {
        let directory = Ownership { user: 0, group: 0, permissions: 0o1777 };
        let entry = Ownership { user: 1, group: 1, permissions: 0o666 };
        assert_eq!(user(1, 1).check_sticky(&directory, &entry), Ok(()));
        assert_eq!(user(2, 1).check_sticky(&directory, &entry), Err(Errno::EPERM));
        assert_eq!(user(2, 1).check_sticky(&Ownership { permissions: 0o777, ..directory }, &entry), Ok(()));
        assert_eq!(Credentials::root().check_sticky(&directory, &entry), Ok(()));
    }
}
