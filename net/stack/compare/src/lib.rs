//! What a segment costs, beside another stack.
//!
//! Two hosts in one thread, on a link in memory that neither loses nor delays: what is timed is protocol work, and the one
//! copy of each frame that a device would make. Checksums are left out, as with devices that do them. The same work is
//! done by Isola's stack ([`isola`]) and by smoltcp's ([`smol`]).
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

/// Bytes that a host keeps for sending, and that it lets its peer send ahead.
pub const BUFFER: usize = 256 << 10;

/// Length of a message of the ping-pong, in bytes.
pub const MESSAGE: usize = 64;

/// The port that is listened at.
pub const PORT: u16 = 7;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// So many MiB from one host to the other, on one connection.
    Bulk(u32),
    /// So many messages there and back, one at a time.
    Echo(u32),
    /// So many connections made and closed, one at a time.
    Connect(u32),
}

/// What was done, and how long it took.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Units of the work: MiB, messages, connections.
    pub units: u32,
    /// Frames on the link.
    pub frames: u64,
    /// From the first byte to the last, the first connection's handshake left out.
    pub elapsed: Duration,
}

impl Work {
    /// The work of that name.
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

/// A name that names no work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownWork(String);

impl fmt::Display for UnknownWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no work: choose bulk, echo or connect", self.0)
    }
}

impl std::error::Error for UnknownWork {}

/// Whose stack does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Isola's.
    Isola,
    /// smoltcp's.
    Smoltcp,
}

impl Who {
    /// Does the work.
    pub fn run(self, work: Work) -> Outcome {
        match self {
            Self::Isola => isola::run(work),
            Self::Smoltcp => smol::run(work),
        }
    }
}

impl FromStr for Who {
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
    fn all_stacks_do_all_of_the_work() {
        for who in [Who::Isola, Who::Smoltcp] {
            for (work, units) in [(Work::Bulk(2), 2), (Work::Echo(20), 20), (Work::Connect(5), 5)] {
                let outcome = who.run(work);
                assert_eq!(outcome.units, units, "{who:?}: {work:?}");
                assert!(outcome.frames > 0);
            }
        }
    }
}
