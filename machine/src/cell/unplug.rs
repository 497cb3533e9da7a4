//! Memory that a cell gives back while it runs: the request, the offer, what became of it, see [`isola_abi::unplug`].

use super::{live, report, suspended};
use crate::authority::Authority;
use crate::window::flush;
use core::sync::atomic::Ordering;
use isola_abi::id::PhysRange;
use isola_abi::layout::DIRECT_MAP;
use isola_abi::unplug::{Rest, Settlement};

/// The number of the last request for memory, 0 where there was none, and how many bytes are asked for.
pub fn unplug_request() -> (u32, u64) {
    live().unplug_request.asked()
}

/// The last request that is done with, and what of the offer to it is not the cell's any more.
pub fn settlement() -> Settlement {
    live().unplug_request.settlement()
}

/// Offers blocks of the direct map, for the request of that number, for which so many bytes were moved. The supervisor has
/// to be rung behind it.
///
/// # Safety
/// The blocks must be free memory of the cell: nothing may use them until the [`settlement`] says which the cell keeps.
pub unsafe fn offer(number: u32, blocks: &[(usize, usize)], moved_bytes: u64, rest: Rest) {
    const NONE: PhysRange = PhysRange::new(isola_abi::id::PhysAddr(0), 0);
    let mut ranges = [NONE; isola_abi::unplug::MAX_OFFERED];
    for (range, (address, len)) in ranges.iter_mut().zip(blocks) {
        let start = isola_abi::id::PhysAddr((*address as u64).wrapping_sub(DIRECT_MAP));
        *range = PhysRange::new(start, *len as u64);
    }
    report().offer.make(number, ranges.get(..blocks.len()).unwrap_or_default(), moved_bytes, rest);
}

/// Says that the cell has seen what became of the request of that number.
pub fn acknowledge(number: u32) {
    report().offer.acknowledge(number);
}

/// Says that this core has entered the cell at its place and that its handler of non-maskable interrupts is set. It forgets
/// page tables first: the cell's own may have changed since it loaded them, and no other core has waited for it yet.
pub fn enter_place(_: Authority, place: usize) {
    suspended::enter(place);
    if let Some(core) = report().cores.get(place) {
        let generation = live().unplug_request.generation();
        flush();
        core.forgotten.store(generation, Ordering::Release);
    }
}

/// Returns whether the supervisor has had the core at a place forget page tables since this was last asked. Its own code,
/// in front of the handler of non-maskable interrupts, has done that.
pub(super) fn has_forgotten(place: usize) -> bool {
    let Some(core) = report().cores.get(place) else { return false };
    let generation = live().unplug_request.generation();
    let is_new = core.forgotten.load(Ordering::Relaxed) != generation;
    if is_new {
        core.forgotten.store(generation, Ordering::Release);
    }
    is_new
}
