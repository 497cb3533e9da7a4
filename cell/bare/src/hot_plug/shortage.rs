//! The facts behind a shortage of memory, and the message that explains it.

use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use isola_abi::size::ByteSize;

/// All memory that the cell has, in bytes, and its limit.
pub(super) static HAS_BYTES: AtomicU64 = AtomicU64::new(0);
pub(super) static MAX_BYTES: AtomicU64 = AtomicU64::new(0);

/// The reason, a [`Reason`], for which the cell last got no memory.
static REASON: AtomicU32 = AtomicU32::new(Reason::Limit as u32);

/// The reason for which there is no more memory.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Reason {
    Limit = 0,
    Exhausted = 1,
    NoAnswer = 2,
    TooLarge = 3,
    Fragmented = 4,
}

/// Records the reason for which the cell got no memory.
pub(super) fn set_reason(reason: Reason) {
    REASON.store(reason as u32, Ordering::Relaxed);
}

/// The message about a cell that has run out of memory: its memory, its limit, and the reason for which it gets no
/// more.
pub(crate) struct Shortage;

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has = ByteSize(HAS_BYTES.load(Ordering::Relaxed));
        let most = ByteSize(MAX_BYTES.load(Ordering::Relaxed));
        let reason = REASON.load(Ordering::Relaxed);
        if has >= most || reason == Reason::Limit as u32 {
            return write!(f, "the cell has {has}, and may have no more than {most}: give it more");
        }
        write!(f, "the cell has {has} of the {most} that it may have, and ")?;
        f.write_str(match reason {
            reason if reason == Reason::Exhausted as u32 => "the machine has no more for it",
            reason if reason == Reason::NoAnswer as u32 => "the supervisor does not answer",
            reason if reason == Reason::Fragmented as u32 => {
                "its free memory is too fragmented: let it begin with more"
            }
            _ => "no cell gets so much at once while it runs: let it begin with more",
        })
    }
}
