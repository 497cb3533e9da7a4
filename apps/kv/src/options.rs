//! The server's arguments.

use core::fmt;
use isola::prelude::*;
use isola_kv::{Config, ConfigError, DEFAULT_MAX_VALUE_LEN, ItemLimit};

/// The parsed arguments of the server.
#[derive(Debug)]
pub struct Options {
    /// The port.
    pub port: u16,
    /// The memory for items, in bytes.
    pub memory_bytes: usize,
    /// How that follows the memory of the cell.
    pub item_limit: ItemLimit,
    /// The length of the longest accepted value, in bytes.
    pub max_value_len: usize,
    /// The number of connections that each core serves at the same time.
    pub max_connections: u32,
}

/// The errors in the arguments.
#[derive(Debug)]
pub enum OptionsError {
    /// An unknown option.
    Unknown(String),
    /// An option without its value, or with a value that is not a number in its range.
    BadValue(&'static str),
    /// More memory for items than the cell can spare.
    MemoryTooLarge {
        /// The largest amount that the cell can spare, in MiB.
        most_mib: usize,
    },
    /// A limit of the value length that is below 1 KiB or above half of the memory for items.
    MaxValueLen,
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(option) => {
                write!(f, "{option:?} is no option; usage: {USAGE}")
            }
            Self::MemoryTooLarge { most_mib } => {
                write!(
                    f,
                    "-m is more than this cell can spare: at most {most_mib}, or run it with more memory"
                )
            }
            Self::MaxValueLen => {
                write!(f, "-I is at least 1024 (or 1k), and at most half of the memory for items: see -m")
            }
            Self::BadValue(option) => write!(f, "{option} needs a number in its range"),
        }
    }
}

const USAGE: &str = "kv [-p PORT] [-m MEGABYTES] [-I MAX_VALUE_BYTES[k|m]] [-c CONNECTIONS_A_CORE]";

/// The smallest limit of the value length that `-I` accepts, in bytes.
const SHORTEST_MAX_VALUE: usize = 1024;

/// The number of connections that each core serves at the same time, unless `-c` sets another number.
const MAX_CONNECTIONS: u32 = 8192;

/// The memory that is never used for items, in bytes: the network, the cores and a few connections need it in any cell.
const NEVER_FOR_ITEMS: usize = 512 << 10;

impl Options {
    /// Parses the arguments of a server whose cell has `memory_total` bytes of memory.
    ///
    /// Without `-m`, items get three quarters of that memory, and less in a small cell. The rest is for connections and
    /// their data in transit.
    pub fn parse(arguments: &Arguments, memory_total: usize) -> Result<Self, OptionsError> {
        let mut options = Self {
            port: 11211,
            memory_bytes: without(memory_total, 4),
            item_limit: ItemLimit::InProportion,
            max_value_len: DEFAULT_MAX_VALUE_LEN,
            max_connections: MAX_CONNECTIONS,
        };
        let mut wanted_value_len = None;
        let mut rest = arguments.iter();
        while let Some(option) = rest.next() {
            match option {
                "-p" => options.port = number("-p", rest.next())?,
                "-m" => {
                    let megabytes: usize = number("-m", rest.next())?;
                    options.item_limit = ItemLimit::Fixed;
                    options.memory_bytes =
                        megabytes.checked_mul(1 << 20).ok_or(OptionsError::BadValue("-m"))?;
                    let most = without(memory_total, 8);
                    if options.memory_bytes > most {
                        return Err(OptionsError::MemoryTooLarge { most_mib: most >> 20 });
                    }
                }
                "-I" => wanted_value_len = Some(bytes("-I", rest.next())?),
                "-c" => {
                    options.max_connections = number("-c", rest.next())?;
                    if options.max_connections == 0 {
                        return Err(OptionsError::BadValue("-c"));
                    }
                }
                other => return Err(OptionsError::Unknown(other.to_string())),
            }
        }
        if let Some(len) = wanted_value_len {
            if !(SHORTEST_MAX_VALUE..=options.memory_bytes / 2).contains(&len) {
                return Err(OptionsError::MaxValueLen);
            }
            options.max_value_len = len;
        }
        Ok(options)
    }

    /// Returns the server's configuration.
    pub fn config(&self) -> Result<Config, ConfigError> {
        Config::for_memory(self.memory_bytes, self.max_value_len)
    }
}

/// Returns `memory_total` less a `parts`-th of it, or less [`NEVER_FOR_ITEMS`] if that is more.
fn without(memory_total: usize, parts: usize) -> usize {
    memory_total.saturating_sub((memory_total / parts).max(NEVER_FOR_ITEMS))
}

fn number<T: core::str::FromStr>(option: &'static str, text: Option<&str>) -> Result<T, OptionsError> {
    text.and_then(|text| text.parse().ok()).ok_or(OptionsError::BadValue(option))
}

/// Parses a number of bytes, or of KiB or MiB if the suffix `k` or `m` follows it.
fn bytes(option: &'static str, text: Option<&str>) -> Result<usize, OptionsError> {
    let (text, unit) = match text {
        Some(text) if text.ends_with(['k', 'K']) => (text.get(..text.len() - 1), 1 << 10),
        Some(text) if text.ends_with(['m', 'M']) => (text.get(..text.len() - 1), 1 << 20),
        text => (text, 1),
    };
    number::<usize>(option, text)?.checked_mul(unit).ok_or(OptionsError::BadValue(option))
}
