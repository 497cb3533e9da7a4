//! The errors of requests.

use core::fmt;
use isola_platform::block::BlockRefusal;

/// The reason for which a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockError {
    /// The device reported an error for this request.
    Io,
    /// The device does not support this request.
    Unsupported,
    /// The device failed. All later requests fail as well.
    DeviceFailed,
    /// The device exceeded the time limit and was given up. All later requests fail as well.
    TimedOut,
    /// The request was rejected before the device saw it.
    Rejected(BlockRefusal),
}

impl fmt::Display for BlockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Io => "the block device could not read or write these sectors: check the disk",
            Self::Unsupported => "the block device does not support requests of this type",
            Self::DeviceFailed => "the block device has failed: restart the cell",
            Self::TimedOut => {
                "the block device exceeded the time limit of a request: check the disk, and restart the cell"
            }
            Self::Rejected(refusal) => return refusal.fmt(f),
        })
    }
}

impl core::error::Error for BlockError {}

impl From<BlockRefusal> for BlockError {
    fn from(refusal: BlockRefusal) -> Self {
        match refusal {
            BlockRefusal::NotOffered => Self::Unsupported,
            BlockRefusal::DeviceFailed => Self::DeviceFailed,
            other => Self::Rejected(other),
        }
    }
}
