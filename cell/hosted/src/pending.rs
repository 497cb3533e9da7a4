//! Pending interrupts of a core: one bit per vector, set by any thread and taken by the core.
//!
//! A sender wakes the core only if it is halted or about to halt:
//!
//! ```text
//! sender                            core
//!   set the vector's bit              asleep := true
//!   fence                             fence
//!   if swap(asleep, false):           if a bit is set: asleep := false, continue
//!     write the core's eventfd        else: epoll_wait
//! ```
//!
//! With the fences, either the sender sees the flag or the core sees the bit. Interrupts of a running core cost their
//! senders no system call. A late write, after the core has woken for another reason, ends its next halt early, which
//! is harmless.

use isola_platform::{OtherVectors, PendingVectors};

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// The pending interrupts of a core.
#[derive(Debug, Default)]
pub struct Pending {
    words: [AtomicU64; 4],
    /// Whether the core has to return from its next halt although no vector is set.
    woken: AtomicBool,
    asleep: AtomicBool,
}

/// Whether the sender has to write the core's eventfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum EventfdWrite {
    /// The core is halted, or about to halt.
    Needed,
    /// The core is running, and will see the interrupt.
    NotNeeded,
}

/// Whether a core may halt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum MayHalt {
    /// It may halt until its eventfd is written.
    Yes,
    /// An interrupt is pending.
    No,
}

impl Pending {
    /// Sets a vector.
    pub fn insert(&self, vector: u8) -> EventfdWrite {
        self.words[vector as usize / 64].fetch_or(1 << (vector % 64), Ordering::Release);
        self.request_write()
    }

    /// Makes the core return from its halt, or from its next one.
    pub fn wake(&self) -> EventfdWrite {
        self.woken.store(true, Ordering::Release);
        self.request_write()
    }

    fn request_write(&self) -> EventfdWrite {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            EventfdWrite::Needed
        } else {
            EventfdWrite::NotNeeded
        }
    }

    /// Returns whether a vector is set.
    pub fn has_any(&self) -> bool {
        self.words.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Takes the vectors of the first quarter that has any. To be called on the core itself.
    pub fn take(&self) -> PendingVectors {
        let is_set = |word: &AtomicU64| word.load(Ordering::Relaxed) != 0;
        let Some(quarter) = self.words.iter().position(is_set) else { return PendingVectors::default() };
        let bits = self.words[quarter].swap(0, Ordering::Acquire);
        let others = self.words[quarter + 1..].iter().any(is_set);
        let others = if others { OtherVectors::Arrived } else { OtherVectors::None };
        PendingVectors::of_quarter(quarter as u8, bits, others)
    }

    /// Marks the core as about to halt. Returns whether it may.
    pub fn prepare_halt(&self) -> MayHalt {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let vectors = self.words.iter().fold(0, |all, word| all | word.load(Ordering::Relaxed));
        if vectors == 0 && !self.woken.load(Ordering::Relaxed) { MayHalt::Yes } else { MayHalt::No }
    }

    /// Marks the core as running, whether it halted or not.
    pub fn finish_halt(&self) {
        self.asleep.store(false, Ordering::Relaxed);
        self.woken.swap(false, Ordering::Acquire);
    }
}

#[cfg(test)]
fn take_all(pending: &Pending) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let vectors = pending.take();
        all.extend(vectors);
        if vectors.others() == OtherVectors::None {
            return all;
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Runs each of `send` on a separate thread while a core is about to halt. If the core halts, exactly one of them
    /// has to write its eventfd, and the core sees everything that was sent.
    fn model(send: &'static [fn(&Pending) -> EventfdWrite], vectors: &'static [u8]) {
        loom::model(move || {
            let pending = Arc::new(Pending::default());
            let senders: Vec<_> = send
                .iter()
                .map(|send| {
                    let pending = pending.clone();
                    thread::spawn(move || send(&pending))
                })
                .collect();
            let halts = pending.prepare_halt();
            let writes = senders.into_iter().map(|sender| sender.join().unwrap());
            let writes = writes.filter(|write| *write == EventfdWrite::Needed).count();
            match halts {
                MayHalt::Yes => assert_eq!(writes, 1),
                MayHalt::No => assert!(writes <= 1),
            }
            pending.finish_halt();
            assert_eq!(take_all(&pending), vectors);
            assert_eq!(pending.prepare_halt(), MayHalt::Yes);
        });
    }

    #[test]
    fn an_interrupt_of_a_halting_core_writes_it_or_is_seen() {
        model(&[|pending| pending.insert(5)], &[5]);
    }

    #[test]
    fn a_wake_up_of_a_halting_core_writes_it_or_is_seen() {
        model(&[|pending| pending.wake()], &[]);
    }

    #[test]
    fn of_several_senders_exactly_one_writes() {
        model(&[|pending| pending.insert(5), |pending| pending.insert(70)], &[5, 70]);
        model(&[|pending| pending.insert(5), |pending| pending.wake()], &[5]);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_eventfd_is_written_once_for_a_halting_core_and_never_for_a_running_one() {
        let pending = Pending::default();
        assert_eq!(pending.insert(3), EventfdWrite::NotNeeded);
        assert_eq!(take_all(&pending), [3]);
        assert_eq!(pending.prepare_halt(), MayHalt::Yes);
        assert_eq!(pending.insert(200), EventfdWrite::Needed);
        assert_eq!(pending.insert(7), EventfdWrite::NotNeeded);
        pending.finish_halt();
        assert_eq!(take_all(&pending), [7, 200]);
    }

    #[test]
    fn a_pending_interrupt_or_wake_up_prevents_a_halt() {
        let pending = Pending::default();
        assert_eq!(pending.wake(), EventfdWrite::NotNeeded);
        assert_eq!(pending.prepare_halt(), MayHalt::No);
        pending.finish_halt();
        assert_eq!(pending.prepare_halt(), MayHalt::Yes);
        pending.finish_halt();
        assert_eq!(pending.insert(64), EventfdWrite::NotNeeded);
        assert_eq!(pending.prepare_halt(), MayHalt::No);
    }
}
