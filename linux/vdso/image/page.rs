//! The clock page, which programs read and the cell writes.

/// The contents of the clock page. It lies directly below the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ClockPage {
    /// Odd while the cell changes the page; another number after each change.
    pub sequence: u32,
    /// Whether the clock can be computed from the cycle counter: 1, or 0 if programs have to make system calls.
    pub is_usable: u32,
    /// The cycle counter at time 0 of the monotonic clock.
    pub zero_cycles: u64,
    /// Nanoseconds per cycle, in units of 2^-32.
    pub ns_per_cycle: u64,
    /// The time of day at time 0 of the monotonic clock, in nanoseconds since 1970.
    pub unix_ns_at_zero: u64,
}

impl ClockPage {
    /// Returns the monotonic clock at a reading of the cycle counter, in nanoseconds. It is that of `isola_platform::Clock`.
    #[inline]
    pub const fn monotonic_ns(&self, cycles: u64) -> u64 {
        let since = cycles.saturating_sub(self.zero_cycles) as u128;
        ((since * self.ns_per_cycle as u128) >> 32) as u64
    }
}
