//! The users, groups and capabilities of a thread (credentials(7), capabilities(7)).

use crate::Errno;
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_abi::numbers::{
    CAP_LAST_CAP, CAP_SETGID, CAP_SETPCAP, CAP_SETUID, NGROUPS_MAX, VFS_CAP_FLAGS_EFFECTIVE,
    VFS_CAP_REVISION_1, VFS_CAP_REVISION_2, VFS_CAP_REVISION_3, VFS_CAP_REVISION_MASK,
};

/// All capabilities.
pub const ALL_CAPABILITIES: u64 = (1 << (CAP_LAST_CAP + 1)) - 1;

/// The id that stands for "unchanged" in calls.
const UNCHANGED: u32 = u32::MAX;

/// A real, effective and saved id, and that for files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ids {
    /// The id of the program's starter.
    pub real: u32,
    /// The id with whose permissions it runs.
    pub effective: u32,
    /// To which effective id it may return.
    pub saved: u32,
    /// The id for accesses to files.
    pub files: u32,
}

impl Ids {
    /// Returns four equal ids.
    pub const fn all(id: u32) -> Self {
        Self { real: id, effective: id, saved: id, files: id }
    }

    const fn has(self, id: u32) -> bool {
        self.real == id || self.effective == id || self.saved == id
    }

    /// `setuid`, `setgid`: all ids with the capability, otherwise the effective one, to the real or saved id.
    ///
    /// # Errors
    /// [`Errno::EPERM`]; [`Errno::EINVAL`] for -1.
    fn set(&mut self, id: u32, is_capable: bool) -> Result<(), Errno> {
        match (id, is_capable) {
            (UNCHANGED, _) => return Err(Errno::EINVAL),
            (_, true) => *self = Self::all(id),
            _ if id == self.real || id == self.saved => {
                self.effective = id;
                self.files = id;
            }
            _ => return Err(Errno::EPERM),
        }
        Ok(())
    }

    /// `setreuid`, `setregid`.
    ///
    /// # Errors
    /// [`Errno::EPERM`].
    fn set_real_and_effective(&mut self, real: u32, effective: u32, is_capable: bool) -> Result<(), Errno> {
        let may_real = real == UNCHANGED || is_capable || real == self.real || real == self.effective;
        if !may_real || !(effective == UNCHANGED || is_capable || self.has(effective)) {
            return Err(Errno::EPERM);
        }
        let before = *self;
        if real != UNCHANGED {
            self.real = real;
        }
        if effective != UNCHANGED {
            self.effective = effective;
        }
        if real != UNCHANGED || (effective != UNCHANGED && effective != before.real) {
            self.saved = self.effective;
        }
        self.files = self.effective;
        Ok(())
    }

    /// `setresuid`, `setresgid`.
    ///
    /// # Errors
    /// [`Errno::EPERM`].
    fn set_all(&mut self, ids: [u32; 3], is_capable: bool) -> Result<(), Errno> {
        if ids.iter().any(|id| *id != UNCHANGED && !is_capable && !self.has(*id)) {
            return Err(Errno::EPERM);
        }
        let [real, effective, saved] = ids;
        for (place, id) in
            [(&mut self.real, real), (&mut self.effective, effective), (&mut self.saved, saved)]
        {
            if id != UNCHANGED {
                *place = id;
            }
        }
        self.files = self.effective;
        Ok(())
    }
}

/// The capability sets of a thread: bit `CAP_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Those that it may make effective.
    pub permitted: u64,
    /// Those that checks use.
    pub effective: u64,
    /// Those that `execve` may keep.
    pub inheritable: u64,
    /// The capabilities that `execve` may give.
    pub bounding: u64,
    /// Those that `execve` of an ordinary file keeps.
    pub ambient: u64,
}

/// The capabilities of an executable file (capabilities(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileCapabilities {
    /// Those that the program gets, within the bounding set.
    pub permitted: u64,
    /// Those that it gets if they are inheritable.
    pub inheritable: u64,
    /// Whether they are effective from the program's start.
    pub is_effective: bool,
}

/// The credentials of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// User ids.
    pub user: Ids,
    /// Group ids.
    pub group: Ids,
    /// Supplementary groups.
    pub groups: Arc<[u32]>,
    /// Capabilities.
    pub capabilities: Capabilities,
    /// Whether `execve` never gives privileges (`PR_SET_NO_NEW_PRIVS`).
    pub no_new_privileges: bool,
    /// Whether the permitted capabilities survive the change from user 0 (`PR_SET_KEEPCAPS`).
    pub keeps_capabilities: bool,
}

/// A change of ids by a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdChange {
    /// `setuid`, `setgid`.
    One(u32),
    /// `setreuid`, `setregid`: real and effective.
    Two(u32, u32),
    /// `setresuid`, `setresgid`: real, effective, saved.
    Three([u32; 3]),
}

impl Credentials {
    /// Returns the credentials of a user without privileges, or of root with all of them for user 0.
    pub fn of(user: u32, group: u32, groups: Vec<u32>) -> Self {
        let held = if user == 0 { ALL_CAPABILITIES } else { 0 };
        Self {
            user: Ids::all(user),
            group: Ids::all(group),
            groups: groups.into(),
            capabilities: Capabilities {
                permitted: held,
                effective: held,
                inheritable: 0,
                bounding: ALL_CAPABILITIES,
                ambient: 0,
            },
            no_new_privileges: false,
            keeps_capabilities: false,
        }
    }

    /// Returns whether a capability is effective.
    pub const fn has(&self, capability: u32) -> bool {
        self.capabilities.effective & 1 << capability != 0
    }

    /// Changes user ids, and the capabilities with them: those of user 0 go when no id is 0 any more.
    ///
    /// # Errors
    /// [`Errno::EPERM`], [`Errno::EINVAL`].
    pub fn change_user(&mut self, change: IdChange) -> Result<(), Errno> {
        let (before, is_capable) = (self.user, self.has(CAP_SETUID));
        change.apply(&mut self.user, is_capable)?;
        let capabilities = &mut self.capabilities;
        if before.has(0) && !self.user.has(0) && !self.keeps_capabilities {
            capabilities.permitted = 0;
            capabilities.ambient = 0;
        }
        match (before.effective, self.user.effective) {
            (0, 0) => {}
            (0, _) => capabilities.effective = 0,
            (_, 0) => capabilities.effective = capabilities.permitted,
            _ => {}
        }
        capabilities.effective &= capabilities.permitted;
        Ok(())
    }

    /// Changes group ids.
    ///
    /// # Errors
    /// [`Errno::EPERM`], [`Errno::EINVAL`].
    pub fn change_group(&mut self, change: IdChange) -> Result<(), Errno> {
        let is_capable = self.has(CAP_SETGID);
        change.apply(&mut self.group, is_capable)
    }

    /// Sets the supplementary groups.
    ///
    /// # Errors
    /// [`Errno::EPERM`]; [`Errno::EINVAL`] for more than 65,536.
    pub fn set_groups(&mut self, groups: Vec<u32>) -> Result<(), Errno> {
        if !self.has(CAP_SETGID) {
            return Err(Errno::EPERM);
        }
        if groups.len() > NGROUPS_MAX as usize {
            return Err(Errno::EINVAL);
        }
        self.groups = groups.into();
        Ok(())
    }

    /// `capset`.
    ///
    /// # Errors
    /// [`Errno::EPERM`] if it adds permitted capabilities, or makes others effective or inheritable than permitted.
    pub fn set_capabilities(
        &mut self,
        permitted: u64,
        effective: u64,
        inheritable: u64,
    ) -> Result<(), Errno> {
        let now = self.capabilities;
        let may_inherit = now.inheritable | if self.has(CAP_SETPCAP) { now.bounding } else { now.permitted };
        let is_permitted = permitted & !now.permitted == 0
            && effective & !permitted == 0
            && inheritable & !(may_inherit | now.permitted) == 0;
        if !is_permitted {
            return Err(Errno::EPERM);
        }
        let ambient = now.ambient & permitted & inheritable;
        self.capabilities = Capabilities { permitted, effective, inheritable, ambient, ..now };
        Ok(())
    }

    /// Changes the credentials for `execve` of a file that sets these effective ids and has these capabilities: saved and file ids
    /// become the effective ones; user 0 gets all capabilities of the bounding set. Returns whether the program has rights that
    /// its starter may not have (`AT_SECURE`).
    ///
    /// # Errors
    /// [`Errno::EPERM`] if the file's capabilities are to be effective, and the bounding set does not allow all of them.
    pub fn execute(
        &mut self,
        user: Option<u32>,
        group: Option<u32>,
        file: Option<FileCapabilities>,
    ) -> Result<bool, Errno> {
        self.user.effective = user.unwrap_or(self.user.effective);
        self.group.effective = group.unwrap_or(self.group.effective);
        if user.is_some() || group.is_some() || file.is_some() {
            self.capabilities.ambient = 0;
        }
        self.user.saved = self.user.effective;
        self.user.files = self.user.effective;
        self.group.saved = self.group.effective;
        self.group.files = self.group.effective;
        self.keeps_capabilities = false;
        let now = self.capabilities;
        let mut permitted = 0;
        let mut is_effective = false;
        if let Some(file) = file {
            permitted = file.permitted & now.bounding | file.inheritable & now.inheritable;
            is_effective = file.is_effective;
            if is_effective && file.permitted & !permitted != 0 {
                return Err(Errno::EPERM);
            }
        }
        let is_root = self.user.effective == 0;
        // A set-user-id program of root with capabilities of its own has these only.
        if self.user.real == 0 || is_root && file.is_none() {
            permitted = now.bounding | now.inheritable;
            is_effective |= is_root;
        }
        permitted |= now.ambient;
        let effective = if is_effective { permitted } else { now.ambient };
        self.capabilities = Capabilities { permitted, effective, ..now };
        let has_other_ids = self.user.real != self.user.effective || self.group.real != self.group.effective;
        let has_more = is_effective || permitted & !now.ambient != 0;
        Ok(has_other_ids || (self.user.real != 0 && has_more))
    }
}

impl FileCapabilities {
    /// Parses the value of the extended attribute `security.capability` (`struct vfs_cap_data`, `vfs_ns_cap_data`). `None` if
    /// its capabilities belong to a user namespace.
    ///
    /// # Errors
    /// [`Errno::EINVAL`].
    pub fn parse(value: &[u8]) -> Result<Option<Self>, Errno> {
        let word = |index: usize| value.get(4 * index..)?.first_chunk().map(|word| u32::from_le_bytes(*word));
        let first = word(0).ok_or(Errno::EINVAL)?;
        let (words, owner) = match (first & VFS_CAP_REVISION_MASK, value.len()) {
            (VFS_CAP_REVISION_1, 12) => (1, Some(0)),
            (VFS_CAP_REVISION_2, 20) => (2, Some(0)),
            (VFS_CAP_REVISION_3, 24) => (2, word(5)),
            _ => return Err(Errno::EINVAL),
        };
        let set = |offset: usize| -> u64 {
            let half = |half: usize| u64::from(word(1 + 2 * half + offset).unwrap_or(0)) << (32 * half);
            (0..words).fold(0, |set, index| set | half(index)) & ALL_CAPABILITIES
        };
        let is_effective = first & VFS_CAP_FLAGS_EFFECTIVE != 0;
        let capabilities = Self { permitted: set(0), inheritable: set(1), is_effective };
        Ok((owner == Some(0)).then_some(capabilities))
    }
}

impl IdChange {
    fn apply(self, ids: &mut Ids, is_capable: bool) -> Result<(), Errno> {
        match self {
            Self::One(id) => ids.set(id, is_capable),
            Self::Two(real, effective) => ids.set_real_and_effective(real, effective, is_capable),
            Self::Three(all) => ids.set_all(all, is_capable),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use isola_linux_abi::numbers::{CAP_CHOWN, CAP_KILL};

    #[test]
    fn root_that_becomes_a_user_loses_all_privileges_for_good() {
        let mut credentials = Credentials::of(0, 0, vec![]);
        credentials.set_groups(vec![5]).unwrap();
        credentials.change_group(IdChange::One(33)).unwrap();
        credentials.change_user(IdChange::One(33)).unwrap();
        assert_eq!((credentials.user, credentials.group), (Ids::all(33), Ids::all(33)));
        assert_eq!((credentials.capabilities.permitted, credentials.capabilities.effective), (0, 0));
        assert_eq!(credentials.change_user(IdChange::One(0)), Err(Errno::EPERM));
        assert_eq!(credentials.change_group(IdChange::One(0)), Err(Errno::EPERM));
        assert_eq!(credentials.set_groups(vec![]), Err(Errno::EPERM));
        assert_eq!(credentials.change_user(IdChange::One(u32::MAX)), Err(Errno::EINVAL));
    }

    #[test]
    fn an_effective_user_can_be_left_and_taken_again() {
        let mut credentials = Credentials::of(0, 0, vec![]);
        credentials.change_user(IdChange::Three([u32::MAX, 7, u32::MAX])).unwrap();
        assert_eq!(credentials.user, Ids { real: 0, effective: 7, saved: 0, files: 7 });
        assert!(!credentials.has(CAP_CHOWN));
        credentials.change_user(IdChange::Three([u32::MAX, 0, u32::MAX])).unwrap();
        assert!(credentials.has(CAP_CHOWN));
        // setreuid sets the saved id with the real one.
        credentials.change_user(IdChange::Two(8, 9)).unwrap();
        assert_eq!(credentials.user, Ids { real: 8, effective: 9, saved: 9, files: 9 });
        assert_eq!(credentials.change_user(IdChange::Two(0, u32::MAX)), Err(Errno::EPERM));
        assert_eq!(credentials.change_user(IdChange::Three([0, 8, 8])), Err(Errno::EPERM));
        assert_eq!(credentials.change_user(IdChange::Three([9, 8, 8])), Ok(()));
    }

    #[test]
    fn kept_capabilities_are_permitted_but_not_effective() {
        let mut credentials = Credentials::of(0, 0, vec![]);
        credentials.keeps_capabilities = true;
        credentials.change_user(IdChange::One(33)).unwrap();
        assert_eq!(credentials.capabilities.permitted, ALL_CAPABILITIES);
        assert!(!credentials.has(CAP_KILL));
        let kill = 1 << CAP_KILL;
        credentials.set_capabilities(kill, kill, 0).unwrap();
        assert!(credentials.has(CAP_KILL));
        assert_eq!(credentials.set_capabilities(kill | 1, kill, 0), Err(Errno::EPERM));
        assert_eq!(credentials.set_capabilities(0, kill, 0), Err(Errno::EPERM));
        credentials.execute(None, None, None).unwrap();
        assert_eq!((credentials.capabilities.permitted, credentials.keeps_capabilities), (0, false));
    }

    #[test]
    fn execve_gives_root_what_the_bounding_set_allows() {
        let mut credentials = Credentials::of(0, 0, vec![]);
        credentials.capabilities.bounding = 3;
        credentials.execute(None, None, None).unwrap();
        assert_eq!((credentials.capabilities.permitted, credentials.capabilities.effective), (3, 3));
    }

    #[test]
    fn a_file_sets_the_effective_and_saved_ids_but_not_the_real_ones() {
        let mut credentials = Credentials::of(33, 33, vec![]);
        credentials.capabilities.inheritable = 1 << CAP_CHOWN;
        credentials.capabilities.ambient = 1 << CAP_CHOWN;
        let mut other = credentials.clone();
        credentials.execute(Some(0), None, None).unwrap();
        assert_eq!(credentials.user, Ids { real: 33, effective: 0, saved: 0, files: 0 });
        assert_eq!(credentials.group, Ids::all(33));
        assert!(credentials.has(CAP_KILL));
        other.execute(None, Some(7), None).unwrap();
        assert_eq!(other.group, Ids { real: 33, effective: 7, saved: 7, files: 7 });
        assert_eq!((other.capabilities.effective, other.capabilities.ambient), (0, 0));
    }

    #[test]
    fn a_file_gives_its_capabilities_within_the_bounding_set() {
        let file =
            |permitted, inheritable, is_effective| FileCapabilities { permitted, inheritable, is_effective };
        let mut credentials = Credentials::of(33, 33, vec![]);
        credentials.capabilities.ambient = 8;
        credentials.capabilities.inheritable = 8 | 4;
        let sets = |file| {
            let mut credentials = credentials.clone();
            let is_secure = credentials.execute(None, None, Some(file)).unwrap();
            let Capabilities { permitted, effective, ambient, .. } = credentials.capabilities;
            (permitted, effective, ambient, is_secure)
        };
        assert_eq!(sets(file(3, 0, true)), (3, 3, 0, true));
        assert_eq!(sets(file(3, 0, false)), (3, 0, 0, true));
        assert_eq!(sets(file(0, 6, true)), (4, 4, 0, true));
        assert_eq!(sets(file(0, 0, false)), (0, 0, 0, false));
        let mut bounded = credentials.clone();
        bounded.capabilities.bounding = 2;
        assert_eq!(bounded.clone().execute(None, None, Some(file(3, 0, true))), Err(Errno::EPERM));
        assert_eq!(bounded.execute(None, None, Some(file(3, 0, false))), Ok(true));
        assert_eq!(bounded.capabilities.permitted, 2);
        // Root has all, but for a set-user-id program with capabilities of its own.
        let mut root = Credentials::of(0, 0, vec![]);
        assert_eq!(root.execute(None, None, Some(file(3, 0, false))), Ok(false));
        assert_eq!(root.capabilities.effective, ALL_CAPABILITIES);
        let mut program = Credentials::of(33, 33, vec![]);
        assert_eq!(program.execute(Some(0), None, Some(file(3, 0, true))), Ok(true));
        assert_eq!(program.capabilities.effective, 3);
    }

    #[test]
    fn the_attribute_has_three_revisions_and_others_are_errors() {
        let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
        let found = |value: &[u32]| FileCapabilities::parse(&words(value));
        let is = |permitted, inheritable, is_effective| {
            Ok(Some(FileCapabilities { permitted, inheritable, is_effective }))
        };
        assert_eq!(found(&[0x0100_0000, 1, 2]), is(1, 2, false));
        assert_eq!(found(&[0x0200_0001, 1 << 13, 0, 1, 2]), is(1 << 32 | 1 << 13, 2 << 32, true));
        assert_eq!(
            found(&[0x0300_0001, 1, 0, !0, 0, 0]),
            is(ALL_CAPABILITIES & (!0_u32 as u64) << 32 | 1, 0, true)
        );
        assert_eq!(found(&[0x0300_0001, 1, 0, 0, 0, 1000]), Ok(None));
        for bad in
            [&[][..], &[0x0200_0001], &[0x0100_0001, 1, 2, 3], &[0x0400_0001, 1, 0, 0, 0, 0], &[5, 1, 2]]
        {
            assert_eq!(found(bad), Err(Errno::EINVAL), "{bad:x?}");
        }
    }
}
