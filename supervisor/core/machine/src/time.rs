//! Time, from the cycle counter.

use isola_abi::descriptor::Clock;
use isola_machine::cpu;

/// A converter of cycles to the time since the supervisor's first instruction.
#[derive(Clone, Copy, Debug)]
pub struct Time {
    clock: Clock,
    started_cycles: u64,
}

impl Time {
    /// Returns a converter for a supervisor that began at `started_cycles` of `clock`.
    pub fn new(clock: Clock, started_cycles: u64) -> Self {
        Self { clock, started_cycles }
    }

    /// Returns the machine's clocks.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Returns the time at `cycles`, in ns since the supervisor's first instruction.
    pub fn at_cycles(&self, cycles: u64) -> u64 {
        self.ns(cycles.wrapping_sub(self.started_cycles))
    }

    /// Returns the time since the supervisor's first instruction, in ns.
    pub fn now_ns(&self) -> u64 {
        self.at_cycles(cpu::cycles())
    }

    /// Returns the time of day of the supervisor's first instruction, in ns since 1970-01-01 UTC.
    pub fn started_unix_ns(&self) -> u64 {
        let at_epoch = self.ns(self.clock.tsc_at_epoch.wrapping_sub(self.started_cycles));
        self.clock.unix_ns_at_epoch.saturating_sub(at_epoch)
    }

    /// Returns the ticks of the local APIC's timer in `ns` nanoseconds.
    pub fn timer_ticks(&self, ns: u64) -> u64 {
        scale(ns, self.clock.apic_timer_hz, 1_000_000_000)
    }

    /// Returns the cycles in `ns` nanoseconds.
    pub fn cycles(&self, ns: u64) -> u64 {
        scale(ns, self.clock.tsc_hz, 1_000_000_000)
    }

    fn ns(&self, cycles: u64) -> u64 {
        scale(cycles, 1_000_000_000, self.clock.tsc_hz)
    }
}

/// Returns `value * numerator / denominator` without intermediate overflow; saturates.
fn scale(value: u64, numerator: u64, denominator: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(numerator) / u128::from(denominator.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
