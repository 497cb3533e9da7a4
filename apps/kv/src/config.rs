//! What a server is told at its start, and what all of its cores share.

use core::fmt;

use crate::key::KeyHasher;
use crate::shard::SMALLEST_SHARD_BYTES;
use crate::time::UnixTime;

/// The largest value that a server accepts unless it is told otherwise, in bytes.
pub const DEFAULT_MAX_VALUE_LEN: usize = 1 << 20;

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
    /// Requests that may be under way at shards at once.
    pub max_in_flight: usize,
    /// Once this many bytes of answers wait for the client to read them, no further request is taken up. The
    /// answers under way come on top, and so does what is in the last one: at most `max_in_flight` values.
    pub max_output_bytes: usize,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self { max_in_flight: 64, max_output_bytes: 256 << 10 }
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
    /// No request or no answer would ever be let through.
    SessionLimits,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoShard => write!(f, "a server needs at least one shard: give it a core"),
            Self::TooLittleMemory { needed_bytes } => {
                write!(
                    f,
                    "the memory limit is too small for that many shards: set at least {needed_bytes} bytes"
                )
            }
            Self::MaxValueLen => write!(f, "the largest value must be from 1 byte to 1 GiB"),
            Self::SessionLimits => {
                write!(f, "a connection must be allowed at least one request and one byte")
            }
        }
    }
}

impl core::error::Error for ConfigError {}

impl Config {
    /// A server of `memory_limit_bytes` divided evenly among `shard_count` shards, one a core.
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
        if session.max_in_flight == 0 || session.max_output_bytes == 0 {
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

/// What all cores and connections of a server share, unchanged from its start.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its limits.
    pub config: Config,
    /// Places keys.
    pub hasher: KeyHasher,
    /// What `stats` tells as the process: the cell's number.
    pub pid: u32,
    /// The port it listens on.
    pub port: u16,
    /// Connections it accepts at once.
    pub max_connections: u32,
    /// When it started.
    pub started: UnixTime,
}

impl Server {
    /// What `version` tells.
    pub const VERSION: &str = concat!("1.6.0-isola-", env!("CARGO_PKG_VERSION"));
}
