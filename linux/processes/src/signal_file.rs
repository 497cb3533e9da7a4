//! Signals as an open file (`signalfd4`).

use crate::Errno;
use crate::process::Process;
use crate::signals::{SignalFacts, SignalInfo, SignalSet};
use crate::system::System;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use isola_linux_files::{Events, FileObject, InodeKind, Metadata, Pollee};
use isola_linux_memory::UserBuffer;
use spin::Mutex;

/// The length of a `struct signalfd_siginfo`, in bytes.
const LEN: usize = 128;

/// A file from which a program reads pending signals.
///
/// It belongs to the process that created it: a child that inherits it reads the signals of its parent. A read takes signals
/// that were sent to the process, and to any of its threads.
pub struct SignalFile {
    system: Weak<System>,
    process: Arc<Process>,
    set: Mutex<SignalSet>,
}

impl SignalFile {
    /// Creates a file for the signals of a process.
    pub fn new(system: &Arc<System>, process: &Arc<Process>, set: SignalSet) -> Self {
        let set = set & !SignalSet::UNBLOCKABLE;
        Self { system: Arc::downgrade(system), process: process.clone(), set: Mutex::new(set) }
    }

    /// Replaces the set of signals.
    pub fn set(&self, set: SignalSet) {
        *self.set.lock() = set & !SignalSet::UNBLOCKABLE;
        self.process.signal_events.notify(Events::IN);
    }

    /// Removes and returns a pending signal.
    fn take(&self) -> Option<SignalInfo> {
        let wanted = *self.set.lock();
        let of_process = self.process.signals.lock().pending.take(wanted);
        let take =
            |thread: &Arc<crate::thread_state::ThreadState>| thread.signals.lock().pending.take(wanted);
        let mut info = of_process.or_else(|| self.process.threads().iter().find_map(take))?;
        if let Some(system) = self.system.upgrade() {
            self.process.timers.delivered(&system, &self.process, &mut info);
        }
        Some(info)
    }

    fn has_signal(&self) -> bool {
        let wanted = *self.set.lock();
        let has = |pending: SignalSet| pending & wanted != SignalSet::EMPTY;
        has(self.process.signals.lock().pending.set())
            || self.process.threads().iter().any(|thread| has(thread.signals.lock().pending.set()))
    }
}

impl FileObject for SignalFile {
    fn read(&self, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        if buffer.len() < LEN {
            return Err(Errno::EINVAL);
        }
        let mut count = 0;
        while buffer.len() >= LEN {
            let Some(info) = self.take() else { break };
            count += buffer.write(&bytes(&info));
        }
        if count == 0 { Err(Errno::EAGAIN) } else { Ok(count) }
    }

    fn ready(&self) -> Events {
        if self.has_signal() { Events::IN } else { Events::NONE }
    }

    fn pollee(&self) -> Option<&Pollee> {
        Some(&self.process.signal_events)
    }

    fn metadata(&self) -> Metadata {
        Metadata::anonymous(InodeKind::File, 0, 0o600)
    }

    fn description(&self) -> Vec<u8> {
        b"anon_inode:[signalfd]".to_vec()
    }
}

/// Returns the bytes of `struct signalfd_siginfo`.
fn bytes(info: &SignalInfo) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    let mut put = |at: usize, word: &[u8]| bytes[at..at + word.len()].copy_from_slice(word);
    put(0, &u32::from(info.signal.number()).to_le_bytes());
    put(4, &info.errno.to_le_bytes());
    put(8, &info.code.to_le_bytes());
    let put_value = |put: &mut dyn FnMut(usize, &[u8]), value: u64| {
        put(44, &(value as u32).to_le_bytes());
        put(48, &value.to_le_bytes());
    };
    match info.facts {
        SignalFacts::Sender { pid, uid, value } => {
            put(12, &pid.to_le_bytes());
            put(16, &uid.to_le_bytes());
            put_value(&mut put, value);
        }
        SignalFacts::Child { pid, uid, status, user_ticks, system_ticks } => {
            put(12, &pid.to_le_bytes());
            put(16, &uid.to_le_bytes());
            put(40, &status.to_le_bytes());
            put(56, &user_ticks.to_le_bytes());
            put(64, &system_ticks.to_le_bytes());
        }
        SignalFacts::Fault { address } => put(72, &address.to_le_bytes()),
        SignalFacts::Timer { id, overrun, value } => {
            put(24, &id.to_le_bytes());
            put(32, &overrun.to_le_bytes());
            put_value(&mut put, value);
        }
        SignalFacts::Raw(rest) => {
            // The layout of `sigqueue`: sender and value.
            put(12, &rest[0..4]);
            put(16, &rest[4..8]);
            put_value(&mut put, u64::from_le_bytes(core::array::from_fn(|index| rest[8 + index])));
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signals::{SI_QUEUE, Signal};

    #[test]
    fn the_bytes_are_those_of_signalfd_siginfo() {
        let facts = SignalFacts::Timer { id: 3, overrun: 9, value: 0x1122_3344_5566_7788 };
        let shown = bytes(&SignalInfo { signal: Signal::SIGALRM, code: SI_QUEUE, errno: 2, facts });
        assert_eq!((shown[0], shown[4], shown[8], shown[24], shown[32]), (14, 2, 255, 3, 9));
        assert_eq!((&shown[44..48], shown[55]), (&[0x88, 0x77, 0x66, 0x55][..], 0x11));
        let facts = SignalFacts::Child { pid: 4, uid: 5, status: 6, user_ticks: 7, system_ticks: 8 };
        let shown = bytes(&SignalInfo { signal: Signal::SIGCHLD, code: 1, errno: 0, facts });
        assert_eq!((shown[12], shown[16], shown[40], shown[56], shown[64]), (4, 5, 6, 7, 8));
    }
}
