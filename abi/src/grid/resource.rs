//! The resources of a cell's grid, and their units.

use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// A resource of the cell's grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Resource {
    /// The time of the cores. Events are not preempted: an activity may exceed its share by one event.
    Processor,
    /// The network device's queues for frames to send.
    NetworkWrite,
    /// The block devices' queues for requests.
    Disk,
    /// The operations of file systems: each volume executes one at a time.
    Files,
    /// Calls between machines, in both directions: those of other machines that this one answers, and its own calls of
    /// each other machine.
    Rpc,
    /// The cell's memory. It is not divided by time: activities have budgets, and requests wait for free memory.
    Memory,
}

/// The unit of a resource's costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Cycles of a core.
    Cycles,
    /// Bytes of frames, of blocks or of memory.
    Bytes,
    /// The time for which a request occupies a server, in nanoseconds: also while it waits for something else.
    Nanoseconds,
}

impl Resource {
    /// All resources.
    pub const ALL: [Self; 6] =
        [Self::Processor, Self::NetworkWrite, Self::Disk, Self::Files, Self::Rpc, Self::Memory];

    /// Returns the resource's name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Processor => "processor",
            Self::NetworkWrite => "network-write",
            Self::Disk => "disk",
            Self::Files => "files",
            Self::Rpc => "rpc",
            Self::Memory => "memory",
        }
    }

    /// Returns the unit of costs; rates have that unit per second.
    pub const fn metric(self) -> Metric {
        match self {
            Self::Processor => Metric::Cycles,
            Self::NetworkWrite | Self::Disk | Self::Memory => Metric::Bytes,
            Self::Files | Self::Rpc => Metric::Nanoseconds,
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Cycles => "cycles",
            Self::Bytes => "bytes",
            Self::Nanoseconds => "nanoseconds",
        })
    }
}

/// A text that is not the name of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownResource;

impl fmt::Display for UnknownResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such resource: use processor, network-write, disk, files, rpc or memory")
    }
}

impl core::error::Error for UnknownResource {}

impl FromStr for Resource {
    type Err = UnknownResource;

    fn from_str(text: &str) -> Result<Self, UnknownResource> {
        Self::ALL.into_iter().find(|resource| resource.name() == text).ok_or(UnknownResource)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn resources_are_parsed_from_their_names() {
        for resource in Resource::ALL {
            assert_eq!(resource.to_string().parse(), Ok(resource));
            assert!(UnknownResource.to_string().contains(resource.name()));
        }
        assert_eq!("printer".parse::<Resource>(), Err(UnknownResource));
        assert_eq!(
            Resource::ALL.map(|resource| resource.metric().to_string()),
            ["cycles", "bytes", "bytes", "nanoseconds", "nanoseconds", "bytes"]
        );
    }
}
