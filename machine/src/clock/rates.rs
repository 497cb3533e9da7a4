//! The rates of the cycle counter and of the local APIC's timer.
//!
//! The processor or the hypervisor reports the cycle counter's rate, or it is measured for 5 ms against a clock of
//! known rate; the timer is measured against the cycle counter. Each reading is taken several times, and the one with
//! the least disturbance counts.

use super::reference::{IntervalTimer, PowerTimer, Reference};
use crate::apic::local;
use crate::authority::Authority;
use crate::cpu::{self, cpuid};
use core::fmt;

/// Duration of the measurement.
const MEASURE_US: u64 = 5_000;

/// Attempts of each reading.
const TRIES: usize = 8;

/// Rates, in counts per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// The cycle counter.
    pub tsc_hz: u64,
    /// The local APIC's timer, undivided.
    pub apic_timer_hz: u64,
}

/// A failure to determine the rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockError {
    /// There is no clock of known rate.
    NoReference,
    /// A counter does not advance.
    NotRunning,
}

impl fmt::Display for ClockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoReference => f.write_str(
                "the machine has no clock of known rate: give it an interval timer (QEMU: pit=on) or ACPI's timer",
            ),
            Self::NotRunning => f.write_str("the cycle counter or the APIC's timer does not count"),
        }
    }
}

impl core::error::Error for ClockError {}

/// Determines both rates.
pub(super) fn measure(timer_port: Option<u16>) -> Result<Rates, ClockError> {
    local::start_count();
    let rates = match told_tsc_hz() {
        Some(tsc_hz) => against_tsc(tsc_hz),
        None => match IntervalTimer::start() {
            Some(mut timer) => against(&mut timer),
            None => {
                let timer = timer_port.and_then(PowerTimer::at);
                against(&mut timer.ok_or(ClockError::NoReference)?)
            }
        },
    };
    local::disarm_timer(Authority::OWN);
    if rates.tsc_hz == 0 || rates.apic_timer_hz == 0 { Err(ClockError::NotRunning) } else { Ok(rates) }
}

/// Returns the cycle counter's rate if the processor or the hypervisor reports it.
fn told_tsc_hz() -> Option<u64> {
    // Intel SDM 2, CPUID leaf 15H: the ratio to a crystal, and the crystal's rate.
    let ratio = cpuid(0x15, 0);
    let crystal_hz = u64::from(ratio.ecx);
    if ratio.eax != 0 && ratio.ebx != 0 && crystal_hz != 0 {
        return Some(crystal_hz * u64::from(ratio.ebx) / u64::from(ratio.eax));
    }
    // The timing leaf that several hypervisors share: the cycle counter's rate in kHz.
    let timing = cpu::Features::read().hypervisor.then(|| cpuid(0x4000_0010, 0).eax)?;
    (timing != 0).then_some(u64::from(timing) * 1000)
}

/// A count, and the cycle counter at that time.
#[derive(Clone, Copy)]
struct Reading {
    count: u32,
    cycles: u64,
}

/// Returns the fastest of several readings, which has the least delay between the count and the cycle counter.
fn read(mut count: impl FnMut() -> u32) -> Reading {
    let readings: [(u64, Reading); TRIES] = core::array::from_fn(|_| {
        let before = cpu::cycles();
        let count = count();
        let took = cpu::cycles() - before;
        (took, Reading { count, cycles: before + took / 2 })
    });
    let best = readings.into_iter().min_by_key(|(took, _)| *took);
    best.map_or(readings[0].1, |(_, reading)| reading)
}

fn against(reference: &mut impl Reference) -> Rates {
    let (hz, mask) = (reference.hz(), reference.mask());
    let wanted = hz * MEASURE_US / 1_000_000;
    let (first, first_ticks) = (read(|| reference.count()), read(local::ticks_counted));
    while u64::from(reference.count().wrapping_sub(first.count) & mask) < wanted {
        core::hint::spin_loop();
    }
    let (last, last_ticks) = (read(|| reference.count()), read(local::ticks_counted));
    let counts = u64::from(last.count.wrapping_sub(first.count) & mask).max(1);
    let tsc_hz = scale(last.cycles - first.cycles, hz, counts);
    Rates { tsc_hz, apic_timer_hz: ticks_per_second(first_ticks, last_ticks, tsc_hz) }
}

fn against_tsc(tsc_hz: u64) -> Rates {
    let wanted = tsc_hz * MEASURE_US / 1_000_000;
    let first = read(local::ticks_counted);
    while cpu::cycles() - first.cycles < wanted {
        core::hint::spin_loop();
    }
    Rates { tsc_hz, apic_timer_hz: ticks_per_second(first, read(local::ticks_counted), tsc_hz) }
}

fn ticks_per_second(first: Reading, last: Reading, tsc_hz: u64) -> u64 {
    scale(last.count.wrapping_sub(first.count).into(), tsc_hz, (last.cycles - first.cycles).max(1))
}

fn scale(counted: u64, hz: u64, of: u64) -> u64 {
    (u128::from(counted) * u128::from(hz) / u128::from(of)) as u64
}
