//! The names of policies.

use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// The policy of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PolicyKind {
    /// First in, first out.
    Fifo,
    /// Strict priorities. A member waits as long as members of higher priority have requests.
    Priority,
    /// Start-time fair queueing by weight.
    Wfq,
    /// Earliest deadline first.
    Edf,
    /// Reservation, limit and share.
    Reserve,
}

impl PolicyKind {
    /// All policies.
    pub const ALL: [Self; 5] = [Self::Fifo, Self::Priority, Self::Wfq, Self::Edf, Self::Reserve];

    /// Returns the policy's name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::Priority => "priority",
            Self::Wfq => "wfq",
            Self::Edf => "edf",
            Self::Reserve => "reserve",
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that is not the name of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPolicy;

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such policy: use fifo, priority, wfq, edf or reserve")
    }
}

impl core::error::Error for UnknownPolicy {}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL.into_iter().find(|policy| policy.name() == text).ok_or(UnknownPolicy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn policies_are_parsed_from_their_names() {
        for policy in PolicyKind::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
            assert!(UnknownPolicy.to_string().contains(policy.name()));
        }
        assert_eq!("Fifo".parse::<PolicyKind>(), Err(UnknownPolicy));
    }
}
