//! Changes of the cores and memory of a running cell.

use crate::id::CoreId;
use crate::size::ByteSize;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// A new amount of cores or memory: absolute (`3`), or relative to the cell's amount at the time of the request (`+1`,
/// `-1`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change<T> {
    /// This amount.
    To(T),
    /// This much more than the present amount.
    More(T),
    /// This much less than the present amount.
    Less(T),
}

/// Whether the supervisor makes a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// The supervisor makes the change.
    Apply,
    /// The supervisor checks whether the change is possible, and changes nothing.
    DryRun,
}

/// The result of a memory resize.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryResized {
    /// The cell's memory before the request.
    pub had: ByteSize,
    /// The requested memory, in whole chunks.
    pub wanted: ByteSize,
    /// The cell's memory now; after a dry run, the expected memory.
    pub has: ByteSize,
    /// The cell's memory limit for its own requests.
    pub limit: ByteSize,
    /// The memory that the cell claims to have migrated to free other memory.
    pub moved: ByteSize,
    /// The reason why the cell has more memory than requested, if it has.
    pub kept: Option<ReclaimShortfall>,
    /// The duration, in ns.
    pub took_ns: u64,
}

/// The reason why a cell returned less memory than requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReclaimShortfall {
    /// The remaining memory is in use, or the cell would be short of memory without it.
    InUse,
    /// The remaining memory is free, but fragmented into pieces smaller than 2 MiB, and the pages between them cannot
    /// migrate.
    Scattered,
    /// The cell did not answer in time.
    NotInTime,
    /// The unplugged ranges would exceed their maximum ([`crate::unplug::MAX_UNPLUGGED`]).
    TooManyPlaces,
    /// A core of the cell was lost, and may still use the cell's memory.
    CoreAtLarge,
}

impl fmt::Display for ReclaimShortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InUse => "the rest is in use, or the cell would be short without it",
            Self::Scattered => {
                "the remaining free memory consists of pieces smaller than 2 MiB, and the memory between them cannot move: \
                 try again later, or restart the cell"
            }
            Self::NotInTime => "the cell did not answer in time: try again when it is less busy",
            Self::CoreAtLarge => "a core of the cell did not come back, and may still use its memory",
            Self::TooManyPlaces => {
                "the remaining free memory consists of too many ranges: unplug more at once, or restart the cell"
            }
        })
    }
}

/// The default time within which a core has to leave a cell, in ms.
pub const CORE_LIMIT_MS: u32 = 10;

/// The result of a core resize.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoresResized {
    /// The cell's number of cores before the request.
    pub before: u32,
    /// The cell's number of cores now; after a dry run, the expected number.
    pub after: u32,
    /// The cores that have entered or left.
    pub cores: Vec<CoreId>,
    /// The duration, in ns.
    pub duration_ns: u64,
}

impl<T: Copy + Into<u64>> Change<T> {
    /// Returns the new amount for a cell that has `now`; `None` if it would be negative or exceed 64 bits.
    pub fn of(self, now: u64) -> Option<u64> {
        match self {
            Self::To(amount) => Some(amount.into()),
            Self::More(amount) => now.checked_add(amount.into()),
            Self::Less(amount) => now.checked_sub(amount.into()),
        }
    }
}

impl<T: FromStr> FromStr for Change<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        let text = text.trim();
        Ok(match (text.strip_prefix('+'), text.strip_prefix('-')) {
            (Some(amount), _) => Self::More(amount.parse()?),
            (_, Some(amount)) => Self::Less(amount.parse()?),
            (None, None) => Self::To(text.parse()?),
        })
    }
}

impl<T: fmt::Display> fmt::Display for Change<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::To(amount) => amount.fmt(f),
            Self::More(amount) => write!(f, "+{amount}"),
            Self::Less(amount) => write!(f, "-{amount}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::ByteSizeError;
    use alloc::string::ToString;

    #[test]
    fn absolute_and_relative_changes_parse() {
        assert_eq!("3".parse::<Change<u32>>(), Ok(Change::To(3)));
        assert_eq!(" +1 ".parse::<Change<u32>>(), Ok(Change::More(1)));
        assert_eq!("-2".parse::<Change<u32>>(), Ok(Change::Less(2)));
        assert_eq!("+512M".parse::<Change<ByteSize>>(), Ok(Change::More(ByteSize(512 << 20))));
        assert_eq!("1GiB".parse::<Change<ByteSize>>(), Ok(Change::To(ByteSize(1 << 30))));
        for text in ["", "+", "-", "--1M", "+-1M", "x"] {
            assert_eq!(text.parse::<Change<ByteSize>>(), Err(ByteSizeError::Malformed), "{text}");
        }
        assert!("--1".parse::<Change<u32>>().is_err());
    }

    #[test]
    fn a_relative_change_applies_to_the_present_amount() {
        assert_eq!(Change::To(3_u32).of(7), Some(3));
        assert_eq!(Change::More(3_u32).of(7), Some(10));
        assert_eq!(Change::Less(3_u32).of(7), Some(4));
        assert_eq!(Change::Less(ByteSize(8)).of(7), None);
        assert_eq!(Change::More(ByteSize(u64::MAX)).of(1), None);
        assert_eq!(Change::Less(ByteSize(1 << 20)).to_string(), "-1 MiB");
    }
}
