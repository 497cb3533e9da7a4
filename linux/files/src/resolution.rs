//! Restrictions of a look-up: the field `resolve` of `openat2`(2).
//!
//! A scoped look-up (`RESOLVE_BENEATH`, `RESOLVE_IN_ROOT`) ends in the tree below its start, also while others rename
//! directories of the path: after each step upwards, and at its end, the look-up checks that it is still there.

use crate::Errno;
use crate::dentry::Location;
use isola_linux_abi::numbers::{
    RESOLVE_BENEATH, RESOLVE_CACHED, RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
};

/// The restrictions of a look-up.
pub(crate) struct Resolution {
    flags: u32,
    /// Where it begins: the directory of the call, or the root for an absolute path without a scope.
    start: Location,
}

impl Resolution {
    /// Returns whether the flags exist, and do not contradict each other.
    pub(crate) fn are_valid(flags: u32) -> bool {
        const SCOPES: u32 = RESOLVE_BENEATH | RESOLVE_IN_ROOT;
        const KNOWN: u32 =
            SCOPES | RESOLVE_CACHED | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV;
        flags & !KNOWN == 0 && flags & SCOPES != SCOPES
    }

    /// Returns whether such a look-up stays below the directory of the call.
    pub(crate) fn is_scoped(flags: u32) -> bool {
        flags & (RESOLVE_BENEATH | RESOLVE_IN_ROOT) != 0
    }

    pub(crate) fn new(flags: u32, start: Location) -> Self {
        Self { flags, start }
    }

    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Returns where the path begins.
    ///
    /// # Errors
    /// [`Errno::EXDEV`] for an absolute path that has to stay below the start.
    pub(crate) fn begin(&self, path: &[u8]) -> Result<Location, Errno> {
        if path.first() == Some(&b'/') && self.has(RESOLVE_BENEATH) {
            return Err(Errno::EXDEV);
        }
        Ok(self.start.clone())
    }

    /// Checks a step to `next`, which may be on another mount.
    ///
    /// # Errors
    /// [`Errno::EXDEV`].
    pub(crate) fn check_step(&self, here: &Location, next: &Location) -> Result<(), Errno> {
        let changes_mount = !alloc::sync::Arc::ptr_eq(&here.mount, &next.mount);
        if changes_mount && self.has(RESOLVE_NO_XDEV) { Err(Errno::EXDEV) } else { Ok(()) }
    }

    /// Returns the directory above, as `up` finds it.
    ///
    /// # Errors
    /// [`Errno::EXDEV`] above the start; [`Errno::EAGAIN`] if another call has moved the directory out of the start.
    pub(crate) fn up(
        &self,
        here: Location,
        up: impl FnOnce(Location) -> Location,
    ) -> Result<Location, Errno> {
        if Self::is_scoped(self.flags) && here.is(&self.start) {
            return if self.has(RESOLVE_BENEATH) { Err(Errno::EXDEV) } else { Ok(here) };
        }
        let next = up(here.clone());
        self.check_step(&here, &next)?;
        if self.is_inside(&next) { Ok(next) } else { Err(Errno::EAGAIN) }
    }

    /// Checks whether the symbolic links that are followed may be.
    ///
    /// # Errors
    /// [`Errno::ELOOP`].
    pub(crate) fn check_link(&self) -> Result<(), Errno> {
        if self.has(RESOLVE_NO_SYMLINKS) { Err(Errno::ELOOP) } else { Ok(()) }
    }

    /// Returns where the absolute target of a link leads: `root`, or the start.
    ///
    /// # Errors
    /// [`Errno::EXDEV`].
    pub(crate) fn root_of_link(&self, here: &Location, root: Location) -> Result<Location, Errno> {
        if self.has(RESOLVE_BENEATH) {
            return Err(Errno::EXDEV);
        }
        let root = if self.has(RESOLVE_IN_ROOT) { self.start.clone() } else { root };
        self.check_step(here, &root)?;
        Ok(root)
    }

    /// Checks a link of `/proc` that leads to a file without a path, such as `/proc/self/fd/3`.
    ///
    /// # Errors
    /// [`Errno::ELOOP`], [`Errno::EXDEV`].
    pub(crate) fn check_magic_link(&self, here: &Location, target: Option<&Location>) -> Result<(), Errno> {
        if self.has(RESOLVE_NO_MAGICLINKS) {
            return Err(Errno::ELOOP);
        }
        if Self::is_scoped(self.flags) {
            return Err(Errno::EXDEV);
        }
        match target {
            Some(target) => self.check_step(here, target),
            None if self.has(RESOLVE_NO_XDEV) => Err(Errno::EXDEV),
            None => Ok(()),
        }
    }

    /// Checks the end of the look-up.
    ///
    /// # Errors
    /// [`Errno::EXDEV`] if another call has moved it out of the start.
    pub(crate) fn check_end(&self, end: &Location) -> Result<(), Errno> {
        if self.is_inside(end) { Ok(()) } else { Err(Errno::EXDEV) }
    }

    fn is_inside(&self, location: &Location) -> bool {
        if !Self::is_scoped(self.flags) {
            return true;
        }
        let mut here = location.clone();
        loop {
            if here.is(&self.start) {
                return true;
            }
            let parent = here.parent();
            if parent.is(&here) {
                return false;
            }
            here = parent;
        }
    }
}
