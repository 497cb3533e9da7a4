//! The table of a cell's links.

use super::{
    LinkRefusal, LinkState, LinkWindow, MAX_LINKS, MAX_SERVICE_LEN, RangeWords, SURVIVES, ServiceName,
    Survival, WindowWords, bytes_of, mac_of, mac_word, store_bytes, table_bytes,
};
use crate::id::{ApicId, CellId, PhysRange};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A link, in the table of one of its cells. The supervisor writes all fields.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct Link {
    /// A [`LinkState`]; stored last (release).
    state: AtomicU32,
    peer: AtomicU32,
    peer_slot: AtomicU32,
    peer_apic: AtomicU32,
    /// The number of the request by which this cell opened the link; 0 if the peer did.
    request: AtomicU32,
    /// The number of times that the peer has shared or revoked its [`LinkPart::Shared`]: odd while it is shared.
    shares: AtomicU32,
    ring: WindowWords,
    shared: WindowWords,
    own_ring: RangeWords,
    own_shared: RangeWords,
    service: [AtomicU64; MAX_SERVICE_LEN / 8],
    /// The peer's hardware address, of a link for frames.
    peer_mac: AtomicU64,
    /// The memory of [`LinkDemand::Keep`](super::LinkDemand::Keep).
    kept: RangeWords,
}

/// Which of the two pieces of memory of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkPart {
    /// The half of the rings.
    Ring,
    /// The memory of [`LinkDemand::Share`](super::LinkDemand::Share).
    Shared,
}

impl LinkPart {
    /// Both parts.
    pub const ALL: [Self; 2] = [Self::Ring, Self::Shared];
}

impl Link {
    /// Returns the state.
    pub fn state(&self) -> LinkState {
        LinkState::from_u32(self.state.load(Ordering::Acquire))
    }

    /// Changes the state. For the supervisor.
    pub fn set_state(&self, state: LinkState) {
        self.state.store(state as u32, Ordering::Release);
    }

    /// Returns the peer, and the link's slot in the peer's table.
    pub fn peer(&self) -> (CellId, usize) {
        (CellId(self.peer.load(Ordering::Relaxed)), self.peer_slot.load(Ordering::Relaxed) as usize)
    }

    /// Returns the APIC id of the peer's first core: the destination of doorbells.
    pub fn peer_apic(&self) -> ApicId {
        ApicId(self.peer_apic.load(Ordering::Relaxed))
    }

    /// Returns the number of the request by which this cell opened the link; 0 if the peer did.
    pub fn request(&self) -> u32 {
        self.request.load(Ordering::Relaxed)
    }

    /// Returns the service's name.
    pub fn service(&self) -> ServiceName {
        bytes_of(&self.service)
    }

    /// Returns the peer's hardware address, according to the supervisor; `None` if the link is not one for frames.
    pub fn peer_mac(&self) -> Option<[u8; 6]> {
        mac_of(self.peer_mac.load(Ordering::Relaxed))
    }

    /// Records the peer's hardware address, after [`Self::begin`]. For the supervisor.
    pub fn set_peer_mac(&self, mac: Option<[u8; 6]>) {
        self.peer_mac.store(mac_word(mac), Ordering::Relaxed);
    }

    /// Returns the number of times that the peer has shared or revoked its [`LinkPart::Shared`], modulo 2^32.
    pub fn shares(&self) -> u32 {
        self.shares.load(Ordering::Acquire)
    }

    /// Returns whether the peer shares its [`LinkPart::Shared`] now.
    pub fn is_shared(&self) -> bool {
        !self.shares().is_multiple_of(2)
    }

    /// Returns whether the memory that the peer shares now may survive the peer.
    pub fn survival(&self) -> Survival {
        let survives = self.is_shared() && self.shared.flags.load(Ordering::Relaxed) & SURVIVES != 0;
        if survives { Survival::Permitted } else { Survival::Revoked }
    }

    /// Records whether the memory that the peer shares may survive it, before [`Self::set_shared`]. For the supervisor.
    pub fn set_survival(&self, survival: Survival) {
        let flags = self.shared.flags.load(Ordering::Relaxed) & !SURVIVES;
        let survives = if survival == Survival::Permitted { SURVIVES } else { 0 };
        self.shared.flags.store(flags | survives, Ordering::Relaxed);
    }

    /// Returns the memory of this cell that takes the place of what the peer shares when the peer ends, or has taken it;
    /// empty if there is none.
    pub fn kept(&self) -> PhysRange {
        self.kept.get()
    }

    /// Records the memory of [`Self::kept`]. For the supervisor.
    pub fn set_kept(&self, memory: PhysRange) {
        self.kept.set(memory);
    }

    /// Records whether the peer shares its [`LinkPart::Shared`]. For the supervisor.
    pub fn set_shared(&self, is_shared: bool) {
        if self.is_shared() != is_shared {
            self.shares.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns where this cell maps the peer's memory, or did until the peer revoked it.
    pub fn window(&self, part: LinkPart) -> Option<LinkWindow> {
        self.window_words(part).get()
    }

    /// Records where the cell maps the peer's memory, before it does. For the supervisor.
    pub fn set_window(&self, part: LinkPart, window: Option<LinkWindow>) {
        self.window_words(part).set(window);
    }

    /// Returns the memory that this cell gives to the peer; empty if there is none.
    pub fn lent(&self, part: LinkPart) -> PhysRange {
        self.lent_words(part).get()
    }

    /// Records the memory that the cell gives to the peer. For the supervisor.
    pub fn set_lent(&self, part: LinkPart, memory: PhysRange) {
        self.lent_words(part).set(memory);
    }

    /// Begins a link in a free slot. For the supervisor.
    pub fn begin(&self, peer: (CellId, usize), apic: ApicId, request: u32, service: &ServiceName) {
        self.peer.store(peer.0.0, Ordering::Relaxed);
        self.peer_slot.store(peer.1 as u32, Ordering::Relaxed);
        self.peer_apic.store(apic.0, Ordering::Relaxed);
        self.request.store(request, Ordering::Relaxed);
        self.set_shared(false);
        for part in LinkPart::ALL {
            self.set_window(part, None);
            self.set_lent(part, PhysRange::default());
        }
        self.set_kept(PhysRange::default());
        store_bytes(&self.service, service);
        self.set_peer_mac(None);
    }

    fn window_words(&self, part: LinkPart) -> &WindowWords {
        match part {
            LinkPart::Ring => &self.ring,
            LinkPart::Shared => &self.shared,
        }
    }

    fn lent_words(&self, part: LinkPart) -> &RangeWords {
        match part {
            LinkPart::Ring => &self.own_ring,
            LinkPart::Shared => &self.own_shared,
        }
    }
}

/// The links of a cell, in its descriptor area at [`LINKS_OFFSET`](crate::descriptor::LINKS_OFFSET). The number of slots
/// follows from the cell's memory ([`link_slots`](super::link_slots)).
#[repr(C, align(128))]
#[derive(Debug)]
pub struct LinkTable<L: ?Sized = [Link]> {
    /// The number of the last request that was answered; stored last (release).
    answered: AtomicU32,
    /// The answer: the slot, and in the lowest byte a [`LinkRefusal`] or 0.
    result: AtomicU32,
    /// The number of changes of the table, modulo 2^32; incremented (release) after them.
    changes: AtomicU32,
    /// The cell's id, once it has had a link; 0 before. A restarted supervisor finds the peers of a cell by it.
    owner: AtomicU32,
    /// The number of changes of the cells that may be neighbours, modulo 2^32.
    neighbours: AtomicU32,
    /// The hardware address of this cell's device, if it may have neighbours.
    own_mac: AtomicU64,
    links: L,
}

const _: () = assert!(size_of::<LinkTable<[Link; MAX_LINKS]>>() as u64 == table_bytes(MAX_LINKS));

impl<const SLOTS: usize> Default for LinkTable<[Link; SLOTS]> {
    fn default() -> Self {
        let links = core::array::from_fn(|_| Link::default());
        let zero = || AtomicU32::new(0);
        Self {
            answered: zero(),
            result: zero(),
            changes: zero(),
            owner: zero(),
            neighbours: zero(),
            own_mac: AtomicU64::new(0),
            links,
        }
    }
}

impl LinkTable {
    /// Returns the table of `slots` slots at an address.
    pub const fn at(start: *const u8, slots: usize) -> *const Self {
        core::ptr::slice_from_raw_parts(start.cast::<Link>(), slots) as *const Self
    }

    /// Returns the link at a slot.
    pub fn get(&self, slot: usize) -> Option<&Link> {
        self.links.get(slot)
    }

    /// Returns all slots and their links.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Link)> {
        self.links.iter().enumerate()
    }

    /// Returns the id of the cell that has the table, if it has had a link.
    pub fn owner(&self) -> Option<CellId> {
        let id = self.owner.load(Ordering::Relaxed);
        (id != 0).then_some(CellId(id))
    }

    /// Records the id of the cell that has the table. For the supervisor.
    pub fn set_owner(&self, owner: CellId) {
        self.owner.store(owner.0, Ordering::Relaxed);
    }

    /// Returns whether a slot has a link.
    pub fn has_links(&self) -> bool {
        self.links.iter().any(|link| link.state() != LinkState::Free)
    }

    /// Returns the number of changes of the table, modulo 2^32.
    pub fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }

    /// Counts a change, before the cell is interrupted. For the supervisor.
    pub fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Returns the hardware address of the cell's device if the cell may have neighbours: cells with which it exchanges
    /// frames over links.
    pub fn own_mac(&self) -> Option<[u8; 6]> {
        mac_of(self.own_mac.load(Ordering::Relaxed))
    }

    /// Permits neighbours. For the supervisor, before the cell starts.
    pub fn set_own_mac(&self, mac: Option<[u8; 6]>) {
        self.own_mac.store(mac_word(mac), Ordering::Relaxed);
    }

    /// Returns how often a cell that may be a neighbour has started or ended, modulo 2^32: an earlier answer that a cell is
    /// no neighbour may be wrong after a change.
    pub fn neighbour_changes(&self) -> u32 {
        self.neighbours.load(Ordering::Acquire)
    }

    /// Counts the start or the end of a cell that may be a neighbour. For the supervisor.
    pub fn note_neighbour_change(&self) {
        self.neighbours.fetch_add(1, Ordering::Release);
    }

    /// Returns the number of the last request that was answered.
    pub fn answered(&self) -> u32 {
        self.answered.load(Ordering::Acquire)
    }

    /// Returns the answer to the request with that number, if it is there: the slot, or the refusal.
    pub fn answer(&self, number: u32) -> Option<Result<usize, LinkRefusal>> {
        if self.answered() != number {
            return None;
        }
        let result = self.result.load(Ordering::Relaxed);
        Some(match result & 0xff {
            0 => Ok((result >> 8) as usize),
            refusal => Err(LinkRefusal::from_u32(refusal)),
        })
    }

    /// Answers a request. For the supervisor.
    pub fn set_answer(&self, number: u32, answer: Result<usize, LinkRefusal>) {
        let result = match answer {
            Ok(slot) => (slot as u32) << 8,
            Err(refusal) => refusal as u32,
        };
        self.result.store(result, Ordering::Relaxed);
        self.answered.store(number, Ordering::Release);
    }

    /// Returns whether a part of `memory` is given to a peer, or [kept](Link::kept) for the contents of a peer's.
    pub fn lends(&self, memory: PhysRange) -> bool {
        let meets = |lent: PhysRange| lent.start < memory.end() && memory.start < lent.end();
        let held = self.links.iter().filter(|link| link.state() != LinkState::Free);
        let mut lent =
            held.flat_map(|link| [link.lent(LinkPart::Ring), link.lent(LinkPart::Shared), link.kept()]);
        lent.any(|lent| lent.len_bytes > 0 && meets(lent))
    }

    /// Returns the first page of `pages` free pages of the link area, which has `area_pages`; page 0 is not free.
    pub fn find_room(&self, pages: u32, area_pages: u32) -> Option<u32> {
        let held = self.links.iter().filter(|link| link.state() != LinkState::Free);
        let windows = held.flat_map(|link| LinkPart::ALL.map(|part| link.window(part)));
        let mut used: alloc::vec::Vec<LinkWindow> = windows.flatten().collect();
        used.sort_by_key(|window| window.page);
        let mut free = 1_u32;
        for window in used {
            if window.page >= free && window.page - free >= pages {
                break;
            }
            free = free.max(window.page.saturating_add(window.pages));
        }
        free.checked_add(pages).filter(|end| *end <= area_pages).map(|_| free)
    }
}
