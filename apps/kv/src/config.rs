//! What a server is told at its start.

use core::fmt;

use crate::shard::SMALLEST_SHARD_BYTES;

/// The largest value that a server accepts unless it is told otherwise, in bytes.
pub const DEFAULT_MAX_VALUE_LEN: usize = 1 << 20;

/// The most shards that a server divides its items among: as many as there may be cores that serve.
const MOST_SHARDS: usize = 64;

/// Values of the largest length that each shard has room for, where there is more than one: so many that keys which fall
/// into shards unevenly do not push values out of one while others have room.
const LARGEST_VALUES_IN_SHARD: usize = 16;

/// The limits of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    memory_limit_bytes: usize,
    shard_count: u16,
    max_value_len: usize,
    session: SessionLimits,
}

/// The limits of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Once this many bytes of answers wait for the client to read them, no further request is taken up. The last
    /// answer comes on top.
    pub max_output_bytes: usize,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self { max_output_bytes: 256 << 10 }
    }
}

/// Limits that contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// There has to be a shard.
    NoShard,
    /// There is less memory than the shards need to hold anything.
    TooLittleMemory {
        /// What they need, in bytes.
        needed_bytes: usize,
    },
    /// Values of no byte, or of more than a request can state.
    MaxValueLen,
    /// No answer would ever be let through.
    SessionLimits,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoShard => write!(f, "a server needs at least one shard"),
            Self::TooLittleMemory { needed_bytes } => {
                write!(
                    f,
                    "the memory limit is too small for that many shards: set at least {needed_bytes} bytes"
                )
            }
            Self::MaxValueLen => write!(f, "the largest value must be from 1 byte to 1 GiB"),
            Self::SessionLimits => {
                write!(f, "a connection must be allowed at least one byte")
            }
        }
    }
}

impl core::error::Error for ConfigError {}

impl Config {
    /// A server of `memory_limit_bytes`, of which the largest value has `max_value_len` bytes. The memory alone says how
    /// many shards there are, as cores come and go.
    pub fn for_memory(memory_limit_bytes: usize, max_value_len: usize) -> Result<Self, ConfigError> {
        let room = memory_limit_bytes / LARGEST_VALUES_IN_SHARD / max_value_len.max(1);
        let room = room.min(memory_limit_bytes / SMALLEST_SHARD_BYTES);
        Self::new(memory_limit_bytes, room.clamp(1, MOST_SHARDS) as u16)?.with_max_value_len(max_value_len)
    }

    /// A server of `memory_limit_bytes` divided evenly among `shard_count` shards.
    pub fn new(memory_limit_bytes: usize, shard_count: u16) -> Result<Self, ConfigError> {
        if shard_count == 0 {
            return Err(ConfigError::NoShard);
        }
        let needed_bytes = SMALLEST_SHARD_BYTES * usize::from(shard_count);
        if memory_limit_bytes < needed_bytes {
            return Err(ConfigError::TooLittleMemory { needed_bytes });
        }
        Ok(Self {
            memory_limit_bytes,
            shard_count,
            max_value_len: DEFAULT_MAX_VALUE_LEN,
            session: SessionLimits::default(),
        })
    }

    /// The same with another length for the largest value, in bytes.
    pub fn with_max_value_len(self, max_value_len: usize) -> Result<Self, ConfigError> {
        if !(1..=1 << 30).contains(&max_value_len) {
            return Err(ConfigError::MaxValueLen);
        }
        Ok(Self { max_value_len, ..self })
    }

    /// The same with other limits of a connection.
    pub fn with_session_limits(self, session: SessionLimits) -> Result<Self, ConfigError> {
        if session.max_output_bytes == 0 {
            return Err(ConfigError::SessionLimits);
        }
        Ok(Self { session, ..self })
    }

    /// Memory for items on all cores together, in bytes.
    pub fn memory_limit_bytes(&self) -> usize {
        self.memory_limit_bytes
    }

    /// Memory for the items of one shard, in bytes.
    pub fn shard_limit_bytes(&self) -> usize {
        self.memory_limit_bytes / usize::from(self.shard_count)
    }

    /// Number of shards.
    pub fn shard_count(&self) -> u16 {
        self.shard_count
    }

    /// Length of the largest value, in bytes.
    pub fn max_value_len(&self) -> usize {
        self.max_value_len
    }

    /// Limits of a connection.
    pub fn session(&self) -> &SessionLimits {
        &self.session
    }
}
