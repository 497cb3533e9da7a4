//! What becomes of a cell that has ended by itself.

use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// Whether the supervisor starts a cell again that has ended, without anybody asking. One that was asked to stop
/// stays as it is. Written `no`, `on-failure`, `on-failure:5`, `always`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RestartPolicy {
    /// It does not.
    #[default]
    No,
    /// Where the cell crashed, hung, or returned another code than 0.
    OnFailure {
        /// At most so many times in a row: a cell that has run for a while begins anew. `None`: without an end.
        most: Option<u32>,
    },
    /// Whatever led to the end.
    Always,
}

/// A text that is no restart policy.
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

/// How often a cell was started again by its policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restarts {
    /// So many times since somebody asked for its start.
    pub count: u32,
    /// How many of its ends stand in a row, none having come after it ran for a while.
    pub ends_in_row: u32,
    /// Time of day at which the next try is due, in ns since 1970-01-01 UTC.
    pub next_unix_ns: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_read_back_as_written() {
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
