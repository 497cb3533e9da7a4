//! The cost of a segment, compared with another stack.
//!
//! Two hosts in one thread, on a link in memory without loss or delay: the measured time is protocol processing, and
//! the one copy of each frame that a device would make. Checksums are omitted, as with devices that compute them.
//! Isola's stack ([`isola`]) and smoltcp ([`smol`]) do the same work.
//!
//! ```text
//! cargo run --release -p isola-stack-compare --config 'profile.release.lto="fat"' -- isola bulk 1000
//! ```

pub mod isola;
pub mod smol;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Longest IP packet of the link, in bytes.
pub const MTU: usize = 1500;

/// The send limit and the receive window of a host, in bytes.
pub const BUFFER: usize = 256 << 10;

/// Length of an echoed message, in bytes.
pub const MESSAGE: usize = 64;

/// The listening port.
pub const PORT: u16 = 7;

/// A benchmark, with its number of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// MiB from one host to the other, on one connection.
    Bulk(u32),
    /// Round trips of a message, one at a time.
    Echo(u32),
    /// Connections opened and closed, one at a time.
    Connect(u32),
}

/// The result of a benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Units of work: MiB, round trips, connections.
    pub units: u32,
    /// Frames on the link.
    pub frames: u64,
    /// The time without the first connection's handshake.
    pub elapsed: Duration,
}

impl Work {
    /// Returns the work of that name.
    ///
    /// # Errors
    /// [`UnknownWork`].
    pub fn named(name: &str, count: u32) -> Result<Self, UnknownWork> {
        Ok(match name {
            "bulk" => Self::Bulk(count),
            "echo" => Self::Echo(count),
            "connect" => Self::Connect(count),
            _ => return Err(UnknownWork(name.to_owned())),
        })
    }
}

/// A name that is no work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownWork(String);

impl fmt::Display for UnknownWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no work: choose bulk, echo or connect", self.0)
    }
}

impl std::error::Error for UnknownWork {}

/// The stack that does the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackKind {
    /// Isola's stack.
    Isola,
    /// smoltcp.
    Smoltcp,
}

impl StackKind {
    /// Does the work.
    pub fn run(self, work: Work) -> Outcome {
        match self {
            Self::Isola => isola::run(work),
            Self::Smoltcp => smol::run(work),
        }
    }
}

impl FromStr for StackKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "isola" => Ok(Self::Isola),
            "smoltcp" => Ok(Self::Smoltcp),
            _ => Err(format!("{name:?} is no stack: choose isola or smoltcp")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stack_does_each_work() {
        for who in [StackKind::Isola, StackKind::Smoltcp] {
            for (work, units) in [(Work::Bulk(2), 2), (Work::Echo(20), 20), (Work::Connect(5), 5)] {
                let outcome = who.run(work);
                assert_eq!(outcome.units, units, "{who:?}: {work:?}");
                assert!(outcome.frames > 0);
            }
        }
    }
}
