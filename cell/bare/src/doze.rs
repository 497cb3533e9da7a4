//! How a core halts until it is needed, and how it is woken: by an interrupt, or, where it monitors a word, by writing that
//! (`isola_events::doze` has the protocol).
//!
//! What else wakes a core sends an interrupt, which ends MWAIT as it ends HLT: devices, alarms, the supervisor's orders and
//! requests. So does a non-maskable one, by which page tables are forgotten and events suspended: a halt may end for no
//! reason, and who has halted looks at everything again. What was suspended between monitoring a word and halting may go on
//! on another processor core, which monitors none or another: who goes on with it has an interrupt pending then.

use core::sync::atomic::AtomicU32;
use crossbeam_utils::CachePadded;
use isola_abi::descriptor::HaltMode;
use isola_abi::id::MAX_CORES;
use isola_events::doze::{self, UP, Woken};
use isola_machine::interrupts;
use isola_platform::CoreIndex;

/// By core: whether it halts until this is written. Each has cache lines of its own, as others' writes would end the halt.
static WORDS: [CachePadded<AtomicU32>; MAX_CORES] =
    [const { CachePadded::new(AtomicU32::new(UP)) }; MAX_CORES];

/// Halts the calling core, `core`, until it is woken or an interrupt comes. May return for no reason.
pub(crate) fn halt(mode: HaltMode, core: CoreIndex) {
    match (mode, WORDS.get(core.0 as usize)) {
        (HaltMode::Mwait, Some(word)) => doze::doze(word, interrupts::halt_while),
        _ => interrupts::halt(),
    }
}

/// Says that `core` does not doze: who calls runs it from here on.
pub(crate) fn rise(core: CoreIndex) {
    WORDS.get(core.0 as usize).into_iter().for_each(|word| doze::rise(word));
}

/// Wakes `core` where it dozes.
pub(crate) fn wake(core: CoreIndex) -> Woken {
    WORDS.get(core.0 as usize).map_or(Woken::No, |word| doze::wake(word))
}
