//! Loss recovery: from the detection of a loss until all data in flight at that time has arrived.

use crate::base::Instant;
use crate::tcp::seq::Seq;
use crate::tcp::timestamps::tick_of;

/// The cause of a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Acknowledgements indicated a loss: proportional rate reduction limits the flight.
    Loss,
    /// The retransmission timer expired: the congestion window restarts from one segment.
    Timeout,
}

/// A recovery in progress.
#[derive(Debug)]
pub(super) struct Repair {
    pub cause: Cause,
    /// The recovery point: the end of the flight when the loss was detected.
    pub point: Seq,
    pub rate: Reduction,
    pub question: SpuriousTest,
}

impl Repair {
    /// Records that `len` bytes were retransmitted.
    pub fn on_sent_again(&mut self, now: Instant, len: u32) {
        self.rate.on_sent(len);
        if self.question == SpuriousTest::Unasked {
            self.question = SpuriousTest::Asked(tick_of(now));
        }
    }
}

/// State of the test for a spurious recovery (RFC 3522): the first retransmission starts it, and the first progress
/// decides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpuriousTest {
    Unasked,
    /// Time of the first retransmission, rounded down to a tick of the timestamp clock.
    Asked(Instant),
    Answered,
}

/// Whether an acknowledgement makes progress and indicates no further loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SafeAck {
    Yes,
    No,
}

/// Proportional rate reduction (RFC 9937): the flight shrinks to its new size in proportion to the arriving data, so
/// that segments are sent evenly during the recovery.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reduction {
    /// Bytes in flight at the start of the recovery.
    flight: u32,
    /// Bytes that have arrived, and bytes sent, since then.
    delivered: u32,
    sent: u32,
    /// Bytes that may be in flight now.
    pub window: u32,
}

impl Reduction {
    pub fn new(flight: u32) -> Self {
        Self { flight: flight.max(1), delivered: 0, sent: 0, window: 0 }
    }

    /// Updates the window. `delivered` bytes have arrived, `pipe` bytes are in flight, and `threshold` is the target of
    /// the recovery.
    pub fn on_ack(&mut self, delivered: u32, pipe: u32, threshold: u32, mss: u32, safe: SafeAck) {
        self.delivered = self.delivered.saturating_add(delivered);
        let mut count = if pipe > threshold {
            let due = (u64::from(self.delivered) * u64::from(threshold)).div_ceil(u64::from(self.flight));
            u32::try_from(due).unwrap_or(u32::MAX).saturating_sub(self.sent)
        } else {
            let more = if safe == SafeAck::Yes { mss } else { 0 };
            let limit = self.delivered.saturating_sub(self.sent).max(delivered).saturating_add(more);
            limit.min(threshold - pipe)
        };
        if self.sent == 0 {
            // The first retransmission is sent at any rate (RFC 9937 6).
            count = count.max(mss);
        }
        self.window = pipe.saturating_add(count);
    }

    /// Records that `len` bytes were sent.
    pub fn on_sent(&mut self, len: u32) {
        self.sent = self.sent.saturating_add(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flight_shrinks_in_proportion_to_arriving_data() {
        // 20 segments are in flight, the target is 10; the first is lost and retransmitted.
        let mut rate = Reduction::new(20_000);
        let mut pipe = 19_000u32;
        let mut sent = 0;
        for _ in 0..19 {
            pipe -= 1000;
            rate.on_ack(1000, pipe, 10_000, 1000, SafeAck::No);
            while rate.window >= pipe + 1000 {
                rate.on_sent(1000);
                pipe += 1000;
                sent += 1;
            }
        }
        assert_eq!((sent, pipe), (10, 10_000), "every other acknowledgement allows one segment");
    }

    #[test]
    fn a_flight_below_the_target_grows_by_the_arriving_data_plus_one_segment_if_safe() {
        let mut rate = Reduction::new(10_000);
        rate.on_sent(1000);
        rate.on_ack(1000, 2000, 5_000, 1000, SafeAck::No);
        assert_eq!(rate.window, 3000);
        rate.on_ack(1000, 2000, 5_000, 1000, SafeAck::Yes);
        assert_eq!(rate.window, 4000);
    }
}
