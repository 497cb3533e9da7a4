//! Exit from slow start before the path overflows (HyStart++, RFC 9406). If round-trip times increase, the window grows
//! more slowly for some rounds. If the increase persists, slow start ends.

use super::Round;
use crate::base::Duration;

/// Minimum number of samples before a round is evaluated.
const SAMPLES: u8 = 8;
/// Number of rounds of slow growth after which slow start ends.
const ROUNDS: u8 = 5;
/// Divisor of slow growth.
pub(super) const SLOWER: u32 = 4;
/// The minimum round-trip time of a round must exceed that of the previous round by an eighth of it, within these
/// bounds.
const LEAST: Duration = Duration::from_millis(4);
const MOST: Duration = Duration::from_millis(16);

/// The growth of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// As in slow start.
    Fast,
    /// A quarter of that.
    Slow,
    /// Slow start has ended.
    Ended,
}

/// The round-trip times seen during slow start.
#[derive(Debug, Default)]
pub(super) struct HyStart {
    last: Option<Duration>,
    current: Option<Duration>,
    samples: u8,
    /// During slow growth: the minimum round-trip time when it began, and the number of rounds since.
    slow: Option<(Duration, u8)>,
}

impl HyStart {
    /// Processes an acknowledgement with its round-trip time, and returns how the window grows.
    pub fn on_ack(&mut self, rtt: Option<Duration>, round: Round) -> Growth {
        if round == Round::New {
            self.last = self.current.take();
            self.samples = 0;
            if let Some((_, rounds)) = &mut self.slow {
                *rounds += 1;
                if *rounds >= ROUNDS {
                    return Growth::Ended;
                }
            }
        }
        if let Some(rtt) = rtt {
            self.current = Some(self.current.map_or(rtt, |least| least.min(rtt)));
            self.samples = self.samples.saturating_add(1);
            self.judge();
        }
        if self.slow.is_some() { Growth::Slow } else { Growth::Fast }
    }

    fn judge(&mut self) {
        let (Some(last), Some(current)) = (self.last, self.current) else { return };
        if self.samples < SAMPLES {
            return;
        }
        match self.slow {
            None if current >= last + last.divided_by(8).max(LEAST).min(MOST) => {
                self.slow = Some((current, 0))
            }
            Some((least, _)) if current < least => self.slow = None,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_proves::proves;

    fn round(hystart: &mut HyStart, millis: u64) -> Growth {
        let rtt = Some(Duration::from_millis(millis));
        hystart.on_ack(rtt, Round::New);
        (0..8).map(|_| hystart.on_ack(rtt, Round::Same)).last().unwrap()
    }

    #[proves(
        "RFC 9406 4.2",
        "increasing round-trip times slow the growth, and five rounds of that end slow start."
    )]
    #[test]
    fn increasing_round_trip_times_end_slow_start() {
        let mut hystart = HyStart::default();
        assert_eq!(round(&mut hystart, 40), Growth::Fast);
        assert_eq!(round(&mut hystart, 43), Growth::Fast);
        assert_eq!(round(&mut hystart, 49), Growth::Slow);
        for _ in 0..4 {
            assert_eq!(round(&mut hystart, 50), Growth::Slow);
        }
        assert_eq!(hystart.on_ack(None, Round::New), Growth::Ended);
    }

    #[proves("RFC 9406 4.2", "if round-trip times decrease again, slow start resumes.")]
    #[test]
    fn slow_start_resumes_if_round_trip_times_decrease_again() {
        let mut hystart = HyStart::default();
        round(&mut hystart, 40);
        assert_eq!(round(&mut hystart, 60), Growth::Slow);
        assert_eq!(round(&mut hystart, 41), Growth::Fast);
    }
}
