//! The verification of a neighbour whose reachability is unknown (RFC 4861 7.3). It advances when the neighbour is
//! used.

use super::{ATTEMPTS, RETRY};
use crate::base::{Duration, Instant};

/// The time for a confirmation by the transport before a request (DELAY_FIRST_PROBE_TIME).
const DELAY: Duration = Duration::from_secs(5);

/// The state of the verification.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Check {
    NotBegun,
    Delayed { until: Instant },
    RequestDue { attempts: u8, again_at: Instant },
}

/// Whether a request is due.
#[derive(PartialEq)]
pub(super) enum RequestDue {
    Now,
    No,
}

impl Check {
    /// Advances the verification at a use of the address: returns the time until which it may be used, and whether to
    /// send a request; `None` if the neighbour did not answer.
    pub fn go_on(&mut self, now: Instant) -> Option<(Instant, RequestDue)> {
        let attempts = match *self {
            Self::NotBegun => {
                *self = Self::Delayed { until: now + DELAY };
                return Some((now + DELAY, RequestDue::No));
            }
            Self::Delayed { until } if now < until => return Some((until, RequestDue::No)),
            Self::RequestDue { again_at, .. } if now < again_at => return Some((again_at, RequestDue::No)),
            Self::RequestDue { attempts: ATTEMPTS.., .. } => return None,
            Self::RequestDue { attempts, .. } => attempts + 1,
            Self::Delayed { .. } => 1,
        };
        *self = Self::RequestDue { attempts, again_at: now + RETRY };
        Some((now + RETRY, RequestDue::Now))
    }
}
