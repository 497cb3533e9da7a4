//! What a cell needs more memory for, and which chunk will do.

use super::shortage::Why;
use crate::heap;
use isola_abi::growth::{LARGEST_CHUNK, SMALLEST_CHUNK};

/// What has found no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// A run of so many bytes at a multiple of its length: a power of two.
    Run(usize),
    /// So many bytes, which may be in pieces.
    Pieces(usize),
}

/// Which chunk to ask for.
pub(super) struct Chunk {
    pub(super) least_bytes: u64,
    pub(super) ample_bytes: u64,
}

impl Need {
    /// Whether there are as many bytes: they are in pieces too small, or there is something else too little of.
    pub(super) fn is_present(self) -> bool {
        matches!(self, Self::Pieces(len) if len <= heap::present_bytes())
    }

    /// The smallest chunk that will do, and an ample one, for a cell that may get so much more.
    ///
    /// The records of a chunk go before all of its blocks: one of twice a block's length has one, of four times three.
    /// What may be in pieces is to come in a few chunks, so that the cell is not given all that there is for something
    /// that cannot be had in the end.
    pub(super) fn chunk(self, room_bytes: u64) -> Result<Chunk, Why> {
        match self {
            Self::Run(len) if 2 * len as u64 > LARGEST_CHUNK => Err(Why::TooLarge),
            Self::Run(len) => {
                Ok(Chunk { least_bytes: (2 * len as u64).max(SMALLEST_CHUNK), ample_bytes: 4 * len as u64 })
            }
            Self::Pieces(len) => {
                let missing = (len as u64).saturating_sub(heap::present_bytes() as u64);
                if missing > room_bytes {
                    return Err(Why::Limit);
                }
                let quarter = (missing / 4).clamp(SMALLEST_CHUNK, LARGEST_CHUNK);
                Ok(Chunk {
                    least_bytes: 1 << quarter.ilog2(),
                    ample_bytes: missing.saturating_add(SMALLEST_CHUNK),
                })
            }
        }
    }
}
