//! Links: memory of one cell that another maps, by the consent of both. See [`isola_abi::links`] for the protocol.
//!
//! The policy decides which cells may have a link, and passes on the requests of cells; the core validates each. The
//! tables of links are the core's own record: cells only read them. An entry names a window before memory is mapped in
//! it, and until the cell can no longer access it:
//!
//! ```text
//! map:     lent memory and window recorded -> page tables -> TLBs flushed, if the window was in use before -> state
//! revoke:  state -> page tables -> TLBs flushed -> lent memory forgotten
//! ```
//!
//! A window stays reserved until its link's slot is free, as the cell may still have references to it.
//!
//! Memory that survives its owner is copied to memory of the reader when the owner has ended, and the copy replaces the
//! original in the page tables before the TLBs are flushed: no load finds other contents meanwhile.
//!
//! A core that does not flush leaves the memory *exposed*: its owner may use it, but it is not unplugged, and ends in
//! quarantine.
//! A flush waits for cores of one cell, each of which answers an NMI in code that the cell cannot change; no step waits
//! for a cell.
//!
//! A link survives a restart of the supervisor if both tables describe it completely: see `recovered_links`.

use super::{OwnedCell, TrustedCore};
use crate::hardware::Hardware;
use crate::report;
use crate::space::CellSpace;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use isola_abi::id::{CellId, PhysRange};
use isola_abi::layout::PAGE_SIZE;
use isola_abi::links::{
    Link, LinkAccess, LinkDemand, LinkPart, LinkRefusal, LinkState, LinkWindow, MAX_KEPT_BYTES,
    NEIGHBOUR_SERVICE, ServiceName, Survival, links_to_peer,
};

impl<H: Hardware> OwnedCell<H> {
    /// Returns the cell's request about a link and its number, if there is one that was not answered.
    pub fn link_request(&self) -> Option<(u32, Option<LinkDemand>)> {
        let number = report::link_request(self.report());
        let is_new = self.is_entered() && number != self.space.links().answered();
        is_new.then(|| (number, self.report().link_request.get()))
    }

    /// Answers the cell's request about a link.
    pub fn answer_link(&self, number: u32, answer: Result<usize, LinkRefusal>) {
        self.space.links().set_answer(number, answer);
        self.space.ring_doorbell();
    }

    /// Returns the link at a slot that has one.
    fn link(&self, slot: usize) -> Result<&Link, LinkRefusal> {
        let link = self.space.links().get(slot).filter(|link| link.state() != LinkState::Free);
        link.ok_or(LinkRefusal::WrongState)
    }

    /// Returns a free slot for a link to `peer`.
    fn free_slot(&self, peer: CellId) -> Result<usize, LinkRefusal> {
        let links = || self.space.links().iter();
        let to_peer = links().filter(|(_, link)| link.state() != LinkState::Free && link.peer().0 == peer);
        let free = links().find(|(_, link)| link.state() == LinkState::Free).map(|(slot, _)| slot);
        free.filter(|_| to_peer.count() < links_to_peer(links().count())).ok_or(LinkRefusal::NoSlot)
    }

    /// Returns whether the cell has a link for frames to `peer`.
    fn has_neighbour(&self, peer: CellId) -> bool {
        let is_present = |state| !matches!(state, LinkState::Free | LinkState::Closed);
        let mut links = self.space.links().iter().map(|(_, link)| link);
        links.any(|link| link.peer_mac().is_some() && link.peer().0 == peer && is_present(link.state()))
    }

    /// Maps memory of a peer for the link at a slot, with the window recorded before.
    fn map(
        &mut self,
        slot: usize,
        part: LinkPart,
        memory: PhysRange,
        access: LinkAccess,
    ) -> Result<(), LinkRefusal> {
        let window = match self.link(slot)?.window(part) {
            // The cell may have references to the window, which must not become longer or gain access.
            Some(window) if window.access == access && window.len_bytes() == memory.len_bytes => window,
            Some(_) => return Err(LinkRefusal::WrongState),
            None => self.space.find_window(memory.len_bytes, access).ok_or(LinkRefusal::NoTables)?,
        };
        self.link(slot)?.set_window(part, Some(window));
        let must_flush = self.space.map_peer(window, memory).ok_or(LinkRefusal::NoTables)?;
        if must_flush && !self.space.flush(&self.cores) {
            return Err(LinkRefusal::WrongState);
        }
        Ok(())
    }

    /// Revokes what the cell maps for the link at a slot. Returns the memory that a core may still access.
    #[must_use]
    fn unmap(&mut self, slot: usize, parts: &[LinkPart]) -> Vec<PhysRange> {
        let Ok(link) = self.link(slot) else { return Vec::new() };
        let windows: Vec<_> = parts.iter().filter_map(|part| link.window(*part)).collect();
        revoke(&mut self.space, &self.cores, &windows, &[])
    }

    /// Closes links at some slots, whose peer has closed them or has ended. In the latter case memory that survives the peer
    /// is replaced by its copy. Returns the memory that a core may still access.
    #[must_use]
    fn lose_links(&mut self, slots: &[usize], end: PeerEnd) -> Vec<PhysRange> {
        let links: Vec<&Link> = slots.iter().filter_map(|slot| self.link(*slot).ok()).collect();
        links.iter().for_each(|link| link.set_state(LinkState::Closed));
        let keeps = |link: &&&Link| {
            let is_kept = link.survival() == Survival::Permitted && link.kept().len_bytes > 0;
            end == PeerEnd::CellEnded && is_kept
        };
        let copy = |link: &&Link| Some((link.window(LinkPart::Shared)?, link.kept()));
        let copies: Vec<_> = links.iter().filter(keeps).filter_map(copy).collect();
        let windows = links.iter().flat_map(|link| LinkPart::ALL.map(|part| link.window(part)));
        let windows: Vec<_> = windows.flatten().collect();
        revoke(&mut self.space, &self.cores, &windows, &copies)
    }
}

/// Revokes what a cell maps in windows of its table. In the windows of `copies` the cell keeps the contents, in memory of its
/// own. Returns the memory that a core may still access, as it does not flush its TLB; that stays in the page tables,
/// where a restarted supervisor finds it.
#[must_use]
pub(super) fn revoke<S: CellSpace>(
    space: &mut S,
    cores: &[Option<S::Core>],
    windows: &[LinkWindow],
    copies: &[(LinkWindow, PhysRange)],
) -> Vec<PhysRange> {
    let mapped: Vec<_> = windows.iter().map(|window| (*window, space.peer_memory_in(*window))).collect();
    for window in windows {
        let Some((_, memory)) = copies.iter().find(|(copied, _)| copied == window) else {
            space.unmap_peer(*window);
            continue;
        };
        space.copy_window(*window, *memory);
        if space.map_peer(*window, *memory).is_none() {
            space.unmap_peer(*window);
        }
    }
    let revoked: Vec<_> = mapped.iter().flat_map(|(_, memory)| memory.iter().copied()).collect();
    if revoked.is_empty() || space.flush(cores) {
        return Vec::new();
    }
    for (LinkWindow { mut page, access, .. }, memory) in mapped {
        for range in memory {
            let pages = (range.len_bytes / PAGE_SIZE) as u32;
            // There are tables, as the pages were mapped.
            let _ = space.map_peer(LinkWindow { page, pages, access }, range);
            page += pages;
        }
    }
    revoked
}

impl<H: Hardware> TrustedCore<H> {
    /// Begins a link from a cell to a service of another, which the policy permits. Returns the opener's slot.
    ///
    /// # Errors
    /// Returns a [`LinkRefusal`].
    pub fn open_link(
        &mut self,
        number: u32,
        (opener, memory): (CellId, PhysRange),
        target: CellId,
        service: &ServiceName,
    ) -> Result<usize, LinkRefusal> {
        let [from, to] = [opener, target].map(|id| self.linkable(id));
        let (from, to) = (from?, to?);
        if opener == target {
            return Err(LinkRefusal::NoSuchCell);
        }
        if !from.space.can_lend(memory) || self.is_exposed(memory) {
            return Err(LinkRefusal::BadMemory);
        }
        let (slot, invited) = (from.free_slot(target)?, to.free_slot(opener)?);
        let is_for_frames = *service == NEIGHBOUR_SERVICE;
        if is_for_frames && from.has_neighbour(target) {
            return Err(LinkRefusal::WrongState);
        }
        from.space.links().set_owner(opener);
        to.space.links().set_owner(target);
        let begin =
            |cell: &OwnedCell<H>, slot, (peer, of): ((CellId, usize), &OwnedCell<H>), number, memory| {
                let apic = of.space.doorbell_target();
                let mac = of.space.links().own_mac().filter(|_| is_for_frames);
                let Some(link) = cell.space.links().get(slot) else { return };
                link.begin(peer, apic, number, service);
                link.set_peer_mac(mac);
                link.set_lent(LinkPart::Ring, memory);
                link.set_state(if number == 0 { LinkState::Invited } else { LinkState::Waiting });
            };
        begin(from, slot, ((target, invited), to), number, memory);
        begin(to, invited, ((opener, slot), from), 0, PhysRange::default());
        to.space.ring_doorbell();
        Ok(slot)
    }

    /// Completes a link by which a cell was invited: each maps the other's half.
    ///
    /// # Errors
    /// Returns a [`LinkRefusal`]. If the mapping failed, the link is closed.
    pub fn accept_link(&mut self, id: CellId, slot: usize, memory: PhysRange) -> Result<usize, LinkRefusal> {
        let (peer, peer_slot) = self.peer_of(id, slot, LinkState::Invited)?;
        let cell = self.linkable(id)?;
        if !cell.space.can_lend(memory) || self.is_exposed(memory) {
            return Err(LinkRefusal::BadMemory);
        }
        cell.link(slot)?.set_lent(LinkPart::Ring, memory);
        let theirs = self.linkable(peer)?.link(peer_slot)?.lent(LinkPart::Ring);
        let mapped = self
            .map(id, slot, LinkPart::Ring, theirs, LinkAccess::Read)
            .and_then(|()| self.map(peer, peer_slot, LinkPart::Ring, memory, LinkAccess::Read));
        if let Err(refusal) = mapped {
            self.close_link(id, slot)?;
            return Err(refusal);
        }
        for (id, slot) in [(id, slot), (peer, peer_slot)] {
            let cell = self.linkable(id)?;
            cell.link(slot)?.set_state(LinkState::Open);
            cell.space.ring_doorbell();
        }
        Ok(slot)
    }

    /// Maps further memory of a cell in its peer. Memory that was shared before is revoked; it must have had the same
    /// length and access.
    ///
    /// # Errors
    /// Returns a [`LinkRefusal`].
    pub fn share_over_link(
        &mut self,
        id: CellId,
        slot: usize,
        memory: PhysRange,
        access: LinkAccess,
        survival: Survival,
    ) -> Result<usize, LinkRefusal> {
        let (peer, peer_slot) = self.peer_of(id, slot, LinkState::Open)?;
        let is_too_much = access != LinkAccess::Read || memory.len_bytes > MAX_KEPT_BYTES;
        if survival == Survival::Permitted && is_too_much {
            return Err(LinkRefusal::NotSurviving);
        }
        if !self.linkable(id)?.space.can_lend(memory) || self.is_exposed(memory) {
            return Err(LinkRefusal::BadMemory);
        }
        self.unshare_over_link(id, slot)?;
        self.linkable(id)?.link(slot)?.set_lent(LinkPart::Shared, memory);
        if let Err(refusal) = self.map(peer, peer_slot, LinkPart::Shared, memory, access) {
            self.unshare_over_link(id, slot)?;
            return Err(refusal);
        }
        let cell = self.linkable(peer)?;
        let link = cell.link(peer_slot)?;
        link.set_survival(survival);
        link.set_shared(true);
        cell.space.ring_doorbell();
        Ok(slot)
    }

    /// Makes a cell keep the contents of the memory that its peer shares now, if the peer ends: in `memory`, which stays
    /// reserved for that while the link's slot is in use.
    ///
    /// # Errors
    /// Returns a [`LinkRefusal`].
    pub fn keep_over_link(
        &mut self,
        id: CellId,
        slot: usize,
        memory: PhysRange,
    ) -> Result<usize, LinkRefusal> {
        self.peer_of(id, slot, LinkState::Open)?;
        let cell = self.linkable(id)?;
        let link = cell.link(slot)?;
        let window = link.window(LinkPart::Shared).filter(|_| link.survival() == Survival::Permitted);
        let window = window.ok_or(LinkRefusal::NotSurviving)?;
        // One page for two links would have the contents of the peer that ends last.
        let is_used = cell.space.links().lends(memory) || self.is_exposed(memory);
        if is_used || memory.len_bytes != window.len_bytes() || !cell.space.can_lend(memory) {
            return Err(LinkRefusal::BadMemory);
        }
        link.set_kept(memory);
        Ok(slot)
    }

    /// Revokes the memory that a cell shares over an open link.
    ///
    /// # Errors
    /// Returns a [`LinkRefusal`].
    pub fn unshare_over_link(&mut self, id: CellId, slot: usize) -> Result<usize, LinkRefusal> {
        let (peer, peer_slot) = self.peer_of(id, slot, LinkState::Open)?;
        let theirs = self.linkable(peer)?.link(peer_slot)?;
        theirs.set_shared(false);
        theirs.set_kept(PhysRange::default());
        let revoked = self.unmap(peer, peer_slot, &[LinkPart::Shared]);
        self.linkable(id)?.link(slot)?.set_lent(LinkPart::Shared, PhysRange::default());
        self.linkable(peer)?.space.ring_doorbell();
        revoked.map(|()| slot)
    }

    /// Closes a link, or refuses an invitation: both cells lose each other's memory. The slot is free.
    ///
    /// # Errors
    /// Returns a [`LinkRefusal`] if there is no link.
    pub fn close_link(&mut self, id: CellId, slot: usize) -> Result<usize, LinkRefusal> {
        let link = self.linkable(id)?.link(slot)?;
        let (state, (peer, peer_slot)) = (link.state(), link.peer());
        if state != LinkState::Closed {
            self.close_at_peer(id, peer, &[(slot, peer_slot)], PeerEnd::Closed);
        }
        // Memory that is exposed keeps its window, and the slot with it.
        self.linkable(id)?.link(slot)?.set_state(LinkState::Closed);
        self.unmap(id, slot, &LinkPart::ALL)?;
        self.linkable(id)?.link(slot)?.set_state(LinkState::Free);
        Ok(slot)
    }

    /// Returns the running cell whose device has this hardware address, if it may have neighbours.
    pub fn neighbour(&self, mac: [u8; 6]) -> Option<CellId> {
        let has = |cell: &OwnedCell<H>| cell.is_entered() && cell.space.links().own_mac() == Some(mac);
        self.cells.iter().find(|(_, cell)| has(cell)).map(|(id, _)| *id)
    }

    /// Counts the start or the end of a cell in the tables of all cells that may be its neighbours.
    pub(super) fn note_neighbour_change(&self, id: CellId) {
        let may_have = |cell: &&OwnedCell<H>| cell.space.links().own_mac().is_some();
        if self.cells.get(&id).is_some_and(|cell| may_have(&cell)) {
            self.cells.values().filter(may_have).for_each(|cell| cell.space.links().note_neighbour_change());
        }
    }

    /// Closes all links of a cell that has ended. Its cores were reclaimed, or are lost.
    pub(super) fn end_links(&mut self, id: CellId) {
        self.note_neighbour_change(id);
        let Some(cell) = self.cells.get(&id) else { return };
        let links = cell.space.links().iter().filter(|(_, link)| link.state() != LinkState::Free);
        let mut peers: BTreeMap<CellId, Vec<(usize, usize)>> = BTreeMap::new();
        for (slot, (peer, peer_slot)) in links.map(|(slot, link)| (slot, link.peer())) {
            peers.entry(peer).or_default().push((slot, peer_slot));
        }
        for (peer, slots) in peers {
            self.close_at_peer(id, peer, &slots, PeerEnd::CellEnded);
        }
        // What the cell maps stays in its page tables and its table of links: a restarted supervisor finds it there.
        let lost = self.cells.get(&id).filter(|cell| !cell.lost.is_empty() || cell.moves.has_lost);
        self.exposed.extend(lost.map(|cell| cell.space.peer_memory()).unwrap_or_default());
    }

    /// Returns whether a lost core of another cell may still access the memory.
    pub(super) fn is_exposed(&self, memory: PhysRange) -> bool {
        self.exposed.iter().any(|range| meets(*range, memory))
    }

    /// Makes a cell lose the memory of a peer that closes links or has ended: `slots` has the peer's slot of each, and the
    /// cell's. The cell flushes its TLBs once. If it was not adopted yet, the memory is exposed until then.
    pub(super) fn close_at_peer(&mut self, id: CellId, peer: CellId, slots: &[(usize, usize)], end: PeerEnd) {
        if !self.cells.contains_key(&peer)
            && let Some(cell) = self.cells.get(&id)
        {
            let links = slots.iter().filter_map(|(slot, _)| cell.link(*slot).ok());
            self.exposed.extend(links.flat_map(lent));
            self.ended_before.insert(id);
        }
        let Ok(cell) = self.linkable(peer) else { return };
        // The peer may have closed its end, and its slot may have another link by now.
        let is_open = |(slot, peer_slot): &&(usize, usize)| {
            let link = cell.link(*peer_slot).ok().filter(|link| link.state() != LinkState::Closed);
            link.is_some_and(|link| link.peer() == (id, *slot))
        };
        let open: Vec<usize> = slots.iter().filter(is_open).map(|(_, peer_slot)| *peer_slot).collect();
        if open.is_empty() {
            return;
        }
        let exposed = self.cells.get_mut(&peer).map(|cell| cell.lose_links(&open, end));
        self.exposed.extend(exposed.unwrap_or_default());
        if let Ok(cell) = self.linkable(peer) {
            cell.space.ring_doorbell();
        }
    }

    fn map(
        &mut self,
        id: CellId,
        slot: usize,
        part: LinkPart,
        memory: PhysRange,
        access: LinkAccess,
    ) -> Result<(), LinkRefusal> {
        let cell = self.cells.get_mut(&id).ok_or(LinkRefusal::NoSuchCell)?;
        cell.map(slot, part, memory, access)
    }

    /// Revokes what a cell maps for the link at a slot.
    ///
    /// # Errors
    /// [`LinkRefusal::Exposed`]
    fn unmap(&mut self, id: CellId, slot: usize, parts: &[LinkPart]) -> Result<(), LinkRefusal> {
        let cell = self.cells.get_mut(&id);
        let exposed = cell.map(|cell| cell.unmap(slot, parts)).unwrap_or_default();
        let result = if exposed.is_empty() { Ok(()) } else { Err(LinkRefusal::Exposed) };
        self.exposed.extend(exposed);
        result
    }

    /// Returns a cell that can have links.
    fn linkable(&self, id: CellId) -> Result<&OwnedCell<H>, LinkRefusal> {
        self.cells.get(&id).filter(|cell| cell.is_entered()).ok_or(LinkRefusal::NoSuchCell)
    }

    /// Returns the peer of a cell's link in that state, and the peer's slot.
    fn peer_of(&self, id: CellId, slot: usize, state: LinkState) -> Result<(CellId, usize), LinkRefusal> {
        let link = self.linkable(id)?.link(slot)?;
        if link.state() == state { Ok(link.peer()) } else { Err(LinkRefusal::WrongState) }
    }
}

/// The reason why a cell loses a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerEnd {
    /// The peer has closed it.
    Closed,
    /// The peer has ended: shared memory may survive it.
    CellEnded,
}

/// Returns the memory that a cell gives to its peer.
pub(super) fn lent(link: &Link) -> impl Iterator<Item = PhysRange> + use<> {
    LinkPart::ALL.map(|part| link.lent(part)).into_iter().filter(|lent| lent.len_bytes > 0)
}

/// Returns whether two ranges overlap.
pub(super) fn meets(one: PhysRange, other: PhysRange) -> bool {
    one.start < other.end() && other.start < one.end() && one.len_bytes > 0 && other.len_bytes > 0
}
