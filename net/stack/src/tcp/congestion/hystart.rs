//! Leaving slow start before it overruns the path (HyStart++, RFC 9406): when round trips grow longer, the
//! window grows more slowly for some of them, and if that was no chance slow start is over.

use super::Round;
use crate::time::Duration;

/// Round trips that must have been measured before a round is judged.
const SAMPLES: u8 = 8;
/// Rounds of slow growth that end slow start.
const ROUNDS: u8 = 5;
/// What slow growth is divided by.
pub(super) const SLOWER: u32 = 4;
/// By how much the least round trip of a round must be longer than that of the one before: an eighth of it, within
/// these bounds.
const LEAST: Duration = Duration::from_millis(4);
const MOST: Duration = Duration::from_millis(16);

/// How the window grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// As in slow start.
    Fast,
    /// A quarter of that.
    Slow,
    /// Slow start is over.
    Ended,
}

/// What slow start has seen of the round trips.
#[derive(Debug, Default)]
pub(super) struct HyStart {
    last: Option<Duration>,
    current: Option<Duration>,
    samples: u8,
    /// While growth is slow: the least round trip when that began, and the rounds since.
    slow: Option<(Duration, u8)>,
}

impl HyStart {
    /// Takes a round trip in.
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
        "longer round trips slow the growth down, and five rounds of that end slow start."
    )]
    #[test]
    fn round_trips_that_grow_end_slow_start() {
        let mut hystart = HyStart::default();
        assert_eq!(round(&mut hystart, 40), Growth::Fast);
        assert_eq!(round(&mut hystart, 43), Growth::Fast);
        assert_eq!(round(&mut hystart, 49), Growth::Slow);
        for _ in 0..4 {
            assert_eq!(round(&mut hystart, 50), Growth::Slow);
        }
        assert_eq!(hystart.on_ack(None, Round::New), Growth::Ended);
    }

    #[proves("RFC 9406 4.2", "round trips that get shorter again were no sign of anything.")]
    #[test]
    fn a_round_trip_that_shrinks_again_goes_on_with_slow_start() {
        let mut hystart = HyStart::default();
        round(&mut hystart, 40);
        assert_eq!(round(&mut hystart, 60), Growth::Slow);
        assert_eq!(round(&mut hystart, 41), Growth::Fast);
    }
}
