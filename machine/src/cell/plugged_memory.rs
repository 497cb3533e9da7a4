//! Memory hot-plug from the cell's side: memory requests, their answers, and the plugged blocks, see
//! [`isola_abi::growth`].

use super::{live, report};
use core::sync::atomic::{AtomicU32, Ordering};
use isola_abi::growth::Answer;
use isola_abi::id::NodeId;
use isola_abi::layout::DIRECT_MAP;

/// The serial number of the last block that was handed out.
static TAKEN: AtomicU32 = AtomicU32::new(0);

/// Requests more memory, in bytes. Returns the request's number. The caller has to notify the supervisor afterwards.
pub fn request_memory(least_bytes: u64, largest_bytes: u64, node: NodeId) -> u32 {
    report().memory_request.make(least_bytes, largest_bytes, node)
}

/// Returns the answer to the request `number`; `None` until the supervisor has answered it.
pub fn answer_to(number: u32) -> Option<Answer> {
    live().plugged_memory.answer_to(number)
}

/// Returns the most memory that the cell may have now, in bytes; `None` if the limit has not changed since the cell was
/// built.
pub fn limit_bytes() -> Option<u64> {
    Some(live().plugged_memory.limit_bytes.load(Ordering::Acquire)).filter(|bytes| *bytes > 0)
}

/// Returns whether there is a block that [`take_plugged_block`] has not handed out. Two loads.
#[inline]
pub fn has_plugged_block() -> bool {
    live().plugged_memory.count.load(Ordering::Relaxed) != TAKEN.load(Ordering::Relaxed)
}

/// Returns the next plugged block, if there is one: zeroed, in the direct map. Each is handed out once. Only one core
/// at a time may call this.
pub fn take_plugged_block() -> Option<(NodeId, &'static mut [u8])> {
    let taken = TAKEN.load(Ordering::Relaxed);
    let count = live().plugged_memory.count();
    let Some((memory, node, serial)) = live().plugged_memory.next_after(taken) else {
        // Blocks up to `count` were unplugged again before this cell handed them out. If a concurrent call has advanced
        // `TAKEN` further, the exchange fails, so no block is handed out twice.
        let _ = TAKEN.compare_exchange(taken, count, Ordering::Relaxed, Ordering::Relaxed);
        return None;
    };
    TAKEN.compare_exchange(taken, serial, Ordering::Relaxed, Ordering::Relaxed).ok()?;
    let start = (DIRECT_MAP + memory.start.0) as *mut u8;
    // SAFETY: the supervisor mapped the block there before it listed it in words that the cell cannot write, and keeps
    // it mapped until the cell offers it; the exchange above ensures that it is handed out once. Any byte is a valid
    // value.
    Some((node, unsafe { core::slice::from_raw_parts_mut(start, memory.len_bytes as usize) }))
}
