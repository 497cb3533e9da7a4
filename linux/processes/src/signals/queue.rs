//! Signals that wait for delivery, and their facts.

use super::set::{Signal, SignalSet};
use alloc::collections::VecDeque;
use isola_linux_abi::Errno;

/// The most queued instances of real-time signals of a process (`RLIMIT_SIGPENDING` of a small Linux machine).
pub const MOST_QUEUED: usize = 4096;

/// The length of a `siginfo_t`, in bytes.
pub const INFO_LEN: usize = 128;

/// The facts of a signal: `siginfo_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalInfo {
    /// The signal.
    pub signal: Signal,
    /// `si_code`.
    pub code: i32,
    /// `si_errno`.
    pub errno: i32,
    /// The fields that depend on the code.
    pub facts: SignalFacts,
}

/// The fields of `siginfo_t` that depend on its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalFacts {
    /// The sender.
    Sender {
        /// Process.
        pid: u32,
        /// Its user.
        uid: u32,
        /// `si_value`, of `sigqueue`.
        value: u64,
    },
    /// A child that changed its state.
    Child {
        /// Process.
        pid: u32,
        /// Its user.
        uid: u32,
        /// Exit status or signal.
        status: i32,
        /// Its user time, in ticks of 10 ms.
        user_ticks: u64,
        /// Its system time, in ticks of 10 ms.
        system_ticks: u64,
    },
    /// The address of a fault.
    Fault {
        /// `si_addr`.
        address: u64,
    },
    /// A timer.
    Timer {
        /// `si_timerid`.
        id: i32,
        /// `si_overrun`.
        overrun: i32,
        /// `si_value`.
        value: u64,
    },
    /// Bytes that the program chose (`rt_sigqueueinfo`): those behind the code.
    Raw([u8; INFO_LEN - 16]),
}

/// `si_code`: sent by `kill`.
pub const SI_USER: i32 = 0;
/// `si_code`: sent by the kernel.
pub const SI_KERNEL: i32 = 0x80;
/// `si_code`: sent by `sigqueue`.
pub const SI_QUEUE: i32 = -1;
/// `si_code`: sent by a timer.
pub const SI_TIMER: i32 = -2;
/// `si_code`: sent by `tkill` or `tgkill`.
pub const SI_TKILL: i32 = -6;

impl SignalInfo {
    /// Returns a signal of the kernel.
    pub fn kernel(signal: Signal) -> Self {
        Self { signal, code: SI_KERNEL, errno: 0, facts: SignalFacts::Sender { pid: 0, uid: 0, value: 0 } }
    }

    /// Returns a signal of a process.
    pub fn sent(signal: Signal, code: i32, pid: u32, uid: u32) -> Self {
        Self { signal, code, errno: 0, facts: SignalFacts::Sender { pid, uid, value: 0 } }
    }

    /// Returns whether a POSIX timer sent the signal.
    fn is_of_timer(&self, timer: i32) -> bool {
        matches!(self.facts, SignalFacts::Timer { id, .. } if id == timer)
    }

    /// Returns the bytes of `siginfo_t`.
    pub fn to_bytes(&self) -> [u8; INFO_LEN] {
        let mut bytes = [0; INFO_LEN];
        let mut put = |at: usize, word: &[u8]| bytes[at..at + word.len()].copy_from_slice(word);
        put(0, &u32::from(self.signal.number()).to_le_bytes());
        put(4, &self.errno.to_le_bytes());
        put(8, &self.code.to_le_bytes());
        match self.facts {
            SignalFacts::Sender { pid, uid, value } => {
                put(16, &pid.to_le_bytes());
                put(20, &uid.to_le_bytes());
                put(24, &value.to_le_bytes());
            }
            SignalFacts::Child { pid, uid, status, user_ticks, system_ticks } => {
                put(16, &pid.to_le_bytes());
                put(20, &uid.to_le_bytes());
                put(24, &status.to_le_bytes());
                put(32, &user_ticks.to_le_bytes());
                put(40, &system_ticks.to_le_bytes());
            }
            SignalFacts::Fault { address } => put(16, &address.to_le_bytes()),
            SignalFacts::Timer { id, overrun, value } => {
                put(16, &id.to_le_bytes());
                put(20, &overrun.to_le_bytes());
                put(24, &value.to_le_bytes());
            }
            SignalFacts::Raw(rest) => put(16, &rest),
        }
        bytes
    }
}

/// The pending signals of a thread or process: one instance of each standard signal, several of a real-time signal.
#[derive(Debug, Default)]
pub struct PendingSignals {
    set: SignalSet,
    /// In the order of their arrival.
    queue: VecDeque<SignalInfo>,
}

impl PendingSignals {
    /// Adds a signal. A standard signal that is pending already is not added again, unless a timer sends it: a timer has at
    /// most one pending signal.
    ///
    /// # Errors
    /// [`Errno::EAGAIN`] if the queue is full and the signal is a real-time signal of `sigqueue`. Another signal is then
    /// pending without its facts.
    pub fn add(&mut self, info: SignalInfo) -> Result<(), Errno> {
        let signal = info.signal;
        let is_timer = matches!(info.facts, SignalFacts::Timer { .. });
        if !signal.is_real_time() && self.set.contains(signal) && !is_timer {
            return Ok(());
        }
        if self.queue.len() >= MOST_QUEUED && !is_timer {
            if signal.is_real_time() && info.code == SI_QUEUE {
                return Err(Errno::EAGAIN);
            }
        } else {
            self.queue.push_back(info);
        }
        self.set.insert(signal);
        Ok(())
    }

    /// Returns the pending signals.
    pub fn set(&self) -> SignalSet {
        self.set
    }

    /// Removes and returns a pending signal of `wanted`: those of faults first, then the lowest number, then the oldest.
    pub fn take(&mut self, wanted: SignalSet) -> Option<SignalInfo> {
        /// The signals of faults: SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV, SIGSYS.
        const FAULTS: SignalSet = SignalSet(1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 30);
        let found = self.set & wanted;
        let signal = (found & FAULTS).first().or_else(|| found.first())?;
        let index = self.queue.iter().position(|info| info.signal == signal);
        let info = index.and_then(|index| self.queue.remove(index));
        if !self.queue.iter().any(|info| info.signal == signal) {
            self.set.remove(signal);
        }
        Some(info.unwrap_or_else(|| SignalInfo::sent(signal, SI_USER, 0, 0)))
    }

    /// Returns whether the signal of a timer is pending.
    pub fn has_timer(&self, timer: i32) -> bool {
        self.queue.iter().any(|info| info.is_of_timer(timer))
    }

    /// Removes the signal of a timer.
    pub fn discard_timer(&mut self, timer: i32) {
        let Some(index) = self.queue.iter().position(|info| info.is_of_timer(timer)) else { return };
        let removed = self.queue.remove(index).map(|info| info.signal);
        if let Some(signal) = removed
            && !self.queue.iter().any(|info| info.signal == signal)
        {
            self.set.remove(signal);
        }
    }

    /// Removes all instances of these signals.
    pub fn discard(&mut self, signals: SignalSet) {
        self.set = self.set & !signals;
        self.queue.retain(|info| !signals.contains(info.signal));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(number: u64, value: u64) -> SignalInfo {
        let signal = Signal::from_number(number).unwrap();
        let facts = SignalFacts::Sender { pid: 7, uid: 8, value };
        SignalInfo { signal, code: SI_QUEUE, errno: 0, facts }
    }

    #[test]
    fn standard_signals_merge_and_real_time_signals_queue() {
        let mut pending = PendingSignals::default();
        for (number, value) in [(40, 1), (40, 2), (10, 3), (10, 4)] {
            pending.add(queued(number, value)).unwrap();
        }
        let all = !SignalSet::EMPTY;
        assert_eq!(pending.take(SignalSet::of(Signal::SIGINT)), None);
        assert_eq!(pending.take(all), Some(queued(10, 3)));
        assert_eq!(pending.take(all), Some(queued(40, 1)));
        assert!(pending.set().contains(Signal::from_number(40).unwrap()));
        assert_eq!(pending.take(all), Some(queued(40, 2)));
        assert_eq!((pending.take(all), pending.set()), (None, SignalSet::EMPTY));
    }

    #[test]
    fn faults_come_first() {
        let mut pending = PendingSignals::default();
        pending.add(SignalInfo::kernel(Signal::SIGHUP)).unwrap();
        pending.add(SignalInfo::kernel(Signal::SIGSEGV)).unwrap();
        assert_eq!(pending.take(!SignalSet::EMPTY).map(|info| info.signal), Some(Signal::SIGSEGV));
    }

    #[test]
    fn a_full_queue_refuses_sigqueue_and_no_other_signal() {
        let mut pending = PendingSignals::default();
        (0..MOST_QUEUED as u64).for_each(|value| pending.add(queued(40, value)).unwrap());
        assert_eq!(pending.add(queued(41, 0)), Err(Errno::EAGAIN));
        assert_eq!(pending.add(SignalInfo::kernel(Signal::SIGTERM)), Ok(()));
        pending.discard(SignalSet::of(Signal::from_number(40).unwrap()));
        assert_eq!(pending.take(!SignalSet::EMPTY), Some(SignalInfo::sent(Signal::SIGTERM, SI_USER, 0, 0)));
    }

    #[test]
    fn each_timer_has_one_pending_signal() {
        let mut pending = PendingSignals::default();
        let info = |id| {
            let facts = SignalFacts::Timer { id, overrun: 0, value: 0 };
            SignalInfo { signal: Signal::SIGALRM, code: SI_TIMER, errno: 0, facts }
        };
        for id in 0..3 {
            pending.add(info(id)).unwrap();
        }
        pending.discard_timer(1);
        pending.discard_timer(7);
        let all = !SignalSet::EMPTY;
        assert_eq!((pending.has_timer(1), pending.has_timer(2)), (false, true));
        assert_eq!((pending.take(all), pending.take(all)), (Some(info(0)), Some(info(2))));
        assert_eq!(pending.take(all), None);
        pending.add(info(5)).unwrap();
        pending.discard_timer(5);
        assert_eq!(pending.set(), SignalSet::EMPTY);
    }

    #[test]
    fn the_bytes_are_those_of_siginfo_t() {
        let bytes = queued(10, 0x1122_3344_5566_7788).to_bytes();
        assert_eq!(bytes[..12], [10, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255]);
        assert_eq!(bytes[16..32], [7, 0, 0, 0, 8, 0, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        let child = SignalFacts::Child { pid: 5, uid: 0, status: 3, user_ticks: 9, system_ticks: 1 };
        let info = SignalInfo { signal: Signal::SIGCHLD, code: 1, errno: 0, facts: child };
        assert_eq!((info.to_bytes()[24], info.to_bytes()[32], info.to_bytes()[40]), (3, 9, 1));
    }
}
