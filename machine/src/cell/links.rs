//! Links to other cells from the cell's side, see [`isola_abi::links`].

use super::{live, report};
use crate::apic::local;
use crate::authority::Authority;
use core::sync::atomic::{AtomicU64, Ordering};
use isola_abi::descriptor::LINKS_OFFSET;
use isola_abi::id::{PhysAddr, PhysRange};
use isola_abi::layout::{DESCRIPTOR, DIRECT_MAP, LINK_PAGES, LINKS, PAGE_SIZE, REGIONS};
use isola_abi::links::{DOORBELL_VECTOR, LinkAccess, LinkDemand, LinkPart, LinkState, LinkTable, LinkWindow};

/// Returns the cell's links.
pub fn table() -> &'static LinkTable {
    let slots = live().link_slots.load(Ordering::Relaxed) as usize;
    // SAFETY: in every cell the table is mapped there, permanently, with that many slots, and consists of atomics;
    // elsewhere see the module documentation of `cell`.
    unsafe { &*LinkTable::at((DESCRIPTOR as usize + LINKS_OFFSET) as *const u8, slots) }
}

/// Writes a request about a link into the report. The caller notifies the supervisor. Returns the request's number.
pub fn demand(demand: &LinkDemand) -> u32 {
    report().link_request.put(demand)
}

/// Returns whether words are in the cell's pool, which the direct map has, and not in its image.
pub fn is_in_pool(words: &[AtomicU64]) -> bool {
    let start = words.as_ptr() as u64;
    (DIRECT_MAP..REGIONS).contains(&start) && start + size_of_val(words) as u64 <= REGIONS
}

/// Returns the physical range of heap memory of the cell that is in its pool ([`is_in_pool`]).
pub fn range_of(words: &[AtomicU64]) -> PhysRange {
    let start = (words.as_ptr() as u64).wrapping_sub(DIRECT_MAP);
    PhysRange::new(PhysAddr(start), size_of_val(words) as u64)
}

/// Returns the peer's memory of an open link; `None` if there is none. If the access does not permit writing, a store
/// into the words faults. After the link's end the words are others, of this cell.
pub fn peer_words(slot: usize, part: LinkPart) -> Option<(&'static [AtomicU64], LinkAccess)> {
    let link = table().get(slot).filter(|link| link.state() == LinkState::Open)?;
    if part == LinkPart::Shared && !link.is_shared() {
        return None;
    }
    let LinkWindow { page, pages, access } = link.window(part)?;
    let is_inside = page.checked_add(pages).is_some_and(|end| end <= LINK_PAGES);
    let words = pages as usize * (PAGE_SIZE as usize / size_of::<u64>());
    let start = LINKS + u64::from(page) * PAGE_SIZE;
    // SAFETY: the supervisor has mapped the window before it listed it, and keeps something mapped there for the life of
    // the cell. Another cell may change the words at any time; they are atomics, for which any bytes are valid.
    is_inside.then(|| (unsafe { core::slice::from_raw_parts(start as *const AtomicU64, words) }, access))
}

/// Sends a doorbell to the peer of an open link.
#[inline]
pub fn ring_doorbell(authority: Authority, slot: usize) {
    if let Some(link) = table().get(slot).filter(|link| link.state() == LinkState::Open) {
        local::send(authority, link.peer_apic(), DOORBELL_VECTOR);
    }
}
