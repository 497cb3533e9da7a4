//! The clock of the timestamps option, and what was heard of the peer's (RFC 7323).
//!
//! A tick is 2^20 ns, a little more than a millisecond: RFC 7323 5.4 asks for 1 ms to 1 s. Half of the clock's
//! circle then lasts 26 days. Every connection's clock has an offset of its own, a secret function of its
//! flow, so that it tells nothing of the machine's uptime and that successive connections of one flow go on.

use super::options::Timestamps;
use crate::time::{Duration, Instant};

/// Nanoseconds of a tick, as a power of two.
const TICK_SHIFT: u32 = 20;
/// A peer's timestamp older than this means nothing any more (RFC 7323 5.5).
const OUTDATED: Duration = Duration::from_secs(24 * 24 * 3600);

/// Both clocks of a connection that uses timestamps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamps {
    offset: u32,
    /// The peer's clock as it is echoed (TS.Recent), and when it was heard.
    recent: u32,
    recent_at: Instant,
}

/// Whether a segment is what its place in the stream says, or from before the numbers wrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    Fresh,
    Old,
}

/// The beginning of the tick that `at` lies in.
pub(crate) const fn tick_of(at: Instant) -> Instant {
    Instant::from_nanos(at.as_nanos() >> TICK_SHIFT << TICK_SHIFT)
}

impl Stamps {
    /// The clock of a connection whose peer was not heard yet.
    pub const fn new(offset: u32, now: Instant) -> Self {
        Self { offset, recent: 0, recent_at: now }
    }

    /// Our clock.
    #[inline]
    pub const fn value(&self, now: Instant) -> u32 {
        ((now.as_nanos() >> TICK_SHIFT) as u32).wrapping_add(self.offset)
    }

    /// The option for a segment that goes out now.
    #[inline]
    pub const fn option(&self, now: Instant) -> Timestamps {
        Timestamps { value: self.value(now), echo: self.recent }
    }

    /// The option with which a SYN is answered whose own was `theirs`.
    pub const fn answer(&self, now: Instant, theirs: Timestamps) -> Timestamps {
        Timestamps { value: self.value(now), echo: theirs.value }
    }

    /// Judges a segment by the peer's clock (RFC 7323 5.3, R1).
    #[inline]
    pub fn judge(&self, now: Instant, value: u32) -> Age {
        let behind = (value.wrapping_sub(self.recent) as i32) < 0;
        if behind && now.since(self.recent_at) < OUTDATED { Age::Old } else { Age::Fresh }
    }

    /// The beginning of the tick in which our clock showed `echo`, seen from `now`.
    #[inline]
    pub const fn moment(&self, now: Instant, echo: u32) -> Instant {
        let ago = self.value(now).wrapping_sub(echo) as u64;
        Instant::from_nanos((now.as_nanos() >> TICK_SHIFT).saturating_sub(ago) << TICK_SHIFT)
    }

    /// The peer's clock showed `value` in a segment that is echoed from now on.
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
    fn a_clock_that_went_back_is_old_until_it_means_nothing() {
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
    fn our_clock_ticks_in_milliseconds_from_its_offset() {
        let stamps = Stamps::new(u32::MAX, Instant::ZERO);
        assert_eq!(stamps.value(Instant::ZERO), u32::MAX);
        let later = Instant::ZERO + Duration::from_secs(10);
        assert_eq!(stamps.value(later), 9535);
        assert_eq!(stamps.moment(later, 9535), tick_of(later));
        assert_eq!(stamps.moment(later, u32::MAX), Instant::ZERO);
    }
}
