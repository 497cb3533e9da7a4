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
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(option) => {
                write!(f, "{option:?} is no option; usage: kv [-p PORT] [-m MEGABYTES] [-I MAX_VALUE_BYTES]")
            }
            Self::MemoryTooLarge { most_mib } => {
                write!(
                    f,
                    "-m is more than this cell can spare: at most {most_mib}, or run it with more memory"
                )
            }
            Self::BadValue(option) => write!(f, "{option} wants a number that makes sense for it"),
        }
    }
}

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
        };
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
                "-I" => options.max_value_len = number("-I", rest.next())?,
                other => return Err(OptionsError::Unknown(other.to_string())),
            }
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
