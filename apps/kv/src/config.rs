//! The configuration of a server.

use core::fmt;

use crate::shard::SMALLEST_SHARD_BYTES;

/// The default length of the largest value that a server accepts, in bytes.
pub const DEFAULT_MAX_VALUE_LEN: usize = 1 << 20;

/// The largest number of shards of a server. It equals the largest number of cores that serve.
const MOST_SHARDS: usize = 64;

/// The number of values of the largest length for which each shard has room, if there is more than one shard. It is
/// large enough that an uneven distribution of keys does not evict values from one shard while others have room.
const LARGEST_VALUES_IN_SHARD: usize = 16;

/// The limits of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    memory_limit_bytes: usize,
    shard_count: u16,
    max_value_len: usize,
    session: SessionLimits,
}

/// How the memory for items follows that of the cell, which changes while the server runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ItemLimit {
    /// In proportion, also above the configured limit: that is the part of the memory which the cell had at first.
    #[default]
    InProportion,
    /// The configured limit, or seven eighths of the cell's memory if that is less.
    Fixed,
}

impl ItemLimit {
    /// Returns the limit in a cell that has `memory_bytes` bytes, and had `promised_bytes` when the limit was
    /// `configured`.
    pub(crate) fn bytes(self, configured: usize, memory_bytes: usize, promised_bytes: usize) -> usize {
        match self {
            Self::InProportion => {
                (configured as u128 * memory_bytes as u128 / promised_bytes.max(1) as u128) as usize
            }
            Self::Fixed => configured.min(memory_bytes - memory_bytes / 8),
        }
    }
}

/// The limits of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// The number of bytes of unread answers from which on the session takes no further request. The answer to the last
    /// request may exceed it.
    pub max_output_bytes: usize,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self { max_output_bytes: 256 << 10 }
    }
}

/// The contradictions between limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The number of shards is 0.
    NoShard,
    /// The memory is too small for the shards to hold an item.
    TooLittleMemory {
        /// The memory that the shards need, in bytes.
        needed_bytes: usize,
    },
    /// The limit of the value length is 0, or larger than a request can state.
    MaxValueLen,
    /// The limit of a session admits no answer.
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
    /// Creates the configuration of a server with `memory_limit_bytes` of memory for items and values of up to
    /// `max_value_len` bytes. The number of shards depends on the memory alone, because the number of cores varies.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the limits contradict each other.
    pub fn for_memory(memory_limit_bytes: usize, max_value_len: usize) -> Result<Self, ConfigError> {
        let room = memory_limit_bytes / LARGEST_VALUES_IN_SHARD / max_value_len.max(1);
        let room = room.min(memory_limit_bytes / SMALLEST_SHARD_BYTES);
        Self::new(memory_limit_bytes, room.clamp(1, MOST_SHARDS) as u16)?.with_max_value_len(max_value_len)
    }

    /// Creates the configuration of a server with `memory_limit_bytes` of memory, divided evenly among `shard_count`
    /// shards.
    ///
    /// # Errors
    ///
    /// [`ConfigError::NoShard`] and [`ConfigError::TooLittleMemory`].
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

    /// Returns the configuration with another length of the largest value, in bytes.
    ///
    /// # Errors
    ///
    /// [`ConfigError::MaxValueLen`] unless the length is 1 byte to 1 GiB.
    pub fn with_max_value_len(self, max_value_len: usize) -> Result<Self, ConfigError> {
        if !(1..=1 << 30).contains(&max_value_len) {
            return Err(ConfigError::MaxValueLen);
        }
        Ok(Self { max_value_len, ..self })
    }

    /// Returns the configuration with other limits of a connection.
    ///
    /// # Errors
    ///
    /// [`ConfigError::SessionLimits`] if the limit is 0.
    pub fn with_session_limits(self, session: SessionLimits) -> Result<Self, ConfigError> {
        if session.max_output_bytes == 0 {
            return Err(ConfigError::SessionLimits);
        }
        Ok(Self { session, ..self })
    }

    /// Returns the memory for the items of all shards together, in bytes.
    pub fn memory_limit_bytes(&self) -> usize {
        self.memory_limit_bytes
    }

    /// Returns the memory for the items of one shard, in bytes.
    pub fn shard_limit_bytes(&self) -> usize {
        self.memory_limit_bytes / usize::from(self.shard_count)
    }

    /// Returns the number of shards.
    pub fn shard_count(&self) -> u16 {
        self.shard_count
    }

    /// Returns the length of the largest accepted value, in bytes.
    pub fn max_value_len(&self) -> usize {
        self.max_value_len
    }

    /// Returns the limits of a connection.
    pub fn session(&self) -> &SessionLimits {
        &self.session
    }
}
