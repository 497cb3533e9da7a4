//! The interval of a periodic command, written `1s` or `100ms`.

use jiff::SignedDuration;
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;

/// The shortest interval: a reading costs the supervisor some ten microseconds.
const SHORTEST: Duration = Duration::from_millis(10);

/// The longest interval: `isola elastic` renews loans in each, long before the longest lease ends.
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// The interval of a periodic command: 10 ms to 15 min.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasurementInterval(pub Duration);

/// The error for a text that is not such an interval.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0:?} is no interval: write a number and its unit, as in 1s or 100ms, of 10ms to 15m")]
pub struct BadInterval(String);

impl FromStr for MeasurementInterval {
    type Err = BadInterval;

    fn from_str(text: &str) -> Result<Self, BadInterval> {
        let time = text.parse::<SignedDuration>().ok().and_then(|time| Duration::try_from(time).ok());
        time.filter(|time| (SHORTEST..=LONGEST).contains(time))
            .map(Self)
            .ok_or_else(|| BadInterval(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_need_a_unit_and_have_limits() {
        assert_eq!("1s".parse(), Ok(MeasurementInterval(Duration::from_secs(1))));
        for bad in ["", "1", "-1s", "9ms", "0s", "16m"] {
            assert_eq!(bad.parse::<MeasurementInterval>(), Err(BadInterval(bad.to_owned())));
        }
    }
}
