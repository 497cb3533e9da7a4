//! The supervisor's heartbeat, by which a hang is detected. The host tool, or a cell that waits in vain for an answer, sends an NMI
//! if it suspects a hang. The handler decides by its own measurement: it restarts a supervisor that is awake and gave
//! no heartbeat for [`LIMIT_NS`], and leaves a working one alone.

use crate::time::Time;
use core::sync::atomic::{AtomicU64, Ordering};
use isola_abi::management::RestartCause;
use isola_machine::apic::local;
use isola_machine::authority::Authority;
use isola_machine::interrupts::{self, ExceptionFrame, NonMaskable};
use isola_machine::{cpu, restart, serial_line};
use spin::Once;

/// The longest time between two heartbeats, in ns. Longer than any operation of the supervisor; the longest is the
/// wait for a core that does not come back.
const LIMIT_NS: u64 = 4_000_000_000;

/// The cycle counter at the last heartbeat; 0 while the supervisor sleeps.
static LAST: AtomicU64 = AtomicU64::new(0);

/// [`LIMIT_NS`] in cycles.
static LIMIT_CYCLES: AtomicU64 = AtomicU64::new(u64::MAX);

/// The authority that the NMI handler needs.
static AUTHORITY: Once<Authority> = Once::new();

/// Records that the supervisor makes progress.
pub fn beat() {
    LAST.store(cpu::cycles(), Ordering::Relaxed);
}

/// Records that the supervisor sleeps until the next interrupt.
pub fn pause() {
    LAST.store(0, Ordering::Relaxed);
}

/// Installs the NMI handler, and lets the machine's NMI reach this core.
pub fn watch(authority: Authority, time: &Time) {
    AUTHORITY.call_once(|| authority);
    LIMIT_CYCLES.store(time.cycles(LIMIT_NS), Ordering::Relaxed);
    beat();
    interrupts::set_non_maskable_handler(authority, on_non_maskable);
    local::accept_non_maskable(authority);
}

fn on_non_maskable(frame: &ExceptionFrame) -> NonMaskable {
    let last = LAST.load(Ordering::Relaxed);
    let since = cpu::cycles().wrapping_sub(last);
    if last != 0
        && since > LIMIT_CYCLES.load(Ordering::Relaxed)
        && let Some(authority) = AUTHORITY.get()
    {
        serial_line!("the supervisor makes no progress at {:#x}", frame.rip);
        restart::restart(*authority, RestartCause::Hang);
    }
    NonMaskable::Handled
}
