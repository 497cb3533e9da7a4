//! Resizing a cell that runs: how much of something it is to have.

use crate::id::CoreId;
use crate::size::ByteSize;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// How much of something a cell is to have: `3`, or, from what it has when that is looked at, `+1` or `-1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change<T> {
    /// So much.
    To(T),
    /// So much more.
    More(T),
    /// So much less.
    Less(T),
}

/// Whether a change is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// It is.
    Apply,
    /// It is only looked into whether it could be: nothing changes.
    DryRun,
}

/// What became of the memory of a cell that was resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryResized {
    /// How much the cell had.
    pub had: ByteSize,
    /// How much it was to have, in whole chunks.
    pub wanted: ByteSize,
    /// How much it has; of a dry run, how much it would have if nothing comes in between.
    pub has: ByteSize,
    /// The most that it may have now when it asks for more itself.
    pub limit: ByteSize,
    /// How much the cell says that it has moved to other memory, so that what went was free.
    pub moved: ByteSize,
    /// Why it has more than was wanted, where it does.
    pub kept: Option<Kept>,
    /// How long it took, in ns.
    pub took_ns: u64,
}

/// Why a cell gave back less memory than it was to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kept {
    /// The rest is in use, or the cell would be short without it.
    InUse,
    /// The rest is free, but in pieces smaller than 2 MiB, and what is between them does not move.
    Scattered,
    /// The cell did not answer in time.
    NotInTime,
    /// What the cell can do without is in more places than are kept track of.
    TooManyPlaces,
    /// A core of the cell did not come back, and may still use its memory.
    CoreAtLarge,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InUse => "the rest is in use, or the cell would be short without it",
            Self::Scattered => {
                "what else is free is in pieces smaller than 2 MiB, and what is between them cannot move: \
                 try again later, or start the cell anew"
            }
            Self::NotInTime => "the cell did not answer in time: try again when it is less busy",
            Self::CoreAtLarge => "a core of the cell did not come back, and may still use its memory",
            Self::TooManyPlaces => {
                "what else is free is in too many places: take more at once, or start the cell anew"
            }
        })
    }
}

/// How long a core may take to come free where nobody says otherwise, in ms.
pub const CORE_LIMIT_MS: u32 = 10;

/// What came of giving a cell more cores, or fewer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoresResized {
    /// How many it had.
    pub before: u32,
    /// How many it has now; or would have.
    pub after: u32,
    /// Those that have come, or left.
    pub cores: Vec<CoreId>,
    /// How long it took, in ns.
    pub duration_ns: u64,
}

impl<T: Copy + Into<u64>> Change<T> {
    /// How much that is for who has `now`; `None` where it is less than nothing, or more than 64 bits count.
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
    fn people_s_changes_are_understood() {
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
    fn a_change_is_one_of_what_is_there() {
        assert_eq!(Change::To(3_u32).of(7), Some(3));
        assert_eq!(Change::More(3_u32).of(7), Some(10));
        assert_eq!(Change::Less(3_u32).of(7), Some(4));
        assert_eq!(Change::Less(ByteSize(8)).of(7), None);
        assert_eq!(Change::More(ByteSize(u64::MAX)).of(1), None);
        assert_eq!(Change::Less(ByteSize(1 << 20)).to_string(), "-1 MiB");
    }
}
