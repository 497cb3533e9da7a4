//! Time stamps of files.

use core::sync::atomic::{AtomicU64, Ordering};
use spin::Once;

static CLOCK: Once<fn() -> u64> = Once::new();
/// The number of stamps without a clock.
static STAMPS: AtomicU64 = AtomicU64::new(0);

/// A time since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// The full seconds.
    pub seconds: i64,
    /// The nanoseconds after them, below 1,000,000,000.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// Returns the time of this many nanoseconds since 1970.
    pub fn of_ns(ns: u64) -> Self {
        Self { seconds: (ns / 1_000_000_000) as i64, nanoseconds: (ns % 1_000_000_000) as u32 }
    }

    /// Returns the present time by the clock of [`set_clock`]; without one, a counter that advances with each stamp.
    pub fn now() -> Self {
        match CLOCK.get() {
            Some(clock) => Self::of_ns(clock()),
            None => Self::of_ns(STAMPS.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

/// Sets the clock of time stamps, in nanoseconds since 1970. Only the first call has an effect.
pub fn set_clock(clock: fn() -> u64) {
    CLOCK.call_once(|| clock);
}
