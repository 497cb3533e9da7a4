//! The users, groups and capabilities of a thread (credentials(7), capabilities(7)).

use crate::Errno;
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_abi::numbers::{CAP_LAST_CAP, CAP_SETGID, CAP_SETPCAP, CAP_SETUID, NGROUPS_MAX};

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

    /// Changes the credentials for `execve` of a file that sets these effective ids: saved and file ids become the
    /// effective ones; user 0 gets all capabilities of the bounding set.
    pub fn execute(&mut self, user: Option<u32>, group: Option<u32>) {
        self.user.effective = user.unwrap_or(self.user.effective);
        self.group.effective = group.unwrap_or(self.group.effective);
        if user.is_some() || group.is_some() {
            self.capabilities.ambient = 0;
        }
        self.user.saved = self.user.effective;
        self.user.files = self.user.effective;
        self.group.saved = self.group.effective;
        self.group.files = self.group.effective;
        self.keeps_capabilities = false;
        let now = self.capabilities;
        let of_root = now.bounding | now.inheritable;
        let is_root = self.user.effective == 0;
        let permitted = if is_root || self.user.real == 0 { of_root } else { now.ambient };
        let effective = if is_root { permitted } else { now.ambient };
        self.capabilities = Capabilities { permitted, effective, ..now };
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
        credentials.execute(None, None);
        assert_eq!((credentials.capabilities.permitted, credentials.keeps_capabilities), (0, false));
    }

    #[test]
    fn execve_gives_root_what_the_bounding_set_allows() {
        let mut credentials = Credentials::of(0, 0, vec![]);
        credentials.capabilities.bounding = 3;
        credentials.execute(None, None);
        assert_eq!((credentials.capabilities.permitted, credentials.capabilities.effective), (3, 3));
    }

    #[test]
    fn a_file_sets_the_effective_and_saved_ids_but_not_the_real_ones() {
        let mut credentials = Credentials::of(33, 33, vec![]);
        credentials.capabilities.inheritable = 1 << CAP_CHOWN;
        credentials.capabilities.ambient = 1 << CAP_CHOWN;
        let mut other = credentials.clone();
        credentials.execute(Some(0), None);
        assert_eq!(credentials.user, Ids { real: 33, effective: 0, saved: 0, files: 0 });
        assert_eq!(credentials.group, Ids::all(33));
        assert!(credentials.has(CAP_KILL));
        other.execute(None, Some(7));
        assert_eq!(other.group, Ids { real: 33, effective: 7, saved: 7, files: 7 });
        assert_eq!((other.capabilities.effective, other.capabilities.ambient), (0, 0));
    }
}
