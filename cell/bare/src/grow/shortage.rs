//! Messages that explain a shortage of memory.

use super::{HAS_BYTES, MAX_BYTES, WHY};
use core::fmt;
use core::sync::atomic::Ordering;
use isola_abi::size::ByteSize;

/// The reason for which there is no more memory.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Why {
    Limit = 0,
    Exhausted = 1,
    Silence = 2,
    TooLarge = 3,
    Scattered = 4,
}

/// The message about a cell that has run out of memory: its memory, its limit, and the reason why it gets no more.
pub(crate) struct Shortage;

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has = ByteSize(HAS_BYTES.load(Ordering::Relaxed));
        let most = ByteSize(MAX_BYTES.load(Ordering::Relaxed));
        let why = WHY.load(Ordering::Relaxed);
        if has >= most || why == Why::Limit as u32 {
            return write!(f, "the cell has {has}, and may have no more than {most}: give it more");
        }
        write!(f, "the cell has {has} of the {most} that it may have, and ")?;
        f.write_str(match why {
            why if why == Why::Exhausted as u32 => "the machine has no more for it",
            why if why == Why::Silence as u32 => "the supervisor does not answer",
            why if why == Why::Scattered as u32 => {
                "what is free is in pieces too small: let it begin with more"
            }
            _ => "no cell gets so much at once while it runs: let it begin with more",
        })
    }
}
