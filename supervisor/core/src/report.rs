//! Reads the parts of a cell's report that move cores and memory, as untrusted data: counts are bounded, and indices
//! checked. The policy reads the rest.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use isola_abi::core_slots::Order;
use isola_abi::growth::{LARGEST_BLOCK, SMALLEST_BLOCK};
use isola_abi::id::{NodeId, PhysRange};
use isola_abi::report::Report;
use isola_abi::unplug::Shortfall;

/// Returns the last order that the core at a core slot has acknowledged.
pub(crate) fn acknowledged(report: &Report, slot: usize) -> Order {
    Order::from_u32(report.cores.get(slot).map_or(0, |core| core.order.load(Ordering::Acquire)))
}

/// Returns the order to yield by which the core at a core slot has suspended its event.
pub(crate) fn yielded(report: &Report, slot: usize) -> Order {
    Order::from_u32(report.cores.get(slot).map_or(0, |core| core.yielded.load(Ordering::Acquire)))
}

/// A cell's memory request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRequest {
    /// The request's number; 0: there was none yet.
    pub number: u32,
    /// The least bytes needed: a power of two, at least [`SMALLEST_BLOCK`]. A value above [`LARGEST_BLOCK`] is never
    /// granted.
    pub least_bytes: u64,
    /// The most bytes wanted; not validated.
    pub largest_bytes: u64,
    /// The preferred node; not validated.
    pub node: NodeId,
}

/// Returns the cell's last memory request.
pub fn memory_request(report: &Report) -> MemoryRequest {
    let request = &report.memory_request;
    let number = request.number.load(Ordering::Acquire);
    let least = request.least_bytes.load(Ordering::Relaxed).clamp(SMALLEST_BLOCK, LARGEST_BLOCK + 1);
    MemoryRequest {
        number,
        least_bytes: least.next_power_of_two(),
        largest_bytes: request.largest_bytes.load(Ordering::Relaxed),
        node: NodeId(request.node.load(Ordering::Relaxed)),
    }
}

/// Returns the number of the cell's last request about a link.
pub(crate) fn link_request(report: &Report) -> u32 {
    report.link_request.number()
}

/// A cell's offer of memory to unplug.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryOffer {
    /// The blocks; not validated.
    pub blocks: Vec<PhysRange>,
    /// The reason that the cell gives for an offer below the request.
    pub rest: Shortfall,
    /// Bytes that the cell has migrated for the offer; not validated.
    pub moved_bytes: u64,
}

/// Returns the cell's offer for the reclaim request with that number; `None` if there is none yet.
pub fn memory_offer(report: &Report, number: u32) -> Option<MemoryOffer> {
    let offer = (report.offer.number() == number).then_some(&report.offer)?;
    let (blocks, rest) = offer.read();
    Some(MemoryOffer { blocks: blocks.collect(), rest, moved_bytes: offer.moved_bytes() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_supervisor_fake::report::{blank, filled};

    #[test]
    fn the_least_bytes_of_a_memory_request_are_bounded() {
        assert_eq!(memory_request(&filled::<0xff>()).least_bytes, 2 * LARGEST_BLOCK);
        assert_eq!(memory_request(&blank()).least_bytes, SMALLEST_BLOCK);
    }
}
