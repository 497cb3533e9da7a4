//! Signal numbers, sets of them, and their default actions (signal(7)).

use crate::Errno;
use core::fmt;
use core::ops::{BitAnd, BitOr, Not};

/// A signal: 1 to 64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signal(u8);

/// The effect of a signal without a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultAction {
    /// The process ends.
    Terminate,
    /// The process ends, and writes a core file.
    Core,
    /// Nothing happens.
    Ignore,
    /// The process stops.
    Stop,
    /// A stopped process continues.
    Continue,
}

macro_rules! signals {
    ($($name:ident $number:literal $action:ident;)*) => {
        #[allow(missing_docs, reason = "the names are those of signal(7)")]
        impl Signal {
            $(pub const $name: Self = Self($number);)*
        }

        /// The standard signals in ascending order.
        const STANDARD: &[(&str, DefaultAction)] = &[$((stringify!($name), DefaultAction::$action),)*];
    };
}

signals! {
    SIGHUP 1 Terminate;
    SIGINT 2 Terminate;
    SIGQUIT 3 Core;
    SIGILL 4 Core;
    SIGTRAP 5 Core;
    SIGABRT 6 Core;
    SIGBUS 7 Core;
    SIGFPE 8 Core;
    SIGKILL 9 Terminate;
    SIGUSR1 10 Terminate;
    SIGSEGV 11 Core;
    SIGUSR2 12 Terminate;
    SIGPIPE 13 Terminate;
    SIGALRM 14 Terminate;
    SIGTERM 15 Terminate;
    SIGSTKFLT 16 Terminate;
    SIGCHLD 17 Ignore;
    SIGCONT 18 Continue;
    SIGSTOP 19 Stop;
    SIGTSTP 20 Stop;
    SIGTTIN 21 Stop;
    SIGTTOU 22 Stop;
    SIGURG 23 Ignore;
    SIGXCPU 24 Core;
    SIGXFSZ 25 Core;
    SIGVTALRM 26 Terminate;
    SIGPROF 27 Terminate;
    SIGWINCH 28 Ignore;
    SIGIO 29 Terminate;
    SIGPWR 30 Terminate;
    SIGSYS 31 Core;
}

/// The first real-time signal, as the kernel counts them.
const FIRST_REAL_TIME: u8 = 32;
/// The last signal.
const LAST: u8 = 64;

impl Signal {
    /// Returns the signal with this number.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if there is none.
    pub fn from_number(number: u64) -> Result<Self, Errno> {
        if (1..=u64::from(LAST)).contains(&number) { Ok(Self(number as u8)) } else { Err(Errno::EINVAL) }
    }

    /// Returns the number.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Returns its place in a table of all signals.
    pub const fn index(self) -> usize {
        self.0 as usize - 1
    }

    /// Returns whether several instances of it are queued.
    pub const fn is_real_time(self) -> bool {
        self.0 >= FIRST_REAL_TIME
    }

    /// Returns its effect without a handler.
    pub fn default_action(self) -> DefaultAction {
        STANDARD.get(self.index()).map_or(DefaultAction::Terminate, |(_, action)| *action)
    }

    /// Returns whether a process can neither block, catch nor ignore it.
    pub const fn is_unblockable(self) -> bool {
        matches!(self, Self::SIGKILL | Self::SIGSTOP)
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match STANDARD.get(self.index()) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "SIGRT{}", self.0 - FIRST_REAL_TIME),
        }
    }
}

/// A set of signals, with Linux's representation: bit 0 is signal 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignalSet(pub u64);

impl SignalSet {
    /// No signal.
    pub const EMPTY: Self = Self(0);
    /// The signals that cannot be blocked.
    pub const UNBLOCKABLE: Self = Self(1 << 8 | 1 << 18);
    /// The signals that stop a process.
    pub const STOPS: Self = Self(1 << 18 | 1 << 19 | 1 << 20 | 1 << 21);

    /// Returns the set with only that signal.
    pub const fn of(signal: Signal) -> Self {
        Self(1 << signal.index())
    }

    /// Returns whether the set contains the signal.
    pub const fn contains(self, signal: Signal) -> bool {
        self.0 & 1 << signal.index() != 0
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the signal with the lowest number.
    pub const fn first(self) -> Option<Signal> {
        if self.0 == 0 { None } else { Some(Signal(self.0.trailing_zeros() as u8 + 1)) }
    }

    /// Adds a signal.
    pub fn insert(&mut self, signal: Signal) {
        self.0 |= Self::of(signal).0;
    }

    /// Removes a signal.
    pub fn remove(&mut self, signal: Signal) {
        self.0 &= !Self::of(signal).0;
    }
}

impl BitOr for SignalSet {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for SignalSet {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Not for SignalSet {
    type Output = Self;
    fn not(self) -> Self {
        Self(!self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_from_1_to_64() {
        assert_eq!(Signal::from_number(0), Err(Errno::EINVAL));
        assert_eq!(Signal::from_number(65), Err(Errno::EINVAL));
        assert_eq!(Signal::from_number(11), Ok(Signal::SIGSEGV));
        assert!(Signal::from_number(64).unwrap().is_real_time() && !Signal::SIGSYS.is_real_time());
        // Each name has the number of its place.
        assert_eq!(STANDARD[Signal::SIGSYS.index()].0, "SIGSYS");
        assert_eq!(STANDARD[Signal::SIGCHLD.index()].0, "SIGCHLD");
        assert_eq!(Signal::from_number(40).unwrap().default_action(), DefaultAction::Terminate);
        assert_eq!(Signal::SIGURG.default_action(), DefaultAction::Ignore);
    }

    #[test]
    fn sets_have_linux_s_bits() {
        let mut set = SignalSet::of(Signal::SIGHUP);
        set.insert(Signal::from_number(64).unwrap());
        assert_eq!((set.0, set.first()), (1 | 1 << 63, Some(Signal::SIGHUP)));
        set.remove(Signal::SIGHUP);
        assert_eq!(set.first().map(Signal::number), Some(64));
        for signal in [Signal::SIGKILL, Signal::SIGSTOP] {
            assert!(SignalSet::UNBLOCKABLE.contains(signal) && signal.is_unblockable());
        }
        assert_eq!(SignalSet::UNBLOCKABLE.0.count_ones(), 2);
        for signal in [Signal::SIGSTOP, Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU] {
            assert!(SignalSet::STOPS.contains(signal));
        }
    }
}
