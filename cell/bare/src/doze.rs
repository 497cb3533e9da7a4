//! How a core halts until it is needed, and how it is woken: by an interrupt, or, where it monitors a word, by writing that.
//!
//! ```text
//! sender                                 receiver, in `halt`, interrupts off
//!   (has made something for it, and        word := DOZING
//!    taken its halt flag)                  monitor the word
//!   if word = DOZING: word := UP           if word = DOZING: let interrupts in, halt
//!   else: interrupt who runs the core      word := UP
//! ```
//!
//! Of the two exactly one happens, as one atomic operation decides. Either the sender sees that the receiver dozes: then its
//! write ends that, as the word is looked at after it is monitored. Or it does not, and the interrupt is pending when the
//! receiver halts, which ends that at once, or it comes later and is a needless one. What wakes by interrupt alone
//! (devices, alarms, the supervisor's orders and requests) ends MWAIT as it ends HLT. So do non-maskable interrupts, and
//! who halts looks at everything again in any case: a halt may end for no reason.
//!
//! Only who runs a core alone, or first among several, dozes with its word, and nobody else writes DOZING there. The
//! others it runs have theirs UP: it is interrupted for them. A core that is taken while it dozes leaves DOZING behind: the
//! next who runs the core writes UP ([`rise`]) after it has said by what interrupts it is reached, and before it looks for
//! what was made for the core. A sender whose write went to the one that is gone comes before that, and what it made is
//! seen; any other finds UP, and interrupts the new one.

use core::sync::atomic::{AtomicU32, Ordering};
use crossbeam_utils::CachePadded;
use isola_abi::descriptor::HaltMode;
use isola_abi::id::MAX_CORES;
use isola_machine::interrupts;
use isola_platform::CoreIndex;

const UP: u32 = 0;
const DOZING: u32 = 1;

/// By core: whether it halts until this is written. Each has cache lines of its own, as others' writes would end the halt.
static WORDS: [CachePadded<AtomicU32>; MAX_CORES] =
    [const { CachePadded::new(AtomicU32::new(UP)) }; MAX_CORES];

/// Who was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Woken {
    /// The core.
    Yes,
    /// Nobody: it takes an interrupt.
    No,
}

/// Halts the calling core, `core`, until it is woken or an interrupt comes. May return for no reason.
pub(crate) fn halt(mode: HaltMode, core: CoreIndex) {
    let word = match (mode, WORDS.get(core.0 as usize)) {
        (HaltMode::Mwait, Some(word)) => word,
        _ => return interrupts::halt(),
    };
    word.store(DOZING, Ordering::SeqCst);
    interrupts::halt_while(word, DOZING);
    word.store(UP, Ordering::Relaxed);
}

/// Says that `core` does not doze: who calls runs it from here on.
pub(crate) fn rise(core: CoreIndex) {
    if let Some(word) = WORDS.get(core.0 as usize) {
        word.swap(UP, Ordering::AcqRel);
    }
}

/// Wakes `core` where it dozes.
pub(crate) fn wake(core: CoreIndex) -> Woken {
    let word = WORDS.get(core.0 as usize);
    let woken = word.map(|word| word.compare_exchange(DOZING, UP, Ordering::AcqRel, Ordering::Acquire));
    if matches!(woken, Some(Ok(_))) { Woken::Yes } else { Woken::No }
}
