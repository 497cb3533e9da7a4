//! The actions of a process for signals: `rt_sigaction`.

use super::set::{DefaultAction, Signal, SignalSet};
use isola_linux_abi::Errno;
use isola_linux_abi::numbers::{
    SA_NOCLDSTOP, SA_NOCLDWAIT, SA_NODEFER, SA_ONSTACK, SA_RESETHAND, SA_RESTART, SA_RESTORER, SA_SIGINFO,
};

/// The length of the kernel's `struct sigaction`, in bytes.
pub const ACTION_LEN: usize = 32;

/// Flags that have an effect here. Linux ignores unknown flags of this call, but for those that probe for support.
const KNOWN_FLAGS: u64 = (SA_NOCLDSTOP
    | SA_NOCLDWAIT
    | SA_SIGINFO
    | SA_ONSTACK
    | SA_RESTART
    | SA_NODEFER
    | SA_RESETHAND
    | SA_RESTORER) as u64;

/// Where a signal leads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Handler {
    /// To the default action.
    #[default]
    Default,
    /// Nowhere.
    Ignore,
    /// To a function of the program.
    Function(u64),
}

/// The kernel's `struct sigaction`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignalAction {
    /// Where the signal leads.
    pub handler: Handler,
    /// `SA_*`.
    pub flags: u64,
    /// The function to which the handler returns.
    pub restorer: u64,
    /// Signals that are blocked while the handler runs.
    pub mask: SignalSet,
}

impl SignalAction {
    /// Decodes the structure.
    pub fn from_bytes(bytes: &[u8; ACTION_LEN]) -> Self {
        let word = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * index..8 * index + 8]);
            u64::from_le_bytes(word)
        };
        let handler = match word(0) {
            0 => Handler::Default,
            1 => Handler::Ignore,
            address => Handler::Function(address),
        };
        let mask = SignalSet(word(3)) & !SignalSet::UNBLOCKABLE;
        Self { handler, flags: word(1) & KNOWN_FLAGS, restorer: word(2), mask }
    }

    /// Encodes the structure.
    pub fn to_bytes(self) -> [u8; ACTION_LEN] {
        let handler = match self.handler {
            Handler::Default => 0,
            Handler::Ignore => 1,
            Handler::Function(address) => address,
        };
        let mut bytes = [0; ACTION_LEN];
        for (place, word) in bytes.chunks_exact_mut(8).zip([handler, self.flags, self.restorer, self.mask.0])
        {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Returns whether it has a flag.
    pub const fn has(self, flag: u32) -> bool {
        self.flags & flag as u64 != 0
    }
}

/// The actions of a process.
#[derive(Clone, Debug)]
pub struct SignalActions([SignalAction; 64]);

impl Default for SignalActions {
    fn default() -> Self {
        Self([SignalAction::default(); 64])
    }
}

impl SignalActions {
    /// Returns the action of a signal.
    pub fn get(&self, signal: Signal) -> SignalAction {
        self.0[signal.index()]
    }

    /// Sets the action of a signal.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for SIGKILL and SIGSTOP.
    pub fn set(&mut self, signal: Signal, action: SignalAction) -> Result<(), Errno> {
        if signal.is_unblockable() {
            return Err(Errno::EINVAL);
        }
        self.0[signal.index()] = action;
        Ok(())
    }

    /// Returns whether the signal has no effect, so that it need not become pending.
    pub fn ignores(&self, signal: Signal) -> bool {
        match self.get(signal).handler {
            Handler::Default => signal.default_action() == DefaultAction::Ignore,
            Handler::Ignore => true,
            Handler::Function(_) => false,
        }
    }

    /// Resets the signals with functions to their default actions, for `execve`.
    pub fn reset_functions(&mut self) {
        for action in &mut self.0 {
            let handler = match action.handler {
                Handler::Ignore => Handler::Ignore,
                _ => Handler::Default,
            };
            *action = SignalAction { handler, ..SignalAction::default() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_survives_encoding_without_unknown_flags() {
        let action = SignalAction {
            handler: Handler::Function(0x40_1234),
            flags: u64::from(SA_SIGINFO | SA_RESTORER),
            restorer: 0x40_2000,
            mask: SignalSet::of(Signal::SIGUSR1),
        };
        let mut bytes = action.to_bytes();
        assert_eq!(SignalAction::from_bytes(&bytes), action);
        // SA_UNSUPPORTED, with which a program probes whether the kernel clears unknown flags; and SIGKILL in the mask.
        bytes[9] |= 4;
        bytes[25] |= 1;
        assert_eq!(SignalAction::from_bytes(&bytes), action);
    }

    #[test]
    fn execve_keeps_only_ignored_signals() {
        let mut actions = SignalActions::default();
        let set = |handler| SignalAction { handler, flags: 4, ..SignalAction::default() };
        actions.set(Signal::SIGINT, set(Handler::Ignore)).unwrap();
        actions.set(Signal::SIGTERM, set(Handler::Function(5))).unwrap();
        assert_eq!(actions.set(Signal::SIGKILL, set(Handler::Ignore)), Err(Errno::EINVAL));
        actions.reset_functions();
        assert!(actions.ignores(Signal::SIGINT) && !actions.ignores(Signal::SIGTERM));
        assert!(actions.ignores(Signal::SIGCHLD));
        assert_eq!(actions.get(Signal::SIGTERM), SignalAction::default());
    }
}
