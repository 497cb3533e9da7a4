//! Memory hot-unplug from the cell's side: reclaim requests, offers and their settlement, see [`isola_abi::unplug`].

use super::{live, report, suspended};
use crate::authority::Authority;
use crate::region_area::flush;
use core::sync::atomic::Ordering;
use isola_abi::id::PhysRange;
use isola_abi::layout::DIRECT_MAP;
use isola_abi::unplug::{Settlement, Shortfall};

/// Returns the number of the last reclaim request, 0 if there was none, and the bytes that it asks for.
pub fn unplug_request() -> (u32, u64) {
    live().unplug_request.asked()
}

/// Returns the last settled reclaim request, and the blocks of the offer that the supervisor took.
pub fn settlement() -> Settlement {
    live().unplug_request.settlement()
}

/// Offers blocks of the direct map for the reclaim request `number`; `moved_bytes` were migrated for it. The caller has
/// to notify the supervisor afterwards.
///
/// # Safety
/// The blocks must be free memory of the cell: no code may use them until the [`settlement`] lists those that the cell
/// keeps.
pub unsafe fn offer(number: u32, blocks: &[(usize, usize)], moved_bytes: u64, rest: Shortfall) {
    const NONE: PhysRange = PhysRange::new(isola_abi::id::PhysAddr(0), 0);
    let mut ranges = [NONE; isola_abi::unplug::MAX_OFFERED];
    for (range, (address, len)) in ranges.iter_mut().zip(blocks) {
        let start = isola_abi::id::PhysAddr((*address as u64).wrapping_sub(DIRECT_MAP));
        *range = PhysRange::new(start, *len as u64);
    }
    report().offer.make(number, ranges.get(..blocks.len()).unwrap_or_default(), moved_bytes, rest);
}

/// Acknowledges the settlement of the reclaim request `number`.
pub fn acknowledge(number: u32) {
    report().offer.acknowledge(number);
}

/// Reports that this core has entered the cell at `slot`, with its NMI handler set. Flushes the TLB first:
/// the cell's own page tables may have changed since this core loaded them, and no other core has waited for its flush
/// so far.
pub fn enter_slot(_: Authority, slot: usize) {
    suspended::enter(slot);
    if let Some(core) = report().cores.get(slot) {
        let generation = live().unplug_request.generation();
        flush();
        core.flushed_generation.store(generation, Ordering::Release);
    }
}

/// Returns whether the TLB of the core at `slot` was flushed for a new generation since the last call. The
/// supervisor's code, which precedes the NMI handler, has done the flush.
pub(super) fn was_flushed(slot: usize) -> bool {
    let Some(core) = report().cores.get(slot) else { return false };
    let generation = live().unplug_request.generation();
    let is_new = core.flushed_generation.load(Ordering::Relaxed) != generation;
    if is_new {
        core.flushed_generation.store(generation, Ordering::Release);
    }
    is_new
}
