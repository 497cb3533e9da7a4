//! The halt of a core, which zeroes free pages before if no interrupt is pending.

use crate::{cores, doze, pool};
use core::sync::atomic::Ordering;
use isola_abi::descriptor::HaltMode;
use isola_abi::report::CorePhase;
use isola_ebbs::current_core;
use isola_machine::{cell, interrupts};

/// The outcome of zeroing pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClearOutcome {
    /// There is nothing left to zero, or another core does it.
    NothingLeft,
    /// An interrupt arrived.
    Interrupted,
}

/// Halts the core unless an interrupt is pending.
pub(crate) fn halt(mode: HaltMode) {
    if has_joined() {
        halt_joined(mode);
    } else if !cores::has_pending() {
        doze::halt(mode, current_core());
    }
}

/// Halts on behalf of a vcore that has joined, unless an interrupt is pending or arrives while the core zeroes pages.
pub(crate) fn halt_joined(mode: HaltMode) {
    if cores::has_pending() || (pool::has_unclear() && clear_pages() == ClearOutcome::Interrupted) {
        return;
    }
    doze::halt(mode, current_core());
}

/// Returns whether this vcore was ever needed. One that was not does nothing at all, so no activity is charged for it.
fn has_joined() -> bool {
    let report = cell::report().cores.get(current_core().0 as usize);
    report.is_some_and(|core| core.phase.load(Ordering::Relaxed) != CorePhase::Asleep as u32)
}

/// Zeroes free pages until an interrupt arrives, on a core that would halt otherwise.
#[cold]
#[inline(never)]
fn clear_pages() -> ClearOutcome {
    while pool::clear_some() {
        interrupts::window();
        if cores::has_pending() {
            return ClearOutcome::Interrupted;
        }
    }
    ClearOutcome::NothingLeft
}
