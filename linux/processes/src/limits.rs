//! Resource limits of a process (getrlimit(2)).

use crate::Errno;
use isola_linux_abi::numbers::{
    RLIM_NLIMITS, RLIM64_INFINITY, RLIMIT_CORE, RLIMIT_CPU, RLIMIT_MEMLOCK, RLIMIT_MSGQUEUE, RLIMIT_NICE,
    RLIMIT_NOFILE, RLIMIT_NPROC, RLIMIT_RTPRIO, RLIMIT_SIGPENDING, RLIMIT_STACK,
};

/// No limit.
pub const UNLIMITED: u64 = RLIM64_INFINITY as u64;

/// The most open files of a process; no limit is higher (`/proc/sys/fs/nr_open`).
const MOST_FILES: u64 = 1 << 20;

/// A limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The value that is in force.
    pub soft: u64,
    /// The highest soft limit.
    pub hard: u64,
}

/// The limits of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits([Limit; RLIM_NLIMITS as usize]);

impl Default for Limits {
    fn default() -> Self {
        let mut limits = Self([Limit { soft: UNLIMITED, hard: UNLIMITED }; RLIM_NLIMITS as usize]);
        for (resource, soft, hard) in [
            (RLIMIT_STACK, 8 << 20, UNLIMITED),
            (RLIMIT_CORE, 0, UNLIMITED),
            (RLIMIT_NOFILE, 1024, MOST_FILES),
            (RLIMIT_NPROC, 32_768, 32_768),
            (RLIMIT_MEMLOCK, 8 << 20, 8 << 20),
            (RLIMIT_SIGPENDING, 4096, 4096),
            (RLIMIT_MSGQUEUE, 819_200, 819_200),
            (RLIMIT_NICE, 0, 0),
            (RLIMIT_RTPRIO, 0, 0),
        ] {
            limits.0[resource as usize] = Limit { soft, hard };
        }
        limits
    }
}

impl Limits {
    /// Returns the limit of a resource, `RLIMIT_*`.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if there is no such resource.
    pub fn get(&self, resource: u32) -> Result<Limit, Errno> {
        self.0.get(resource as usize).copied().ok_or(Errno::EINVAL)
    }

    /// Returns the limit of processor time, in seconds.
    pub fn processor_time(&self) -> Limit {
        self.0[RLIMIT_CPU as usize]
    }

    /// Returns the soft limit of a resource of Linux.
    pub fn soft(&self, resource: u32) -> u64 {
        self.get(resource).map_or(UNLIMITED, |limit| limit.soft)
    }

    /// Sets the limit of a resource.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for an unknown resource or a soft limit above the hard one; [`Errno::EPERM`] if the hard limit
    /// rises without the capability (`CAP_SYS_RESOURCE`), or the limit of open files rises above 1,048,576.
    pub fn set(&mut self, resource: u32, limit: Limit, is_capable: bool) -> Result<(), Errno> {
        let now = self.0.get_mut(resource as usize).ok_or(Errno::EINVAL)?;
        if limit.soft > limit.hard {
            return Err(Errno::EINVAL);
        }
        let is_too_high = resource == RLIMIT_NOFILE && limit.hard > MOST_FILES;
        if is_too_high || (limit.hard > now.hard && !is_capable) {
            return Err(Errno::EPERM);
        }
        *now = limit;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_fall_freely_and_rise_with_a_capability() {
        let mut limits = Limits::default();
        assert_eq!(limits.get(RLIM_NLIMITS), Err(Errno::EINVAL));
        let files = |soft, hard| (RLIMIT_NOFILE, Limit { soft, hard });
        let mut set = |(resource, limit), is_capable| limits.set(resource, limit, is_capable);
        assert_eq!(set(files(2, 1), true), Err(Errno::EINVAL));
        assert_eq!(set(files(1 << 20, 1 << 20), false), Ok(()));
        assert_eq!(set(files(1, (1 << 20) + 1), true), Err(Errno::EPERM));
        assert_eq!(set(files(10, 20), false), Ok(()));
        assert_eq!(set(files(10, 21), false), Err(Errno::EPERM));
        assert_eq!(set(files(10, 21), true), Ok(()));
        assert_eq!(limits.soft(RLIMIT_NOFILE), 10);
        assert_eq!(limits.soft(RLIMIT_STACK), 8 << 20);
    }
}
