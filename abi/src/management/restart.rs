//! The restart policy: whether the supervisor restarts a cell that ended by itself.

use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// The rule by which the supervisor restarts a cell that has ended, without a request. It does not restart a cell that
/// ended by a stop request. In text `no`, `on-failure`, `on-failure:5`, `always`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RestartPolicy {
    /// Never.
    #[default]
    No,
    /// After a crash, a hang or a non-zero exit code.
    OnFailure {
        /// The maximum number of restarts in a row; a longer run resets the count. `None`: without limit.
        most: Option<u32>,
    },
    /// After every end.
    Always,
}

/// The error for a text that is not a restart policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRestartPolicy;

impl fmt::Display for NoRestartPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a restart policy: write no, on-failure, on-failure:5 or always")
    }
}

impl core::error::Error for NoRestartPolicy {}

impl fmt::Display for RestartPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::No => f.write_str("no"),
            Self::OnFailure { most: None } => f.write_str("on-failure"),
            Self::OnFailure { most: Some(most) } => write!(f, "on-failure:{most}"),
            Self::Always => f.write_str("always"),
        }
    }
}

impl FromStr for RestartPolicy {
    type Err = NoRestartPolicy;

    fn from_str(text: &str) -> Result<Self, NoRestartPolicy> {
        match (text, text.split_once(':')) {
            ("no", _) => Ok(Self::No),
            ("always", _) => Ok(Self::Always),
            ("on-failure", _) => Ok(Self::OnFailure { most: None }),
            (_, Some(("on-failure", most))) if most.bytes().all(|digit| digit.is_ascii_digit()) => {
                let most = most.parse().map_err(|_| NoRestartPolicy)?;
                Ok(Self::OnFailure { most: Some(most) })
            }
            _ => Err(NoRestartPolicy),
        }
    }
}

impl TryFrom<String> for RestartPolicy {
    type Error = NoRestartPolicy;

    fn try_from(text: String) -> Result<Self, NoRestartPolicy> {
        text.parse()
    }
}

impl From<RestartPolicy> for String {
    fn from(policy: RestartPolicy) -> Self {
        policy.to_string()
    }
}

/// The restarts of a cell by its policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restarts {
    /// The number of restarts since the last start by request.
    pub count: u32,
    /// The number of ends in a row, since the last longer run.
    pub ends_in_row: u32,
    /// The time of day of the next attempt, if one is due, in ns since 1970-01-01 UTC.
    pub next_unix_ns: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_round_trip_through_text() {
        for text in ["no", "on-failure", "on-failure:0", "on-failure:5", "always"] {
            assert_eq!(text.parse::<RestartPolicy>().unwrap().to_string(), text);
        }
        for bad in
            ["", "yes", "on-failure:", "on-failure:-1", "on-failure:+1", "always:3", "on-failure:5000000000"]
        {
            assert_eq!(bad.parse::<RestartPolicy>(), Err(NoRestartPolicy), "{bad}");
        }
    }
}
