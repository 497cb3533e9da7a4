//! The purposes for which a cell needs memory, and the block size that satisfies each.

use super::shortage::Reason;
use crate::pool;
use isola_abi::growth::{LARGEST_BLOCK, SMALLEST_BLOCK};

/// A need for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// A run of this many bytes, a power of two, aligned to its length.
    Run(usize),
    /// This many bytes, which may be fragmented.
    Scattered(usize),
}

/// The size of the block to request.
pub(super) struct BlockSize {
    pub(super) least_bytes: u64,
    pub(super) ample_bytes: u64,
}

impl Need {
    /// Returns whether this many bytes are free although the attempt failed: they are fragmented, or another resource
    /// is exhausted.
    pub(super) fn is_present(self) -> bool {
        matches!(self, Self::Scattered(len) if len <= pool::present_bytes())
    }

    /// Returns the smallest block that suffices, and an ample one, for a cell that may get `obtainable_bytes` more.
    ///
    /// The page allocator's records precede the pages of a block: a block of twice a run's length has room for one such
    /// run, a block of four times that length for three. Memory for a fragmentable need should arrive in a few blocks,
    /// so that the cell does not receive all free memory for an allocation that fails in the end.
    pub(super) fn block_size(self, obtainable_bytes: u64) -> Result<BlockSize, Reason> {
        match self {
            Self::Run(len) if 2 * len as u64 > LARGEST_BLOCK => Err(Reason::TooLarge),
            Self::Run(len) => Ok(BlockSize {
                least_bytes: (2 * len as u64).max(SMALLEST_BLOCK),
                ample_bytes: 4 * len as u64,
            }),
            Self::Scattered(len) => {
                let missing = (len as u64).saturating_sub(pool::present_bytes() as u64);
                if missing > obtainable_bytes {
                    return Err(Reason::Limit);
                }
                let quarter = (missing / 4).clamp(SMALLEST_BLOCK, LARGEST_BLOCK);
                Ok(BlockSize {
                    least_bytes: 1 << quarter.ilog2(),
                    ample_bytes: missing.saturating_add(SMALLEST_BLOCK),
                })
            }
        }
    }
}
