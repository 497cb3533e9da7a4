//! Memory that a cell gets while it runs: the wish, the answer, and the chunks, see [`isola_abi::growth`].

use super::{live, report};
use core::sync::atomic::{AtomicUsize, Ordering};
use isola_abi::growth::Answer;
use isola_abi::id::NodeId;
use isola_abi::layout::DIRECT_MAP;

/// Chunks that were handed out.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Wishes for memory on top. Returns the wish's number. The supervisor has to be rung behind it.
pub fn wish(least_bytes: u64, largest_bytes: u64, node: NodeId) -> u32 {
    report().wish.make(least_bytes, largest_bytes, node)
}

/// What came of the wish of that number; `None` as long as the supervisor has not answered it.
pub fn answer_to(number: u32) -> Option<Answer> {
    live().grown.answer_to(number)
}

/// Whether there is a chunk that [`take_grown`] has not handed out. Two loads.
#[inline]
pub fn has_grown() -> bool {
    live().grown.count.load(Ordering::Relaxed) as usize > TAKEN.load(Ordering::Relaxed)
}

/// The next chunk that has come, if there is one: zeroed, and in the direct map. Each is handed out once.
pub fn take_grown() -> Option<(NodeId, &'static mut [u8])> {
    let taken = TAKEN.load(Ordering::Relaxed);
    let (memory, node) = live().grown.iter().nth(taken)?;
    TAKEN.compare_exchange(taken, taken + 1, Ordering::Relaxed, Ordering::Relaxed).ok()?;
    let start = (DIRECT_MAP + memory.start.0) as *mut u8;
    // SAFETY: the supervisor has mapped the chunk there before it entered it in words that the cell cannot write, and
    // leaves it for good; this one is handed out this once. Any byte is a value.
    Some((node, unsafe { core::slice::from_raw_parts_mut(start, memory.len_bytes as usize) }))
}
