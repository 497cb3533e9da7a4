//! The word by which another core wakes a halted core without an interrupt, on processors that can wait for a memory
//! write (MONITOR, MWAIT).
//!
//! ```text
//! sender, if the halt flag requires        receiver, if its halt flag permits a halt; interrupts off
//! a wake-up
//!   if word = DOZING: word := UP             word := DOZING
//!   else: interrupt the vcore's core         monitor the word
//!                                            if word = DOZING: enable interrupts, halt
//!                                            word := UP
//! ```
//!
//! One atomic operation of the sender decides between write and interrupt. If the sender finds DOZING, its write ends
//! the halt, as the receiver checks the word after it has begun to monitor it. Otherwise the sender interrupts: the
//! interrupt is pending when the receiver halts and ends the halt at once, or it arrives after the halt and is
//! superfluous. Wake-ups by interrupt alone (devices, timers, the supervisor) end either kind of halt, so only messages
//! depend on the word. [`HaltFlag`](crate::halt) orders the sender's data; the word only ends the halt. A late write,
//! meant for an earlier halt, ends the next one for no reason, which is harmless.
//!
//! A core dozes with the word of its own slot's vcore. The words of other vcores that it runs stay UP, so messages to
//! those interrupt it. A core that is reclaimed by force while it dozes leaves DOZING behind, and a sender that relied
//! on it would wake no core. Therefore the next core to run the vcore writes UP ([`mark_awake`]), after it has
//! published the interrupt destination and before it halts.

use crate::sync::{AtomicU32, Ordering};

/// The word's value while the core does not doze.
pub const UP: u32 = 0;

/// The word's value while the core is halted until the word is written.
pub const DOZING: u32 = 1;

/// The result of [`wake`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum WasDozing {
    /// The core was dozing, and wakes.
    Yes,
    /// The core was not dozing: it needs an interrupt.
    No,
}

/// Halts the calling core, which owns `word`, by `halt_while`. That function returns when the word differs from its
/// second argument, when an interrupt has arrived, or spuriously.
pub fn doze(word: &AtomicU32, halt_while: impl FnOnce(&AtomicU32, u32)) {
    word.store(DOZING, Ordering::SeqCst);
    halt_while(word, DOZING);
    word.store(UP, Ordering::Relaxed);
}

/// Marks the vcore as not dozing. The caller runs it from now on.
pub fn mark_awake(word: &AtomicU32) {
    word.swap(UP, Ordering::AcqRel);
}

/// Wakes the core of this word if it dozes.
pub fn wake(word: &AtomicU32) -> WasDozing {
    match word.compare_exchange(DOZING, UP, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => WasDozing::Yes,
        Err(_) => WasDozing::No,
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::halt::{HaltFlag, MayHalt, MustWake};
    use crate::sync::{AtomicBool, AtomicUsize};
    use loom::sync::Arc;
    use loom::thread;

    struct Core {
        flag: HaltFlag,
        word: AtomicU32,
        /// By core: whether an interrupt is pending.
        interrupted: [AtomicBool; 2],
        /// The index of the core that runs the vcore.
        runner: AtomicUsize,
        messages: AtomicUsize,
    }

    impl Core {
        fn with(word: u32) -> Arc<Self> {
            Arc::new(Self {
                flag: HaltFlag::asleep(),
                word: AtomicU32::new(word),
                interrupted: [AtomicBool::new(false), AtomicBool::new(false)],
                runner: AtomicUsize::new(0),
                messages: AtomicUsize::new(0),
            })
        }

        fn send(&self) {
            self.messages.fetch_add(1, Ordering::Relaxed);
            if self.flag.must_wake() == MustWake::Yes && wake(&self.word) == WasDozing::No {
                self.interrupted[self.runner.load(Ordering::Acquire)].store(true, Ordering::Release);
            }
        }

        fn may_halt(&self) -> MayHalt {
            self.flag.prepare(|| self.messages.load(Ordering::Relaxed) > 0)
        }
    }

    #[test]
    fn a_message_to_a_dozing_core_wakes_it_and_is_seen() {
        loom::model(|| {
            let core = Core::with(UP);
            core.flag.finish();
            let sender = thread::spawn({
                let core = core.clone();
                move || core.send()
            });
            if core.may_halt() == MayHalt::Yes {
                doze(&core.word, |word, value| {
                    while word.load(Ordering::Acquire) == value
                        && !core.interrupted[0].load(Ordering::Acquire)
                    {
                        thread::yield_now();
                    }
                });
            }
            assert_eq!(core.messages.load(Ordering::Relaxed), 1);
            sender.join().unwrap();
        });
    }

    #[test]
    fn a_stale_dozing_word_of_a_reclaimed_core_does_not_lose_a_wake_up() {
        loom::model(|| {
            let core = Core::with(DOZING);
            let sender = thread::spawn({
                let core = core.clone();
                move || core.send()
            });
            core.runner.store(1, Ordering::Release);
            mark_awake(&core.word);
            core.flag.finish();
            // This vcore is one of several: its core halts with the word of another.
            if core.may_halt() == MayHalt::Yes {
                while !core.interrupted[1].load(Ordering::Acquire) {
                    thread::yield_now();
                }
            }
            assert_eq!(core.messages.load(Ordering::Relaxed), 1);
            sender.join().unwrap();
        });
    }
}
