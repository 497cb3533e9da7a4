//! The clock of the timestamps option, and the latest value of the peer's clock (RFC 7323).
//!
//! A tick is 2^20 ns, a little more than a millisecond; RFC 7323 5.4 requires 1 ms to 1 s. Half of the clock's range
//! lasts 26 days. The clock of each connection has its own offset, a secret function of its flow: it does not reveal
//! the machine's uptime, and continues over successive connections of a flow.

use super::options::Timestamps;
use crate::base::{Duration, Instant};

/// Nanoseconds of a tick, as a power of two.
const TICK_SHIFT: u32 = 20;
/// The age at which the peer's latest timestamp becomes invalid (RFC 7323 5.5).
const OUTDATED: Duration = Duration::from_secs(24 * 24 * 3600);

/// Both clocks of a connection with timestamps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamps {
    offset: u32,
    /// The peer's timestamp to echo (TS.Recent), and when it was received.
    recent: u32,
    recent_at: Instant,
}

/// Whether a segment is recent, or from before the sequence numbers wrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    Fresh,
    Old,
}

/// Returns the start of the tick that contains `at`.
pub(crate) const fn tick_of(at: Instant) -> Instant {
    Instant::from_nanos(at.as_nanos() >> TICK_SHIFT << TICK_SHIFT)
}

impl Stamps {
    /// Returns the clocks of a connection that has received nothing from its peer.
    pub const fn new(offset: u32, now: Instant) -> Self {
        Self { offset, recent: 0, recent_at: now }
    }

    /// Returns the value of our clock.
    #[inline]
    pub const fn value(&self, now: Instant) -> u32 {
        ((now.as_nanos() >> TICK_SHIFT) as u32).wrapping_add(self.offset)
    }

    /// Returns the option for a segment sent now.
    #[inline]
    pub const fn option(&self, now: Instant) -> Timestamps {
        Timestamps { value: self.value(now), echo: self.recent }
    }

    /// Returns the option for the SYN-ACK to a SYN with the option `theirs`.
    pub const fn answer(&self, now: Instant, theirs: Timestamps) -> Timestamps {
        Timestamps { value: self.value(now), echo: theirs.value }
    }

    /// Returns whether a segment with this timestamp is recent (PAWS, RFC 7323 5.3, R1).
    #[inline]
    pub fn judge(&self, now: Instant, value: u32) -> Age {
        let behind = (value.wrapping_sub(self.recent) as i32) < 0;
        if behind && now.since(self.recent_at) < OUTDATED { Age::Old } else { Age::Fresh }
    }

    /// Returns the start of the tick in which our clock had the value `echo`, as seen at `now`.
    #[inline]
    pub const fn moment(&self, now: Instant, echo: u32) -> Instant {
        let ago = self.value(now).wrapping_sub(echo) as u64;
        Instant::from_nanos((now.as_nanos() >> TICK_SHIFT).saturating_sub(ago) << TICK_SHIFT)
    }

    /// Records the peer's timestamp `value`, to be echoed from now on.
    #[inline]
    pub fn hear(&mut self, now: Instant, value: u32) {
        self.recent = value;
        self.recent_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_timestamp_is_old_until_the_recent_one_becomes_invalid() {
        let now = Instant::ZERO + Duration::from_secs(1);
        let mut stamps = Stamps::new(5, now);
        stamps.hear(now, 1000);
        assert_eq!(stamps.judge(now, 1000), Age::Fresh);
        assert_eq!(stamps.judge(now, 1001), Age::Fresh);
        assert_eq!(stamps.judge(now, 999), Age::Old);
        assert_eq!(stamps.judge(now + OUTDATED, 999), Age::Fresh);
        stamps.hear(now, u32::MAX);
        assert_eq!((stamps.judge(now, 3), stamps.judge(now, u32::MAX - 1)), (Age::Fresh, Age::Old));
    }

    #[test]
    fn our_clock_has_ticks_of_2_to_the_20_nanoseconds_and_starts_at_its_offset() {
        let stamps = Stamps::new(u32::MAX, Instant::ZERO);
        assert_eq!(stamps.value(Instant::ZERO), u32::MAX);
        let later = Instant::ZERO + Duration::from_secs(10);
        assert_eq!(stamps.value(later), 9535);
        assert_eq!(stamps.moment(later, 9535), tick_of(later));
        assert_eq!(stamps.moment(later, u32::MAX), Instant::ZERO);
    }
}
