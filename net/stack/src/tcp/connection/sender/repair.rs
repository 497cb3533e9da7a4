//! Getting over a loss: from its finding until all that was under way then has arrived.

use crate::tcp::seq::Seq;
use crate::tcp::timestamps::tick_of;
use crate::time::Instant;

/// What began a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Acknowledgements told of a loss: what is sent is paced by what arrives.
    Loss,
    /// The retransmission timer ran out: the congestion window begins anew.
    Timeout,
}

/// A repair.
#[derive(Debug)]
pub(super) struct Repair {
    pub cause: Cause,
    /// All before this was sent when the loss was found.
    pub point: Seq,
    pub rate: Reduction,
    pub question: Question,
}

impl Repair {
    /// `len` bytes were sent again.
    pub fn on_sent_again(&mut self, now: Instant, len: u32) {
        self.rate.on_sent(len);
        if self.question == Question::Unasked {
            self.question = Question::Asked(tick_of(now));
        }
    }
}

/// Whether the loss was one: asked with the first segment that is sent again, answered by the first progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    Unasked,
    /// Sent again at this time, as the timestamps' clock shows it.
    Asked(Instant),
    Answered,
}

/// Whether an acknowledgement moves on and tells of no further loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Safe {
    Yes,
    No,
}

/// Proportional rate reduction (RFC 9937): the window shrinks to its new size in step with what arrives, so
/// that segments go out evenly all the way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reduction {
    /// Bytes that were under way at the beginning.
    flight: u32,
    /// Bytes that have arrived and that were sent since.
    delivered: u32,
    sent: u32,
    /// Bytes that may be under way now.
    pub window: u32,
}

impl Reduction {
    pub fn new(flight: u32) -> Self {
        Self { flight: flight.max(1), delivered: 0, sent: 0, window: 0 }
    }

    /// `delivered` bytes have arrived and `pipe` are under way, of `threshold` that are to be.
    pub fn on_ack(&mut self, delivered: u32, pipe: u32, threshold: u32, mss: u32, safe: Safe) {
        self.delivered = self.delivered.saturating_add(delivered);
        let mut count = if pipe > threshold {
            let due = (u64::from(self.delivered) * u64::from(threshold)).div_ceil(u64::from(self.flight));
            u32::try_from(due).unwrap_or(u32::MAX).saturating_sub(self.sent)
        } else {
            let more = if safe == Safe::Yes { mss } else { 0 };
            let limit = self.delivered.saturating_sub(self.sent).max(delivered).saturating_add(more);
            limit.min(threshold - pipe)
        };
        if self.sent == 0 {
            // The first segment again, whatever the rate (RFC 9937 6).
            count = count.max(mss);
        }
        self.window = pipe.saturating_add(count);
    }

    /// `len` bytes were sent.
    pub fn on_sent(&mut self, len: u32) {
        self.sent = self.sent.saturating_add(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_shrinks_in_step_with_what_arrives() {
        // 20 segments under way, 10 are to be; the first is lost and sent again.
        let mut rate = Reduction::new(20_000);
        let mut pipe = 19_000u32;
        let mut sent = 0;
        for _ in 0..19 {
            pipe -= 1000;
            rate.on_ack(1000, pipe, 10_000, 1000, Safe::No);
            while rate.window >= pipe + 1000 {
                rate.on_sent(1000);
                pipe += 1000;
                sent += 1;
            }
        }
        assert_eq!((sent, pipe), (10, 10_000), "every other acknowledgement lets one out");
    }

    #[test]
    fn where_less_is_under_way_than_may_be_it_grows_by_what_arrives_or_one_more() {
        let mut rate = Reduction::new(10_000);
        rate.on_sent(1000);
        rate.on_ack(1000, 2000, 5_000, 1000, Safe::No);
        assert_eq!(rate.window, 3000);
        rate.on_ack(1000, 2000, 5_000, 1000, Safe::Yes);
        assert_eq!(rate.window, 4000);
    }
}
