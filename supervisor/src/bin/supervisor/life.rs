//! Signs of life. An interrupt that cannot be masked asks whether this supervisor stands still: the host raises it, or a
//! cell that waits for an answer in vain. Whoever it is, what decides is what is seen here: a supervisor that gave no sign
//! for a long time restarts, and one that works is not disturbed.

use crate::time::Time;
use core::sync::atomic::{AtomicU64, Ordering};
use isola_abi::management::RestartCause;
use isola_machine::apic::local;
use isola_machine::authority::Authority;
use isola_machine::interrupts::{self, ExceptionFrame, NonMaskable};
use isola_machine::{cpu, restart, serial_line};
use spin::Once;

/// How long the supervisor may take between two signs, in ns. Longer than all that it does: what takes longest is to wait for
/// a core that does not come back.
const LIMIT_NS: u64 = 4_000_000_000;

/// The cycle counter at the last sign; 0 while the supervisor rests.
static LAST: AtomicU64 = AtomicU64::new(0);

/// [`LIMIT_NS`] in cycles.
static LIMIT_CYCLES: AtomicU64 = AtomicU64::new(u64::MAX);

/// For the handler of the interrupt.
static AUTHORITY: Once<Authority> = Once::new();

/// Gives a sign.
pub fn sign() {
    LAST.store(cpu::cycles(), Ordering::Relaxed);
}

/// Says that there is nothing to do before the next interrupt.
pub fn rest() {
    LAST.store(0, Ordering::Relaxed);
}

/// Answers from now on who asks whether the supervisor stands still.
pub fn watch(authority: Authority, time: &Time) {
    AUTHORITY.call_once(|| authority);
    LIMIT_CYCLES.store(time.cycles(LIMIT_NS), Ordering::Relaxed);
    sign();
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
        serial_line!("the supervisor stands still at {:#x}", frame.rip);
        restart::restart(*authority, RestartCause::Hang);
    }
    NonMaskable::Handled
}
