//! Errors of system calls.

use core::fmt;
use linux_raw_sys::errno;

/// The error of a system call: a number of Linux's `errno.h`, or one of the restart codes, which no program sees.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Errno(u16);

macro_rules! errors {
    ($($name:ident)*) => {
        #[allow(missing_docs, reason = "the names are those of errno(3)")]
        impl Errno {
            $(pub const $name: Self = Self(errno::$name as u16);)*
        }

        /// The names of the errors.
        const NAMES: &[(Errno, &str)] = &[$((Errno::$name, stringify!($name)),)*];
    };
}

errors! {
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT ENOTBLK EBUSY EEXIST EXDEV
    ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK
    ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP ENODATA EOVERFLOW EBADFD ELIBBAD EILSEQ EUSERS ENOTSOCK EDESTADDRREQ
    EMSGSIZE EPROTOTYPE ENOPROTOOPT EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE
    EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN ESHUTDOWN ETIMEDOUT
    ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY EINPROGRESS ESTALE EDQUOT ECANCELED EOWNERDEAD ENOTRECOVERABLE ETOOMANYREFS
}

impl Errno {
    /// A signal interrupted the call. It is restarted unless a handler without `SA_RESTART` runs.
    pub const ERESTARTSYS: Self = Self(512);
    /// A signal interrupted the call. It is always restarted.
    pub const ERESTARTNOINTR: Self = Self(513);
    /// A signal interrupted the call. It is restarted only if no handler runs.
    pub const ERESTARTNOHAND: Self = Self(514);
    /// As [`Self::ERESTARTNOHAND`]; the restart continues with the remaining time, by `restart_syscall`.
    pub const ERESTART_RESTARTBLOCK: Self = Self(516);

    /// Returns the value of RAX for this error: its negative number.
    pub const fn to_result(self) -> u64 {
        (self.0 as i64).wrapping_neg() as u64
    }

    /// Returns the number.
    pub const fn number(self) -> u16 {
        self.0
    }

    /// Returns the name in `errno.h`.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(errno, _)| *errno == self).map_or("restart", |(_, name)| name)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl core::error::Error for Errno {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_a_negative_result_with_the_name_of_its_number() {
        assert_eq!(Errno::ENOENT.to_result() as i64, -2);
        assert_eq!(Errno::ENOTRECOVERABLE.to_result() as i64, -131);
        extern crate std;
        assert_eq!(std::format!("{:?} {}", Errno::EAGAIN, Errno::ELOOP), "EAGAIN (11) ELOOP");
    }
}
