//! Clocks: how fast the cycle counter and the local APIC's timer run, found out once for everybody, and the
//! time of day.
//!
//! Not here: turning cycles into time, which is arithmetic on what `isola_abi::descriptor::Clock` says.

mod rates;
mod reference;
mod time_of_day;

pub use rates::{ClockError, Rates};

use crate::cpu;
use isola_abi::descriptor::Clock;

/// Finds out the rates of this machine's clocks and the time of day, on a core whose local APIC is on. Takes
/// some 5 ms. `timer_port` is where ACPI says that its timer is.
///
/// # Errors
/// [`ClockError`] where the machine has no clock whose rate is known.
pub(crate) fn calibrate(timer_port: Option<u16>) -> Result<Clock, ClockError> {
    let Rates { tsc_hz, apic_timer_hz } = rates::measure(timer_port)?;
    let unix_ns_at_epoch = time_of_day::read().unwrap_or(0);
    Ok(Clock { tsc_hz, apic_timer_hz, tsc_at_epoch: cpu::cycles(), unix_ns_at_epoch })
}

/// Waits for `duration_us`, without halting: for the short waits that devices and processors ask for.
pub fn spin_us(clock: &Clock, duration_us: u64) {
    let cycles = clock.tsc_hz / 1_000_000 * duration_us;
    let start = cpu::cycles();
    while cpu::cycles().wrapping_sub(start) < cycles {
        core::hint::spin_loop();
    }
}
