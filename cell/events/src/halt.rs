//! The flag by which a core that is halted, or about to be, is woken by whoever has something for it.
//!
//! ```text
//! sender                          receiver
//!   push message                    halted := true
//!   fence                           fence
//!   if swap(halted, false):         if a message is there: halted := false, go on
//!     wake the core                 else: halt (a wake-up that came before returns at once)
//! ```
//!
//! With the fences, either the sender sees the flag or the receiver sees the message. A running core is never
//! interrupted: it finds the message on its next pass.

use crate::sync::{AtomicBool, Ordering, fence};

/// Whether a core may halt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MayHalt {
    Yes,
    No,
}

/// Whether a core has to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum MustWake {
    Yes,
    No,
}

/// Says that a core is halted, or about to be.
pub(crate) struct HaltFlag {
    halted: AtomicBool,
}

impl HaltFlag {
    /// The flag of a core that was never needed: it is halted since its cell started.
    pub fn asleep() -> Self {
        Self { halted: AtomicBool::new(true) }
    }

    /// Says that the core is about to halt. Returns whether it may: not where `is_needed` says that something came.
    pub fn prepare(&self, is_needed: impl Fn() -> bool) -> MayHalt {
        // Release: who finds it halted finds by whom it is run.
        self.halted.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        if !is_needed() {
            return MayHalt::Yes;
        }
        self.halted.store(false, Ordering::Relaxed);
        MayHalt::No
    }

    /// Says that the core is up again.
    pub fn finish(&self) {
        self.halted.store(false, Ordering::Relaxed);
    }

    /// To be asked after something was made for the core. Of several who ask, one is told to wake it.
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
    fn whoever_sends_to_a_core_that_halts_wakes_it_or_is_seen() {
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
                assert_eq!(wakes, 1, "the core is halted with messages, and nobody wakes it");
            } else {
                assert!(wakes <= 1);
            }
        });
    }
}
