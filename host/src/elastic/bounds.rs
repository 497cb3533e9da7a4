//! The bounds of a percentile (RainForest's (lt, ut)).

use crate::output::human::duration_ns;
use jiff::SignedDuration;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The bounds of a service's percentile, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Below this, the service can give up a core.
    pub lower_ns: u64,
    /// Above this, the service needs another core. Greater than `lower_ns`.
    pub upper_ns: u64,
}

/// The error for a text that is not a pair of bounds.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0:?} is no pair of bounds: write the lower and the upper one with their units, as in 2ms..5ms")]
pub struct BadBounds(String);

impl FromStr for Bounds {
    type Err = BadBounds;

    fn from_str(text: &str) -> Result<Self, BadBounds> {
        let bad = || BadBounds(text.to_owned());
        let ns = |part: &str| {
            let duration = part.trim().parse::<SignedDuration>().map_err(|_| bad())?;
            u64::try_from(duration.as_nanos()).map_err(|_| bad())
        };
        let (lower, upper) = text.split_once("..").ok_or_else(bad)?;
        let bounds = Self { lower_ns: ns(lower)?, upper_ns: ns(upper)? };
        if bounds.lower_ns < bounds.upper_ns { Ok(bounds) } else { Err(bad()) }
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", duration_ns(self.lower_ns), duration_ns(self.upper_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_parsed_with_their_units() {
        let bounds = |lower_ns, upper_ns| Ok(Bounds { lower_ns, upper_ns });
        assert_eq!("2ms..5ms".parse(), bounds(2_000_000, 5_000_000));
        assert_eq!("500us .. 1.5ms".parse(), bounds(500_000, 1_500_000));
        for text in ["", "5ms", "5ms..2ms", "2ms..2ms", "2..5", "-1ms..1ms", "2ms..5ms..9ms"] {
            assert_eq!(text.parse::<Bounds>(), Err(BadBounds(text.to_owned())));
        }
    }
}
