//! Memory that a cell gets while it runs: the request, the answer, and the chunks, see [`isola_abi::growth`].

use super::{live, report};
use core::sync::atomic::{AtomicU32, Ordering};
use isola_abi::growth::Answer;
use isola_abi::id::NodeId;
use isola_abi::layout::DIRECT_MAP;

/// The number of the last chunk that was handed out.
static TAKEN: AtomicU32 = AtomicU32::new(0);

/// Requests for memory on top. Returns the request's number. The supervisor has to be rung behind it.
pub fn request_memory(least_bytes: u64, largest_bytes: u64, node: NodeId) -> u32 {
    report().memory_request.make(least_bytes, largest_bytes, node)
}

/// What came of the request of that number; `None` as long as the supervisor has not answered it.
pub fn answer_to(number: u32) -> Option<Answer> {
    live().grown.answer_to(number)
}

/// The most memory that the cell may have now, in bytes, where that was changed since it was built.
pub fn limit_bytes() -> Option<u64> {
    Some(live().grown.limit_bytes.load(Ordering::Acquire)).filter(|bytes| *bytes > 0)
}

/// Whether there is a chunk that [`take_grown`] has not handed out. Two loads.
#[inline]
pub fn has_grown() -> bool {
    live().grown.count.load(Ordering::Relaxed) != TAKEN.load(Ordering::Relaxed)
}

/// The next chunk that has come, if there is one: zeroed, and in the direct map. Each is handed out once. One core at a
/// time may ask.
pub fn take_grown() -> Option<(NodeId, &'static mut [u8])> {
    let taken = TAKEN.load(Ordering::Relaxed);
    let count = live().grown.count();
    let Some((memory, node, serial)) = live().grown.next_after(taken) else {
        // Those up to there have gone again, which nobody here has asked for.
        // A core that asked at the same time may be past them: its chunks are not handed out once more.
        let _ = TAKEN.compare_exchange(taken, count, Ordering::Relaxed, Ordering::Relaxed);
        return None;
    };
    TAKEN.compare_exchange(taken, serial, Ordering::Relaxed, Ordering::Relaxed).ok()?;
    let start = (DIRECT_MAP + memory.start.0) as *mut u8;
    // SAFETY: the supervisor has mapped the chunk there before it entered it in words that the cell cannot write, and
    // leaves it until the cell has offered it; this one is handed out this once. Any byte is a value.
    Some((node, unsafe { core::slice::from_raw_parts_mut(start, memory.len_bytes as usize) }))
}
