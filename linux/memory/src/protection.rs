//! The permitted accesses to a mapping.

use isola_linux_abi::numbers::{PROT_EXEC, PROT_READ, PROT_WRITE};
use isola_user_mode::{Access, PageRights};

/// The permitted accesses to a mapping, as in `mmap` and `mprotect`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protection {
    /// Loads.
    pub readable: bool,
    /// Stores.
    pub writable: bool,
    /// Instructions.
    pub executable: bool,
}

impl Protection {
    /// No access: a reservation of addresses.
    pub const NONE: Self = Self { readable: false, writable: false, executable: false };

    /// All accesses.
    pub const ALL: Self = Self { readable: true, writable: true, executable: true };

    /// Returns the accesses of these `PROT_` bits. Other bits are ignored.
    pub fn from_bits(bits: u32) -> Self {
        Self {
            readable: bits & PROT_READ != 0,
            writable: bits & PROT_WRITE != 0,
            executable: bits & PROT_EXEC != 0,
        }
    }

    /// Returns whether no access is permitted.
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// Returns whether all accesses of `self` are in `maximum`.
    pub fn is_within(self, maximum: Self) -> bool {
        (maximum.readable || !self.readable)
            && (maximum.writable || !self.writable)
            && (maximum.executable || !self.executable)
    }

    /// Returns whether the access is permitted. As the processor's page tables cannot forbid loads of a page with other
    /// accesses, any permission includes them.
    pub fn permits(self, access: Access) -> bool {
        match access {
            Access::Read => !self.is_none(),
            Access::Write => self.writable,
            Access::Execute => self.executable,
        }
    }

    /// Returns the rights of a page that the process may write to, or may not yet (`writable`).
    pub(crate) fn rights(self, writable: bool) -> PageRights {
        PageRights { writable: self.writable && writable, executable: self.executable }
    }
}
