//! The word by which a halted core is woken without an interrupt, where the processor can wait for a word to be written
//! (MONITOR, MWAIT).
//!
//! ```text
//! sender, told by the halt flag            receiver, which may halt by its flag; interrupts off
//! to wake the core
//!   if word = DOZING: word := UP             word := DOZING
//!   else: interrupt who runs the core        monitor the word
//!                                            if word = DOZING: let interrupts in, halt
//!                                            word := UP
//! ```
//!
//! One atomic operation of the sender decides which of the two it does. Either it finds that the receiver dozes: then its
//! write ends that, as the word is looked at after it is monitored. Or it does not, and the interrupt is pending when the
//! receiver halts, which ends that at once, or it comes later and is a needless one. Whoever wakes by interrupt alone
//! (devices, timers, the supervisor) ends either kind of halt, so that nothing but messages depends on the word. What the
//! sender has made is seen then for the reasons that [`HaltFlag`](crate::halt) gives; the word only ends the halt. Late
//! writes, which are of a halt that is over, end the next one for no reason, and nobody relies on there being one.
//!
//! Who runs a core alone, or as the first of several, dozes with that core's word. The others that it runs have theirs UP,
//! so that it is interrupted for them. A processor core that is taken while it dozes leaves DOZING behind, and whoever
//! trusted that would wake nobody: the next who runs the core writes UP ([`rise`]), after it has said by which interrupts it
//! is reached, and before it halts.

use crate::sync::{AtomicU32, Ordering};

/// The word of a core that does not doze.
pub const UP: u32 = 0;

/// The word of a core that halts until it is written.
pub const DOZING: u32 = 1;

/// Who was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Woken {
    /// The core.
    Yes,
    /// Nobody: it takes an interrupt.
    No,
}

/// Halts the calling core, whose word it is, by `halt_while`: that returns when the word is another than it is given, or an
/// interrupt has come, or for no reason.
pub fn doze(word: &AtomicU32, halt_while: impl FnOnce(&AtomicU32, u32)) {
    word.store(DOZING, Ordering::SeqCst);
    halt_while(word, DOZING);
    word.store(UP, Ordering::Relaxed);
}

/// Says that the core does not doze: who calls runs it from here on.
pub fn rise(word: &AtomicU32) {
    word.swap(UP, Ordering::AcqRel);
}

/// Wakes the core whose word it is, where it dozes.
pub fn wake(word: &AtomicU32) -> Woken {
    match word.compare_exchange(DOZING, UP, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Woken::Yes,
        Err(_) => Woken::No,
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
        /// By who runs it: an interrupt is pending.
        interrupted: [AtomicBool; 2],
        /// Who runs it.
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
            if self.flag.must_wake() == MustWake::Yes && wake(&self.word) == Woken::No {
                self.interrupted[self.runner.load(Ordering::Acquire)].store(true, Ordering::Release);
            }
        }

        fn may_halt(&self) -> MayHalt {
            self.flag.prepare(|| self.messages.load(Ordering::Relaxed) > 0)
        }
    }

    #[test]
    fn who_is_sent_something_while_it_dozes_gets_up_and_sees_it() {
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
    fn what_a_taken_core_has_left_dozing_is_no_reason_to_interrupt_nobody() {
        loom::model(|| {
            let core = Core::with(DOZING);
            let sender = thread::spawn({
                let core = core.clone();
                move || core.send()
            });
            core.runner.store(1, Ordering::Release);
            rise(&core.word);
            core.flag.finish();
            // As one of several: it halts with another's word.
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
