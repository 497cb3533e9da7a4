//! Links after a restart of the supervisor.
//!
//! The failed supervisor may have left a table with a change that was not completed. So a link survives only if both tables
//! describe the same open link, and each cell maps exactly what the other lends. All others are closed. The decision needs
//! no memory of the failed supervisor: the cells cannot write the tables.
//!
//! A closed link over which a cell has kept the contents of its peer's memory keeps them, as they are in its own memory.
//!
//! The policy adopts the recovered cells one by one. If it dismantles one with which another has a link, and that other one
//! is not adopted yet, the memory that the former lends is *exposed*, and the latter loses it when it is adopted.

use super::TrustedCore;
use super::links::{PeerEnd, lent, revoke};
use crate::hardware::{Hardware, RecoveredCell};
use crate::space::CellSpace;
use alloc::vec::Vec;
use isola_abi::id::{CellId, PhysRange};
use isola_abi::layout::PAGE_SIZE;
use isola_abi::links::{Link, LinkPart, LinkState};

impl<H: Hardware> TrustedCore<H> {
    /// Keeps the links of recovered cells that are complete, and closes the others.
    pub(super) fn recover_links(&mut self, cells: &mut [RecoveredCell<H>]) {
        // The failed supervisor may have changed page tables without a flush. A cell that does not flush keeps no link.
        let has_flushed =
            |cell: &RecoveredCell<H>| cell.space.links().has_links() && cell.space.flush(&cell.cores);
        let flushed: Vec<bool> = cells.iter().map(has_flushed).collect();
        let kept: Vec<Vec<usize>> = (0..cells.len()).map(|index| kept(cells, &flushed, index)).collect();
        for (cell, kept) in cells.iter_mut().zip(kept) {
            self.unlink_recovered(cell, &kept);
            self.unclaimed.extend(cell.space.links().owner().filter(|_| !kept.is_empty()));
        }
    }

    /// Closes the links of a recovered cell, except those at some slots.
    fn unlink_recovered(&mut self, cell: &mut RecoveredCell<H>, kept: &[usize]) {
        let links = cell
            .space
            .links()
            .iter()
            .filter(|(slot, link)| link.state() != LinkState::Free && !kept.contains(slot));
        let slots: Vec<usize> = links.map(|(slot, _)| slot).collect();
        if slots.is_empty() {
            return;
        }
        let links = slots.iter().filter_map(|slot| cell.space.links().get(*slot));
        let parts = |link| if has_copy(&cell.space, link) { &[LinkPart::Ring][..] } else { &LinkPart::ALL };
        let windows: Vec<_> =
            links.flat_map(|link| parts(link).iter().filter_map(|part| link.window(*part))).collect();
        self.exposed.extend(revoke(&mut cell.space, &cell.cores, &windows, &[]));
        for link in slots.iter().filter_map(|slot| cell.space.links().get(*slot)) {
            LinkPart::ALL.into_iter().for_each(|part| link.set_lent(part, PhysRange::default()));
            link.set_shared(false);
            link.set_state(LinkState::Closed);
        }
        cell.space.links().note_neighbour_change();
        cell.space.ring_doorbell();
    }

    /// Closes the links of a recovered cell that is being dismantled, at its peers.
    pub(super) fn end_links_of_unclaimed(&mut self, space: &H::Space) {
        let Some(id) = space.links().owner() else { return };
        self.unclaimed.remove(&id);
        let links = space.links().iter().filter(|(_, link)| link.state() == LinkState::Open);
        for (slot, link) in links {
            let (peer, peer_slot) = link.peer();
            if self.cells.contains_key(&peer) {
                self.close_at_peer(id, peer, &[(slot, peer_slot)], PeerEnd::CellEnded);
            } else {
                self.exposed.extend(lent(link));
                self.ended_before.insert(id);
            }
        }
    }

    /// Closes the links of an adopted cell to peers that have ended before.
    pub(super) fn close_links_to_ended(&mut self, id: CellId) {
        let Some(cell) = self.cells.get(&id) else { return };
        let links = cell.space.links().iter().map(|(slot, link)| (slot, link.peer(), link.state()));
        let is_ended = |peer: &CellId| self.ended_before.contains(peer);
        let links = links.filter(|(_, (peer, _), state)| *state == LinkState::Open && is_ended(peer));
        let ended: Vec<_> = links.map(|(slot, peer, _)| (slot, peer)).collect();
        for (slot, (peer, peer_slot)) in ended {
            self.close_at_peer(peer, id, &[(peer_slot, slot)], PeerEnd::CellEnded);
        }
    }
}

/// Returns the slots of a recovered cell whose links survive.
fn kept<H: Hardware>(cells: &[RecoveredCell<H>], flushed: &[bool], index: usize) -> Vec<usize> {
    let can_keep = |index: usize| {
        let is_alone = |id| cells.iter().filter(|cell| cell.space.links().owner() == Some(id)).count() == 1;
        let cell = cells.get(index).filter(|cell| cell.lost.is_empty() && flushed.get(index) == Some(&true));
        cell.filter(|cell| cell.space.links().owner().is_some_and(is_alone))
    };
    let Some(cell) = can_keep(index) else { return Vec::new() };
    let links = cell.space.links().iter().filter(|(slot, link)| {
        let (id, peer_slot) = link.peer();
        let peer = cells.iter().position(|peer| peer.space.links().owner() == Some(id));
        let peer = peer.filter(|peer| *peer != index).and_then(can_keep);
        peer.is_some_and(|peer| {
            is_complete(cell, *slot, peer, peer_slot) && is_complete(peer, peer_slot, cell, *slot)
        })
    });
    links.map(|(slot, _)| slot).collect()
}

/// Returns whether a cell has an open link to that slot of another, over which it maps exactly what the other lends.
fn is_complete<H: Hardware>(
    cell: &RecoveredCell<H>,
    slot: usize,
    peer: &RecoveredCell<H>,
    peer_slot: usize,
) -> bool {
    let (links, others) = (cell.space.links(), peer.space.links());
    let (Some(link), Some(other)) = (links.get(slot), others.get(peer_slot)) else { return false };
    let maps = |part: LinkPart| {
        let lent = other.lent(part);
        let mapped = link.window(part).map(|window| cell.space.peer_memory_in(window)).unwrap_or_default();
        let is_owned = lent.len_bytes == 0 || peer.space.can_lend(lent);
        is_owned && mapped.iter().flat_map(pages).eq(pages(&lent))
    };
    link.state() == LinkState::Open
        && others.owner() == Some(link.peer().0)
        && link.peer().1 == peer_slot
        && other.lent(LinkPart::Ring).len_bytes > 0
        && link.is_shared() == (other.lent(LinkPart::Shared).len_bytes > 0)
        && LinkPart::ALL.into_iter().all(maps)
}

/// Returns whether a cell has a closed link over which it has kept the contents of its peer's memory: the shared window maps
/// exactly the memory of its own that it has named for them.
fn has_copy<S: CellSpace>(space: &S, link: &Link) -> bool {
    let kept = link.kept();
    let maps = |window| space.peer_memory_in(window).iter().flat_map(pages).eq(pages(&kept));
    link.state() == LinkState::Closed
        && space.can_lend(kept)
        && link.window(LinkPart::Shared).is_some_and(maps)
}

/// Returns the addresses of the pages in a range.
fn pages(range: &PhysRange) -> impl Iterator<Item = u64> + use<> {
    (range.start.0..range.end().0).step_by(PAGE_SIZE as usize)
}
