//! Clocks: the rates of the cycle counter and of the local APIC's timer, determined once for all cells, and the time of
//! day.
//!
//! Not here: conversion of cycles to time, which is arithmetic on `isola_abi::descriptor::Clock`.

mod rates;
mod reference;
mod time_of_day;

pub use rates::{ClockError, Rates};

use crate::cpu;
use isola_abi::descriptor::Clock;

/// Determines the rates of this machine's clocks and the time of day, on a core whose local APIC is enabled. Takes some
/// 5 ms. `timer_port` is the I/O port of ACPI's timer.
///
/// # Errors
/// [`ClockError`] if the machine has no clock of known rate, or a counter does not run.
pub(crate) fn calibrate(timer_port: Option<u16>) -> Result<Clock, ClockError> {
    let Rates { tsc_hz, apic_timer_hz } = rates::measure(timer_port)?;
    let unix_ns_at_epoch = time_of_day::read().unwrap_or(0);
    Ok(Clock { tsc_hz, apic_timer_hz, tsc_at_epoch: cpu::cycles(), unix_ns_at_epoch })
}

/// Waits for `duration_us` without halting: for the short delays that devices and processors require.
pub fn spin_us(clock: &Clock, duration_us: u64) {
    let cycles = clock.tsc_hz / 1_000_000 * duration_us;
    let start = cpu::cycles();
    while cpu::cycles().wrapping_sub(start) < cycles {
        core::hint::spin_loop();
    }
}
