//! The interval of a periodic command, written `1s` or `100ms`.

use jiff::SignedDuration;
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;

/// The shortest interval: a reading costs the supervisor some ten microseconds.
const SHORTEST: Duration = Duration::from_millis(10);

/// The interval of a periodic command: 10 ms or longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Every(pub Duration);

/// The error for a text that is not such an interval.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0:?} is no interval: write a number and its unit, as in 1s or 100ms, of 10 ms at least")]
pub struct BadInterval(String);

impl FromStr for Every {
    type Err = BadInterval;

    fn from_str(text: &str) -> Result<Self, BadInterval> {
        let time = text.parse::<SignedDuration>().ok().and_then(|time| Duration::try_from(time).ok());
        time.filter(|time| *time >= SHORTEST).map(Self).ok_or_else(|| BadInterval(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_need_a_unit_and_a_minimum_length() {
        assert_eq!("1s".parse(), Ok(Every(Duration::from_secs(1))));
        for bad in ["", "1", "-1s", "9ms", "0s"] {
            assert_eq!(bad.parse::<Every>(), Err(BadInterval(bad.to_owned())));
        }
    }
}
