//! The flag by which other cores wake a core that is halted or about to halt.
//!
//! ```text
//! sender                          receiver
//!   push message                    halted := true
//!   fence                           fence
//!   if swap(halted, false):         if a message has arrived: halted := false, continue
//!     wake the core                 else: halt (an earlier wake-up ends the halt at once)
//! ```
//!
//! With the fences, either the sender sees the flag or the receiver sees the message. A running core is never
//! interrupted: it finds the message in its next pass.

use crate::sync::{AtomicBool, Ordering, fence};

/// Whether a core may halt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MayHalt {
    Yes,
    No,
}

/// Whether a sender has to wake the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum MustWake {
    Yes,
    No,
}

/// The flag of a core that is halted or about to halt.
pub(crate) struct HaltFlag {
    halted: AtomicBool,
}

impl HaltFlag {
    /// Creates the flag of a core that was never needed: it has been halted since its cell started.
    pub fn asleep() -> Self {
        Self { halted: AtomicBool::new(true) }
    }

    /// Marks the core as about to halt. Returns whether it may: not if `is_needed` reports work.
    pub fn prepare(&self, is_needed: impl Fn() -> bool) -> MayHalt {
        // Release: a sender that sees the flag set also sees which core runs the vcore.
        self.halted.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        if !is_needed() {
            return MayHalt::Yes;
        }
        self.halted.store(false, Ordering::Relaxed);
        MayHalt::No
    }

    /// Marks the core as running again.
    pub fn finish(&self) {
        self.halted.store(false, Ordering::Relaxed);
    }

    /// Returns whether the flag is set.
    pub fn is_set(&self) -> bool {
        self.halted.load(Ordering::Relaxed)
    }

    /// Returns whether the caller has to wake the core; to be called after a message was pushed. Of several concurrent
    /// callers only one gets `Yes`.
    pub fn must_wake(&self) -> MustWake {
        fence(Ordering::SeqCst);
        if self.halted.load(Ordering::Relaxed) && self.halted.swap(false, Ordering::Acquire) {
            MustWake::Yes
        } else {
            MustWake::No
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::AtomicUsize;
    use alloc::vec::Vec;
    use loom::sync::Arc;
    use loom::thread;

    #[test]
    fn a_sender_to_a_halting_core_wakes_it_or_is_seen() {
        loom::model(|| {
            let shared = Arc::new((HaltFlag::asleep(), AtomicUsize::new(0)));
            shared.0.finish();
            let senders: Vec<_> = (0..2)
                .map(|_| {
                    let shared = shared.clone();
                    thread::spawn(move || {
                        shared.1.fetch_add(1, Ordering::Relaxed);
                        shared.0.must_wake()
                    })
                })
                .collect();
            let halted = shared.0.prepare(|| shared.1.load(Ordering::Relaxed) > 0);
            let woken: Vec<_> = senders.into_iter().map(|sender| sender.join().unwrap()).collect();
            let wakes = woken.iter().filter(|wake| **wake == MustWake::Yes).count();
            if halted == MayHalt::Yes {
                assert_eq!(wakes, 1, "the core is halted with pending messages and without one wake-up");
            } else {
                assert!(wakes <= 1);
            }
        });
    }
}
