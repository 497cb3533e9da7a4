//! The check of a neighbour that is not known to be reachable (RFC 4861 7.3): it goes on as the neighbour is used.

use super::{ATTEMPTS, RETRY};
use crate::time::{Duration, Instant};

/// How long the transport may confirm a stale address before it is asked (DELAY_FIRST_PROBE_TIME).
const DELAY: Duration = Duration::from_secs(5);

/// How far the check of an address that is not known to be reachable has come.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Check {
    NotBegun,
    Delayed { until: Instant },
    Asked { attempts: u8, again_at: Instant },
}

/// Whether a request is due.
#[derive(PartialEq)]
pub(super) enum Asked {
    Now,
    No,
}

impl Check {
    /// The next step of the check, at a use of the address: until when it may be used, and whether to ask.
    /// `None` where it did not answer.
    pub fn go_on(&mut self, now: Instant) -> Option<(Instant, Asked)> {
        let attempts = match *self {
            Self::NotBegun => {
                *self = Self::Delayed { until: now + DELAY };
                return Some((now + DELAY, Asked::No));
            }
            Self::Delayed { until } if now < until => return Some((until, Asked::No)),
            Self::Asked { again_at, .. } if now < again_at => return Some((again_at, Asked::No)),
            Self::Asked { attempts: ATTEMPTS.., .. } => return None,
            Self::Asked { attempts, .. } => attempts + 1,
            Self::Delayed { .. } => 1,
        };
        *self = Self::Asked { attempts, again_at: now + RETRY };
        Some((now + RETRY, Asked::Now))
    }
}
