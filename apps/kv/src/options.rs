//! What the server's arguments say.

use core::fmt;
use isola::prelude::*;
use isola_kv::{Config, ConfigError, DEFAULT_MAX_VALUE_LEN};

/// What the server's arguments say.
#[derive(Debug)]
pub struct Options {
    /// The port.
    pub port: u16,
    /// Memory for items, in bytes.
    pub memory_bytes: usize,
    /// Longest value, in bytes.
    pub max_value_len: usize,
    /// Connections that are served at once on each core.
    pub max_connections: u32,
}

/// Why arguments make no sense.
#[derive(Debug)]
pub enum OptionsError {
    /// No such option.
    Unknown(String),
    /// An option without its value, or with one that is no number in its range.
    BadValue(&'static str),
    /// More memory for items than the cell can spare.
    MemoryTooLarge {
        /// The most that it can, in MiB.
        most_mib: usize,
    },
    /// Values that are shorter than any use, or longer than half of the memory for items.
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
            Self::BadValue(option) => write!(f, "{option} wants a number that makes sense for it"),
        }
    }
}

const USAGE: &str = "kv [-p PORT] [-m MEGABYTES] [-I MAX_VALUE_BYTES[k|m]] [-c CONNECTIONS_A_CORE]";

/// The shortest length that `-I` sets for the largest value, in bytes.
const SHORTEST_MAX_VALUE: usize = 1024;

/// Connections that are served at once on each core, unless `-c` sets another number.
const MAX_CONNECTIONS: u32 = 8192;

/// Memory that is never for items, in bytes: what the network, the cores and a few connections take in any cell.
const NEVER_FOR_ITEMS: usize = 512 << 10;

impl Options {
    /// Reads the arguments of a server whose cell has `memory_total` bytes of memory. Without `-m`, three quarters
    /// of them are for items, in a small cell fewer; the rest is for connections and what they have under way.
    pub fn parse(arguments: &Arguments, memory_total: usize) -> Result<Self, OptionsError> {
        let mut options = Self {
            port: 11211,
            memory_bytes: without(memory_total, 4),
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

    /// The server's configuration.
    pub fn config(&self) -> Result<Config, ConfigError> {
        Config::for_memory(self.memory_bytes, self.max_value_len)
    }
}

/// What is left of the memory without one of so many parts, and without what is never for items.
fn without(memory_total: usize, parts: usize) -> usize {
    memory_total.saturating_sub((memory_total / parts).max(NEVER_FOR_ITEMS))
}

fn number<T: core::str::FromStr>(option: &'static str, text: Option<&str>) -> Result<T, OptionsError> {
    text.and_then(|text| text.parse().ok()).ok_or(OptionsError::BadValue(option))
}

/// A number of bytes, or of KiB or MiB with `k` or `m` behind it.
fn bytes(option: &'static str, text: Option<&str>) -> Result<usize, OptionsError> {
    let (text, unit) = match text {
        Some(text) if text.ends_with(['k', 'K']) => (text.get(..text.len() - 1), 1 << 10),
        Some(text) if text.ends_with(['m', 'M']) => (text.get(..text.len() - 1), 1 << 20),
        text => (text, 1),
    };
    number::<usize>(option, text)?.checked_mul(unit).ok_or(OptionsError::BadValue(option))
}
