//! Halting and waking of cores: by an interrupt, or, if a halted core monitors a word, by a write to it
//! (`isola_events::doze` documents the protocol).
//!
//! All other sources of wake-ups send interrupts, which end MWAIT and HLT alike: devices, alarms, the supervisor's
//! orders and requests. So do the NMIs for a TLB shootdown or a forced core reclaim: a halt may end spuriously, and its
//! caller checks for work again. A context suspended between MONITOR and MWAIT may resume on another core, which
//! monitors no word or a different one; the core that resumes it therefore has an interrupt pending.

use core::sync::atomic::AtomicU32;
use crossbeam_utils::CachePadded;
use isola_abi::descriptor::HaltMode;
use isola_abi::id::MAX_CORES;
use isola_events::doze::{self, UP, WasDozing};
use isola_machine::interrupts;
use isola_platform::CoreIndex;

/// By vcore: its doze word. Each has cache lines of its own, as writes to a neighbour would end the halt.
static WORDS: [CachePadded<AtomicU32>; MAX_CORES] =
    [const { CachePadded::new(AtomicU32::new(UP)) }; MAX_CORES];

/// Halts the calling core, on behalf of vcore `core`, until a wake-up or an interrupt. May return spuriously.
pub(crate) fn halt(mode: HaltMode, core: CoreIndex) {
    match (mode, WORDS.get(core.0 as usize)) {
        (HaltMode::Mwait, Some(word)) => doze::doze(word, interrupts::halt_while),
        _ => interrupts::halt(),
    }
}

/// Marks vcore `core` as not dozing. The caller runs it from now on.
pub(crate) fn mark_awake(core: CoreIndex) {
    WORDS.get(core.0 as usize).into_iter().for_each(|word| doze::mark_awake(word));
}

/// Wakes `core` if it dozes.
pub(crate) fn wake(core: CoreIndex) -> WasDozing {
    WORDS.get(core.0 as usize).map_or(WasDozing::No, |word| doze::wake(word))
}
