//! Links: two cells that the supervisor has introduced to each other map a part of each other's memory and exchange
//! messages without it (RainForest 5.2, 5.4: FICM, RFcom).
//!
//! ```text
//!   opener                     supervisor                               listener
//!   LinkRequest: Open,
//!   its half; notifies ----->  checks the listener's policy,
//!                              reserves a slot in both tables:
//!           state Waiting <--                          --> state Invited
//!                                                          LinkRequest: Accept, its half; notifies
//!                              maps each half read-only <---
//!                              in the other cell
//!              state Open <--                          --> state Open
//! ```
//!
//! The memory belongs to the cell that names it in its request: whole pages of its pool, which stay with it while the link
//! exists and are never unplugged meanwhile. The peer maps it in the [link area](crate::layout::LINKS). [`LinkTable`]
//! follows the body in the descriptor area: the supervisor writes it, the cell reads it, and a table entry is also the
//! supervisor's own record of the link.
//!
//! **End.** When a cell closes a link, dies, or is stopped, the supervisor maps a page of the survivor itself in place of
//! the peer's memory, flushes the survivor's TLBs by NMI, and sets the state `Closed`. No access to the link area faults
//! after that, and no cell waits for the dead one. The cell frees its slot by `Close`.
//!
//! **Survival.** Memory that a cell shares for reading can survive the cell: if it permits that ([`Survival`]) and the peer
//! has named memory of its own for it ([`LinkDemand::Keep`]), the supervisor copies the contents there when the owner ends,
//! and maps the copy in place of the original.
//!
//! One request of a cell is open at a time. The answer is in [`LinkTable::answer`]; after it, and after each change of a
//! state, the supervisor interrupts the cell's first core by [`DOORBELL_VECTOR`], as peers do.

#[cfg(test)]
mod tests;

use crate::id::{ApicId, CellId, PhysAddr, PhysRange};
use crate::layout::PAGE_SIZE;
use crate::management::MAX_NAME_LEN;
use alloc::string::String;
use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The most links that any cell can have at a time.
pub const MAX_LINKS: usize = MAX_TABLE_PAGES * LINKS_A_PAGE - 1;

/// The number of links that every cell can have at a time.
pub const LEAST_LINKS: usize = LINKS_A_PAGE - 1;

/// The links in a page of a table. The table's own words take the room of one.
const LINKS_A_PAGE: usize = PAGE_SIZE as usize / size_of::<Link>();

/// The most pages of a table: those of a cell of 64 MiB.
const MAX_TABLE_PAGES: usize = 16;

/// The table's size as a fraction of the cell's initial memory: a link for each 128 KiB, which are eight times the memory
/// that a link takes with rings of the usual size.
const MEMORY_PART: u64 = 1024;

/// Returns the number of links that a cell with `memory_bytes` bytes of initial memory can have at a time.
pub const fn link_slots(memory_bytes: u64) -> usize {
    let pages = memory_bytes / MEMORY_PART / PAGE_SIZE;
    let pages = if pages < MAX_TABLE_PAGES as u64 { pages as usize } else { MAX_TABLE_PAGES };
    (if pages > 0 { pages } else { 1 }) * LINKS_A_PAGE - 1
}

/// Returns the size in bytes of a table with `slots` slots, in whole pages.
pub const fn table_bytes(slots: usize) -> u64 {
    ((slots + 1) * size_of::<Link>()).next_multiple_of(PAGE_SIZE as usize) as u64
}

/// Returns the number of links to one peer that a cell with `slots` slots can have at a time: an eighth of them, at least 8.
pub const fn links_to_peer(slots: usize) -> usize {
    let part = slots / 8;
    if part > 8 { part } else { 8 }
}

/// The most memory that a cell can give to a peer in one piece, in bytes.
pub const MAX_LENT_BYTES: u64 = 16 << 20;

/// The maximum length of a service's name, in bytes.
pub const MAX_SERVICE_LEN: usize = 24;

/// The most shared memory that survives its owner, in bytes a link: the supervisor copies it.
pub const MAX_KEPT_BYTES: u64 = 1 << 20;

/// The vector of the interrupt by which a peer, or the supervisor, announces news of a link. It goes to the cell's first
/// core, which never leaves the cell.
pub const DOORBELL_VECTOR: u8 = 0xf3;

/// The state of a link, as one of its cells sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum LinkState {
    /// The slot has no link.
    Free = 0,
    /// The cell has opened the link, and the peer has not answered.
    Waiting = 1,
    /// A peer wants to open the link: the cell accepts or closes it.
    Invited = 2,
    /// Both cells map each other's half.
    Open = 3,
    /// The peer has closed the link, refused it, or ended. The slot is free once the cell closes it as well.
    Closed = 4,
}

impl LinkState {
    /// Decodes a state; an unknown number means [`Self::Closed`].
    pub const fn from_u32(value: u32) -> Self {
        match value {
            0 => Self::Free,
            1 => Self::Waiting,
            2 => Self::Invited,
            3 => Self::Open,
            _ => Self::Closed,
        }
    }
}

/// What a peer may do with shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkAccess {
    /// Read it.
    Read,
    /// Read and write it.
    ReadWrite,
}

/// What becomes of shared memory when the cell that shares it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// The peer loses it.
    Revoked,
    /// The peer keeps the contents, in memory of its own. For memory that it may only read.
    Permitted,
}

/// A part of the link area, in pages from its start. Page 0 is never a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkWindow {
    /// The first page.
    pub page: u32,
    /// The number of pages.
    pub pages: u32,
    /// The access that the peer has permitted.
    pub access: LinkAccess,
}

impl LinkWindow {
    /// Returns the length in bytes.
    pub const fn len_bytes(&self) -> u64 {
        self.pages as u64 * PAGE_SIZE
    }
}

/// The reason why the supervisor refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum LinkRefusal {
    /// No cell of that name runs.
    NoSuchCell = 1,
    /// The peer's manifest does not list this cell.
    NotAccepted = 2,
    /// One of the two cells has as many links as it can have, in all or to this peer.
    NoSlot = 3,
    /// The memory is not whole pages of the cell's pool, or too long.
    BadMemory = 4,
    /// A cell has no memory left for the page tables of the mapping.
    NoTables = 5,
    /// The link is not in a state that permits the request.
    WrongState = 6,
    /// The request is unintelligible.
    Malformed = 7,
    /// A core of the cell that loses the memory does not flush its TLB, and may still access it.
    Exposed = 8,
    /// The peer shares no memory that survives it, or the memory is too long for that.
    NotSurviving = 9,
}

impl LinkRefusal {
    /// Decodes a refusal; an unknown number means [`Self::Malformed`].
    pub const fn from_u32(value: u32) -> Self {
        match value {
            1 => Self::NoSuchCell,
            2 => Self::NotAccepted,
            3 => Self::NoSlot,
            4 => Self::BadMemory,
            5 => Self::NoTables,
            6 => Self::WrongState,
            8 => Self::Exposed,
            9 => Self::NotSurviving,
            _ => Self::Malformed,
        }
    }
}

impl fmt::Display for LinkRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchCell => "no cell of that name runs on this machine: start it first",
            Self::NotAccepted => {
                "the other cell does not accept this one: add it to `accept` in its manifest"
            }
            Self::NoSlot => "too many links: close some, in this cell or in the other",
            Self::BadMemory => "the memory is not whole pages of the cell's pool, at most 16 MiB",
            Self::NoTables => "a cell has no memory for page tables: give it more memory",
            Self::WrongState => "the link is not open",
            Self::Exposed => "a core does not flush its TLB and may still access the memory: stop its cell",
            Self::NotSurviving => {
                "the other cell shares no memory that survives it: at most 1 MiB, for reading"
            }
            Self::Malformed => "the supervisor does not understand the request",
        })
    }
}

impl core::error::Error for LinkRefusal {}

/// The name of a service within a cell, at most [`MAX_SERVICE_LEN`] bytes of UTF-8; shorter ones end with zeros.
pub type ServiceName = [u8; MAX_SERVICE_LEN];

/// The service of links for frames between neighbours. No cell can open or listen for it by name: names have no zero
/// bytes.
pub const NEIGHBOUR_SERVICE: ServiceName = *b"\0frames\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// Marks a word that has a hardware address.
const MAC_PRESENT: u64 = 1 << 63;

/// Returns the hardware address in a word; `None` if it has none.
fn mac_of(word: u64) -> Option<[u8; 6]> {
    let [_, _, mac @ ..] = word.to_be_bytes();
    (word & MAC_PRESENT != 0).then_some(mac)
}

/// Returns the word of a hardware address.
fn mac_word(mac: Option<[u8; 6]>) -> u64 {
    mac.map_or(0, |[a, b, c, d, e, f]| MAC_PRESENT | u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
}

/// Returns a service's name; `None` if it is too long or contains a zero byte.
pub fn service_name(name: &str) -> Option<ServiceName> {
    let mut bytes = [0; MAX_SERVICE_LEN];
    bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
    (!name.contains('\0')).then_some(bytes)
}

/// A cell's request about a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkDemand {
    /// Open a link for frames to the neighbour with this hardware address, with this half: a cell of this machine whose
    /// specification and that of the asking cell agree to it.
    OpenNeighbour {
        /// The neighbour's hardware address.
        mac: [u8; 6],
        /// This cell's half.
        memory: PhysRange,
    },
    /// Open a link to a service of the cell named `target`, with this half.
    Open {
        /// The peer's name.
        target: String,
        /// The service, which the supervisor does not interpret.
        service: ServiceName,
        /// This cell's half.
        memory: PhysRange,
    },
    /// Accept an invitation, with this half.
    Accept {
        /// The slot.
        slot: usize,
        /// This cell's half.
        memory: PhysRange,
    },
    /// Share further memory with the peer.
    Share {
        /// The slot.
        slot: usize,
        /// The memory.
        memory: PhysRange,
        /// What the peer may do with it.
        access: LinkAccess,
        /// Whether the peer may keep its contents at the end of this cell.
        survival: Survival,
    },
    /// Keep the contents of the memory that the peer shares, when the peer ends, in memory of this cell.
    Keep {
        /// The slot.
        slot: usize,
        /// Memory of the same length, which this cell gives to no peer.
        memory: PhysRange,
    },
    /// Revoke the shared memory.
    Unshare {
        /// The slot.
        slot: usize,
    },
    /// Close the link, or refuse the invitation, and free the slot.
    Close {
        /// The slot.
        slot: usize,
    },
}

/// The words of a range of memory.
#[repr(C)]
#[derive(Debug, Default)]
struct RangeWords {
    start: AtomicU64,
    len_bytes: AtomicU64,
}

impl RangeWords {
    fn get(&self) -> PhysRange {
        PhysRange::new(PhysAddr(self.start.load(Ordering::Relaxed)), self.len_bytes.load(Ordering::Relaxed))
    }

    fn set(&self, range: PhysRange) {
        self.start.store(range.start.0, Ordering::Relaxed);
        self.len_bytes.store(range.len_bytes, Ordering::Relaxed);
    }
}

/// The words of a [`LinkWindow`].
#[repr(C)]
#[derive(Debug, Default)]
struct WindowWords {
    page: AtomicU32,
    /// The number of pages; 0: there is no window. Stored last (release).
    pages: AtomicU32,
    /// [`WRITABLE`], [`SURVIVES`].
    flags: AtomicU32,
}

/// The peer permits writing.
const WRITABLE: u32 = 1;

/// The peer permits that the contents survive it.
const SURVIVES: u32 = 2;

impl WindowWords {
    fn get(&self) -> Option<LinkWindow> {
        let pages = self.pages.load(Ordering::Acquire);
        let access = access_of(self.flags.load(Ordering::Relaxed));
        (pages > 0).then(|| LinkWindow { page: self.page.load(Ordering::Relaxed), pages, access })
    }

    fn set(&self, window: Option<LinkWindow>) {
        self.pages.store(0, Ordering::Release);
        if let Some(LinkWindow { page, pages, access }) = window {
            self.page.store(page, Ordering::Relaxed);
            self.flags.store(flags_of(access), Ordering::Relaxed);
            self.pages.store(pages, Ordering::Release);
        }
    }
}

fn access_of(flags: u32) -> LinkAccess {
    if flags & WRITABLE == 0 { LinkAccess::Read } else { LinkAccess::ReadWrite }
}

fn flags_of(access: LinkAccess) -> u32 {
    if access == LinkAccess::ReadWrite { WRITABLE } else { 0 }
}

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
    /// The memory of [`LinkDemand::Keep`].
    kept: RangeWords,
}

/// Which of the two pieces of memory of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkPart {
    /// The half of the rings.
    Ring,
    /// The memory of [`LinkDemand::Share`].
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

    /// Returns whether the peer shares its [`LinkPart::Shared`] now.
    pub fn is_shared(&self) -> bool {
        !self.shares.load(Ordering::Acquire).is_multiple_of(2)
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
/// follows from the cell's memory ([`link_slots`]).
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

/// A cell's current request, in its report. The cell writes all fields.
#[repr(C)]
#[derive(Debug, Default)]
pub struct LinkRequest {
    /// The request's number, incremented with each request; stored last (release).
    number: AtomicU32,
    kind: AtomicU32,
    slot: AtomicU32,
    /// [`WRITABLE`], [`SURVIVES`].
    flags: AtomicU32,
    memory: RangeWords,
    service: [AtomicU64; MAX_SERVICE_LEN / 8],
    target: [AtomicU64; NAME_WORDS],
}

/// The kind of [`LinkDemand::OpenNeighbour`].
const NEIGHBOUR_KIND: u32 = 16;

/// The words of a cell's name.
const NAME_WORDS: usize = (MAX_NAME_LEN + 1).div_ceil(8);

impl LinkRequest {
    /// Returns the number of the latest request; 0: there was none.
    pub fn number(&self) -> u32 {
        self.number.load(Ordering::Acquire)
    }

    /// Writes a request, after the previous one was answered. Returns its number. For the cell.
    pub fn put(&self, demand: &LinkDemand) -> u32 {
        let mut name = [0; 8 * NAME_WORDS];
        let (kind, slot, memory, flags) = match demand {
            LinkDemand::Open { target, service, memory } => {
                name.iter_mut().zip(target.bytes().take(MAX_NAME_LEN)).for_each(|(to, from)| *to = from);
                store_bytes(&self.service, service);
                (1, 0, *memory, 0)
            }
            LinkDemand::OpenNeighbour { mac, memory } => {
                let mut bytes = [0; MAX_SERVICE_LEN];
                bytes.iter_mut().zip(mac).for_each(|(to, from)| *to = *from);
                store_bytes(&self.service, &bytes);
                (NEIGHBOUR_KIND, 0, *memory, 0)
            }
            LinkDemand::Accept { slot, memory } => (2, *slot, *memory, 0),
            LinkDemand::Share { slot, memory, access, survival } => {
                let survives = if *survival == Survival::Permitted { SURVIVES } else { 0 };
                (3, *slot, *memory, flags_of(*access) | survives)
            }
            LinkDemand::Keep { slot, memory } => (6, *slot, *memory, 0),
            LinkDemand::Unshare { slot } => (4, *slot, PhysRange::default(), 0),
            LinkDemand::Close { slot } => (5, *slot, PhysRange::default(), 0),
        };
        store_bytes(&self.target, &name);
        self.kind.store(kind, Ordering::Relaxed);
        self.slot.store(slot as u32, Ordering::Relaxed);
        self.flags.store(flags, Ordering::Relaxed);
        self.memory.set(memory);
        // 0 means that there was no request.
        let number = self.number.load(Ordering::Relaxed).wrapping_add(1).max(1);
        self.number.store(number, Ordering::Release);
        number
    }

    /// Returns the request; `None` if it is unintelligible. Each word is read once; the contents are not validated
    /// otherwise.
    pub fn get(&self) -> Option<LinkDemand> {
        let slot = self.slot.load(Ordering::Relaxed) as usize;
        let memory = self.memory.get();
        Some(match self.kind.load(Ordering::Relaxed) {
            1 => {
                let name: [u8; 8 * NAME_WORDS] = bytes_of(&self.target);
                let name = name.split(|byte| *byte == 0).next()?;
                let target = core::str::from_utf8(name).ok()?.into();
                let service = bytes_of(&self.service);
                if service == NEIGHBOUR_SERVICE {
                    return None;
                }
                LinkDemand::Open { target, service, memory }
            }
            NEIGHBOUR_KIND => {
                let [a, b, c, d, e, f, ..] = bytes_of::<MAX_SERVICE_LEN>(&self.service);
                LinkDemand::OpenNeighbour { mac: [a, b, c, d, e, f], memory }
            }
            2 => LinkDemand::Accept { slot, memory },
            3 => {
                let flags = self.flags.load(Ordering::Relaxed);
                let survival = if flags & SURVIVES == 0 { Survival::Revoked } else { Survival::Permitted };
                LinkDemand::Share { slot, memory, access: access_of(flags), survival }
            }
            4 => LinkDemand::Unshare { slot },
            5 => LinkDemand::Close { slot },
            6 => LinkDemand::Keep { slot, memory },
            _ => return None,
        })
    }
}

/// Returns the bytes in the words.
fn bytes_of<const N: usize>(words: &[AtomicU64]) -> [u8; N] {
    let mut bytes = [0; N];
    for (part, word) in bytes.chunks_mut(8).zip(words) {
        let value = word.load(Ordering::Relaxed).to_le_bytes();
        part.iter_mut().zip(value).for_each(|(to, from)| *to = from);
    }
    bytes
}

/// Stores bytes, a multiple of 8, in the words.
fn store_bytes(words: &[AtomicU64], bytes: &[u8]) {
    for (part, word) in bytes.as_chunks().0.iter().zip(words) {
        word.store(u64::from_le_bytes(*part), Ordering::Relaxed);
    }
}
