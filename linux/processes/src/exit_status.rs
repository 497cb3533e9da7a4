//! How a process ended or stopped, as its parent sees it (wait(2)).

use crate::signals::Signal;

/// A change of a process's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// It ended with this code, of which the lowest 8 bits count.
    Exited(u8),
    /// A signal ended it.
    Killed {
        /// The signal.
        signal: Signal,
        /// Whether it has written a core file.
        dumps_core: bool,
    },
    /// A signal stopped it.
    Stopped(Signal),
    /// It continued.
    Continued,
    /// It stopped for its tracer.
    Traced {
        /// The signal, with 0x80 for a call.
        signal: u8,
        /// `PTRACE_EVENT_*`; 0 for none.
        event: u8,
    },
}

/// `si_code` of SIGCHLD.
mod code {
    pub(super) const EXITED: i32 = 1;
    pub(super) const KILLED: i32 = 2;
    pub(super) const DUMPED: i32 = 3;
    pub(super) const TRAPPED: i32 = 4;
    pub(super) const STOPPED: i32 = 5;
    pub(super) const CONTINUED: i32 = 6;
}

impl ExitStatus {
    /// Returns the status word of `wait4`.
    pub fn word(self) -> u32 {
        match self {
            Self::Exited(code) => u32::from(code) << 8,
            Self::Killed { signal, dumps_core } => u32::from(signal.number()) | u32::from(dumps_core) << 7,
            Self::Stopped(signal) => 0x7f | u32::from(signal.number()) << 8,
            Self::Continued => 0xffff,
            Self::Traced { signal, event } => 0x7f | u32::from(signal) << 8 | u32::from(event) << 16,
        }
    }

    /// Returns `si_code` and `si_status` of SIGCHLD and `waitid`.
    pub fn code_and_status(self) -> (i32, i32) {
        match self {
            Self::Exited(code) => (code::EXITED, code.into()),
            Self::Killed { signal, dumps_core } => {
                (if dumps_core { code::DUMPED } else { code::KILLED }, signal.number().into())
            }
            Self::Stopped(signal) => (code::STOPPED, signal.number().into()),
            Self::Continued => (code::CONTINUED, Signal::SIGCONT.number().into()),
            Self::Traced { signal, event } => (code::TRAPPED, i32::from(signal) | i32::from(event) << 8),
        }
    }

    /// Returns the exit code of a shell for it: that of the process, or 128 and the signal's number.
    pub fn shell_code(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::Killed { signal, .. } | Self::Stopped(signal) => 128 + signal.number(),
            Self::Continued | Self::Traced { .. } => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_of_the_wait_macros() {
        assert_eq!(ExitStatus::Exited(3).word(), 0x300);
        let killed = ExitStatus::Killed { signal: Signal::SIGSEGV, dumps_core: true };
        assert_eq!((killed.word(), killed.code_and_status(), killed.shell_code()), (0x8b, (3, 11), 139));
        assert_eq!(ExitStatus::Stopped(Signal::SIGTSTP).word(), 0x147f);
        assert_eq!(ExitStatus::Continued.word(), 0xffff);
        let cloned = ExitStatus::Traced { signal: 5, event: 3 };
        assert_eq!((cloned.word(), cloned.code_and_status()), (0x3_057f, (4, 0x305)));
    }
}
