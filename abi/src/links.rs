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

mod request;
mod table;
#[cfg(test)]
mod tests;

pub use request::{LinkDemand, LinkRequest};
pub use table::{Link, LinkPart, LinkTable};

use crate::id::{PhysAddr, PhysRange};
use crate::layout::PAGE_SIZE;
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
            Self::NoSlot => {
                "too many links: close some, or start the cell that has the most of them with more memory (32 links for \
                 each 4 MiB)"
            }
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
