//! Owners and permissions of an object.

use crate::Errno;
use crate::credentials::Credentials;
use isola_linux_abi::numbers::{CAP_IPC_OWNER, CAP_SYS_ADMIN};

/// A process that uses an object.
#[derive(Clone, Copy, Debug)]
pub struct IpcCaller<'a> {
    /// Its process.
    pub pid: u32,
    /// Its users and groups.
    pub credentials: &'a Credentials,
    /// The time of day, in seconds.
    pub now: u64,
}

/// The owners and permissions of an object: `struct ipc_perm`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    /// The key; 0 (`IPC_PRIVATE`) for none.
    pub key: i32,
    /// The owner.
    pub user: u32,
    /// The owner's group.
    pub group: u32,
    /// The creator.
    pub creator: u32,
    /// The creator's group.
    pub creator_group: u32,
    /// The permissions of owner, group and others.
    pub mode: u32,
}

impl Permissions {
    /// Returns the permissions of a new object.
    pub fn new(key: i32, mode: u32, caller: &IpcCaller<'_>) -> Self {
        let (user, group) = (caller.credentials.user.effective, caller.credentials.group.effective);
        Self { key, user, group, creator: user, creator_group: group, mode: mode & 0o777 }
    }

    /// Checks an access; `wanted` has the bits 4 to read and 2 to write.
    ///
    /// # Errors
    /// [`Errno::EACCES`].
    pub fn check(&self, caller: &IpcCaller<'_>, wanted: u32) -> Result<(), Errno> {
        let credentials = caller.credentials;
        let user = credentials.user.effective;
        let in_group =
            |group: u32| credentials.group.effective == group || credentials.groups.contains(&group);
        let granted = if user == self.user || user == self.creator {
            self.mode >> 6
        } else if in_group(self.group) || in_group(self.creator_group) {
            self.mode >> 3
        } else {
            self.mode
        };
        if wanted & !granted & 7 != 0 && !credentials.has(CAP_IPC_OWNER) {
            Err(Errno::EACCES)
        } else {
            Ok(())
        }
    }

    /// Checks the right to change the permissions, or to remove the object.
    ///
    /// # Errors
    /// [`Errno::EPERM`].
    pub fn check_owner(&self, caller: &IpcCaller<'_>) -> Result<(), Errno> {
        let user = caller.credentials.user.effective;
        let is_owner = user == self.user || user == self.creator || caller.credentials.has(CAP_SYS_ADMIN);
        if is_owner { Ok(()) } else { Err(Errno::EPERM) }
    }

    /// Changes owner and permissions (`IPC_SET`).
    ///
    /// # Errors
    /// As [`Self::check_owner`].
    pub fn set(&mut self, caller: &IpcCaller<'_>, user: u32, group: u32, mode: u32) -> Result<(), Errno> {
        self.check_owner(caller)?;
        (self.user, self.group, self.mode) = (user, group, self.mode & !0o777 | mode & 0o777);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn owner_group_and_others_have_their_own_bits() {
        let caller = |user, group| Credentials::of(user, group, vec![]);
        let permissions =
            Permissions { key: 0, user: 5, group: 6, creator: 7, creator_group: 8, mode: 0o640 };
        let check = |credentials: &Credentials, wanted| {
            permissions.check(&IpcCaller { pid: 1, credentials, now: 0 }, wanted).is_ok()
        };
        for user in [5, 7] {
            assert!(check(&caller(user, 1), 6));
        }
        for group in [6, 8] {
            assert!(check(&caller(1, group), 4) && !check(&caller(1, group), 2));
        }
        assert!(check(&Credentials::of(1, 1, vec![6]), 4));
        assert!(!check(&caller(1, 1), 4) && check(&caller(0, 0), 6));
        let owner = |user| {
            let credentials = caller(user, 6);
            permissions.check_owner(&IpcCaller { pid: 1, credentials: &credentials, now: 0 })
        };
        assert_eq!((owner(5), owner(7), owner(9), owner(0)), (Ok(()), Ok(()), Err(Errno::EPERM), Ok(())));
    }
}
