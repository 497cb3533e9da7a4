//! Interrupts to the supervisor, and the cell's phase in its report.

use crate::state::{AUTHORITY, BARE};
use core::sync::atomic::Ordering;
use isola_abi::report::CellPhase;
use isola_machine::apic::local;
use isola_machine::cell;

/// Notifies the supervisor, if there is one and the cell has its descriptor already.
pub(crate) fn notify() {
    if let Some(target) = BARE.state_if_set().and_then(|state| state.descriptor.supervisor) {
        local::send(AUTHORITY, target.apic, target.vector);
    }
}

/// Sends the supervisor, if there is one, an NMI at which it checks whether it hangs, and restarts if it does.
pub(crate) fn request_hang_check() {
    if let Some(target) = BARE.state_if_set().and_then(|state| state.descriptor.supervisor) {
        local::send_non_maskable(AUTHORITY, target.apic);
    }
}

/// Reports the cell's phase to the supervisor.
pub(crate) fn report_phase(phase: CellPhase) {
    let report = cell::report();
    report.version.store(isola_abi::VERSION, Ordering::Relaxed);
    report.phase.store(phase as u32, Ordering::Release);
    notify();
}
